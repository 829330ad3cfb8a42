//! Failures of operations on the node.

use std::io;
use std::path::{Path, PathBuf};

use podwright_core::model::CallError;
use podwright_linux::beneath::RemoveError;
use podwright_linux::cgroup::CgroupError;
use podwright_linux::mountinfo::MountInfoError;
use podwright_tasks::error_chain;

use super::PoolError;
use super::hosts::HostsFileError;
use super::subpath::SubPathError;
use super::systemd::SystemdError;
use super::volumes::VolumeError;
use crate::pod_spec::VolumeSpecError;

/// A failed operation. The operation determines the reason that users see, the cause is the message.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Creating a pod's cgroup.
    #[error(transparent)]
    CreateCgroup(HostCause),
    /// Setting limits of a pod's cgroup, or reading its memory, for a resize.
    #[error(transparent)]
    ResizeCgroup(HostCause),
    /// Killing the processes in a pod's cgroup and removing it.
    #[error(transparent)]
    RemoveCgroup(HostCause),
    /// Setting the limits of the cgroup above all pods.
    #[error(transparent)]
    EnforceNodeAllocatable(HostCause),
    /// Creating a pod's data directories.
    #[error(transparent)]
    CreateDirs(HostCause),
    /// Removing a pod's data directories.
    #[error(transparent)]
    RemoveDirs(HostCause),
    /// Setting up one volume.
    #[error(transparent)]
    MountVolume(HostCause),
    /// Unmounting and removing a pod's volumes.
    #[error(transparent)]
    RemoveVolumes(HostCause),
    /// Creating a container's files and binding its subPaths.
    #[error(transparent)]
    PrepareContainer(HostCause),
    /// Creating or removing the link to a container's log.
    #[error(transparent)]
    LinkLog(HostCause),
    /// Removing a pod's logs.
    #[error(transparent)]
    RemoveLogs(HostCause),
    /// Listing the pods that left something on the node.
    #[error(transparent)]
    ListLeftovers(HostCause),
    /// Saving the record of a pod in quarantine.
    #[error(transparent)]
    SaveRecord(HostCause),
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum HostCause {
    /// The work was not done, or did not end in time.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A system call on a file or mount.
    #[error("{step} {}", path.display())]
    Io {
        /// The failed operation.
        step: &'static str,
        /// The file, directory or mount point.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A cgroup operation.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A call on systemd.
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    /// Reading the mount table.
    #[error(transparent)]
    Mounts(#[from] MountInfoError),
    /// Removing a directory tree.
    #[error(transparent)]
    Remove(#[from] RemoveError),
    /// A volume.
    #[error(transparent)]
    Volume(Box<VolumeError>),
    /// The pod's `/etc/hosts`.
    #[error("hosts file")]
    HostsFile(#[source] HostsFileError),
    /// A subPath.
    #[error("failed to prepare subPath {path:?} for volumeMount {volume:?} of container {container:?}")]
    SubPath {
        /// The path inside the volume.
        path: String,
        /// The volume's name.
        volume: String,
        /// The container's name.
        container: String,
        /// What is wrong with it.
        source: Box<SubPathError>,
    },
    /// Mounts reappear as fast as they are unmounted.
    #[error("{} still has mounts after {rounds} rounds", path.display())]
    StillMounted {
        /// The directory whose mounts were to go.
        path: PathBuf,
        /// How often all its mounts were unmounted.
        rounds: usize,
    },
    /// A UID that can't be a file name.
    #[error("{0:?} is not a file name")]
    NotAFileName(String),
    /// A record that can't be serialised.
    #[error("encode the record")]
    Encode(#[source] serde_json::Error),
}

impl HostCause {
    /// Wraps an error of a system call, for `map_err`.
    pub(super) fn io(step: &'static str, path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { step, path: path.clone(), source }
    }
}

impl From<VolumeError> for HostCause {
    fn from(error: VolumeError) -> Self {
        Self::Volume(Box::new(error))
    }
}

impl From<VolumeSpecError> for HostCause {
    fn from(error: VolumeSpecError) -> Self {
        VolumeError::from(error).into()
    }
}

impl HostError {
    /// The reason in events and container statuses, as in the Go kubelet; empty: there is none for this operation.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::CreateCgroup(_) => "FailedCreatePodContainer",
            Self::CreateDirs(_) => "Failed",
            Self::MountVolume(_) => "FailedMount",
            Self::PrepareContainer(_) => "CreateContainerConfigError",
            Self::ResizeCgroup(_)
            | Self::RemoveCgroup(_)
            | Self::EnforceNodeAllocatable(_)
            | Self::RemoveDirs(_)
            | Self::RemoveVolumes(_)
            | Self::LinkLog(_)
            | Self::RemoveLogs(_)
            | Self::ListLeftovers(_)
            | Self::SaveRecord(_) => "",
        }
    }

    /// The message with all its sources, on one line.
    pub fn message(&self) -> String {
        error_chain(self)
    }

    /// Whether a thread or systemd may still complete the operation later.
    pub fn in_doubt(&self) -> bool {
        match self.cause() {
            HostCause::Pool(error) => error.in_doubt(),
            HostCause::Systemd(error) => matches!(error, SystemdError::Timeout { .. }),
            _ => false,
        }
    }

    fn cause(&self) -> &HostCause {
        match self {
            Self::CreateCgroup(cause)
            | Self::ResizeCgroup(cause)
            | Self::RemoveCgroup(cause)
            | Self::EnforceNodeAllocatable(cause)
            | Self::CreateDirs(cause)
            | Self::RemoveDirs(cause)
            | Self::MountVolume(cause)
            | Self::RemoveVolumes(cause)
            | Self::PrepareContainer(cause)
            | Self::LinkLog(cause)
            | Self::RemoveLogs(cause)
            | Self::ListLeftovers(cause)
            | Self::SaveRecord(cause) => cause,
        }
    }
}

impl From<HostError> for CallError {
    fn from(error: HostError) -> Self {
        let (reason, message) = (error.reason(), error.message());
        let reason = (!reason.is_empty()).then(|| reason.to_owned());
        match error.in_doubt() {
            true => Self::InDoubt { reason, message },
            false => Self::Failed { reason, message },
        }
    }
}
