//! A lock file with the pid of its owner: one process at a time uses a directory.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// The lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockFileError {
    /// Another process has it.
    #[error("locked by process {pid}")]
    Held {
        /// As that process wrote it; `unknown` if it has not yet.
        pid: String,
    },
    /// The kernel refused an operation.
    #[error("{action}")]
    File {
        /// A verb.
        action: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

/// Takes the lock without waiting and writes the pid of this process. It is held until the returned file is closed; the file stays.
pub fn take(path: &Path) -> Result<File, LockFileError> {
    let failed = |action| move |source| LockFileError::File { action, source };
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    let mut file = file.map_err(failed("open"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            // The pid is only for the message.
            let _ = file.take(20).read_to_string(&mut pid);
            let pid = if pid.trim().is_empty() { "unknown".to_owned() } else { pid.trim().to_owned() };
            return Err(LockFileError::Held { pid });
        }
        Err(error) => return Err(failed("lock")(error.into())),
    }
    file.set_len(0).map_err(failed("write"))?;
    writeln!(file, "{}", std::process::id()).map_err(failed("write"))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_has_one_owner_until_it_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = take(&path).unwrap();
        match take(&path) {
            Err(LockFileError::Held { pid }) => assert_eq!(pid, std::process::id().to_string()),
            other => panic!("{other:?}"),
        }
        drop(first);
        take(&path).unwrap();
    }
}
