//! Why a pod can't be expressed in the runtime's API.

use std::path::PathBuf;

use podwright_core::expansion::EXPANDED_BYTES_MAX;
use podwright_core::model::CallError;
use podwright_tasks::error_chain;

use crate::objects::GetObjectError;
use crate::pod_spec::{FieldRefError, HostnameError, VolumeSpecError};

/// A pod or container that can't be expressed in the runtime's API.
#[derive(Debug, thiserror::Error)]
pub enum TranslateError {
    /// The hostname can't be derived.
    #[error(transparent)]
    Hostname(#[from] HostnameError),
    /// `supplementalGroupsPolicy: Strict` needs a runtime that implements it: others merge groups silently.
    #[error("supplementalGroupsPolicy Strict: the runtime does not support it")]
    StrictGroupsUnsupported,
    /// An unknown `supplementalGroupsPolicy`.
    #[error("unsupported supplementalGroupsPolicy: {0}")]
    UnknownGroupsPolicy(String),
    /// `hostUsers: false` needs a runtime that implements user namespaces.
    #[error("can't set `spec.hostUsers: false`, runtime does not support user namespaces")]
    UserNamespacesUnsupported,
    /// No user ids were allocated for the pod's user namespace.
    #[error("no range of user ids is allocated to the pod")]
    NoUserIds,
    /// The pod has no container of this name.
    #[error("the pod has no container {0:?}")]
    NoContainer(String),
    /// An unknown `lifecycle.stopSignal`.
    #[error("unknown stopSignal {0:?}")]
    UnknownStopSignal(String),
    /// The CRI carries paths as UTF-8 strings.
    #[error("path {} is not UTF-8", .0.display())]
    PathNotUtf8(PathBuf),
    /// An object that the environment refers to is not available.
    #[error(transparent)]
    Object(#[from] GetObjectError),
    /// A `fieldRef` or `resourceFieldRef` without a value.
    #[error("environment variable {name}")]
    FieldRef {
        /// The variable's name.
        name: String,
        /// Why there is no value.
        source: FieldRefError,
    },
    /// A `valueFrom` without a supported source.
    #[error("environment variable {0}: this kind of valueFrom is not supported")]
    UnsupportedValueFrom(String),
    /// A variable's value with a NUL byte, which no process can receive.
    #[error("environment variable {0} has a NUL byte")]
    NulInVariable(String),
    /// The environment up to and including this variable is too large.
    #[error("environment variable {name}: the environment expands to more than {max} bytes", max = EXPANDED_BYTES_MAX)]
    EnvironmentTooLarge {
        /// The variable's name.
        name: String,
    },
    /// The command and its arguments are too large.
    #[error("{field}[{index}]: the command expands to more than {max} bytes", max = EXPANDED_BYTES_MAX)]
    CommandTooLarge {
        /// `command` or `args`.
        field: &'static str,
        /// Of the entry that exceeds the limit.
        index: usize,
    },
    /// A key that is missing from a ConfigMap or Secret and not optional.
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    KeyNotFound {
        /// The missing key.
        key: String,
        /// `ConfigMap` or `Secret`.
        kind: &'static str,
        /// The object's namespace.
        namespace: String,
        /// The object's name.
        name: String,
    },
    /// A Secret's value that is not UTF-8. The value is not part of the message.
    #[error("the secret's key {0} is not text")]
    SecretNotUtf8(String),
    /// `volumeDevices`.
    #[error("volumeDevice {0:?}: block volumes are not supported")]
    VolumeDevice(String),
    /// A subPath that can't be prepared.
    #[error("volume {volume:?}")]
    SubPath {
        /// The volume's name.
        volume: String,
        /// What is wrong with the mount.
        source: MountError,
    },
    /// A volume mount that can't be expressed.
    #[error("volume {volume:?} for container {container:?}")]
    Mount {
        /// The volume's name.
        volume: String,
        /// The container's name.
        container: String,
        /// What is wrong with the mount.
        source: MountError,
    },
    /// A seccomp or AppArmor profile that can't be used.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// `runAsNonRoot` is violated.
    #[error("{violation} (pod: {pod:?}, container: {container})")]
    NonRoot {
        /// Whether `runAsUser` or the user of the image is, or may be, root.
        violation: NonRootViolation,
        /// `name_namespace(uid)`.
        pod: String,
        /// The container's name.
        container: String,
    },
}

/// A volume mount that can't be expressed in the runtime's API.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    /// The volume is missing or of an unsupported type.
    #[error(transparent)]
    Volume(#[from] VolumeSpecError),
    /// `subPathExpr` refers to variables that the container does not have.
    #[error("missing value for {}", .0.join(", "))]
    MissingVariables(Vec<String>),
    /// `subPathExpr` expands to more than a path can have.
    #[error("subPathExpr expands to more than 4096 bytes")]
    SubPathTooLong,
    /// A subPath that begins with a slash.
    #[error("subPath {0:?} must not be an absolute path")]
    AbsoluteSubPath(String),
    /// A subPath that could leave the volume.
    #[error("subPath {0:?} must not contain '..'")]
    SubPathWithParent(String),
    /// An unknown `mountPropagation`.
    #[error("invalid MountPropagation mode: {0:?}")]
    UnknownPropagation(String),
    /// `recursiveReadOnly` without `readOnly`.
    #[error("requested recursive read-only mode, but it is not read-only")]
    RecursiveNotReadOnly,
    /// `recursiveReadOnly` together with `mountPropagation`.
    #[error("requested recursive read-only mode, but it is not compatible with propagation {0:?}")]
    RecursiveWithPropagation(String),
    /// `recursiveReadOnly: Enabled` needs a runtime that implements it.
    #[error("requested recursive read-only mode, but it is not supported by the runtime")]
    RecursiveUnsupported,
    /// An unknown `recursiveReadOnly`.
    #[error("unknown recursive read-only mode {0:?}")]
    UnknownRecursive(String),
}

/// A seccomp or AppArmor profile that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// `type: Localhost` without `localhostProfile`.
    #[error("localhostProfile must be set if seccompProfile type is Localhost")]
    SeccompFileMissing,
    /// A profile outside `<root dir>/seccomp`.
    #[error("localhostProfile {0:?} must be a path inside the seccomp directory")]
    SeccompFileOutside(String),
    /// An unknown `seccompProfile.type`.
    #[error("unknown seccompProfile type {0:?}")]
    UnknownSeccompType(String),
    /// `type: Localhost` without `localhostProfile`.
    #[error("missing localhost apparmor profile name")]
    AppArmorNameMissing,
    /// An unknown `appArmorProfile.type`.
    #[error("unknown apparmor profile type: {0:?}")]
    UnknownAppArmorType(String),
}

/// How a container violates `runAsNonRoot`, in the Go kubelet's messages (`verifyRunAsNonRoot`).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NonRootViolation {
    /// `runAsUser: 0`.
    #[error("container's runAsUser breaks non-root policy")]
    RunAsUser,
    /// The image names its user, whose id is unknown before the container runs.
    #[error("container has runAsNonRoot and image has non-numeric user ({0}), cannot verify user is non-root")]
    ImageUserNotNumeric(String),
    /// The image's user is root.
    #[error("container has runAsNonRoot and image will run as root")]
    ImageIsRoot,
    /// The image's user id is out of range.
    #[error("container has runAsNonRoot and image has an invalid user id ({0}). (Must be 1-({max}))", max = i32::MAX)]
    ImageUserInvalid(i64),
}

impl TranslateError {
    /// The reason in the pod's status: `CreateContainerConfigError` or `CreatePodSandboxError`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Hostname(_)
            | Self::StrictGroupsUnsupported
            | Self::UnknownGroupsPolicy(_)
            | Self::UserNamespacesUnsupported
            | Self::NoUserIds => "CreatePodSandboxError",
            _ => "CreateContainerConfigError",
        }
    }

    /// The message with all its sources, on one line.
    pub fn message(&self) -> String {
        error_chain(self)
    }
}

impl From<TranslateError> for CallError {
    fn from(error: TranslateError) -> Self {
        Self::with_reason(error.reason(), error.message())
    }
}
