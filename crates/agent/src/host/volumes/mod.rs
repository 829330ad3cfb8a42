//! Volumes: one file a kind. What is not here yet fails with a reason that names it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Volume;
use podwright_core::model::Pod;

use super::{Host, HostConfig, HostError, HostPaths, paths};

mod atomic;
mod downward;
mod empty_dir;
mod host_path;
mod ownership;

impl Host {
    /// Sets up one volume of the pod. Doing it again brings its content up to date.
    pub async fn mount_volume(&self, pod: &Arc<Pod>, volume: &str, limit: Duration) -> Result<(), HostError> {
        let key = self.volume_key(pod, volume, limit).await?;
        let (pod, volume) = (pod.clone(), volume.to_owned());
        self.run(&key, limit, FAILED, move |config| set_up(config, &pod, find(&pod, &volume)?)).await
    }
}

/// Where a volume lies once it is set up, or why it can't be.
pub fn volume_host_path(paths: &HostPaths, pod: &Pod, volume: &str) -> Result<PathBuf, HostError> {
    let found = find(pod, volume)?;
    let uid = paths::uid(pod);
    Ok(match kind(found)? {
        Kind::EmptyDir => paths.volume_dir(uid, "empty-dir", volume),
        Kind::HostPath => found.host_path.as_ref().map(|h| PathBuf::from(&h.path)).unwrap_or_default(),
        Kind::DownwardApi => paths.volume_dir(uid, "downward-api", volume),
        Kind::Projected => paths.volume_dir(uid, "projected", volume),
    })
}

/// The volume's content is ours to write: containers get it read-only whatever their mounts say.
pub fn is_read_only(pod: &Pod, volume: &str) -> bool {
    let kind = find(pod, volume).and_then(kind);
    matches!(kind, Ok(Kind::DownwardApi | Kind::Projected))
}

/// The volume of this name.
pub(super) fn find<'a>(pod: &'a Pod, volume: &str) -> Result<&'a Volume, HostError> {
    let mut all = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    all.find(|v| v.name == volume).ok_or_else(|| failed(format!("the pod has no volume {volume:?}")))
}

enum Kind {
    EmptyDir,
    HostPath,
    DownwardApi,
    Projected,
}

fn kind(volume: &Volume) -> Result<Kind, HostError> {
    let other = match volume {
        Volume { empty_dir: Some(_), .. } => return Ok(Kind::EmptyDir),
        Volume { host_path: Some(_), .. } => return Ok(Kind::HostPath),
        Volume { downward_api: Some(_), .. } => return Ok(Kind::DownwardApi),
        Volume { projected: Some(_), .. } => return Ok(Kind::Projected),
        other => type_name(other),
    };
    match other {
        // A volume without any source is an empty directory.
        None => Ok(Kind::EmptyDir),
        Some(other) => Err(failed(format!("volume {:?}: type {other} is not supported", volume.name))),
    }
}

/// The manifest's word for a volume's type.
fn type_name(volume: &Volume) -> Option<String> {
    let fields = serde_json::to_value(volume).ok()?;
    fields.as_object()?.keys().find(|key| *key != "name").cloned()
}

fn set_up(config: &HostConfig, pod: &Pod, volume: &Volume) -> Result<(), HostError> {
    let path = volume_host_path(&config.paths, pod, &volume.name)?;
    match kind(volume)? {
        Kind::EmptyDir => {
            empty_dir::set_up(config, pod, &volume.name, &path, &volume.empty_dir.clone().unwrap_or_default())
        }
        Kind::HostPath => host_path::check(&path, volume.host_path.as_ref().and_then(|h| h.type_.as_deref())),
        Kind::DownwardApi => {
            let source = volume.downward_api.clone().unwrap_or_default();
            let mut payload = atomic::Payload::new();
            let mode = source.default_mode;
            downward::collect(config, pod, source.items.as_deref().unwrap_or_default(), mode, &mut payload)?;
            downward::set_up(pod, &volume.name, &path, &payload)
        }
        Kind::Projected => {
            let payload = projected(config, pod, volume)?;
            downward::set_up(pod, &volume.name, &path, &payload)
        }
    }
}

fn projected(config: &HostConfig, pod: &Pod, volume: &Volume) -> Result<atomic::Payload, HostError> {
    let source = volume.projected.clone().unwrap_or_default();
    let mut payload = atomic::Payload::new();
    for part in source.sources.iter().flatten() {
        let Some(items) = &part.downward_api else {
            let fields = serde_json::to_value(part).unwrap_or_default();
            let kind = fields.as_object().and_then(|f| f.keys().next().cloned()).unwrap_or_default();
            return Err(failed(format!("volume {:?}: projected source {kind:?} is not supported", volume.name)));
        };
        let items = items.items.as_deref().unwrap_or_default();
        downward::collect(config, pod, items, source.default_mode, &mut payload)?;
    }
    Ok(payload)
}

/// The pod's group for its volumes, and how eagerly it is given to them.
fn fs_group(pod: &Pod) -> Result<Option<ownership::FsGroup>, HostError> {
    let context = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let Some(gid) = context.and_then(|c| c.fs_group) else { return Ok(None) };
    let gid = u32::try_from(gid).ok().filter(|gid| *gid != u32::MAX);
    let gid = gid.ok_or_else(|| failed("fsGroup is not a group id"))?;
    let policy = context.and_then(|c| c.fs_group_change_policy.as_deref());
    Ok(Some(ownership::FsGroup { gid, only_on_mismatch: policy == Some("OnRootMismatch") }))
}

fn failed(message: impl Into<String>) -> HostError {
    HostError::new(FAILED, message)
}

/// The Go kubelet's event reason.
const FAILED: &str = "FailedMount";
