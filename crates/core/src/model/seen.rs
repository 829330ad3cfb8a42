//! Observed state of pods in the runtime. Only queries fill it, runtime events never do.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{ContainerId, FullName, Name, PodUid, SandboxId, Source};

/// Everything the runtime has of one pod. Empty: it has nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PodSeen {
    /// Newest first.
    pub sandboxes: Vec<SandboxSeen>,
    /// Newest first within a name.
    pub containers: Vec<ContainerSeen>,
}

impl PodSeen {
    /// The runtime has nothing of this pod.
    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }
    /// The newest sandbox, ready or not.
    pub fn sandbox(&self) -> Option<&SandboxSeen> {
        self.sandboxes.first()
    }
    /// Containers that may have a process.
    pub fn alive(&self) -> impl Iterator<Item = &ContainerSeen> {
        self.containers.iter().filter(|c| c.state.may_run())
    }
    /// The newest instance of a container in one sandbox. A running one is preferred to a later one that was never started: a
    /// call in doubt may create such an instance at any time.
    pub(crate) fn newest_in<'a>(&'a self, sandbox: &SandboxId, name: &str) -> Option<&'a ContainerSeen> {
        first(self.containers.iter().filter(move |c| c.sandbox == *sandbox && c.name.as_str() == name))
    }
    /// The newest instance of a container in any sandbox, with the same preference for a running one.
    pub fn newest(&self, name: &str) -> Option<&ContainerSeen> {
        first(self.containers.iter().filter(move |c| c.name.as_str() == name))
    }
    /// One instance by its id.
    pub fn container(&self, id: &ContainerId) -> Option<&ContainerSeen> {
        self.containers.iter().find(|c| c.id == *id)
    }
    /// Nothing runs, no sandbox is ready.
    pub(crate) fn is_stopped(&self) -> bool {
        self.alive().next().is_none() && self.sandboxes.iter().all(|s| !s.ready)
    }
}

fn first<'a>(mut instances: impl Iterator<Item = &'a ContainerSeen> + Clone) -> Option<&'a ContainerSeen> {
    instances.clone().find(|c| c.state.may_run()).or_else(|| instances.next())
}

/// One sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SandboxSeen {
    /// The runtime's id.
    pub id: SandboxId,
    /// How many sandboxes this pod had before it.
    pub attempt: u32,
    /// Ready, or stopped.
    pub ready: bool,
    /// When the runtime made it.
    pub created_at: Timestamp,
    /// Addresses, the first one is the pod's; empty with the host's network.
    pub ips: Vec<String>,
}

/// One container instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContainerSeen {
    /// The runtime's id.
    pub id: ContainerId,
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// The name in the pod.
    pub name: Name,
    /// The restart count this instance was created with.
    pub attempt: u32,
    /// The `io.kubernetes.container.hash` annotation.
    pub hash: Option<String>,
    /// Its state.
    pub state: RunState,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its process started.
    pub started_at: Option<Timestamp>,
    /// When its process ended.
    pub finished_at: Option<Timestamp>,
    /// Its exit code, once exited.
    pub exit_code: i32,
    /// The runtime's reason for the exit: `Completed`, `Error`, `OOMKilled`, …
    pub reason: String,
    /// The termination message, already read from its file, or the runtime's message.
    pub message: String,
    /// The image as the user named it.
    pub image: String,
    /// The image's id or digest reference for the status.
    pub image_id: String,
    /// The grace period written at its creation, for pods whose spec is unknown.
    pub grace: Option<Duration>,
    /// The preStop hook written at its creation, as JSON, likewise.
    pub pre_stop: Option<String>,
    /// The user it runs as, if the runtime reports it (uid, gid, groups).
    pub user: Option<(i64, i64, Vec<i64>)>,
}

/// The state of a container as the CRI has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RunState {
    /// Made, never started.
    Created,
    /// Its process runs.
    Running,
    /// Its process ended.
    Exited,
    /// The runtime lost it: a process may still be there.
    Unknown,
}

impl RunState {
    /// A process may be there.
    pub fn may_run(self) -> bool {
        matches!(self, Self::Running | Self::Unknown)
    }
}

/// Summary of all pods in the runtime, from one list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listing {
    /// Pods with the kubelet's labels; nothing else in the runtime is changed.
    pub pods: BTreeMap<PodUid, PodListed>,
}

/// One pod in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodListed {
    /// From the labels.
    pub full_name: FullName,
    /// From the sandbox's `kubernetes.io/config.source` annotation.
    pub source: Option<Source>,
    /// Sandboxes, and whether they are ready.
    pub sandboxes: BTreeMap<SandboxId, bool>,
    /// Containers with their state.
    pub containers: BTreeMap<ContainerId, (Name, RunState)>,
    /// The `io.kubernetes.container.hash` annotations of all containers.
    #[serde(default)]
    pub container_hashes: BTreeSet<String>,
    /// Of a static pod: the hash of its manifest, from the annotation of a sandbox that this agent made; `None`: another agent made it.
    #[serde(default)]
    pub manifest_hash: Option<String>,
}

impl PodListed {
    /// Something of it runs.
    pub fn is_active(&self) -> bool {
        self.sandboxes.values().any(|ready| *ready) || self.containers.values().any(|(_, state)| state.may_run())
    }
}
