//! Files that are replaced as a whole: after a crash the old or the new content is there, never a mixture.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A failed operation on a file of the store.
#[derive(Debug, thiserror::Error)]
#[error("{action} {}", path.display())]
pub struct DurableFileError {
    /// What was tried, as a verb.
    pub action: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// The kernel's answer.
    #[source]
    pub source: io::Error,
}

/// Adds operation and path to an I/O error.
pub(crate) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DurableFileError {
    move |source| DurableFileError { action, path: path.to_owned(), source }
}

/// Replaces the file. Synced: it survives a power loss once this returns.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<(), DurableFileError> {
    let aside = path.with_extension("new");
    let mut file = File::create(&aside).map_err(failed("create", &aside))?;
    file.write_all(content).map_err(failed("write", &aside))?;
    file.sync_all().map_err(failed("sync", &aside))?;
    fs::rename(&aside, path).map_err(failed("rename", &aside))?;
    sync_dir(path.parent().unwrap_or(Path::new("/")))
}

/// Makes renames in this directory survive a power loss.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), DurableFileError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed("sync", dir))
}
