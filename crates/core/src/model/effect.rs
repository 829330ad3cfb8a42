//! What core wants done: effects for the hands, records for the journal, words for people.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Call, CallId, FullName, Name, Now, ObjectRequest, Pod, PodRecord, PodSnapshot, PodUid, RequestId, Seq, Source, Time,
};

/// What to do about it. Performed in order, none before the records of the same turn are on disk.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// One call on one foreign thing, for one pod.
    Call {
        /// Comes back in [`super::Event::Done`].
        id: CallId,
        /// For whom.
        uid: PodUid,
        /// The spec to use.
        pod: Arc<Pod>,
        /// What to do.
        call: Call,
        /// How long it may take; then it is in doubt.
        limit: Duration,
    },
    /// Interrupt a call: pulls, hooks, probes and volume work end early; runtime calls go on and answer late.
    Cancel {
        /// Which call.
        id: CallId,
    },
    /// Ask the runtime about one pod.
    Observe {
        /// Which pod.
        uid: PodUid,
        /// Comes back in [`super::Event::Observed`].
        seq: Seq,
    },
    /// Ask the runtime for the outline of everything.
    List {
        /// Comes back in [`super::Event::Listed`].
        seq: Seq,
    },
    /// Ask the runtime how it is.
    CheckRuntime,
    /// Look for cgroups, directories and logs of pods on this machine.
    FindLeftovers {
        /// Comes back in [`super::Event::Leftovers`].
        seq: Seq,
    },
    /// Remove what is left of a pod nobody knows: cgroup, mounts, directories, logs. No answer: the next look tells.
    Sweep {
        /// Whose.
        uid: PodUid,
    },
    /// Write this record of a pod in quarantine aside, for whoever looks for the bug. No answer: nothing depends on it.
    KeepAside {
        /// The record as it was when the bug was met.
        record: Box<PodRecord>,
    },
    /// The kill this one waited for is done, or there is nothing to kill.
    Released {
        /// As given in [`super::Event::Kill`].
        waiter: u64,
    },
    /// Send [`super::Event::Wake`] then. A later effect of this kind replaces an earlier one.
    WakeAt(Time),
    /// Send one request to an object store.
    RequestObject {
        /// Comes back in [`super::Event::ObjectAnswered`].
        id: RequestId,
        /// Which store: the source whose objects it has.
        store: Source,
        /// What is asked.
        request: ObjectRequest,
        /// How long it may take.
        limit: Duration,
    },
    /// Tell people.
    Event(KubeEvent),
    /// What is known of the runtime changed (it can be asked of the node): the node's own status follows.
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
    /// The container it is about.
    pub container: Option<Name>,
    /// Warning, or Normal.
    pub warning: bool,
    /// `Pulled`, `Created`, `BackOff`, …
    pub reason: &'static str,
    /// What happened.
    pub message: String,
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
    /// This pod's record is now this.
    Put(Box<PodRecord>),
    /// This pod is forgotten.
    Forget(PodUid),
}

/// What a turn brought: first the records, then the effects.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Out {
    /// To be committed first.
    pub records: Vec<Record>,
    /// To be performed then.
    pub effects: Vec<Effect>,
}

/// One line of a pod's story.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transition {
    /// When.
    pub at: Now,
    /// What changed.
    pub what: String,
    /// Why.
    pub cause: String,
}
