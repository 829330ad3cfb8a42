//! What happened: the only words that core hears from its hands and sources.
//!
//! An effect is one call on one foreign thing; its result is one event. Every call that goes out comes back exactly once as
//! [`Event::Done`], also when it was cancelled or its deadline passed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Answer, CallError, CallId, Listing, Name, ObjectResult, Pod, PodSeen, PodUid, RequestId, Seq, Source};

/// What happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Event {
    /// A source speaks.
    Source {
        /// Which one.
        source: Source,
        /// What it says.
        change: SourceChange,
    },
    /// The answer to [`super::Effect::List`].
    Listed {
        /// As drawn for the effect.
        seq: Seq,
        /// The outline, or why there is none.
        result: Result<Listing, CallError>,
    },
    /// The answer to [`super::Effect::Observe`].
    Observed {
        /// Which pod.
        uid: PodUid,
        /// As drawn for the effect.
        seq: Seq,
        /// What is there, or why it could not be seen.
        result: Result<PodSeen, CallError>,
        /// Every running container of the pod is watched by a pidfd, so that the list may run less often.
        covered: bool,
    },
    /// Something may have changed in this pod. Never truth, only a reason to look.
    Hint {
        /// Which pod.
        uid: PodUid,
    },
    /// The runtime's event stream came up or was lost.
    EventStream {
        /// It is there now.
        up: bool,
    },
    /// The answer to [`super::Effect::CheckRuntime`].
    Runtime {
        /// `Ok(network ready?)`, or why the runtime does not answer.
        result: Result<RuntimeReady, CallError>,
    },
    /// The call with this id came back.
    Done {
        /// As given in [`super::Effect::Call`].
        id: CallId,
        /// How it ended.
        result: Result<Answer, CallError>,
    },
    /// Someone asks for a pod's end: eviction, shutdown, the command line.
    Kill {
        /// Which pod.
        uid: PodUid,
        /// A shorter time than the pod's own.
        grace: Option<Duration>,
        /// Eviction: the reason and message of the Failed status.
        evicted: Option<(String, String)>,
        /// Someone waits for the end and is told by [`super::Effect::Released`].
        waiter: Option<u64>,
    },
    /// A person asks for a container to be restarted now, backoff skipped; `None` is every container.
    Restart {
        /// Which pod.
        uid: PodUid,
        /// Which container.
        container: Option<Name>,
    },
    /// The answer to [`super::Effect::FindLeftovers`].
    Leftovers {
        /// As drawn for the effect.
        seq: Seq,
        /// Pods that have cgroups, directories or logs on this machine.
        found: Result<BTreeSet<PodUid>, CallError>,
    },
    /// The answer to [`super::Effect::RequestObject`].
    ObjectAnswered {
        /// As given in the effect.
        id: RequestId,
        /// What the store said.
        result: ObjectResult,
    },
    /// The Node object is there, with this UID; or it is going, and nothing may belong to it any more.
    NodeKnown {
        /// Its UID.
        uid: Option<String>,
        /// Its labels, which others set too; `None`: not known.
        #[serde(default)]
        labels: Option<BTreeMap<String, String>>,
    },
    /// Something outside of the pod that its volumes show has changed: a ConfigMap, a Secret, a token that was renewed.
    ObjectsChanged {
        /// Whose volumes.
        uid: PodUid,
    },
    /// The journal could not be written (`Some`) or works again (`None`).
    Journal {
        /// What is wrong.
        error: Option<String>,
    },
    /// The time asked for with [`super::Effect::WakeAt`] has come.
    Wake,
}

/// The runtime's own word on its health.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuntimeReady {
    /// Its name, which container ids in statuses begin with.
    pub name: String,
    /// Its release.
    #[serde(default)]
    pub version: String,
    /// Why nothing can be asked of it, though it answers.
    #[serde(default)]
    pub not_ready: Option<String>,
    /// Pods with a network of their own can be made.
    pub network: bool,
    /// What it says if the network isn't ready.
    pub message: String,
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

/// What a source says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum SourceChange {
    /// Everything it has.
    Set {
        /// The good pods, in the order of their files.
        pods: Vec<Manifest>,
        /// Files that can't be read or parsed: their pods stay as they last were.
        broken: Vec<(String, String)>,
    },
    /// One pod is new or changed.
    Put(Manifest),
    /// One pod is gone.
    Remove(PodUid),
    /// It can be reached again, and goes on where it was.
    Reconnected,
    /// Its history was set back, by a restored backup: versions that it gave before mean nothing. What it has comes next.
    HistoryReset,
}

/// A pod and the place it was read from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The pod, decoded, defaulted, with its UID.
    pub pod: Arc<Pod>,
    /// File path, URL or `api`.
    pub origin: String,
}
