//! One call to the container runtime or to the host: its parameters, the key under which at most one may be in flight, its answer.
//!
//! Every call that is sent is answered exactly once, also when it was cancelled or its deadline passed.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use k8s_openapi::api::core::v1::ResourceRequirements;

use super::{CallKey, ContainerId, Name, SandboxId};

/// The number of one call, unique for the lifetime of the agent process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CallId(pub u64);

/// One call for one pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Call {
    /// Performed through the CRI, or against a running container.
    Runtime(RuntimeCall),
    /// Performed on the host: cgroups, directories, volumes, logs.
    Host(HostCall),
}

/// A call to the container runtime, or to one of its containers (hooks and probes).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RuntimeCall {
    /// CRI RunPodSandbox.
    RunSandbox {
        /// How many sandboxes this pod had before.
        attempt: u32,
    },
    /// CRI StopPodSandbox. Not found is success.
    StopSandbox {
        /// The runtime's id.
        id: SandboxId,
    },
    /// CRI RemovePodSandbox. Not found is success.
    RemoveSandbox {
        /// The runtime's id.
        id: SandboxId,
    },
    /// CRI CreateContainer.
    CreateContainer {
        /// The sandbox to create it in.
        sandbox: SandboxId,
        /// The sandbox's attempt number: CreateContainer repeats the sandbox's config.
        sandbox_attempt: u32,
        /// The container's name in the spec.
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
        /// The container's name in the spec.
        name: Name,
        /// The instance to start.
        id: ContainerId,
    },
    /// CRI StopContainer. Not found is success.
    StopContainer {
        /// The container's name in the spec.
        name: Name,
        /// The instance to stop.
        id: ContainerId,
        /// SIGTERM now, SIGKILL after this many whole seconds.
        timeout: Duration,
    },
    /// CRI RemoveContainer. Not found is success.
    RemoveContainer {
        /// The container's name in the spec.
        name: Name,
        /// The instance to remove.
        id: ContainerId,
    },
    /// CRI UpdateContainerResources.
    UpdateContainer {
        /// The container's name in the spec.
        name: Name,
        /// The instance to update.
        id: ContainerId,
        /// Its new resources. A limit that is not given stays.
        resources: Box<ResourceRequirements>,
    },
    /// CRI UpdatePodSandboxResources, before limits of the pod's cgroup change. A runtime that does not implement it has no objection.
    UpdateSandbox {
        /// The sandbox of the pod.
        id: SandboxId,
        /// The limits of the pod's cgroup after the change; CPU weight, in shares of cgroup v1.
        cpu_shares: u64,
        /// CPU time per period of 100 ms; `None`: unlimited.
        cpu_quota_us: Option<i64>,
        /// Bytes of memory; `None`: unlimited.
        memory: Option<i64>,
    },
    /// CRI ImageStatus.
    ImageStatus {
        /// The container that needs the image.
        name: Name,
        /// The image as the spec names it.
        image: String,
    },
    /// CRI PullImage, then ImageStatus. Pulls of the same image share one request; the number of parallel pulls is bounded.
    PullImage {
        /// The container that needs the image.
        name: Name,
        /// The image as the spec names it.
        image: String,
    },
    /// Run a lifecycle hook.
    Hook {
        /// postStart or preStop.
        kind: HookKind,
        /// The container's name in the spec.
        name: Name,
        /// The instance the hook runs for.
        id: ContainerId,
        /// The handler as JSON from the container's annotation, if the spec has no such container any more.
        handler: Option<String>,
        /// The pod's addresses.
        ips: Vec<String>,
    },
    /// Run one probe once.
    Probe {
        /// Startup, readiness or liveness.
        kind: ProbeKind,
        /// The container's name in the spec.
        name: Name,
        /// The instance to probe.
        id: ContainerId,
        /// The pod's addresses.
        ips: Vec<String>,
    },
}

/// A call on the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum HostCall {
    /// What a container needs on the host before it is created: log directory, termination message file, hosts file, subPaths,
    /// and the pod's cgroup if it was removed since.
    PrepareContainer {
        /// The container's name in the spec.
        name: Name,
        /// Its restart count.
        attempt: u32,
        /// The pod's addresses, for the hosts file.
        ips: Vec<String>,
    },
    /// Create the pod's cgroup, its parents included, with its limits.
    MakeCgroup,
    /// Set limits of the pod's cgroup, which exists. `None` leaves a limit as it is.
    ResizeCgroup {
        /// CPU weight, in shares of cgroup v1.
        cpu_shares: Option<u64>,
        /// CPU time per period of 100 ms.
        cpu_quota_us: Option<i64>,
        /// Bytes of memory.
        memory: Option<i64>,
    },
    /// Read how much memory the pod's cgroup and those of containers use.
    ReadMemory {
        /// The instances to read.
        containers: BTreeMap<Name, ContainerId>,
    },
    /// Kill the processes left in the pod's cgroup and remove it.
    RemoveCgroup,
    /// Create the pod's data directories.
    MakeDirs,
    /// Set up one volume.
    MountVolume {
        /// The volume's name in the spec.
        volume: Name,
    },
    /// Unmount and remove all volumes of the pod.
    RemoveVolumes,
    /// Remove the pod's data directories.
    RemoveDirs,
    /// Remove the pod's logs and the links to them.
    RemoveLogs,
}

impl From<RuntimeCall> for Call {
    fn from(call: RuntimeCall) -> Self {
        Self::Runtime(call)
    }
}

impl From<HostCall> for Call {
    fn from(call: HostCall) -> Self {
        Self::Host(call)
    }
}

impl Call {
    /// The name of its kind, the same for every container and attempt.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Runtime(call) => match call {
                RuntimeCall::RunSandbox { .. } => "RunPodSandbox",
                RuntimeCall::StopSandbox { .. } => "StopPodSandbox",
                RuntimeCall::RemoveSandbox { .. } => "RemovePodSandbox",
                RuntimeCall::CreateContainer { .. } => "CreateContainer",
                RuntimeCall::StartContainer { .. } => "StartContainer",
                RuntimeCall::StopContainer { .. } => "StopContainer",
                RuntimeCall::RemoveContainer { .. } => "RemoveContainer",
                RuntimeCall::UpdateContainer { .. } => "UpdateContainerResources",
                RuntimeCall::UpdateSandbox { .. } => "UpdatePodSandboxResources",
                RuntimeCall::ImageStatus { .. } => "ImageStatus",
                RuntimeCall::PullImage { .. } => "PullImage",
                RuntimeCall::Hook { .. } => "Hook",
                RuntimeCall::Probe { .. } => "Probe",
            },
            Self::Host(call) => match call {
                HostCall::PrepareContainer { .. } => "PrepareContainer",
                HostCall::MakeCgroup => "MakeCgroup",
                HostCall::ResizeCgroup { .. } => "ResizeCgroup",
                HostCall::ReadMemory { .. } => "ReadMemory",
                HostCall::RemoveCgroup => "RemoveCgroup",
                HostCall::MakeDirs => "MakeDirs",
                HostCall::MountVolume { .. } => "MountVolume",
                HostCall::RemoveVolumes => "RemoveVolumes",
                HostCall::RemoveDirs => "RemoveDirs",
                HostCall::RemoveLogs => "RemoveLogs",
            },
        }
    }

    /// Under which key it excludes other calls of its pod.
    pub fn key(&self) -> CallKey {
        match self {
            Self::Runtime(call) => call.key(),
            Self::Host(call) => call.key(),
        }
    }

    /// It changes sandboxes or containers: the pod has to be observed again afterwards.
    pub fn changes_runtime(&self) -> bool {
        matches!(self, Self::Runtime(call) if call.changes_runtime())
    }

    /// It needs the runtime's image service.
    pub(crate) fn is_image(&self) -> bool {
        matches!(self, Self::Runtime(RuntimeCall::ImageStatus { .. } | RuntimeCall::PullImage { .. }))
    }

    /// A stop may come too late but is never wrong: it is allowed on an old observation.
    pub fn is_stop(&self) -> bool {
        matches!(self, Self::Runtime(RuntimeCall::StopContainer { .. } | RuntimeCall::StopSandbox { .. }))
    }

    /// It may make a sandbox or container run.
    pub fn is_start(&self) -> bool {
        matches!(
            self,
            Self::Runtime(
                RuntimeCall::RunSandbox { .. }
                    | RuntimeCall::CreateContainer { .. }
                    | RuntimeCall::StartContainer { .. }
            )
        )
    }
}

impl RuntimeCall {
    fn key(&self) -> CallKey {
        match self {
            Self::RunSandbox { .. } => CallKey::RunSandbox,
            Self::StopSandbox { id } | Self::RemoveSandbox { id } => CallKey::Sandbox(id.clone()),
            Self::CreateContainer { name, .. } | Self::ImageStatus { name, .. } | Self::PullImage { name, .. } => {
                CallKey::Container(name.clone())
            }
            Self::StartContainer { id, .. } | Self::RemoveContainer { id, .. } => CallKey::Instance(id.clone()),
            Self::StopContainer { id, .. } => CallKey::Stop(id.clone()),
            Self::UpdateContainer { .. } | Self::UpdateSandbox { .. } => CallKey::Resize,
            Self::Hook { kind, id, .. } => CallKey::Hook(id.clone(), *kind),
            Self::Probe { kind, name, .. } => CallKey::Probe(name.clone(), *kind),
        }
    }

    fn changes_runtime(&self) -> bool {
        match self {
            Self::RunSandbox { .. }
            | Self::StopSandbox { .. }
            | Self::RemoveSandbox { .. }
            | Self::CreateContainer { .. }
            | Self::StartContainer { .. }
            | Self::StopContainer { .. }
            | Self::UpdateContainer { .. }
            | Self::RemoveContainer { .. } => true,
            Self::UpdateSandbox { .. }
            | Self::ImageStatus { .. }
            | Self::PullImage { .. }
            | Self::Hook { .. }
            | Self::Probe { .. } => false,
        }
    }
}

impl HostCall {
    fn key(&self) -> CallKey {
        match self {
            Self::PrepareContainer { name, .. } => CallKey::Container(name.clone()),
            Self::MakeCgroup | Self::RemoveCgroup => CallKey::Cgroup,
            Self::ResizeCgroup { .. } | Self::ReadMemory { .. } => CallKey::Resize,
            Self::MakeDirs | Self::RemoveDirs => CallKey::Dirs,
            Self::MountVolume { volume } => CallKey::Volume(volume.clone()),
            Self::RemoveVolumes => CallKey::Volumes,
            Self::RemoveLogs => CallKey::Logs,
        }
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
    /// The container has started.
    Startup,
    /// The container may receive traffic.
    Readiness,
    /// The container need not be restarted.
    Liveness,
}

/// The verdict of one probe run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeVerdict {
    /// It passed.
    Success,
    /// It failed, with its output or error.
    Failure(String),
    /// The probe could not run: the result is ignored.
    Unknown(String),
}

/// Result of a successful call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// It is done.
    Done,
    /// The new sandbox.
    Sandbox(SandboxId),
    /// The new container.
    Container(ContainerId),
    /// The image; `None`: it is not present.
    Image(Option<ImageFacts>),
    /// A probe's verdict.
    Probe(ProbeVerdict),
    /// The pod's cgroup exists.
    Cgroup {
        /// It was missing and has been created: containers that already run are outside of it.
        made: bool,
    },
    /// Memory in use, in bytes.
    Memory(MemoryUse),
}

/// Memory in use, in bytes. What could not be read is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUse {
    /// Of the pod's cgroup.
    pub pod: Option<u64>,
    /// By container.
    pub containers: BTreeMap<Name, u64>,
}

/// Facts from the config of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageFacts {
    /// Its id.
    pub id: String,
    /// The user it runs as, if numeric.
    pub uid: Option<i64>,
    /// The user it runs as, if a name.
    pub username: String,
}
