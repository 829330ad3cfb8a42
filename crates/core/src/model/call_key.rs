//! The keys under which calls of one pod exclude each other.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::history_text::{POST_START_HOOK, SANDBOX_CREATION, VOLUME_MOUNT};
use super::{ContainerId, HookKind, Name, ProbeKind, SandboxId};

/// Calls of one pod with the same key exclude each other: at most one is in flight. The exception is a stop, which may be sent
/// again with a shorter time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CallKey {
    /// RunSandbox.
    RunSandbox,
    /// StopSandbox or RemoveSandbox.
    Sandbox(SandboxId),
    /// Prepare, image status, pull and create: everything up to the creation of a container.
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
    /// One step of a resize.
    Resize,
    /// The pod's directories.
    Dirs,
    /// One volume.
    Volume(Name),
    /// All volumes.
    Volumes,
    /// The logs.
    Logs,
}

/// What the calls of this key work on, for users: it fits before "failed".
impl fmt::Display for CallKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RunSandbox => f.write_str(SANDBOX_CREATION),
            Self::Sandbox(id) => write!(f, "stop or removal of sandbox {id}"),
            Self::Container(name) => write!(f, "creation of container {name}"),
            Self::Instance(id) => write!(f, "start or removal of container {id}"),
            Self::Stop(id) => write!(f, "stop of container {id}"),
            Self::Hook(id, HookKind::PostStart) => write!(f, "{POST_START_HOOK} of container {id}"),
            Self::Hook(id, HookKind::PreStop) => write!(f, "preStop hook of container {id}"),
            Self::Probe(name, kind) => write!(f, "{kind:?} probe of container {name}"),
            Self::Cgroup => write!(f, "setup or removal of the cgroup"),
            Self::Resize => write!(f, "resize of the pod"),
            Self::Dirs => write!(f, "setup or removal of the pod directories"),
            Self::Volume(name) => write!(f, "{VOLUME_MOUNT}{name}"),
            Self::Volumes => write!(f, "removal of the volumes"),
            Self::Logs => write!(f, "removal of the logs"),
        }
    }
}
