//! What agent, zygote and shims say to each other.
//!
//! ```text
//!  agent ── ForkRequest + socket, run directory ──▶ zygote ── ForkReply + pidfd ──▶ agent
//!  agent ── Request{id, body} + descriptors ──▶ shim ── Answer | Event | Hold ──▶ agent
//! ```
//! One message per packet of a `SOCK_SEQPACKET` socket, with its descriptors; plans, which can be large, are in sealed memfds.
//! The first request on a connection is `Hello`. A packet that does not parse closes the connection and nothing else.
//!
//! Fields are only added, and a request that the shim does not know is answered with `Unsupported`: a shim lives as long as its
//! pod and serves newer and older agents. `testdata/packets` holds packets of every version.

mod framing;
mod messages;
#[cfg(test)]
mod tests;

pub use framing::{ProtocolError, read_sealed, sealed_memfd};
pub(crate) use framing::{decode, encode};
pub use messages::{
    AbortLaunch, AckExit, Adopt, AdoptContainer, AdoptRefusal, Attach, AttachStream, CloseStdin, ContainerPhase,
    DescriptorKind, Done, ExecExited, ExecRequest, ExecStarted, ExitReport, Exited, ForkReply, ForkRequest, Hello,
    HelloReply, Hold, LaunchFailed, LaunchReply, LaunchRequest, LogFailed, ProcessIdentity, RefusalReason, ReopenLog,
    ReportedContainer, Request, RequestAnswer, RequestRefusal, SetupReply, SetupRequest, ShimEvent, ShimPacket,
    ShimShutdown, StdioPlan, StopSignal, StopSignalReply, StopSignalResult, answer, event, request, shim_packet,
};

/// The version that this code speaks; an agent accepts shims down to `PROTOCOL_MIN`.
pub const PROTOCOL: u32 = 1;

/// The oldest version that this code understands.
pub(crate) const PROTOCOL_MIN: u32 = 1;

/// The name of a shim's socket in the run directory of its pod.
pub const SOCKET_NAME: &str = "shim.sock";

/// The directory with one directory per container, in the run directory of a pod.
pub const CONTAINERS_DIR: &str = "c";

/// Containers that one shim holds, running or not yet acknowledged. Their list must fit a packet.
pub(crate) const CONTAINERS_MAX: usize = 256;

/// Execs that one shim holds, running or not yet acknowledged.
pub(crate) const EXECS_MAX: usize = 256;
