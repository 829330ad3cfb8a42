//! A pod's volumes by name: their kind, their path on the node, and whether containers may write to them.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::Volume;
use podwright_core::model::Pod;

use super::{HostPaths, pod_name, pod_uid};

/// One volume mount with a subPath, its `subPathExpr` already expanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubPath {
    /// Its index in the container's volume mounts.
    pub index: usize,
    /// The volume's name.
    pub volume: String,
    /// The path inside the volume.
    pub path: String,
}

/// A volume that the pod does not have, or that this agent can't mount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeSpecError {
    /// No volume of this name in the spec.
    #[error("the pod has no volume {0:?}")]
    NotFound(String),
    /// A volume type without an implementation.
    #[error("type {0} is not supported")]
    Unsupported(
        /// The field of the volume source: `nfs`, `csi`, …
        String,
    ),
}

/// The supported volume types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VolumeKind {
    EmptyDir,
    HostPath,
    DownwardApi,
    Projected,
    ConfigMap,
    Secret,
    /// `persistentVolumeClaim` and `ephemeral`.
    Claim,
}

/// The PersistentVolumeClaim that a volume names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeClaim {
    pub(crate) name: String,
    pub(crate) read_only: bool,
    /// A generic ephemeral volume: the pod must own the claim.
    pub(crate) is_ephemeral: bool,
}

/// The volume of this name.
pub(crate) fn find_volume<'a>(pod: &'a Pod, volume: &str) -> Result<&'a Volume, VolumeSpecError> {
    let mut all = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    all.find(|v| v.name == volume).ok_or_else(|| VolumeSpecError::NotFound(volume.into()))
}

/// The volume's type. A volume without any source is an emptyDir.
pub(crate) fn volume_kind(volume: &Volume) -> Result<VolumeKind, VolumeSpecError> {
    Ok(match volume {
        Volume { empty_dir: Some(_), .. } => VolumeKind::EmptyDir,
        Volume { host_path: Some(_), .. } => VolumeKind::HostPath,
        Volume { downward_api: Some(_), .. } => VolumeKind::DownwardApi,
        Volume { projected: Some(_), .. } => VolumeKind::Projected,
        Volume { config_map: Some(_), .. } => VolumeKind::ConfigMap,
        Volume { secret: Some(_), .. } => VolumeKind::Secret,
        Volume { persistent_volume_claim: Some(_), .. } | Volume { ephemeral: Some(_), .. } => VolumeKind::Claim,
        other => match source_field(other) {
            None => VolumeKind::EmptyDir,
            Some(kind) => return Err(VolumeSpecError::Unsupported(kind)),
        },
    })
}

/// The name of the field that holds the volume's source.
fn source_field(volume: &Volume) -> Option<String> {
    let fields = serde_json::to_value(volume).ok()?;
    fields.as_object()?.keys().find(|key| *key != "name").cloned()
}

/// The path of a volume on the node once it is mounted.
pub(crate) fn volume_host_path(paths: &HostPaths, pod: &Pod, volume: &str) -> Result<PathBuf, VolumeSpecError> {
    let found = find_volume(pod, volume)?;
    let uid = pod_uid(pod);
    Ok(match volume_kind(found)? {
        VolumeKind::EmptyDir => paths.volume_dir(uid, "empty-dir", volume),
        VolumeKind::HostPath => found.host_path.as_ref().map(|h| PathBuf::from(&h.path)).unwrap_or_default(),
        VolumeKind::DownwardApi => paths.volume_dir(uid, "downward-api", volume),
        VolumeKind::Projected => paths.volume_dir(uid, "projected", volume),
        VolumeKind::ConfigMap => paths.volume_dir(uid, "configmap", volume),
        VolumeKind::Secret => paths.volume_dir(uid, "secret", volume),
        VolumeKind::Claim => paths.volume_dir(uid, "local-volume", volume),
    })
}

/// Whether containers get the volume read-only regardless of `volumeMounts[].readOnly`: the agent writes its content, or
/// the claim is read-only.
pub(crate) fn is_read_only(pod: &Pod, volume: &str) -> bool {
    let Ok(volume) = find_volume(pod, volume) else { return false };
    match volume_kind(volume) {
        Ok(VolumeKind::DownwardApi | VolumeKind::Projected | VolumeKind::ConfigMap | VolumeKind::Secret) => true,
        Ok(VolumeKind::Claim) => volume_claim(pod, volume).is_some_and(|claim| claim.read_only),
        Ok(VolumeKind::EmptyDir | VolumeKind::HostPath) | Err(_) => false,
    }
}

/// The claim of a volume of kind [`VolumeKind::Claim`].
pub(crate) fn volume_claim(pod: &Pod, volume: &Volume) -> Option<VolumeClaim> {
    if let Some(claim) = &volume.persistent_volume_claim {
        let read_only = claim.read_only.unwrap_or_default();
        return Some(VolumeClaim { name: claim.claim_name.clone(), read_only, is_ephemeral: false });
    }
    volume.ephemeral.as_ref()?;
    Some(VolumeClaim { name: format!("{}-{}", pod_name(pod), volume.name), read_only: false, is_ephemeral: true })
}
