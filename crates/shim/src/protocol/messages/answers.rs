//! From a shim: the results of requests.

use super::descriptors::{DescriptorKind, ProcessIdentity};
use crate::launch::{LaunchFailure, LaunchStep};
use crate::plan::ResolvedUser;

/// The answer to a request.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RequestAnswer {
    /// Of the request.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// `None`: an answer that this version does not know.
    #[prost(oneof = "answer::AnswerBody", tags = "2, 3, 4, 5, 6, 7, 8, 9")]
    pub body: Option<answer::AnswerBody>,
}

/// The kinds of answers.
pub mod answer {
    /// The result of a request.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum AnswerBody {
        /// To everything that has no result of its own. `Attach`: the stream sockets come with it.
        #[prost(message, tag = "2")]
        Done(super::Done),
        /// Nothing was done.
        #[prost(message, tag = "3")]
        Refusal(super::RequestRefusal),
        /// To `Hello` and `Adopt`.
        #[prost(message, tag = "4")]
        Hello(super::HelloReply),
        /// To `Setup`.
        #[prost(message, tag = "5")]
        Setup(super::SetupReply),
        /// To `Launch`.
        #[prost(message, tag = "6")]
        Launched(super::LaunchReply),
        /// To `Setup`, `Launch` and `Exec`.
        #[prost(message, tag = "7")]
        LaunchFailed(super::LaunchFailed),
        /// To `StopSignal`.
        #[prost(message, tag = "8")]
        StopSignal(super::StopSignalReply),
        /// To `Exec`.
        #[prost(message, tag = "9")]
        ExecStarted(super::ExecStarted),
    }
}

/// It is done.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Done {}

/// Nothing was done.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RequestRefusal {
    /// For the agent.
    #[prost(enumeration = "RefusalReason", tag = "1")]
    pub reason: i32,
    /// For users and logs.
    #[prost(string, tag = "2")]
    pub text: String,
}

/// Why nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum RefusalReason {
    /// A request that this shim does not know.
    Unsupported = 0,
    /// No such container.
    NotFound = 1,
    /// It exists already.
    Exists = 2,
    /// Not in this state: a launch that has ended, a container that has exited, a shutdown while containers run.
    WrongState = 3,
    /// The request itself is wrong.
    Invalid = 4,
    /// A limit of the protocol.
    TooMany = 5,
    /// The kernel or a file system refused.
    Io = 6,
}

/// The state of the shim.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HelloReply {
    /// The version that both speak.
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// As in `Hello`.
    #[prost(string, repeated, tag = "2")]
    pub features: Vec<String>,
    /// As in `Hello`.
    #[prost(string, tag = "3")]
    pub boot_id: String,
    /// The id of the sandbox.
    #[prost(string, tag = "4")]
    pub pod: String,
    /// All that were not acknowledged as exited.
    #[prost(message, repeated, tag = "5")]
    pub containers: Vec<ReportedContainer>,
    /// How many `Hold` packets follow.
    #[prost(uint32, tag = "6")]
    pub holds: u32,
    /// How many `Event` packets follow these: events that were not acknowledged, in their order.
    #[prost(uint32, tag = "7")]
    pub events: u32,
    /// To `Adopt`: what could not be adopted. All else of the request was.
    #[prost(message, repeated, tag = "8")]
    pub refused: Vec<AdoptRefusal>,
}

/// A part of `Adopt` that was not adopted.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AdoptRefusal {
    /// Container id; `None`: the namespaces or the pause process of the pod.
    #[prost(string, optional, tag = "1")]
    pub container: Option<String>,
    /// The reason; always set.
    #[prost(message, optional, tag = "2")]
    pub refusal: Option<RequestRefusal>,
}

/// A container of the shim.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ReportedContainer {
    /// Container id.
    #[prost(string, tag = "1")]
    pub container: String,
    /// How far it is.
    #[prost(enumeration = "ContainerPhase", tag = "2")]
    pub phase: i32,
    /// Its init; `None` while it is launched.
    #[prost(message, optional, tag = "3")]
    pub process: Option<ProcessIdentity>,
    /// The stop signal was sent.
    #[prost(bool, tag = "4")]
    pub stop_signal_sent: bool,
}

/// How far a container is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ContainerPhase {
    /// Its program is not executed yet.
    Launching = 0,
    /// Its program runs.
    Running = 1,
    /// Its init has exited. The event follows when its output was drained.
    Exited = 2,
}

/// Descriptors: those of `kinds`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SetupReply {
    /// Namespaces, and the pidfd of the pause process.
    #[prost(enumeration = "DescriptorKind", repeated, tag = "1")]
    pub kinds: Vec<i32>,
    /// The pid 1 of a shared PID namespace.
    #[prost(message, optional, tag = "2")]
    pub pause: Option<ProcessIdentity>,
}

/// A container runs. Descriptors: pidfd, and for a terminal the master of its pty.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct LaunchReply {
    /// Its init.
    #[prost(message, optional, tag = "1")]
    pub process: Option<ProcessIdentity>,
    /// Inside the container.
    #[prost(uint32, tag = "2")]
    pub uid: u32,
    /// Inside the container.
    #[prost(uint32, tag = "3")]
    pub gid: u32,
    /// Supplementary groups.
    #[prost(uint32, repeated, tag = "4")]
    pub groups: Vec<u32>,
    /// `HOME` of the user, for execs.
    #[prost(string, tag = "5")]
    pub home: String,
    /// Nanoseconds since 1970.
    #[prost(uint64, tag = "6")]
    pub started_at: u64,
}

/// A launch, exec or setup failed; nothing of it is left.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct LaunchFailed {
    /// Where it failed.
    #[prost(enumeration = "LaunchStep", tag = "1")]
    pub step: i32,
    /// The kernel's error, if one was the cause.
    #[prost(int32, optional, tag = "2")]
    pub errno: Option<i32>,
    /// For users: `exec /foo: no such file or directory`.
    #[prost(string, tag = "3")]
    pub text: String,
    /// The user of the container, if the launch had got that far.
    #[prost(message, optional, tag = "4")]
    pub user: Option<ResolvedUser>,
}

impl From<LaunchFailure> for LaunchFailed {
    fn from(failure: LaunchFailure) -> Self {
        let user = failure.user.map(|user| *user);
        Self { step: failure.step.into(), errno: failure.errno, text: failure.text, user }
    }
}

/// The fate of a stop signal.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct StopSignalReply {
    /// What happened.
    #[prost(enumeration = "StopSignalResult", tag = "1")]
    pub result: i32,
}

/// The fate of a stop signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum StopSignalResult {
    /// Sent now.
    Sent = 0,
    /// Sent by an earlier request, of this or of an earlier agent or shim.
    AlreadySent = 1,
    /// The process has exited.
    Gone = 2,
}

/// An exec runs. Descriptors: those of `kinds`: its pidfd, and pipe ends or a pty master, of which the shim keeps no copy.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ExecStarted {
    /// As in the request.
    #[prost(string, tag = "1")]
    pub exec: String,
    /// On the host.
    #[prost(uint32, tag = "2")]
    pub pid: u32,
    /// One per descriptor.
    #[prost(enumeration = "DescriptorKind", repeated, tag = "3")]
    pub kinds: Vec<i32>,
}
