//! The signals of eviction, the resources they are about, and the node conditions they set.

use serde::{Deserialize, Serialize};

/// What is measured, with the names of `evictionHard` and `evictionSoft`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Signal {
    /// Memory of the node without its working set.
    MemoryAvailable,
    /// The same for the cgroup of all pods.
    AllocatableMemoryAvailable,
    /// Bytes on the file system of the root directory.
    NodeFsAvailable,
    /// Inodes there.
    NodeFsInodesFree,
    /// Bytes on the file system of images.
    ImageFsAvailable,
    /// Inodes there.
    ImageFsInodesFree,
    /// Bytes on the file system of writable layers. Its threshold is copied, never configured.
    ContainerFsAvailable,
    /// Inodes there.
    ContainerFsInodesFree,
    /// Processes and threads that may still be made.
    PidAvailable,
}

/// The resource that a signal is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StarvedResource {
    /// Bytes of the node, or of the cgroup of all pods.
    Memory,
    /// Bytes on disk.
    EphemeralStorage,
    /// Of any of the three file systems.
    Inodes,
    /// Processes and threads together.
    Pids,
}

/// A pressure condition of the Node object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NodePressure {
    /// `MemoryPressure`
    Memory,
    /// `DiskPressure`
    Disk,
    /// `PIDPressure`
    Pid,
}

impl Signal {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::MemoryAvailable,
        Self::AllocatableMemoryAvailable,
        Self::NodeFsAvailable,
        Self::NodeFsInodesFree,
        Self::ImageFsAvailable,
        Self::ImageFsInodesFree,
        Self::ContainerFsAvailable,
        Self::ContainerFsInodesFree,
        Self::PidAvailable,
    ];

    /// The name in the configuration and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
            Self::NodeFsAvailable => "nodefs.available",
            Self::NodeFsInodesFree => "nodefs.inodesFree",
            Self::ImageFsAvailable => "imagefs.available",
            Self::ImageFsInodesFree => "imagefs.inodesFree",
            Self::ContainerFsAvailable => "containerfs.available",
            Self::ContainerFsInodesFree => "containerfs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    /// The signal of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.as_str() == name)
    }

    /// Kubernetes: `signalToResource`.
    pub fn resource(self) -> StarvedResource {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => StarvedResource::Memory,
            Self::NodeFsAvailable | Self::ImageFsAvailable | Self::ContainerFsAvailable => {
                StarvedResource::EphemeralStorage
            }
            Self::NodeFsInodesFree | Self::ImageFsInodesFree | Self::ContainerFsInodesFree => StarvedResource::Inodes,
            Self::PidAvailable => StarvedResource::Pids,
        }
    }

    /// Kubernetes: `signalToNodeCondition`.
    pub fn pressure(self) -> NodePressure {
        match self.resource() {
            StarvedResource::Memory => NodePressure::Memory,
            StarvedResource::EphemeralStorage | StarvedResource::Inodes => NodePressure::Disk,
            StarvedResource::Pids => NodePressure::Pid,
        }
    }
}

impl StarvedResource {
    /// The name in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::EphemeralStorage => "ephemeral-storage",
            Self::Inodes => "inodes",
            Self::Pids => "pids",
        }
    }
}

impl NodePressure {
    /// The type of the condition.
    pub fn condition(self) -> &'static str {
        match self {
            Self::Memory => "MemoryPressure",
            Self::Disk => "DiskPressure",
            Self::Pid => "PIDPressure",
        }
    }
}
