//! From the agent to a shim.

use super::descriptors::{DescriptorKind, ProcessIdentity};

/// To a shim.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    /// Chosen by the agent; the answer has the same.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// `None`: a request that this version does not know.
    #[prost(oneof = "request::RequestKind", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13")]
    pub body: Option<request::RequestKind>,
}

/// The kinds of requests.
pub mod request {
    /// What is asked of the shim.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum RequestKind {
        /// Always first.
        #[prost(message, tag = "2")]
        Hello(super::Hello),
        /// Makes the namespaces of the pod.
        #[prost(message, tag = "3")]
        Setup(super::SetupRequest),
        /// Starts a container.
        #[prost(message, tag = "4")]
        Launch(super::LaunchRequest),
        /// Gives up a launch.
        #[prost(message, tag = "5")]
        AbortLaunch(super::AbortLaunch),
        /// Closes the shim's end of a container's standard input.
        #[prost(message, tag = "6")]
        CloseStdin(super::CloseStdin),
        /// Opens the log again, after a rotation.
        #[prost(message, tag = "7")]
        ReopenLog(super::ReopenLog),
        /// The agent has recorded an event.
        #[prost(message, tag = "8")]
        AckExit(super::AckExit),
        /// Ends the shim.
        #[prost(message, tag = "9")]
        Shutdown(super::ShimShutdown),
        /// Sends the stop signal, once per container.
        #[prost(message, tag = "10")]
        StopSignal(super::StopSignal),
        /// Starts a process in a container.
        #[prost(message, tag = "11")]
        Exec(super::ExecRequest),
        /// Connects to the standard streams of a container.
        #[prost(message, tag = "12")]
        Attach(super::Attach),
        /// Takes over containers of a shim that was lost.
        #[prost(message, tag = "13")]
        Adopt(super::Adopt),
    }
}

/// Versions and boot of the agent.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Hello {
    /// The oldest version that the agent speaks.
    #[prost(uint32, tag = "1")]
    pub protocol_min: u32,
    /// The newest version that the agent speaks.
    #[prost(uint32, tag = "2")]
    pub protocol_max: u32,
    /// Names of optional behaviour. None so far.
    #[prost(string, repeated, tag = "3")]
    pub features: Vec<String>,
    /// `/proc/sys/kernel/random/boot_id`: a shim of another boot cannot exist, so another id is a mistake.
    #[prost(string, tag = "4")]
    pub boot_id: String,
}

/// Descriptors: the `SetupPlan` in a memfd.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SetupRequest {}

/// Descriptors: the `LaunchPlan` in a memfd.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct LaunchRequest {
    /// Also the name of its run directory.
    #[prost(string, tag = "1")]
    pub container: String,
    /// Standard streams.
    #[prost(message, optional, tag = "2")]
    pub stdio: Option<StdioPlan>,
    /// Milliseconds until a launcher that hangs is killed; 0: two minutes.
    #[prost(uint32, tag = "3")]
    pub deadline_ms: u32,
    /// The log file; empty: output is discarded.
    #[prost(string, tag = "4")]
    pub log_path: String,
    /// The file that counts OOM kills: `memory.oom_control` (v1) or `memory.events.local` (v2) of the container; empty: not counted.
    #[prost(string, tag = "5")]
    pub oom_file: String,
    /// A running container of the pod whose PID namespace is joined instead of the pod's; empty: none.
    #[prost(string, tag = "6")]
    pub target_container: String,
}

/// The standard streams of a process.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct StdioPlan {
    /// A pty instead of pipes.
    #[prost(bool, tag = "1")]
    pub terminal: bool,
    /// Standard input is connected; otherwise it is `/dev/null`.
    #[prost(bool, tag = "2")]
    pub stdin: bool,
    /// Standard input is closed when the first attached client has left.
    #[prost(bool, tag = "3")]
    pub stdin_once: bool,
}

/// The answer to `Launch` is then `LaunchFailed`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AbortLaunch {
    /// Container id.
    #[prost(string, tag = "1")]
    pub container: String,
}

/// A container without standard input is fine.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CloseStdin {
    /// Container id.
    #[prost(string, tag = "1")]
    pub container: String,
}

/// The file of this name is created if it is missing. On failure the old one stays in use.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ReopenLog {
    /// Container id.
    #[prost(string, tag = "1")]
    pub container: String,
}

/// The event and what it is about are forgotten. An unknown number is fine.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct AckExit {
    /// Of the event.
    #[prost(uint64, tag = "1")]
    pub seq: u64,
}

/// Refused while a container runs. The pause process is killed.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ShimShutdown {}

/// Asks for the stop signal of a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct StopSignal {
    /// Container id.
    #[prost(string, tag = "1")]
    pub container: String,
    /// 1 to 64.
    #[prost(uint32, tag = "2")]
    pub signal: u32,
}

/// Descriptors: the `ExecPlan` in a memfd.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ExecRequest {
    /// Container id.
    #[prost(string, tag = "1")]
    pub container: String,
    /// Chosen by the agent, unique in the pod.
    #[prost(string, tag = "2")]
    pub exec: String,
    /// Standard streams; `stdin_once` has no meaning here.
    #[prost(message, optional, tag = "3")]
    pub stdio: Option<StdioPlan>,
    /// ExecSync: the process group is killed when the agent's connection ends, and after `deadline_ms`.
    #[prost(bool, tag = "4")]
    pub sync: bool,
    /// Milliseconds from the request; 0: none. Only with `sync`.
    #[prost(uint64, tag = "5")]
    pub deadline_ms: u64,
}

/// The answer carries a stream socket for each of `streams`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Attach {
    /// Container id.
    #[prost(string, tag = "1")]
    pub container: String,
    /// Each at most once. A terminal has no stderr.
    #[prost(enumeration = "AttachStream", repeated, tag = "2")]
    pub streams: Vec<i32>,
}

/// The standard streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum AttachStream {
    /// Only for containers with `stdin`.
    Stdin = 0,
    /// Output; of a terminal, everything.
    Stdout = 1,
    /// Not of a terminal.
    Stderr = 2,
}

/// Descriptors: those of `namespaces`, then those of each container. The answer is that of `Hello`, with what could not be
/// adopted. Many containers are adopted by
/// several of these.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Adopt {
    /// Kinds of the pod's descriptors: namespaces, and the pidfd of the pause process.
    #[prost(enumeration = "DescriptorKind", repeated, tag = "1")]
    pub namespaces: Vec<i32>,
    /// Containers that were running.
    #[prost(message, repeated, tag = "2")]
    pub containers: Vec<AdoptContainer>,
}

/// A container of a shim that was lost.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AdoptContainer {
    /// Container id.
    #[prost(string, tag = "1")]
    pub container: String,
    /// Its init.
    #[prost(message, optional, tag = "2")]
    pub process: Option<ProcessIdentity>,
    /// As at its launch.
    #[prost(message, optional, tag = "3")]
    pub stdio: Option<StdioPlan>,
    /// As at its launch.
    #[prost(string, tag = "4")]
    pub log_path: String,
    /// As at its launch.
    #[prost(string, tag = "5")]
    pub oom_file: String,
    /// Kinds of its descriptors: pidfd and pty master, if the agent has them.
    #[prost(enumeration = "DescriptorKind", repeated, tag = "6")]
    pub descriptors: Vec<i32>,
}
