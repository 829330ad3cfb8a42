//! What happened, and what to do about it: the only words core and the hands exchange.
//!
//! An effect is one call on one foreign thing; its result is one event. Every `Call` that goes out comes back exactly
//! once as [`Event::Done`], also when it was cancelled or its deadline passed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Ask, AskId, AskResult, ContainerId, FullName, Listing, Name, Now, Pod, PodRecord, PodSeen, PodUid, SandboxId, Seq,
    Source, Time,
};

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
    /// The answer to [`Effect::List`].
    Listed {
        /// As drawn for the effect.
        seq: Seq,
        /// The outline, or why there is none.
        result: Result<Listing, CallError>,
    },
    /// The answer to [`Effect::Observe`].
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
    /// The answer to [`Effect::CheckRuntime`].
    Runtime {
        /// `Ok(network ready?)`, or why the runtime does not answer.
        result: Result<RuntimeReady, CallError>,
    },
    /// The call with this id came back.
    Done {
        /// As given in [`Effect::Call`].
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
        /// Someone waits for the end and is told by [`Effect::Released`].
        waiter: Option<u64>,
    },
    /// A person asks for a container to be restarted now, backoff skipped; `None` is every container.
    Restart {
        /// Which pod.
        uid: PodUid,
        /// Which container.
        container: Option<Name>,
    },
    /// The answer to [`Effect::FindLeftovers`].
    Leftovers {
        /// As drawn for the effect.
        seq: Seq,
        /// Pods that have cgroups, directories or logs on this machine.
        found: Result<BTreeSet<PodUid>, CallError>,
    },
    /// The answer to [`Effect::Ask`].
    Answered {
        /// As given in the effect.
        id: AskId,
        /// What the keeper said.
        result: AskResult,
    },
    /// The Node object is there, with this UID; or it is going, and nothing may belong to it any more.
    NodeKnown {
        /// Its UID.
        uid: Option<String>,
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
    /// The time asked for with [`Effect::WakeAt`] has come.
    Wake,
}

/// The runtime's own word on its health.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuntimeReady {
    /// Its name, which container ids in statuses begin with.
    pub name: String,
    /// Pods with a network of their own can be made.
    pub network: bool,
    /// What it says if the network isn't ready.
    pub message: String,
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
}

/// A pod and the place it was read from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The pod, decoded, defaulted, with its UID.
    pub pod: Arc<Pod>,
    /// File path, URL or `api`.
    pub origin: String,
}

/// What to do about it. Performed in order, none before the records of the same turn are on disk.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// One call on one foreign thing, for one pod.
    Call {
        /// Comes back in [`Event::Done`].
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
        /// Comes back in [`Event::Observed`].
        seq: Seq,
    },
    /// Ask the runtime for the outline of everything.
    List {
        /// Comes back in [`Event::Listed`].
        seq: Seq,
    },
    /// Ask the runtime how it is.
    CheckRuntime,
    /// Look for cgroups, directories and logs of pods on this machine.
    FindLeftovers {
        /// Comes back in [`Event::Leftovers`].
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
        /// As given in [`Event::Kill`].
        waiter: u64,
    },
    /// Send [`Event::Wake`] then. A later effect of this kind replaces an earlier one.
    WakeAt(Time),
    /// Ask the keeper of pod objects for one thing.
    Ask {
        /// Comes back in [`Event::Answered`].
        id: AskId,
        /// Which keeper: the source whose objects it has.
        keeper: Source,
        /// What is asked.
        ask: Ask,
        /// How long it may take.
        limit: Duration,
    },
    /// Tell people.
    Event(KubeEvent),
    /// A pod's status changed (its newest form can be asked of the node).
    StatusChanged {
        /// Whose.
        uid: PodUid,
    },
}

/// The number of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CallId(pub u64);

/// One call on one foreign thing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Call {
    /// CRI RunPodSandbox.
    RunSandbox {
        /// Sandboxes this pod had before.
        attempt: u32,
    },
    /// CRI StopPodSandbox. Not found is success.
    StopSandbox {
        /// Which.
        id: SandboxId,
    },
    /// CRI RemovePodSandbox. Not found is success.
    RemoveSandbox {
        /// Which.
        id: SandboxId,
    },
    /// What a container needs on the host before it is created: log directory, termination message file, hosts file, subPaths.
    PrepareContainer {
        /// Which container.
        name: Name,
        /// Its restart count.
        attempt: u32,
        /// The pod's addresses, for the hosts file.
        ips: Vec<String>,
    },
    /// CRI CreateContainer.
    CreateContainer {
        /// Where.
        sandbox: SandboxId,
        /// The sandbox's attempt number (its config is part of the call).
        sandbox_attempt: u32,
        /// Which container.
        name: Name,
        /// Its restart count.
        attempt: u32,
        /// The resolved image id.
        image_id: String,
        /// The pod's addresses, for the environment.
        ips: Vec<String>,
    },
    /// CRI StartContainer.
    StartContainer {
        /// Which container.
        name: Name,
        /// Which instance.
        id: ContainerId,
    },
    /// CRI StopContainer. Not found is success.
    StopContainer {
        /// Which container.
        name: Name,
        /// Which instance.
        id: ContainerId,
        /// TERM now, KILL after this many whole seconds.
        timeout: Duration,
    },
    /// CRI RemoveContainer. Not found is success.
    RemoveContainer {
        /// Which container.
        name: Name,
        /// Which instance.
        id: ContainerId,
    },
    /// CRI ImageStatus.
    ImageStatus {
        /// The container that wants it.
        name: Name,
        /// The image as the user named it.
        image: String,
    },
    /// CRI PullImage, then its status. Shared between all who want the same image; bounded in parallel.
    PullImage {
        /// The container that wants it.
        name: Name,
        /// The image as the user named it.
        image: String,
    },
    /// Run a lifecycle hook.
    Hook {
        /// Which hook.
        kind: HookKind,
        /// Which container.
        name: Name,
        /// Which instance.
        id: ContainerId,
        /// The handler as JSON from the container's annotation, when the spec doesn't know the container any more.
        handler: Option<String>,
        /// The pod's addresses.
        ips: Vec<String>,
    },
    /// Run one probe once.
    Probe {
        /// Which probe.
        kind: ProbeKind,
        /// Which container.
        name: Name,
        /// Which instance.
        id: ContainerId,
        /// The pod's addresses.
        ips: Vec<String>,
    },
    /// Make the pod's cgroup, its parents included, with its limits.
    MakeCgroup,
    /// Kill what is left in it and remove it.
    RemoveCgroup,
    /// Make the pod's data directories.
    MakeDirs,
    /// Set up one volume.
    MountVolume {
        /// The volume's name.
        volume: Name,
    },
    /// Unmount and remove all volumes of the pod.
    RemoveVolumes,
    /// Remove the pod's data directories.
    RemoveDirs,
    /// Remove the pod's logs and their links.
    RemoveLogs,
}

/// What makes two calls of one pod the same: never two of a key in flight (a stop may be sent again with a shorter time).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CallKey {
    /// RunSandbox.
    RunSandbox,
    /// StopSandbox or RemoveSandbox.
    Sandbox(SandboxId),
    /// Prepare, image status, pull, create: the way of a container up to its creation.
    Container(Name),
    /// Start or remove of one instance.
    Instance(ContainerId),
    /// A stop of one instance.
    Stop(ContainerId),
    /// A hook of one instance.
    Hook(ContainerId, HookKind),
    /// A probe of a container.
    Probe(Name, ProbeKind),
    /// The pod's cgroup.
    Cgroup,
    /// The pod's directories.
    Dirs,
    /// One volume.
    Volume(Name),
    /// All volumes.
    Volumes,
    /// The logs.
    Logs,
}

impl Call {
    /// What this call is about.
    pub fn key(&self) -> CallKey {
        match self {
            Self::RunSandbox { .. } => CallKey::RunSandbox,
            Self::StopSandbox { id } | Self::RemoveSandbox { id } => CallKey::Sandbox(id.clone()),
            Self::PrepareContainer { name, .. } | Self::CreateContainer { name, .. } => {
                CallKey::Container(name.clone())
            }
            Self::ImageStatus { name, .. } | Self::PullImage { name, .. } => CallKey::Container(name.clone()),
            Self::StartContainer { id, .. } | Self::RemoveContainer { id, .. } => CallKey::Instance(id.clone()),
            Self::StopContainer { id, .. } => CallKey::Stop(id.clone()),
            Self::Hook { kind, id, .. } => CallKey::Hook(id.clone(), *kind),
            Self::Probe { kind, name, .. } => CallKey::Probe(name.clone(), *kind),
            Self::MakeCgroup | Self::RemoveCgroup => CallKey::Cgroup,
            Self::MakeDirs | Self::RemoveDirs => CallKey::Dirs,
            Self::MountVolume { volume } => CallKey::Volume(volume.clone()),
            Self::RemoveVolumes => CallKey::Volumes,
            Self::RemoveLogs => CallKey::Logs,
        }
    }

    /// It changes what the runtime has, so the pod is looked at again after it.
    pub fn is_runtime(&self) -> bool {
        matches!(
            self,
            Self::RunSandbox { .. }
                | Self::StopSandbox { .. }
                | Self::RemoveSandbox { .. }
                | Self::CreateContainer { .. }
                | Self::StartContainer { .. }
                | Self::StopContainer { .. }
                | Self::RemoveContainer { .. }
        )
    }

    /// It can only be too late, never wrong: allowed on old sight.
    pub fn is_stop(&self) -> bool {
        matches!(self, Self::StopContainer { .. } | Self::StopSandbox { .. })
    }
}

/// A lifecycle hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum HookKind {
    /// Right after the start.
    PostStart,
    /// Before the stop.
    PreStop,
}

/// A probe of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ProbeKind {
    /// Has it come up?
    Startup,
    /// May it get traffic?
    Readiness,
    /// Does it still live?
    Liveness,
}

/// The verdict of one probe run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeVerdict {
    /// It passed.
    Success,
    /// It failed, and this is what was seen.
    Failure(String),
    /// The probe itself could not be made: counts as nothing.
    Unknown(String),
}

/// What a call brought back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// It is done.
    Done,
    /// The new sandbox.
    Sandbox(SandboxId),
    /// The new container.
    Container(ContainerId),
    /// The image is here (`Some`) or not.
    Image(Option<ImageFacts>),
    /// A probe's verdict.
    Probe(ProbeVerdict),
    /// The pod's cgroup is there.
    Cgroup {
        /// It was missing: what ran before runs outside of it.
        made: bool,
    },
}

/// What an image says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageFacts {
    /// Its id.
    pub id: String,
    /// The user it runs as, if numeric.
    pub uid: Option<i64>,
    /// The user it runs as, if a name.
    pub username: String,
}

/// Why a call failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallError {
    /// The word users see: `ErrImagePull`, `CreateContainerConfigError`, `FailedMount`, …; empty: the caller's default.
    pub reason: String,
    /// The whole story, for people.
    pub message: String,
    /// The call may have had its effect, or may have it later.
    pub in_doubt: bool,
    /// The runtime is still at an earlier call of the same kind, a former agent's mostly: ask again soon.
    pub busy: bool,
    /// It ended because [`Effect::Cancel`] asked for it.
    pub cancelled: bool,
    /// The runtime itself does not answer: nothing about this pod.
    pub unavailable: bool,
}

impl CallError {
    /// A plain failure.
    pub fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), message: message.into(), ..Self::default() }
    }
}

/// An event for people, with the kubelet's reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeEvent {
    /// Whose.
    pub uid: PodUid,
    /// Its name.
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
