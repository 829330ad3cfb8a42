//! Records of pods whose state machine panicked, saved for debugging as `<root dir>/quarantine/<uid>.json`.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use podwright_core::model::PodRecord;

use super::{Host, HostCause, HostError};
use crate::pod_spec::is_plain_name;

/// The number of records kept; older ones are removed.
const RECORDS_MAX: usize = 20;

impl Host {
    /// Saves the record and returns its path. Readable by root only: a spec may contain secrets.
    pub(crate) async fn save_quarantined(&self, record: PodRecord, limit: Duration) -> Result<PathBuf, HostError> {
        let saved = self.io.run("quarantine", limit, move |config| {
            let uid = record.uid.as_str();
            if !is_plain_name(uid) {
                return Err(HostCause::NotAFileName(uid.into()));
            }
            let dir = config.paths.root_dir.join("quarantine");
            let text = serde_json::to_vec_pretty(&record).map_err(HostCause::Encode)?;
            save(&dir, &format!("{uid}.json"), &text).map_err(HostCause::io("write to", &dir))
        });
        saved.await.map_err(HostError::SaveRecord)
    }
}

fn save(dir: &Path, name: &str, text: &[u8]) -> io::Result<PathBuf> {
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
    for (_, path) in all.iter().take(all.len().saturating_sub(RECORDS_MAX)) {
        fs::remove_file(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_newest_records_are_kept_and_only_root_can_read_them() {
        let dir = tempfile::tempdir().unwrap();
        let quarantine = dir.path().join("quarantine");
        for n in 0..RECORDS_MAX + 5 {
            save(&quarantine, &format!("{n:02}.json"), b"{}").unwrap();
        }
        let names: Vec<_> = fs::read_dir(&quarantine).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names.len(), RECORDS_MAX);
        let newest = quarantine.join(format!("{:02}.json", RECORDS_MAX + 4));
        assert_eq!(fs::metadata(newest).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
