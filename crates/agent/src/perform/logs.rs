//! A removed container's log: the runtime only knows where it was, the file and its rotated parts are ours to remove.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::situation::blocking;
use crate::host::Pool;

/// Removes a log and its rotated parts. A failure is logged: the whole directory goes with the pod anyway.
pub(super) async fn remove(pool: &Pool, logs_dir: &Path, log: String) {
    let log = PathBuf::from(log);
    // The runtime's word is not enough to delete by: only what lies under the logs directory is ours.
    if !log.starts_with(logs_dir) || log.components().any(|part| part == Component::ParentDir) {
        return;
    }
    let path = log.clone();
    if let Err(error) = blocking(pool, "logs", PATIENCE, move || remove_with_rotated(&path)).await {
        tracing::warn!(log = %log.display(), error = error.message(), "a container's log could not be removed");
    }
}

/// `3.log`, and `3.log.20260101-120000` and the like beside it.
fn remove_with_rotated(log: &Path) -> Result<(), String> {
    remove_file(log)?;
    let (Some(dir), Some(name)) = (log.parent(), log.file_name().and_then(|name| name.to_str())) else { return Ok(()) };
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(()) };
    let prefix = format!("{name}.");
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)) {
            remove_file(&entry.path())?;
        }
    }
    Ok(())
}

fn remove_file(path: &Path) -> Result<(), String> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("remove {}: {error}", path.display()))
        }
        _ => Ok(()),
    }
}

/// A hung file system under the logs costs the removal this much.
const PATIENCE: Duration = Duration::from_secs(2);
