//! One call on one foreign thing: what is asked, what makes two of them the same, what comes back.
//!
//! Every call that goes out comes back exactly once, also when it was cancelled or its deadline passed.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ContainerId, Name, SandboxId};

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

    /// It asks the runtime about an image, or for one.
    pub fn is_image(&self) -> bool {
        matches!(self, Self::ImageStatus { .. } | Self::PullImage { .. })
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
    /// It ended because [`super::Effect::Cancel`] asked for it.
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
