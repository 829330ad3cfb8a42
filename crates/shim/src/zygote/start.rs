//! The agent's half: starts a zygote and has it fork shims.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use podwright_linux::fsctx::{self, MountChange};
use podwright_linux::pidfd::PidFd;
use podwright_linux::{exit_info, scm};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::process::Signal;
use rustix::time::Timespec;

use super::ZYGOTE_VERB;
use crate::protocol::{ForkReply, ForkRequest, ProtocolError, decode, encode};

/// Why a zygote or shim was not started.
#[derive(Debug, thiserror::Error)]
pub enum ZygoteError {
    /// The executable cannot be cloned read-only.
    #[error("clone the executable")]
    Clone(#[source] io::Error),
    /// The process cannot be started.
    #[error("start the zygote")]
    Start(#[source] io::Error),
    /// The zygote cannot join a cgroup.
    #[error("move the zygote to {path}")]
    Cgroup {
        /// A `cgroup.procs`.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The zygote has ended: start another one.
    #[error("the zygote has ended")]
    Gone,
    /// The control socket cannot be used, or no answer came in time: start another one.
    #[error("ask the zygote for a shim")]
    Control(#[source] io::Error),
    /// The zygote could not fork.
    #[error("fork a shim for pod {pod}")]
    Fork {
        /// Id of the sandbox.
        pod: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// An answer that is none: start another one.
    #[error("the zygote's answer")]
    Protocol(#[from] ProtocolError),
}

/// How a zygote is started.
#[derive(Clone, Debug, Default)]
pub struct ZygoteOptions {
    /// `cgroup.procs` files that it is written to, one per hierarchy. Shims and launchers inherit the cgroups.
    pub cgroup_procs: Vec<PathBuf>,
    /// The soft limit of open files of containers; `None`: that of this process, which may have raised its own.
    pub open_files: Option<u64>,
}

/// A running zygote. It ends when this is dropped; its shims do not.
#[derive(Debug)]
pub struct Zygote {
    control: Option<OwnedFd>,
    pid: u32,
    /// From its start: by the time of its end the pid may be another process.
    pidfd: OwnedFd,
}

/// A shim that was just forked.
#[derive(Debug)]
pub struct ForkedShim {
    /// The agent's end of the first connection.
    pub connection: OwnedFd,
    /// Of the shim.
    pub pid: u32,
    /// Of the shim.
    pub pidfd: OwnedFd,
}

impl Zygote {
    /// Starts this program's executable as a zygote. `main` must ask [`is_zygote`](super::is_zygote) first.
    pub fn start(options: &ZygoteOptions) -> Result<Self, ZygoteError> {
        let executable = read_only_executable().map_err(ZygoteError::Clone)?;
        let (control, theirs) = scm::packet_pair().map_err(ZygoteError::Start)?;
        let mut child = Command::new(format!("/proc/self/fd/{}", executable.as_raw_fd()))
            .arg0("podwright")
            .arg(ZYGOTE_VERB)
            .args(options.open_files.map(|limit| limit.to_string()))
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .current_dir("/")
            .spawn()
            .map_err(ZygoteError::Start)?;
        let pid = child.id();
        let pidfd = match PidFd::open(pid) {
            Ok(pidfd) => pidfd.into_fd(),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(ZygoteError::Start(error));
            }
        };
        let zygote = Self { control: Some(control), pid, pidfd };
        for path in &options.cgroup_procs {
            // Dropped with an error: it ends.
            fs::write(path, pid.to_string()).map_err(|source| ZygoteError::Cgroup { path: path.clone(), source })?;
        }
        Ok(zygote)
    }

    /// Forks a shim for a pod whose run directory is open. Blocks for at most `ANSWER_LIMIT`.
    pub fn fork(&mut self, pod: &str, pod_dir: BorrowedFd<'_>) -> Result<ForkedShim, ZygoteError> {
        let control = self.control.as_ref().ok_or(ZygoteError::Gone)?;
        let (ours, theirs) = scm::packet_pair().map_err(ZygoteError::Control)?;
        let request = ForkRequest { pod: pod.to_owned() };
        let sent = scm::send(control, &encode(&request), &[theirs.as_fd(), pod_dir]);
        sent.map_err(|error| match error.raw_os_error() {
            Some(libc::EPIPE | libc::ECONNRESET) => ZygoteError::Gone,
            _ => ZygoteError::Control(error),
        })?;
        let answer =
            wait_readable(control).and_then(|()| scm::receive_packet(control)).map_err(ZygoteError::Control)?;
        let answer = answer.ok_or(ZygoteError::Gone)?;
        let reply: ForkReply = decode(&answer.bytes)?;
        let Some(pid) = reply.pid else {
            let source = io::Error::from_raw_os_error(reply.errno);
            return Err(ZygoteError::Fork { pod: pod.to_owned(), source });
        };
        let [pidfd] = <[OwnedFd; 1]>::try_from(answer.fds).map_err(|_| ProtocolError::Missing("its pidfd"))?;
        Ok(ForkedShim { connection: ours, pid, pidfd })
    }

    /// Of the zygote.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        drop(self.control.take());
        if !has_ended(&self.pidfd) {
            let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
            has_ended(&self.pidfd);
        }
        // Reaps it, unless another part of the program has.
        let _ = exit_info::poll(&self.pidfd, true);
    }
}

/// Waits for a process for at most `END_LIMIT`.
fn has_ended(pidfd: &OwnedFd) -> bool {
    let ended = pidfd.try_clone().and_then(|pidfd| PidFd::from(pidfd).wait_exit(END_LIMIT));
    ended.unwrap_or_default()
}

/// A detached mount of this program's file that cannot be written.
fn read_only_executable() -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(rustix::fs::CWD, c"/proc/self/exe", flags)?;
    fsctx::change(&tree, false, &MountChange { set: fsctx::attributes::RDONLY, ..MountChange::default() })?;
    Ok(tree)
}

fn wait_readable(socket: &OwnedFd) -> io::Result<()> {
    let limit = Timespec { tv_sec: i64::try_from(ANSWER_LIMIT.as_secs()).unwrap_or(i64::MAX), tv_nsec: 0 };
    loop {
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&limit)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// A fork takes a fraction of a millisecond; a host that swaps may take longer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// A zygote ends as soon as its control socket is closed.
const END_LIMIT: Duration = Duration::from_secs(2);
