//! Events: the only input of core, from executors and sources.
//!
//! An effect is one call on one foreign object; its result is one event. Every call returns exactly once as [`Event::Done`], also
//! when it was cancelled or its deadline passed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Answer, CallError, CallId, Listing, Name, NodeReading, ObjectResult, Pod, PodSeen, PodUid, RequestId, Seq, Source,
    Suspect,
};

/// One input of core.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Event {
    /// A source reports a change.
    Source {
        /// The source.
        source: Source,
        /// The change.
        change: SourceChange,
    },
    /// Result of [`super::Effect::List`].
    Listed {
        /// The sequence number of the effect.
        seq: Seq,
        /// All pods in the runtime in short, or the error.
        result: Result<Listing, CallError>,
    },
    /// Result of [`super::Effect::Observe`].
    Observed {
        /// UID of the pod.
        uid: PodUid,
        /// The sequence number of the effect.
        seq: Seq,
        /// The observed state, or the error.
        result: Result<PodSeen, CallError>,
        /// Every running container of the pod is watched by a pidfd, so that the relist may run less often.
        covered: bool,
    },
    /// Something may have changed in this pod: a reason to observe it, never the truth.
    Hint {
        /// UID of the pod.
        uid: PodUid,
    },
    /// The runtime's event stream was connected or lost.
    EventStream {
        /// It is connected.
        up: bool,
    },
    /// Result of [`super::Effect::CheckRuntime`].
    Runtime {
        /// The runtime's status, or the error.
        result: Result<RuntimeReady, CallError>,
    },
    /// A call returned.
    Done {
        /// The id of [`super::Effect::Call`].
        id: CallId,
        /// The result of the call.
        result: Result<Answer, CallError>,
    },
    /// A termination is requested: eviction, shutdown, the command line.
    Kill {
        /// UID of the pod.
        uid: PodUid,
        /// A shorter grace period than the pod's own.
        grace: Option<Duration>,
        /// Eviction: the reason and message of the Failed status.
        evicted: Option<(String, String)>,
    },
    /// A user requests the restart of a container now, without back-off; `None`: of every container.
    Restart {
        /// UID of the pod.
        uid: PodUid,
        /// The container.
        container: Option<Name>,
    },
    /// Result of [`super::Effect::FindLeftovers`].
    Leftovers {
        /// The sequence number of the effect.
        seq: Seq,
        /// Pods that have cgroups, directories or logs on this host.
        found: Result<BTreeSet<PodUid>, CallError>,
    },
    /// Result of [`super::Effect::RequestObject`].
    ObjectAnswered {
        /// The id of the effect.
        id: RequestId,
        /// The store's response.
        result: ObjectResult,
    },
    /// Result of [`super::Effect::ReadNode`].
    NodeRead {
        /// The sequence number of the effect.
        seq: Seq,
        /// What could be read.
        reading: NodeReading,
    },
    /// The kernel reports that memory is short: a reason to read the node, never the truth.
    MemoryShort,
    /// Result of [`super::Effect::RemoveUnusedImages`]; the next reading shows what it freed.
    ImagesRemoved {
        /// The sequence number of the effect.
        seq: Seq,
    },
    /// An emptyDir volume was measured, and is larger than its `sizeLimit`.
    EmptyDirExceeded {
        /// UID of the pod.
        uid: PodUid,
        /// Name of the volume.
        volume: String,
    },
    /// The Node object was read; without a UID it is being deleted, and nothing may be owned by it.
    NodeKnown {
        /// UID of the Node object.
        uid: Option<String>,
        /// Its labels, which others set too; `None`: unknown.
        #[serde(default)]
        labels: Option<BTreeMap<String, String>>,
    },
    /// An object that the pod's volumes show changed: a ConfigMap, a Secret, a renewed token.
    ObjectsChanged {
        /// UID of the pod.
        uid: PodUid,
    },
    /// The host prepares for a shutdown (`Some`), or does not, which may mean that a shutdown was cancelled. Sent once at the start,
    /// then when it changes, if graceful shutdown is configured.
    Shutdown {
        /// The shutdown.
        request: Option<ShutdownRequest>,
    },
    /// The API server has the condition that the node shuts down.
    ShutdownAnnounced,
    /// The journal could not be written (`Some`) or works again (`None`).
    Journal {
        /// The error.
        error: Option<String>,
    },
    /// The former agent died while it worked on these pods, sent before the first [`Event::Wake`].
    Suspects {
        /// Only those in quarantine count.
        suspects: Vec<Suspect>,
    },
    /// The time of [`super::Out::wake_at`] has come.
    Wake,
}

/// The host waits for this node's pods before it shuts down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShutdownRequest {
    /// Returned in [`super::Effect::AllowShutdown`].
    pub id: u64,
    /// The host waits no longer than this.
    pub allowed: Duration,
}

/// Status of the runtime, as it reports it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuntimeReady {
    /// Name of the runtime: the prefix of container ids in statuses.
    pub name: String,
    /// Version of the runtime.
    #[serde(default)]
    pub version: String,
    /// Why it is not ready, although it answers.
    #[serde(default)]
    pub not_ready: Option<String>,
    /// The pod network is ready.
    pub network: bool,
    /// Its message if the network is not ready.
    pub message: String,
    /// Other conditions of the runtime that do not hold, with their messages. They do not affect readiness.
    #[serde(default)]
    pub problems: Vec<String>,
    /// Handlers a RuntimeClass may name.
    #[serde(default)]
    pub handlers: Vec<RuntimeHandler>,
    /// It applies `supplementalGroupsPolicy`.
    #[serde(default)]
    pub supplemental_groups_policy: bool,
}

/// A runtime handler that a RuntimeClass may name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuntimeHandler {
    /// Empty for the default handler.
    pub name: String,
    /// It supports `recursiveReadOnly` mounts.
    pub recursive_read_only_mounts: bool,
    /// It supports pods with `hostUsers: false`.
    pub user_namespaces: bool,
}

/// A change of a source.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum SourceChange {
    /// All pods of the source.
    Set {
        /// The valid pods, in the order of their files.
        pods: Vec<Manifest>,
        /// Files that cannot be read or parsed, with the reason: their pods stay unchanged.
        broken: Vec<(String, String)>,
    },
    /// One pod is new or changed.
    Put(Manifest),
    /// One pod was removed.
    Remove(PodUid),
    /// The source is reachable again and continues where it was.
    Reconnected,
    /// Its history was reset by a restored backup: earlier resource versions are void. A SET follows.
    HistoryReset,
}

/// A pod and its origin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The pod, decoded, defaulted, with its UID.
    pub pod: Arc<Pod>,
    /// File path, URL or `api`.
    pub origin: String,
}
