//! Volumes of pods: set up, updated and removed. One submodule per kind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Volume;
use podwright_core::model::Pod;
use podwright_linux::beneath;
use tokio::time::timeout;

use super::io::{HostIo, pod_key};
use super::{HostCause, HostConfig, HostError, subpath};
use crate::objects::ObjectClient;
use crate::pod_spec::{SubPath, find_volume, pod_uid, volume_host_path};

mod atomic;
mod claim;
mod content;
mod downward;
mod empty_dir;
mod error;
mod files;
mod host_path;
mod keyed;
mod ownership;
#[cfg(test)]
mod race_tests;
mod set_ups;

pub use error::{ClaimError, FileError, HostPathError, VolumeError};

use content::Content;
use set_ups::{Cancelled, SetUps};

/// The pods' volumes.
#[derive(Clone, Debug)]
pub(crate) struct PodVolumes {
    io: HostIo,
    objects: Arc<dyn ObjectClient>,
    set_ups: SetUps,
}

impl PodVolumes {
    pub(super) fn new(io: HostIo, objects: Arc<dyn ObjectClient>) -> Self {
        Self { io, objects, set_ups: SetUps::default() }
    }

    /// The API objects that volumes refer to.
    pub(super) fn objects(&self) -> &dyn ObjectClient {
        &*self.objects
    }

    /// Sets up one volume of the pod. Repeated, it updates the content.
    pub(crate) async fn mount(&self, pod: &Arc<Pod>, volume: &str, limit: Duration) -> Result<(), HostError> {
        self.fetch_and_set_up(pod, volume, limit).await.map_err(HostError::MountVolume)
    }

    async fn fetch_and_set_up(&self, pod: &Arc<Pod>, volume: &str, limit: Duration) -> Result<(), HostCause> {
        let deadline = Instant::now() + limit;
        let remaining = || deadline.saturating_duration_since(Instant::now());
        let content = timeout(limit, self.content(pod, find_volume(pod, volume)?)).await;
        let content = content.map_err(|_| VolumeError::FetchTimeout(limit))??;
        let key = match &content {
            Content::Local(local) => self.io.path_key(pod, local.path.clone(), remaining()).await?,
            _ => self.io.volume_key(pod, volume, remaining()).await?,
        };
        let attempt = self.set_ups.begin(pod_uid(pod), volume);
        let (pod, volume, cancelled) = (pod.clone(), volume.to_owned(), attempt.cancelled());
        let step =
            move |config: &HostConfig| Ok(set_up(config, &pod, find_volume(&pod, &volume)?, content, &cancelled)?);
        let done = self.io.run(&key, remaining(), step).await;
        attempt.end();
        done
    }

    /// Unmounts and removes all volumes of the pod, subPaths included. Files behind mounts are not touched.
    pub(crate) async fn remove(&self, uid: &str, limit: Duration) -> Result<(), HostError> {
        self.set_ups.cancel(uid);
        let deadline = Instant::now() + limit;
        self.io.unmount_all(self.io.paths().pod_dir(uid), deadline).await.map_err(HostError::RemoveVolumes)?;
        let owned = uid.to_owned();
        let remaining = deadline.saturating_duration_since(Instant::now());
        let done = self.io.run(pod_key(uid), remaining, move |config| {
            let paths = &config.paths;
            for dir in [paths.subpaths_dir(&owned), paths.volumes_dir(&owned), paths.plugins_dir(&owned)] {
                beneath::remove_path(&dir)?;
            }
            Ok(())
        });
        done.await.map_err(HostError::RemoveVolumes)
    }

    /// Binds one subPath of a container to the path that the runtime gets.
    pub(super) async fn bind_sub_path(
        &self,
        pod: &Pod,
        container: &str,
        sub_path: SubPath,
        limit: Duration,
    ) -> Result<(), HostError> {
        let SubPath { index, volume, path } = sub_path;
        let failed = |source: subpath::SubPathError| {
            let (path, volume, container) = (path.clone(), volume.clone(), container.to_owned());
            HostError::PrepareContainer(HostCause::SubPath { path, volume, container, source: Box::new(source) })
        };
        let source = volume_host_path(self.io.paths(), pod, &volume).map_err(|e| failed(e.into()))?;
        let key = self.io.volume_key(pod, &volume, limit).await.map_err(HostError::MountVolume)?;
        let target = self.io.paths().subpath(pod_uid(pod), &volume, container, index);
        let inside = path.clone();
        let bound = self.io.run(&key, limit, move |_| Ok(subpath::bind(&source, &inside, &target))).await;
        bound.map_err(HostError::PrepareContainer)?.map_err(failed)
    }
}

fn set_up(
    config: &HostConfig,
    pod: &Pod,
    volume: &Volume,
    content: Content,
    cancelled: &Cancelled,
) -> Result<(), VolumeError> {
    let path = volume_host_path(&config.paths, pod, &volume.name)?;
    cancelled.check().map_err(VolumeError::io("set up", &path))?;
    match content {
        Content::Mounted => Ok(()),
        Content::Local(local) => claim::set_up(pod, &local, &path, cancelled),
        Content::Files { payload, in_memory } => files::set_up(config, pod, &volume.name, &path, &payload, in_memory),
        Content::None => match &volume.host_path {
            Some(host_path) => Ok(host_path::check(&path, host_path.type_.as_deref())?),
            None => {
                let source = volume.empty_dir.clone().unwrap_or_default();
                empty_dir::set_up(config, pod, &volume.name, &path, &source)
            }
        },
    }
}

/// The pod's `fsGroup` and `fsGroupChangePolicy`.
fn fs_group(pod: &Pod) -> Result<Option<ownership::FsGroup>, VolumeError> {
    let context = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let Some(gid) = context.and_then(|c| c.fs_group) else { return Ok(None) };
    let gid = u32::try_from(gid).ok().filter(|gid| *gid != u32::MAX).ok_or(VolumeError::InvalidFsGroup)?;
    let policy = context.and_then(|c| c.fs_group_change_policy.as_deref());
    Ok(Some(ownership::FsGroup { gid, only_on_mismatch: policy == Some("OnRootMismatch") }))
}
