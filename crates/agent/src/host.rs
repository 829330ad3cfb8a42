//! What pods need on the machine itself, outside of their containers: directories, volumes, cgroups, logs' places.
//!
//! [`Host`] is the whole of it, a method per call of core. All file work runs in the [`pool`], under a key that tells whose
//! file system may hang, and with the time the call has. Every call can be made again: it does what is still missing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use podwright_core::model::{CallError, Pod};
use podwright_linux::cgroup::CgroupTree;
use podwright_linux::mountinfo;

use crate::objects::{NoApiServer, ObjectClient};

mod cgroup;
mod dirs;
pub mod fieldref;
mod hosts;
mod leftovers;
mod logs;
mod paths;
pub mod pool;
mod prepare;
mod quarantine;
mod subpath;
mod threads;
mod unmount;
mod view;
mod volumes;

pub(crate) use cgroup::huge_page_limits;
pub use fieldref::Allocatable;
pub use hosts::hosts_content;
pub use paths::HostPaths;
pub use pool::{Pool, PoolError};
pub use subpath::SubPath;
pub use volumes::{is_read_only, volume_host_path};

/// What the hands need to know of this node.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Where things lie.
    pub paths: HostPaths,
    /// The node's name.
    pub node_name: String,
    /// The node's label `kubernetes.io/hostname`; `None`: the node's object is somebody else's, and so are its labels.
    pub hostname_label: Option<String>,
    /// The node's addresses, the preferred one first.
    pub host_ips: Vec<String>,
    /// The domain of the cluster's services; may be empty.
    pub cluster_domain: String,
    /// What pods may use in all.
    pub allocatable: Allocatable,
    /// What all pods together are held to, by the cgroup above theirs.
    pub node_allocatable: NodeAllocatable,
    /// Processes a pod may have (`podPidsLimit`); `None`: as many as the node.
    pub pod_pids_limit: Option<i64>,
    /// CPU limits are enforced (`cpuCFSQuota`).
    pub cpu_cfs_quota: bool,
    /// The period of that enforcement (`cpuCFSQuotaPeriod`).
    pub cpu_cfs_period: Duration,
    /// Sizes of huge pages this kernel has, in bytes.
    pub huge_page_sizes: Vec<u64>,
    /// The node's own hosts file, shown to pods on its network: `/etc/hosts`.
    pub hosts_file: PathBuf,
}

/// What all pods together may use (`enforceNodeAllocatable`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeAllocatable {
    /// Thousandths of a core: their weight against the rest of the machine.
    pub cpu_millis: i64,
    /// Bytes.
    pub memory: i64,
    /// Processes and threads.
    pub pids: i64,
}

/// The hands on this machine. Clones share the pool.
#[derive(Clone, Debug)]
pub struct Host {
    config: Arc<HostConfig>,
    pool: Pool,
    /// `None`: pods have no cgroups of their own (`cgroupsPerQOS: false`).
    cgroups: Option<Arc<CgroupTree>>,
    burstable: cgroup::Burstable,
    objects: Arc<dyn ObjectClient>,
}

/// What failed, in words for people, and the reason users know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct HostError {
    /// `FailedMount`, `CreateContainerConfigError`, …; empty where users have no word for it.
    pub reason: &'static str,
    /// The whole story.
    pub message: String,
    /// The work may be done later still: a thread hangs in it.
    pub in_doubt: bool,
}

impl HostError {
    pub(crate) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), in_doubt: false }
    }
}

impl From<HostError> for CallError {
    fn from(error: HostError) -> Self {
        Self { in_doubt: error.in_doubt, ..Self::new(error.reason, error.message) }
    }
}

impl Host {
    /// The hands of one node.
    pub fn new(config: HostConfig, cgroups: Option<CgroupTree>, pool: Pool) -> Self {
        Self {
            config: Arc::new(config),
            pool,
            cgroups: cgroups.map(Arc::new),
            burstable: cgroup::Burstable::default(),
            objects: Arc::new(NoApiServer),
        }
    }

    /// With someone who has the API objects that volumes show.
    pub fn with_objects(self, objects: Arc<dyn ObjectClient>) -> Self {
        Self { objects, ..self }
    }

    /// Whoever has API objects.
    pub(crate) fn objects(&self) -> &dyn ObjectClient {
        &*self.objects
    }

    /// Where things lie.
    pub fn paths(&self) -> &HostPaths {
        &self.config.paths
    }

    /// The threads, to be asked how many hang.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Runs a step in the pool and turns what went wrong into the caller's kind of error.
    async fn run<T: Send + 'static>(
        &self,
        key: &str,
        limit: Duration,
        reason: &'static str,
        step: impl FnOnce(&HostConfig) -> Result<T, HostError> + Send + 'static,
    ) -> Result<T, HostError> {
        let config = self.config.clone();
        let result = self.pool.run(key, limit, move || step(&config)).await;
        result.unwrap_or_else(|e| Err(HostError { in_doubt: e.in_doubt(), ..HostError::new(reason, e.to_string()) }))
    }

    /// The key under which work on a volume runs: foreign file systems by their mount, the rest by pod or path.
    async fn volume_key(&self, pod: &Pod, volume: &str, limit: Duration) -> Result<String, HostError> {
        match volumes::find(pod, volume)?.host_path.as_ref() {
            Some(host_path) => self.path_key(PathBuf::from(&host_path.path), limit).await,
            None => Ok(pod_key(paths::uid(pod))),
        }
    }

    /// The key for work on a path of the machine.
    async fn path_key(&self, path: PathBuf, limit: Duration) -> Result<String, HostError> {
        self.run("mountinfo", limit, "FailedMount", move |config| {
            let mounts = mountinfo::read().map_err(|e| HostError::new("FailedMount", chain(&e)))?;
            let own = mountinfo::holding(&mounts, &config.paths.root_dir).map(|m| m.id);
            Ok(match mountinfo::holding(&mounts, &path) {
                // On the machine's own disk a link may still lead to a dead mount: one such path must not stop the others.
                Some(mount) if Some(mount.id) != own && mount.point != Path::new("/") => {
                    format!("mount {}", mount.point.display())
                }
                _ => format!("path {}", path.display()),
            })
        })
        .await
    }
}

fn pod_key(uid: &str) -> String {
    format!("pod {uid}")
}

/// An error with all its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        text.push_str(": ");
        text.push_str(&e.to_string());
        cause = e.source();
    }
    text
}

#[cfg(test)]
mod tests;
