//! The messages. Tags are never reused; what an older peer does not send has the default value.

mod answers;
mod descriptors;
mod events;
mod fork;
mod packets;
mod requests;

pub use answers::{
    AdoptRefusal, ContainerPhase, Done, ExecStarted, HelloReply, LaunchFailed, LaunchReply, RefusalReason,
    ReportedContainer, RequestAnswer, RequestRefusal, SetupReply, StopSignalReply, StopSignalResult, answer,
};
pub use descriptors::{DescriptorKind, ProcessIdentity};
pub use events::{ExecExited, ExitReport, Exited, LogFailed, ShimEvent, event};
pub use fork::{ForkReply, ForkRequest};
pub use packets::{Hold, ShimPacket, shim_packet};
pub use requests::{
    AbortLaunch, AckExit, Adopt, AdoptContainer, Attach, AttachStream, CloseStdin, ExecRequest, Hello, LaunchRequest,
    ReopenLog, Request, SetupRequest, ShimShutdown, StdioPlan, StopSignal, request,
};
