//! The log of a removed container: the runtime does not remove the file and its rotated parts.

use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::files::blocking;
use crate::host::Pool;

/// Removes a log and its rotated parts. A failure is only logged: the directory is removed with the pod anyway.
pub(super) async fn remove(pool: &Pool, logs_dir: &Path, log: String) {
    let log = PathBuf::from(log);
    // The path comes from the runtime: only files below the pod logs directory are removed.
    if !log.starts_with(logs_dir) || log.components().any(|part| part == Component::ParentDir) {
        return;
    }
    let path = log.clone();
    // A key per container: the directory of one may be large or slow.
    let key = format!("logs {}", log.parent().unwrap_or(logs_dir).display());
    if let Err(error) = blocking(pool, &key, REMOVE_TIME_MAX, move || remove_with_rotated(&path)).await {
        tracing::warn!(path = %log.display(), error = error.message(), "removing a container log failed");
    }
}

/// Removes `3.log` and its rotated parts such as `3.log.20260101-120000`.
fn remove_with_rotated(log: &Path) -> Result<(), RemoveLogError> {
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

#[derive(Debug, thiserror::Error)]
#[error("remove {}: {source}", path.display())]
struct RemoveLogError {
    path: PathBuf,
    source: io::Error,
}

fn remove_file(path: &Path) -> Result<(), RemoveLogError> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(RemoveLogError { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// A hung file system delays the removal of a container by at most this.
const REMOVE_TIME_MAX: Duration = Duration::from_secs(2);
