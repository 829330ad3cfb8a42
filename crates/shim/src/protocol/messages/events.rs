//! From a shim: what happened to its processes. Repeated until acknowledged.

/// What happened. Kept until acknowledged.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ShimEvent {
    /// Increases by one per event of this shim.
    #[prost(uint64, tag = "1")]
    pub seq: u64,
    /// `None`: an event that this version does not know; acknowledge it.
    #[prost(oneof = "event::EventBody", tags = "2, 3, 4, 5")]
    pub body: Option<event::EventBody>,
}

/// The kinds of events.
pub mod event {
    /// What happened.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum EventBody {
        /// A container has exited and its output is in the log.
        #[prost(message, tag = "2")]
        Exited(super::Exited),
        /// An exec has exited.
        #[prost(message, tag = "3")]
        ExecExited(super::ExecExited),
        /// A log cannot be written. One per container and failure.
        #[prost(message, tag = "4")]
        LogFailed(super::LogFailed),
        /// The pause process has exited, and with it every process of the pod.
        #[prost(message, tag = "5")]
        PauseExited(super::ExitReport),
    }
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ExitReport {
    /// The exit code; 128 + n for signal n; 255 if unknown.
    #[prost(uint32, tag = "1")]
    pub code: u32,
    /// The signal that ended it; 0: none.
    #[prost(uint32, tag = "2")]
    pub signal: u32,
    /// Nanoseconds since 1970.
    #[prost(uint64, tag = "3")]
    pub finished_at: u64,
    /// The process was not a child of this shim, and the kernel does not report how it ended.
    #[prost(bool, tag = "4")]
    pub unknown: bool,
}

/// The end of a container. The file `exit` holds the same.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Exited {
    /// Container id.
    #[prost(string, tag = "1")]
    pub container: String,
    /// Exit code or signal, and the time.
    #[prost(message, optional, tag = "2")]
    pub report: Option<ExitReport>,
    /// Processes of its cgroup that the kernel killed for lack of memory.
    #[prost(uint64, tag = "3")]
    pub oom_kills: u64,
    /// Nanoseconds since 1970; 0: adopted.
    #[prost(uint64, tag = "4")]
    pub started_at: u64,
}

/// The end of an exec.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ExecExited {
    /// Container id.
    #[prost(string, tag = "1")]
    pub container: String,
    /// As in the request.
    #[prost(string, tag = "2")]
    pub exec: String,
    /// Exit code or signal, and the time.
    #[prost(message, optional, tag = "3")]
    pub report: Option<ExitReport>,
    /// It was killed because of its deadline.
    #[prost(bool, tag = "4")]
    pub deadline_exceeded: bool,
}

/// Output is being lost.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct LogFailed {
    /// Container id.
    #[prost(string, tag = "1")]
    pub container: String,
    /// The kernel's error.
    #[prost(int32, tag = "2")]
    pub errno: i32,
}
