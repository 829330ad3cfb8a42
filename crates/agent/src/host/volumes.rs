//! Volumes: one file a kind. What is not here yet fails with a reason that names it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Volume;
use podwright_core::model::Pod;
use tokio::time::timeout;

use super::{Host, HostConfig, HostError, HostPaths, paths};

mod atomic;
mod claim;
mod content;
mod downward;
mod empty_dir;
mod files;
mod host_path;
mod keyed;
mod ownership;

use content::Content;

impl Host {
    /// Sets up one volume of the pod. Doing it again brings its content up to date.
    pub async fn mount_volume(&self, pod: &Arc<Pod>, volume: &str, limit: Duration) -> Result<(), HostError> {
        let deadline = Instant::now() + limit;
        let late = |_| failed(format!("what it shows could not be fetched within {limit:?}"));
        let content = timeout(limit, self.content(pod, find(pod, volume)?)).await.map_err(late)??;
        let left = deadline.saturating_duration_since(Instant::now());
        let key = match &content {
            Content::Place(place) => self.path_key(place.path.clone(), left).await?,
            _ => self.volume_key(pod, volume, left).await?,
        };
        let (pod, volume) = (pod.clone(), volume.to_owned());
        let left = deadline.saturating_duration_since(Instant::now());
        self.run(&key, left, FAILED, move |config| set_up(config, &pod, find(&pod, &volume)?, content)).await
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
        Kind::ConfigMap => paths.volume_dir(uid, "configmap", volume),
        Kind::Secret => paths.volume_dir(uid, "secret", volume),
        Kind::Claim => paths.volume_dir(uid, "local-volume", volume),
    })
}

/// Containers get the volume read-only whatever their mounts say: its content is ours to write, or it was claimed so.
pub fn is_read_only(pod: &Pod, volume: &str) -> bool {
    let Ok(volume) = find(pod, volume) else { return false };
    match kind(volume) {
        Ok(Kind::DownwardApi | Kind::Projected | Kind::ConfigMap | Kind::Secret) => true,
        Ok(Kind::Claim) => claim::of(pod, volume).is_some_and(|claim| claim.read_only),
        Ok(Kind::EmptyDir | Kind::HostPath) | Err(_) => false,
    }
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
    ConfigMap,
    Secret,
    Claim,
}

fn kind(volume: &Volume) -> Result<Kind, HostError> {
    let other = match volume {
        Volume { empty_dir: Some(_), .. } => return Ok(Kind::EmptyDir),
        Volume { host_path: Some(_), .. } => return Ok(Kind::HostPath),
        Volume { downward_api: Some(_), .. } => return Ok(Kind::DownwardApi),
        Volume { projected: Some(_), .. } => return Ok(Kind::Projected),
        Volume { config_map: Some(_), .. } => return Ok(Kind::ConfigMap),
        Volume { secret: Some(_), .. } => return Ok(Kind::Secret),
        Volume { persistent_volume_claim: Some(_), .. } | Volume { ephemeral: Some(_), .. } => return Ok(Kind::Claim),
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

fn set_up(config: &HostConfig, pod: &Pod, volume: &Volume, content: Content) -> Result<(), HostError> {
    let path = volume_host_path(&config.paths, pod, &volume.name)?;
    match content {
        Content::Standing => Ok(()),
        Content::Place(place) => claim::set_up(pod, &place, &path),
        Content::Files { payload, in_memory } => files::set_up(config, pod, &volume.name, &path, &payload, in_memory),
        Content::None => match &volume.host_path {
            Some(host_path) => host_path::check(&path, host_path.type_.as_deref()),
            None => {
                let source = volume.empty_dir.clone().unwrap_or_default();
                empty_dir::set_up(config, pod, &volume.name, &path, &source)
            }
        },
    }
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
