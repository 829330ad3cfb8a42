//! The shims of this engine: the zygote that forks them, and a connection to each.
//!
//! ```text
//!  driver ── ShimLink::call, launch ──▶ connection task ── packets ──▶ shim
//!  driver ◀── FromShim: launches, events, copies of descriptors, the loss, in the order in which they came
//! ```
//! The task of a connection only uses a nonblocking descriptor: a shim that hangs costs no thread.

mod connection;

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Duration;

use podwright_linux::pidfd::PidFd;
use podwright_linux::scm;
use podwright_shim::client::ShimClient;
use podwright_shim::zygote::{ForkedShim, Zygote, ZygoteError, ZygoteOptions, process_name};

pub(crate) use connection::{FromShim, ShimCallError, ShimLink, ShimReport};

use crate::machine::SandboxId;

/// Why there is no shim.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShimStartError {
    #[error("prepare the run directory {}", path.display())]
    RunDir {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Zygote(#[from] ZygoteError),
    #[error("use the socket of the shim")]
    Socket(#[source] io::Error),
}

/// A shim is being forked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ZygoteBusy;

/// Forks shims and finds living ones. All functions block.
#[derive(Debug)]
pub(crate) struct Shims {
    pods_dir: PathBuf,
    options: ZygoteOptions,
    /// Started when the first shim is needed, and again when it has ended.
    zygote: Mutex<Option<Zygote>>,
}

/// A shim and the client's end of a connection to it.
#[derive(Debug)]
pub(crate) struct ConnectedShim {
    pub(crate) client: ShimClient,
    pub(crate) pidfd: Arc<OwnedFd>,
}

impl Shims {
    pub(crate) fn new(pods_dir: PathBuf, options: ZygoteOptions) -> Self {
        Self { pods_dir, options, zygote: Mutex::default() }
    }

    /// The run directory of a pod.
    pub(crate) fn pod_dir(&self, sandbox: &SandboxId) -> PathBuf {
        self.pods_dir.join(&sandbox.0)
    }

    /// Forks a shim for a pod, whose run directory is made. A zygote that has ended is replaced once.
    pub(crate) fn fork(&self, sandbox: &SandboxId) -> Result<ConnectedShim, ShimStartError> {
        let path = self.pod_dir(sandbox);
        let dir = make_dir(&path).and_then(|()| File::open(&path));
        let dir = dir.map_err(|source| ShimStartError::RunDir { path, source })?;
        let mut zygote = self.zygote.lock().unwrap_or_else(PoisonError::into_inner);
        let forked = match fork_from(&mut zygote, &self.options, sandbox, &dir) {
            Err(ZygoteError::Gone | ZygoteError::Control(_) | ZygoteError::Protocol(_)) => {
                *zygote = None;
                fork_from(&mut zygote, &self.options, sandbox, &dir)
            }
            other => other,
        };
        let ForkedShim { connection, pidfd, .. } = forked?;
        let client = ShimClient::from_socket(connection).map_err(ShimStartError::Socket)?;
        Ok(ConnectedShim { client, pidfd: Arc::new(pidfd) })
    }

    /// Connects to the living shim of a pod. `None`: there is none.
    pub(crate) fn connect(&self, sandbox: &SandboxId) -> Result<Option<ConnectedShim>, ShimStartError> {
        let path = self.pod_dir(sandbox);
        let dir = match File::open(&path) {
            Ok(dir) => dir,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(ShimStartError::RunDir { path, source }),
        };
        let client = match ShimClient::connect(dir.as_fd()) {
            Ok(client) => client,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                return Ok(None);
            }
            Err(error) => return Err(ShimStartError::Socket(error)),
        };
        let listening = match scm::peer_pidfd(&client) {
            Ok(pidfd) => Some(PidFd::from(pidfd)),
            Err(_) => {
                let peer = rustix::net::sockopt::socket_peercred(&client);
                let pid = peer.map_err(|e| ShimStartError::Socket(e.into()))?.pid.as_raw_nonzero().get();
                named_shim(u32::try_from(pid).unwrap_or_default(), sandbox).map_err(ShimStartError::Socket)?
            }
        };
        let Some(pidfd) = listening else { return Ok(None) };
        // A launcher that hangs keeps the socket of a shim that has ended.
        if pidfd.wait_exit(Duration::ZERO).map_err(ShimStartError::Socket)? {
            return Ok(None);
        }
        Ok(Some(ConnectedShim { client, pidfd: Arc::new(pidfd.into_fd()) }))
    }

    /// The zygote's pid, if it runs. `Err`: a shim is being forked, and the zygote may be replaced.
    pub(crate) fn zygote_pid(&self) -> Result<Option<u32>, ZygoteBusy> {
        match self.zygote.try_lock() {
            Ok(zygote) => Ok(zygote.as_ref().map(Zygote::pid)),
            Err(TryLockError::Poisoned(zygote)) => Ok(zygote.into_inner().as_ref().map(Zygote::pid)),
            Err(TryLockError::WouldBlock) => Err(ZygoteBusy),
        }
    }

    /// Ends the zygote. Shims stay.
    pub(crate) fn end_zygote(&self) {
        *self.zygote.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The process with this pid, if it has the name of the pod's shim. The credentials of a socket are those of the process that listened:
/// its pid may be another process now, which must not get a signal.
fn named_shim(pid: u32, sandbox: &SandboxId) -> io::Result<Option<PidFd>> {
    // A pid that is now a thread of another process is invalid.
    let is_gone = |error: &io::Error| {
        use rustix::io::Errno;
        matches!(Errno::from_io_error(error), Some(Errno::SRCH | Errno::NOENT | Errno::INVAL))
    };
    let named = PidFd::open(pid).and_then(|pidfd| {
        // Read after the open: if it is the shim's, the descriptor is, too.
        let name = fs::read_to_string(format!("/proc/{pid}/comm"))?;
        Ok((name.trim_end() == process_name(&sandbox.0)).then_some(pidfd))
    });
    match named {
        Err(error) if is_gone(&error) => Ok(None),
        named => named,
    }
}

fn fork_from(
    zygote: &mut Option<Zygote>,
    options: &ZygoteOptions,
    sandbox: &SandboxId,
    dir: &File,
) -> Result<ForkedShim, ZygoteError> {
    let zygote = match zygote {
        Some(zygote) => zygote,
        None => zygote.insert(Zygote::start(options)?),
    };
    zygote.fork(&sandbox.0, dir.as_fd())
}

/// Makes a directory of the run directory, only for root.
pub(crate) fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Before Linux 6.5 only the name distinguishes a shim from a process that has its pid now.
    #[test]
    fn a_process_with_another_name_is_no_shim() {
        let sandbox = SandboxId("0123456789abcdef".into());
        assert!(named_shim(std::process::id(), &sandbox).unwrap().is_none(), "another program");
        let script = "printf shim:0123456789 > /proc/$$/comm; echo; read end";
        let mut shell = Command::new("sh");
        let mut shim = shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        io::Read::read_exact(&mut shim.stdout.take().unwrap(), &mut [0]).unwrap();
        assert!(named_shim(shim.id(), &sandbox).unwrap().is_some());
        assert!(named_shim(shim.id(), &SandboxId("1".repeat(64))).unwrap().is_none(), "of another pod");
        drop(shim.stdin.take());
        shim.wait().unwrap();
        assert!(named_shim(shim.id(), &sandbox).unwrap().is_none(), "it has ended");
    }
}
