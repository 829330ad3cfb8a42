//! Records of pods in which a bug was met, kept for whoever looks for it: `quarantine/<uid>.json` in the root directory.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use podwright_core::model::PodRecord;

use super::{Host, HostError, paths};

/// So many are kept: the newest.
const KEPT: usize = 20;

impl Host {
    /// Writes the record aside and returns where to. A spec may hold secrets: only root reads it.
    pub async fn keep_aside(&self, record: PodRecord, limit: Duration) -> Result<PathBuf, HostError> {
        self.run("quarantine", limit, "", move |config| {
            let uid = record.uid.as_str();
            if !paths::is_plain(uid) {
                return Err(HostError::new("", format!("{uid:?} is no name for a file")));
            }
            let dir = config.paths.root_dir.join("quarantine");
            let text = serde_json::to_vec_pretty(&record).map_err(|e| HostError::new("", e.to_string()))?;
            keep(&dir, &format!("{uid}.json"), &text).map_err(|e| HostError::new("", format!("{}: {e}", dir.display())))
        })
        .await
    }
}

fn keep(dir: &Path, name: &str, text: &[u8]) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let path = dir.join(name);
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?.write_all(text)?;
    prune(dir)?;
    Ok(path)
}

fn prune(dir: &Path) -> io::Result<()> {
    let mut all = vec![];
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        all.push((entry.metadata()?.modified()?, entry.path()));
    }
    all.sort();
    for (_, path) in all.iter().take(all.len().saturating_sub(KEPT)) {
        fs::remove_file(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_newest_are_kept_and_only_root_reads_them() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("quarantine");
        for n in 0..KEPT + 5 {
            keep(&place, &format!("{n:02}.json"), b"{}").unwrap();
        }
        let names: Vec<_> = fs::read_dir(&place).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names.len(), KEPT);
        let newest = place.join(format!("{:02}.json", KEPT + 4));
        assert_eq!(fs::metadata(newest).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
