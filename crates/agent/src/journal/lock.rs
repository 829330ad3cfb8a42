//! One agent per root directory: a second one is refused, and told who the first is.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Why this process may not use the root directory.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another agent has it.
    #[error(
        "{} is in use by another agent{}: stop that one first, or give this one its own --root-dir",
        dir.display(), pid.map(|p| format!(" (pid {p})")).unwrap_or_default()
    )]
    Taken {
        /// The directory.
        dir: PathBuf,
        /// The other's process id, if it could be read.
        pid: Option<u32>,
    },
    /// The directory or the lock file can't be made.
    #[error("lock {}: {source}", dir.display())]
    Io {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The lock is tried so often, with such pauses between: half a second in all.
const TRIES: u32 = 10;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

/// The root directory is this process's for as long as the value lives; the kernel lets go of it when the process dies.
#[derive(Debug)]
pub struct AgentLock {
    _file: File,
}

impl AgentLock {
    /// Make the directory if it isn't there, and take it.
    pub fn take(root_dir: &Path) -> Result<Self, LockError> {
        let failed = |source| LockError::Io { dir: root_dir.to_owned(), source };
        super::make_dir(root_dir).map_err(failed)?;
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(root_dir.join("agent.lock"))
            .map_err(failed)?;
        let mut taken = flock(&file, FlockOperation::NonBlockingLockExclusive);
        // An agent that is just ending, or a child it is just starting, lets go in a moment.
        for _ in 0..TRIES {
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
        // The pid is for people. On a full disk it may be missing; the lock counts all the same.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(format!("{}\n", std::process::id()).as_bytes()));
        Ok(Self { _file: file })
    }
}
