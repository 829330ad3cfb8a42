//! The journaled state of a pod: everything that the runtime does not show.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde::{Deserialize, Serialize};

use super::{
    ActuatedResources, ContainerId, Life, Name, PodUid, ResizeRecord, SandboxId, Source, State, Termination,
    Transition, is_terminal,
};

/// The journaled state of one pod. Written as a whole, before the effects that depend on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodRecord {
    /// UID of the pod.
    pub uid: PodUid,
    /// The source the pod came from.
    pub source: Source,
    /// The last good spec.
    pub pod: Arc<Pod>,
    /// The file it was read from, for a manifest that breaks later.
    pub origin: Option<String>,
    /// When the agent first observed it; orders static pods of one full name.
    pub first_seen: Timestamp,
    /// Its state, with the data of that state.
    pub life: Life,
    /// The current sandbox and the progress of its init containers.
    pub cursor: Option<Cursor>,
    /// Per container.
    pub containers: BTreeMap<Name, ContainerMemory>,
    /// Sandbox attempts so far: the next sandbox gets this number.
    pub sandbox_attempts: u32,
    /// A change of its resources, while it is not complete. `pod` has the allocated resources.
    #[serde(default)]
    pub resize: ResizeRecord,
    /// The last status published; startTime and transition times continue from it.
    pub status: Option<PodStatus>,
    /// The last lines of its history at the last write of the record. New lines alone do not cause a write.
    #[serde(default)]
    pub history: Vec<Transition>,
}

impl PodRecord {
    /// The record of a new pod.
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
            resize: ResizeRecord::default(),
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

    /// It was admitted at some time: admission is not repeated.
    pub fn was_admitted(&self) -> bool {
        self.life.was_admitted()
    }

    /// A shutdown of the host terminated it, and it runs again afterwards. The API server would replace such a pod on another
    /// node; pods of the other sources exist on this node only.
    pub(crate) fn is_suspended(&self) -> bool {
        // An object whose phase is terminal stays so.
        let ended = self.status.as_ref().is_some_and(|status| is_terminal(status.phase.as_deref()));
        self.source != Source::Api
            && self.termination().is_some_and(|ending| ending.cause == Cause::Shutdown && !ending.deleted)
            && (self.source.is_static() || !ended)
    }

    /// A suspended pod begins again. What is remembered of its containers stays, so that restarts are counted and logs are kept.
    pub(crate) fn resume(&mut self) {
        self.life = Life::Waiting;
        if self.source.is_static() {
            self.status = None;
        }
    }

    /// A new instance under the same UID was requested while this one terminates.
    pub fn restart_requested(&self) -> bool {
        self.termination().is_some_and(|termination| termination.restart_requested)
    }
}

/// Progress through the init containers of one sandbox, stored rather than inferred from containers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The sandbox it belongs to.
    pub sandbox: SandboxId,
    /// Number of init containers, from the first one on, that have completed or, if restartable, started (startup probe
    /// included). If all have, app containers are started.
    pub done: usize,
}

/// The memory of one container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ContainerMemory {
    /// How often it was started again; the next instance gets this plus one if there was any.
    pub restarts: u32,
    /// Some instance was created at least once.
    pub created: bool,
    /// Exit of its newest instance, if that exited.
    pub exit: Option<Exit>,
    /// Exit of the instance before it, for `lastState`.
    pub previous_exit: Option<Exit>,
    /// The startup verdict, sticky for one instance.
    pub started: Option<ContainerId>,
    /// The readiness verdict of one instance.
    pub ready: Option<(ContainerId, bool)>,
    /// The instance whose postStart hook was started, and the state of the hook.
    pub post_start: Option<(ContainerId, HookState)>,
    /// The instance whose preStop hook was started for this termination, and the state of the hook.
    pub pre_stop: Option<(ContainerId, HookState)>,
    /// The instance whose start was sent and has no definite result: the start may have been interrupted by the end of the agent.
    #[serde(default)]
    pub starting: Option<ContainerId>,
    /// The crash backoff.
    pub backoff: Option<Backoff>,
    /// An instance that is replaced regardless of its exit code: killed for a change, a probe or a user, or exited before all
    /// containers were restarted. Written with the kill.
    #[serde(default)]
    pub voided: Option<ContainerId>,
    /// The resources of the instance of this attempt; those of any other instance are the allocated ones.
    #[serde(default)]
    pub actuated: Option<ActuatedResources>,
}

/// State of a lifecycle hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HookState {
    /// Sent; it may have run.
    Begun,
    /// It succeeded, or was interrupted.
    Done,
    /// It failed.
    Failed,
}

/// The exit of one container instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exit {
    /// The instance.
    pub id: ContainerId,
    /// The restart count it was created with; orders exits.
    #[serde(default)]
    pub attempt: u32,
    /// Its sandbox.
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
    /// Start of the delay. In the record: the start of the instance; while waiting: the exit of the instance that failed.
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
    /// Only the runtime has it, no source does.
    Orphan,
    /// The host shuts down. A pod that does not come from an API server runs again after the next boot.
    Shutdown,
    /// A user stopped it. It stays stopped until its source removes it, or a user restarts it.
    Stopped,
}
