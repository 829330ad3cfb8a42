//! Output of core: effects for executors, records for the journal, events for users.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Call, CallId, FullName, Name, Now, ObjectRequest, Pod, PodReading, PodRecord, PodSnapshot, PodUid, RequestId, Seq,
    Source, Time,
};

/// One thing to do. Performed in order, none before the records of the same turn are on disk.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// One call on one foreign object, for one pod.
    Call {
        /// Returned in [`super::Event::Done`].
        id: CallId,
        /// UID of the pod.
        uid: PodUid,
        /// The spec to use.
        pod: Arc<Pod>,
        /// The call.
        call: Call,
        /// Timeout; after it the call is in doubt.
        limit: Duration,
    },
    /// Cancels a call: pulls, hooks, probes and volume work end early; runtime calls continue and return late.
    Cancel {
        /// The id of the call.
        id: CallId,
    },
    /// Observes one pod in the runtime.
    Observe {
        /// UID of the pod.
        uid: PodUid,
        /// Returned in [`super::Event::Observed`].
        seq: Seq,
    },
    /// Lists all pods of the runtime.
    List {
        /// Returned in [`super::Event::Listed`].
        seq: Seq,
    },
    /// Reads the status of the runtime.
    CheckRuntime,
    /// Searches for cgroups, directories and logs of pods on this host.
    FindLeftovers {
        /// Returned in [`super::Event::Leftovers`].
        seq: Seq,
    },
    /// Reads the signals of eviction.
    ReadNode {
        /// Returned in [`super::Event::NodeRead`].
        seq: Seq,
        /// The pod data to read.
        pods: PodReading,
    },
    /// Removes the images that no container and no pod uses.
    RemoveUnusedImages {
        /// Returned in [`super::Event::ImagesRemoved`].
        seq: Seq,
    },
    /// A pod is evicted: counts it.
    Evicted {
        /// The label of the metric `kubelet_evictions`.
        signal: &'static str,
    },
    /// Removes the leftovers of an unknown pod: cgroup, mounts, directories, logs. No event follows: the next search shows the result.
    Sweep {
        /// UID of the pod.
        uid: PodUid,
    },
    /// Saves the record of a quarantined pod for the investigation of the bug. No event follows: nothing depends on it.
    SaveQuarantinedRecord {
        /// The record at the time of the panic.
        record: Box<PodRecord>,
    },
    /// Sends one request to an object store.
    RequestObject {
        /// Returned in [`super::Event::ObjectAnswered`].
        id: RequestId,
        /// The source whose objects the store has.
        store: Source,
        /// The request.
        request: ObjectRequest,
        /// The executor stops waiting after this time; the request may still take effect.
        limit: Duration,
    },
    /// Reports a Kubernetes event.
    Event(KubeEvent),
    /// All pods have ended and their statuses were sent, or the time is up: the host may shut down.
    AllowShutdown {
        /// The id of [`super::ShutdownRequest`].
        request: u64,
    },
    /// `Node::runtime_facts` changed: the status of the Node object follows.
    RuntimeChanged,
    /// The status of a pod changed, or another part of it that clients see.
    StatusChanged(Box<PodSnapshot>),
    /// The agent has dropped a pod and its record.
    PodRemoved {
        /// UID of the pod.
        uid: PodUid,
    },
}

/// A Kubernetes event, with the kubelet's reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeEvent {
    /// UID of the pod; `None` for the node and for a pod that has none.
    pub uid: Option<PodUid>,
    /// Name of the pod. For the node: its name without a namespace.
    pub pod: FullName,
    /// The container; `None`: the pod as a whole.
    pub container: Option<Name>,
    /// Warning, or Normal.
    pub warning: bool,
    /// `Pulled`, `Created`, `BackOff`, …
    pub reason: &'static str,
    /// Text of the event.
    pub message: String,
    /// Annotations of the event.
    pub annotations: Vec<(&'static str, String)>,
}

impl KubeEvent {
    /// The event is about the node, not about a pod.
    pub fn is_about_node(&self) -> bool {
        self.pod.namespace.is_empty()
    }
}

/// A change that must be on disk before the effects of its turn are performed.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// The new record of a pod.
    Put(Box<PodRecord>),
    /// The record of this pod is removed.
    Forget(PodUid),
}

/// Output of one turn: the records are committed, then the effects are performed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Out {
    /// Committed first.
    pub records: Vec<Record>,
    /// Performed afterwards, in this order.
    pub effects: Vec<Effect>,
    /// Sends [`super::Event::Wake`] at this time; replaces the time of an earlier turn. A timer needs no record: it is set before
    /// the commit, because on a disk that hangs it would delay the kills it is set for. `None`: the earlier time stands.
    pub wake_at: Option<Time>,
}

/// One line of a pod's history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transition {
    /// When it happened.
    pub at: Now,
    /// What changed.
    pub what: String,
    /// The cause; may be empty.
    pub cause: String,
}
