//! The local API's socket in the run directory. Only root and the user the agent runs as may connect.
//!
//! Three checks enforce this: the directory's mode (0700 if the agent created it), the socket's mode (0600 from its creation), and the
//! peer's credentials as reported by the kernel. A stale socket of a dead agent is replaced; one that accepts connections is not.

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

use crate::serve::{self, ConnectionListener, WhenFull};

mod body;
mod discovery;
mod events;
mod exec;
mod images;
mod metrics;
mod openapi;
mod patch;
mod pods;
mod restart_stop;
mod route;
mod router;
mod selector;
mod table;
mod watch;
mod write;

pub use images::{
    ARCHIVE_ERROR, FreedContent, ImageErrorKind, ImageFuture, ImageLine, ImageLines, ImageRequestError, LayerAmount,
    NodeImage, NodeImages, PodPull, PodPulls, PullAmount, PullRequest, SentImageLine,
};
pub use metrics::{NodeCapacity, UsageSource};
pub use router::{AgentApi, ExplainFormatter, LocalApi, PullLookup};
pub use table::TableCells;

/// The socket's file name in the run directory.
pub const SOCKET_NAME: &str = "api.sock";

/// Why the local API's socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The run directory could not be created or opened.
    #[error("create {}", path.display())]
    Directory {
        /// The run directory.
        path: PathBuf,
        /// The failed system call.
        source: io::Error,
    },
    /// Another process holds the directory's lock, or accepts connections on the socket.
    #[error("another agent uses {}: give this one another --run-dir", path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// A file that is not a socket has the socket's name.
    #[error("{} exists and is not a socket: remove it", path.display())]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
    /// The socket could not be created, or a stale one not removed.
    #[error("listen on {}", path.display())]
    Bind {
        /// The socket.
        path: PathBuf,
        /// The failed system call.
        source: io::Error,
    },
}

/// The listening socket. Its file is removed on drop.
#[derive(Debug)]
pub struct LocalSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Held on the directory for the life of the process, so that two agents that start at once do not replace each other's socket.
    _lock: OwnedFd,
}

impl LocalSocket {
    /// Opens the socket in this directory, which is created if it does not exist.
    pub fn open(run_dir: &Path) -> Result<Self, SocketError> {
        let directory = |source: io::Error| SocketError::Directory { path: run_dir.to_owned(), source };
        create_run_dir(run_dir).map_err(directory)?;
        let lock = rustix::fs::open(run_dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let lock = lock.map_err(|error| directory(error.into()))?;
        let path = run_dir.join(SOCKET_NAME);
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(SocketError::InUse { path });
        }
        remove_stale_socket(&path)?;
        match bind(&path) {
            Ok(listener) => Ok(Self { listener, path, _lock: lock }),
            Err(source) => Err(SocketError::Bind { path, source }),
        }
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Serves the API until `stop` is cancelled.
    pub async fn serve(self, api: LocalApi, stop: CancellationToken) {
        let state = Arc::new(router::LocalState::new(api, stop.clone()));
        serve::serve(self, move |request| router::handle(Arc::clone(&state), request), stop).await;
    }
}

impl Drop for LocalSocket {
    fn drop(&mut self) {
        // The lock is still held here, so the file is this agent's.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl ConnectionListener for LocalSocket {
    type Stream = UnixStream;
    const CONNECTIONS_MAX: usize = CONNECTIONS_MAX;
    const WHEN_FULL: WhenFull = WhenFull::Wait;

    async fn next(&self) -> io::Result<Option<UnixStream>> {
        let (stream, _) = self.listener.accept().await?;
        let uid = stream.peer_cred()?.uid();
        if uid != 0 && uid != rustix::process::geteuid().as_raw() {
            tracing::warn!(uid, "local API connection rejected");
            return Ok(None);
        }
        Ok(Some(stream))
    }
}

fn create_run_dir(run_dir: &Path) -> io::Result<()> {
    if let Some(parent) = run_dir.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(run_dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && run_dir.is_dir() => Ok(()),
        other => other,
    }
}

fn remove_stale_socket(path: &Path) -> Result<(), SocketError> {
    let Ok(existing) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !existing.file_type().is_socket() {
        return Err(SocketError::NotASocket { path: path.to_owned() });
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(SocketError::InUse { path: path.to_owned() });
    }
    std::fs::remove_file(path).map_err(|source| SocketError::Bind { path: path.to_owned(), source })
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Before the bind: the file is created with this mode, so other users can never connect.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    UnixListener::from_std(StdListener::from(socket))
}

/// Connections at once; more than [`STREAMS_MAX`], so that short requests are always served.
const CONNECTIONS_MAX: usize = 256;
/// Pulls, loads, saves and removals of images at once; each may occupy a thread and the disk.
const TRANSFERS_MAX: usize = 8;
/// Watches, logs and execs at once.
const STREAMS_MAX: usize = 200;
/// The kernel's accept queue.
const BACKLOG: i32 = 64;

/// Parses selectors and applies them, for the fuzz targets.
#[cfg(feature = "fuzzing")]
pub fn fuzz_selectors(labels: &str, fields: &str) {
    if let Ok(selector) = selector::Selector::parse(Some(labels), Some(fields), &["metadata.name"]) {
        selector.matches(None, |_| Some("name"));
    }
    if let Ok(selector) = selector::Selector::parse(Some(labels), None, &[]) {
        let labels = std::collections::BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        selector.matches(Some(&labels), |_| None);
    }
}

#[cfg(test)]
mod tests;
