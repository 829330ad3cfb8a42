//! What the agent remembers of a pod beyond what the runtime shows. This is what the journal keeps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde::{Deserialize, Serialize};

use super::{ContainerId, Life, Name, PodUid, SandboxId, Source, State, Termination, Transition};

/// One pod's durable half. Written as a whole, before the act it protects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodRecord {
    /// Whose record it is.
    pub uid: PodUid,
    /// The source the pod came from.
    pub source: Source,
    /// The last good spec.
    pub pod: Arc<Pod>,
    /// The file it was read from, for a manifest that breaks later.
    pub origin: Option<String>,
    /// First sight, which orders static pods of one full name.
    pub first_seen: Timestamp,
    /// Its state, with the data of that state.
    pub life: Life,
    /// The sandbox that counts, and how far init got in it.
    pub cursor: Option<Cursor>,
    /// Per container.
    pub containers: BTreeMap<Name, ContainerMemory>,
    /// Sandbox attempts so far: the next sandbox gets this number.
    pub sandbox_attempts: u32,
    /// Other resources are wanted than it has, and it was not given them.
    #[serde(default)]
    pub resize_refused: bool,
    /// The last status published; startTime and transition times continue from it.
    pub status: Option<PodStatus>,
    /// The last lines of its story, as of the last time anything else was written.
    #[serde(default)]
    pub history: Vec<Transition>,
}

impl PodRecord {
    /// Of a pod that nothing was done for yet.
    pub fn new(uid: PodUid, source: Source, pod: Arc<Pod>, first_seen: Timestamp) -> Self {
        Self {
            uid,
            source,
            pod,
            origin: None,
            first_seen,
            life: Life::Waiting,
            cursor: None,
            containers: BTreeMap::new(),
            sandbox_attempts: 0,
            resize_refused: false,
            status: None,
            history: vec![],
        }
    }

    /// The termination, from its request on.
    pub fn termination(&self) -> Option<&Termination> {
        self.life.termination()
    }

    /// Nothing of the pod runs any more.
    pub fn is_terminated(&self) -> bool {
        self.life.state() >= State::Terminated
    }

    /// Its volumes and its cgroup are gone.
    pub fn is_finished(&self) -> bool {
        self.life.state() == State::Finished
    }

    /// Admission said yes at some time: it is never asked again.
    pub fn was_admitted(&self) -> bool {
        self.life.was_admitted()
    }

    /// A new instance under the same UID was requested while this one terminates.
    pub fn restart_requested(&self) -> bool {
        self.termination().is_some_and(|termination| termination.restart_requested)
    }
}

/// Progress through the init containers of one sandbox: explicit, never guessed from leftovers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The sandbox it belongs to.
    pub sandbox: SandboxId,
    /// How many init containers, from the front, have done their part: completed, or, if restartable, started (startup
    /// probe included). Equal to their number: the app containers' turn.
    pub done: usize,
}

/// The memory of one container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ContainerMemory {
    /// How often it was started again; the next instance gets this plus one if there was any.
    pub restarts: u32,
    /// Some instance was created at least once.
    pub created: bool,
    /// The end of its newest instance, if that ended.
    pub exit: Option<Exit>,
    /// The end of the one before, for `lastState`.
    pub previous_exit: Option<Exit>,
    /// The startup verdict, sticky for one instance.
    pub started: Option<ContainerId>,
    /// The readiness verdict of one instance.
    pub ready: Option<(ContainerId, bool)>,
    /// The instance whose postStart hook was begun, and whether it ended well.
    pub post_start: Option<(ContainerId, HookState)>,
    /// The instance whose preStop hook was begun for this termination.
    pub pre_stop: Option<(ContainerId, HookState)>,
    /// The instance whose start was sent and has no definite answer yet: an agent's death may have cut it off.
    #[serde(default)]
    pub starting: Option<ContainerId>,
    /// The crash backoff.
    pub backoff: Option<Backoff>,
    /// An instance that is to be replaced whatever its end says: killed for a change, a probe or a person, or ended before
    /// all containers were restarted. Written with the kill.
    #[serde(default)]
    pub voided: Option<ContainerId>,
}

/// How far a hook got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HookState {
    /// Sent; it may have run.
    Begun,
    /// It ended, well or cut short.
    Done,
    /// It failed.
    Failed,
}

/// How one container instance ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exit {
    /// The instance.
    pub id: ContainerId,
    /// The restart count it was created with: which of two ends came later.
    #[serde(default)]
    pub attempt: u32,
    /// The sandbox it lived in.
    pub sandbox: SandboxId,
    /// Its exit code.
    pub code: i32,
    /// The signal, where known.
    pub signal: i32,
    /// `Completed`, `Error`, `OOMKilled`, …
    pub reason: String,
    /// The termination message.
    pub message: String,
    /// When it started, if it did.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// The image it ran.
    pub image: String,
    /// That image's id.
    pub image_id: String,
    /// The hash of its spec.
    pub hash: Option<String>,
}

/// A delay that doubles, on the wall clock so that it outlives the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Backoff {
    /// The delay now.
    pub delay: Duration,
    /// Since when it counts: as remembered, the start made with it; as a wait, the end of the instance that failed.
    pub since: Timestamp,
}

/// Why a pod ends. The first cause stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// It has a deletionTimestamp.
    Deleted,
    /// The node was short of resources.
    Evicted,
    /// Its source no longer has it.
    Removed,
    /// All its containers ended, or its time was up.
    Ended,
    /// Only the runtime has it: no source wants it.
    Orphan,
    /// A user stopped it. It stays stopped until its source removes it, or a user restarts it.
    Stopped,
}
