//! File work of all parts of the host, on the threads of the [`Pool`].

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use podwright_core::model::Pod;
use podwright_linux::mountinfo;

use super::{HostCause, HostConfig, Pool, PoolKey};
use crate::pod_spec::{HostPaths, find_volume, pod_uid};

/// The configuration and the threads. Clones share the threads.
#[derive(Clone, Debug)]
pub(super) struct HostIo {
    pub(super) config: Arc<HostConfig>,
    pub(super) pool: Pool,
}

impl HostIo {
    pub(super) fn paths(&self) -> &HostPaths {
        &self.config.paths
    }

    /// Runs a step in the pool, at most `limit` long.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        key: impl Into<PoolKey> + Send,
        limit: Duration,
        step: impl FnOnce(&HostConfig) -> Result<T, HostCause> + Send + 'static,
    ) -> Result<T, HostCause> {
        let config = self.config.clone();
        self.pool.run(key, limit, move || step(&config)).await?
    }

    /// The pool's key for work on a volume: the mount of a hostPath, else the pod.
    pub(super) async fn volume_key(&self, pod: &Pod, volume: &str, limit: Duration) -> Result<PoolKey, HostCause> {
        match find_volume(pod, volume)?.host_path.as_ref() {
            Some(host_path) => self.path_key(pod, PathBuf::from(&host_path.path), limit).await,
            None => Ok(pod_key(pod_uid(pod)).into()),
        }
    }

    /// The pool's key for work on a path outside the root directory. Such paths may all hang: they share the threads of the pod's
    /// volumes, and leave those of the pod's own directories to its removal.
    pub(super) async fn path_key(&self, pod: &Pod, path: PathBuf, limit: Duration) -> Result<PoolKey, HostCause> {
        let owner = format!("volumes of pod {}", pod_uid(pod));
        self.run(MOUNT_TABLE_KEY, limit, move |config| {
            let mounts = mountinfo::read()?;
            let own = mountinfo::holding(&mounts, &config.paths.root_dir).map(|m| m.id);
            let name = match mountinfo::holding(&mounts, &path) {
                Some(mount) if Some(mount.id) != own && mount.point != Path::new("/") => {
                    format!("mount {}", mount.point.display())
                }
                // Even on the node's own disk a link may lead to a hung mount, so each path has its own key.
                _ => format!("path {}", path.display()),
            };
            Ok(PoolKey::new(owner, name))
        })
        .await
    }
}

/// The pool's key for work on a pod's own directories.
pub(super) fn pod_key(uid: &str) -> String {
    format!("pod {uid}")
}

/// The pool's key for reading the kernel's mount table.
pub(super) const MOUNT_TABLE_KEY: &str = "mountinfo";
