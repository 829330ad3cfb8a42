//! The launcher: from a plan to a process that executes its program.
//!
//! ```text
//!  init                        shim ── clone3 ──▶ child: all steps ── execve ──▶ the program
//!  init with a user namespace  shim ── clone3 ──▶ helper: steps on the host, enters the namespaces ── clone3(PARENT) ──▶ child
//!  init in a PID namespace     as with a user namespace; the child has nothing of the host any more, as other containers see it
//!  of other containers, exec
//! ```
//! A helper reports the child, which waits for that, so that it can be killed. The child reports that it is about to execute (with
//! its pidfd and user), or a failure. A failure of `execve` itself is another packet; the end of the stream means executed. The caller must have one thread only: the child goes on with a copy of its
//! memory, in which another thread could have held a lock.

mod dev;
mod exec;
mod external;
mod failure;
mod finish;
mod init;
mod mask;
mod mounts;
mod pending;
mod report;
mod reset;
mod rootfs;
mod setup;
mod sources;
mod targets;
mod user;

use std::os::fd::OwnedFd;
use std::rc::Rc;

pub use exec::begin_exec;
pub(crate) use external::{begin_external_exec, begin_external_init};
pub use failure::{LaunchFailure, LaunchStep};
pub use init::begin_init;
pub use pending::{Launched, PendingLaunch};
pub(crate) use reset::set_open_files;
pub use setup::setup_pod;

/// A launch between the clone and `execve`, for an event loop: nothing of it waits.
pub trait LaunchInProgress: std::fmt::Debug {
    /// Readable when [`LaunchInProgress::advance`] has something to do. It may be another one after each call.
    fn awaited(&self) -> Rc<OwnedFd>;
    /// The result, once there is one. After a failure no process is left. Not to be called after a result.
    fn advance(&mut self) -> Option<Result<Launched, LaunchFailure>>;
    /// Kills every process of the launch; its result is then a failure.
    fn kill(&mut self);
    /// Whether this child is one of the launch, which is reaped with it.
    fn has_process(&self, pid: u32) -> bool;
}

/// The namespaces of a pod. `None`: the host's.
#[derive(Debug, Default)]
pub struct PodNamespaces {
    /// The owner of all others.
    pub user: Option<OwnedFd>,
    /// Network.
    pub net: Option<OwnedFd>,
    /// System V IPC and message queues.
    pub ipc: Option<OwnedFd>,
    /// Host name.
    pub uts: Option<OwnedFd>,
    /// Processes: the pod's, or for one launch that of the target container.
    pub pid: Option<OwnedFd>,
    /// The pid 1 of a shared PID namespace, a child of the caller.
    pub pause: Option<Launched>,
}

/// The standard streams of a process, opened by the shim.
#[derive(Debug)]
pub enum ContainerStdio {
    /// A descriptor each.
    Streams {
        /// Becomes descriptor 0.
        stdin: OwnedFd,
        /// Becomes descriptor 1.
        stdout: OwnedFd,
        /// Becomes descriptor 2.
        stderr: OwnedFd,
    },
    /// The slave side of a pty: all three, and the controlling terminal.
    Terminal(OwnedFd),
}
