//! The local API's door: a socket in the run directory, for root and for the user the agent runs as, and for nobody else.
//!
//! Three locks: the directory (0700 if we made it), the socket's mode (0600, from its first moment on), and the caller's
//! credentials, which the kernel vouches for. A socket that a dead agent left is replaced; one that answers is not.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

use crate::serve::{self, Door};

mod answer;
mod body;
mod discovery;
mod events;
mod exec;
mod failure;
mod params;
mod pods;
mod request;
mod selector;
mod verbs;
mod watch;
mod write;

pub use answer::{Local, Tell, Views};
pub use exec::Streamer;
pub(crate) use failure::Failure;
pub(crate) use params::Params;

/// The socket's name in the run directory.
pub const NAME: &str = "api.sock";

/// Why there is no local API.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The directory can't be had.
    #[error("make {}", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another agent has it.
    #[error("another agent uses {}: give this one another --run-dir", path.display())]
    Taken {
        /// Which.
        path: PathBuf,
    },
    /// Something is in the way.
    #[error("{} is there and is no socket: remove it", path.display())]
    Strange {
        /// What.
        path: PathBuf,
    },
    /// The socket can't be made.
    #[error("listen on {}", path.display())]
    Bind {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The open door. The socket goes with it.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Held on the directory for as long as the agent lives, so that two that start at once don't take each other's socket.
    _lock: OwnedFd,
}

impl Socket {
    /// Open the door in this directory, which is made if it isn't there.
    pub fn open(run_dir: &Path) -> Result<Self, SocketError> {
        let directory = |source: io::Error| SocketError::Directory { path: run_dir.to_owned(), source };
        make_dir(run_dir).map_err(directory)?;
        let lock = rustix::fs::open(run_dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let lock = lock.map_err(|error| directory(error.into()))?;
        let path = run_dir.join(NAME);
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(SocketError::Taken { path });
        }
        clear_stale(&path)?;
        match bind(&path) {
            Ok(listener) => Ok(Self { listener, path, _lock: lock }),
            Err(source) => Err(SocketError::Bind { path, source }),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Answer from what there is until told to stop.
    pub async fn serve(self, local: Local, stop: CancellationToken) {
        let room = Arc::new(answer::Room::new(local, stop.clone()));
        serve::serve(self, move |request| answer::answer(Arc::clone(&room), request), stop).await;
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The lock is still ours, and so is the name.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Door for Socket {
    type Stream = UnixStream;
    const PLACES: usize = CALLERS_MAX;

    async fn next(&self) -> io::Result<Option<UnixStream>> {
        let (stream, _) = self.listener.accept().await?;
        let uid = stream.peer_cred()?.uid();
        if uid != 0 && uid != rustix::process::geteuid().as_raw() {
            tracing::warn!(uid, "a caller of the local API was turned away");
            return Ok(None);
        }
        Ok(Some(stream))
    }
}

fn make_dir(run_dir: &Path) -> io::Result<()> {
    if let Some(above) = run_dir.parent() {
        std::fs::create_dir_all(above)?;
    }
    match DirBuilder::new().mode(0o700).create(run_dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && run_dir.is_dir() => Ok(()),
        other => other,
    }
}

fn clear_stale(path: &Path) -> Result<(), SocketError> {
    let Ok(there) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !there.file_type().is_socket() {
        return Err(SocketError::Strange { path: path.to_owned() });
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(SocketError::Taken { path: path.to_owned() });
    }
    std::fs::remove_file(path).map_err(|source| SocketError::Bind { path: path.to_owned(), source })
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Before it has a name: the file gets this mode, and there is no moment at which others could come in.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    UnixListener::from_std(StdListener::from(socket))
}

/// Callers at once; so many of them may stay for long that there is always room for a short question.
const CALLERS_MAX: usize = 256;
/// Watches, logs and execs at once.
const STREAMS_MAX: usize = 200;
/// Callers that wait for their turn in the kernel.
const BACKLOG: i32 = 64;

#[cfg(test)]
mod tests;
