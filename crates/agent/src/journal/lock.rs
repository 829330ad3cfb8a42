//! Locks the root directory: a second agent fails to start, with the pid of the first in its error.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// The root directory can't be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another agent holds the lock.
    #[error(
        "{} is in use by another agent{}: stop that one first, or give this one its own --root-dir",
        dir.display(), pid.map(|p| format!(" (pid {p})")).unwrap_or_default()
    )]
    Taken {
        /// The directory.
        dir: PathBuf,
        /// The other agent's pid; `None`: it could not be read.
        pid: Option<u32>,
    },
    /// The directory or the lock file can't be created.
    #[error("lock {}: {source}", dir.display())]
    Io {
        /// The directory.
        dir: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Attempts and the pause between them: half a second in total.
const ATTEMPTS: u32 = 10;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

/// The lock of the root directory. The kernel releases it when the process ends.
#[derive(Debug)]
pub struct AgentLock {
    _file: File,
}

impl AgentLock {
    /// Creates the directory if needed, and locks it.
    pub fn take(root_dir: &Path) -> Result<Self, LockError> {
        let failed = |source| LockError::Io { dir: root_dir.to_owned(), source };
        super::create_root_dir(root_dir).map_err(failed)?;
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(root_dir.join("agent.lock"))
            .map_err(failed)?;
        let mut taken = flock(&file, FlockOperation::NonBlockingLockExclusive);
        // An agent that is exiting, or a child process it is just starting, releases the lock soon.
        for _ in 0..ATTEMPTS {
            if taken != Err(rustix::io::Errno::WOULDBLOCK) {
                break;
            }
            std::thread::sleep(PAUSE);
            taken = flock(&file, FlockOperation::NonBlockingLockExclusive);
        }
        match taken {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let _ = file.take(32).read_to_string(&mut text);
                return Err(LockError::Taken { dir: root_dir.to_owned(), pid: text.trim().parse().ok() });
            }
            Err(errno) => return Err(failed(errno.into())),
        }
        // The pid is informational and may be missing on a full disk; the lock is valid without it.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(format!("{}\n", std::process::id()).as_bytes()));
        Ok(Self { _file: file })
    }
}
