//! Volumes that can't be set up.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use podwright_core::quantity::QuantityError;
use podwright_linux::beneath::RemoveError;
use podwright_linux::mountinfo::MountInfoError;

use crate::objects::GetObjectError;
use crate::pod_spec::{FieldRefError, VolumeSpecError};

/// A volume that can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The volume is missing or of an unsupported type.
    #[error(transparent)]
    Spec(#[from] VolumeSpecError),
    /// The API objects did not arrive in time.
    #[error("the volume's objects could not be fetched within {0:?}")]
    FetchTimeout(Duration),
    /// An API object is not available.
    #[error(transparent)]
    Object(#[from] GetObjectError),
    /// A projected volume with an unsupported source.
    #[error("projected source {0:?} is not supported")]
    UnsupportedProjection(
        /// The field of the source.
        String,
    ),
    /// A system call on a file, directory or mount.
    #[error("{step} {}", path.display())]
    Io {
        /// The failed operation.
        step: &'static str,
        /// The file, directory or mount point.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The mount table can't be read.
    #[error(transparent)]
    Mounts(#[from] MountInfoError),
    /// An old version of the volume's files can't be removed.
    #[error(transparent)]
    Remove(#[from] RemoveError),
    /// `fsGroup` is out of range.
    #[error("fsGroup is not a group id")]
    InvalidFsGroup,
    /// A file of the volume that can't be written.
    #[error("file {path:?}")]
    File {
        /// Its path in the volume, as in the spec.
        path: String,
        /// What is wrong with it.
        source: FileError,
    },
    /// A key that is missing from a ConfigMap or Secret and not optional, in the Go kubelet's message.
    #[error("{message}: {key}")]
    KeyNotFound {
        /// The message for the object's kind.
        message: &'static str,
        /// The missing key.
        key: String,
    },
    /// An emptyDir's `medium`.
    #[error("emptyDir medium {0:?} is not supported")]
    UnsupportedMedium(String),
    /// An emptyDir's `sizeLimit`.
    #[error("sizeLimit")]
    SizeLimit(#[source] QuantityError),
    /// A hostPath that fails its check.
    #[error(transparent)]
    HostPath(#[from] HostPathError),
    /// A claim that can't be used.
    #[error("persistentvolumeclaim {name:?}")]
    Claim {
        /// The claim's name.
        name: String,
        /// Why not.
        source: ClaimError,
    },
    /// A local volume whose path is a file.
    #[error("{}: a local volume must be a directory", .0.display())]
    NotADirectory(PathBuf),
}

/// A file of a volume that can't be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// An absolute path, or one with `..`.
    #[error("the path must be relative and must not contain '..'")]
    PathNotRelative,
    /// An empty or too long path.
    #[error("the path must have between 1 and 4096 characters")]
    PathLength,
    /// Names with two leading dots are reserved for the volume's own links.
    #[error("the path must not begin with '..'")]
    PathReserved,
    /// A mode with bits besides the permissions.
    #[error("mode must be between 0 and 0777")]
    Mode,
    /// A `fieldRef` or `resourceFieldRef` without a value.
    #[error(transparent)]
    FieldRef(#[from] FieldRefError),
}

/// A hostPath that fails its check.
#[derive(Debug, thiserror::Error)]
pub enum HostPathError {
    /// A relative path, or one with `..`.
    #[error("hostPath {} must be an absolute path without '..'", .0.display())]
    NotAbsolute(PathBuf),
    /// An unknown `type`.
    #[error("{0} is an invalid volume type")]
    UnknownType(String),
    /// The path is of another type.
    #[error("hostPath type check failed: {} is not a {expected}", path.display())]
    WrongType {
        /// The path on the node.
        path: PathBuf,
        /// The expected type.
        expected: &'static str,
    },
    /// The path can't be accessed.
    #[error("hostPath type check failed: {} is not a {expected}", path.display())]
    Check {
        /// The path on the node.
        path: PathBuf,
        /// The expected type.
        expected: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// `DirectoryOrCreate` or `FileOrCreate` failed.
    #[error("create {}", path.display())]
    Create {
        /// The path on the node.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// A PersistentVolumeClaim that the pod can't use on this node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The claim of a generic ephemeral volume has another owner.
    #[error("it was not created for this pod")]
    NotOwned,
    /// The claim has a deletion timestamp.
    #[error("it is being deleted")]
    Deleted,
    /// The claim has no volume.
    #[error("it is not bound to a volume (phase {0})")]
    Unbound(String),
    /// The volume has no spec.
    #[error("volume {0:?} has no spec")]
    NoSpec(String),
    /// The volume is bound to another claim.
    #[error("volume {0:?} is not bound to it")]
    BoundElsewhere(String),
    /// `volumeMode: Block`.
    #[error("volume {0:?} is a block device, which is not supported")]
    Block(String),
    /// The volume offers `ReadOnlyMany` only, and the pod would write.
    #[error("volume {0:?} can only be read: the pod must claim it with readOnly")]
    ReadOnly(String),
    /// The volume's node affinity excludes this node.
    #[error("volume {0:?} is on another node")]
    OtherNode(String),
    /// The volume's type has no implementation.
    #[error("volume {volume:?} is of type {kind}, which is not supported")]
    Unsupported {
        /// The PersistentVolume's name.
        volume: String,
        /// The field of its source.
        kind: String,
    },
}

impl VolumeError {
    /// Wraps an error of a system call, for `map_err`.
    pub(super) fn io<E: Into<io::Error>>(step: &'static str, path: &Path) -> impl Fn(E) -> Self + use<E> {
        let path = path.to_owned();
        move |error| Self::Io { step, path: path.clone(), source: error.into() }
    }

    /// Wraps an error of one of the volume's files, for `map_err`.
    pub(super) fn file(path: &str) -> impl Fn(FileError) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::File { path: path.clone(), source }
    }
}
