//! The pods' resources on the node outside their containers: cgroups, directories, volumes, logs.
//!
//! [`Host`] performs the host calls of core; its parts are `PodCgroups`, `PodDirs`, `PodVolumes` and `PodLogs`. File
//! work runs in the [`Pool`] with the call's time limit, under a key for the file system that may hang. Every operation is
//! idempotent: repeated, it does what is still missing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use podwright_linux::cgroup::CgroupTree;

use crate::objects::{NoApiServer, ObjectClient};

mod cgroup;
mod dirs;
mod error;
mod file_limits;
mod hosts;
mod io;
mod leftovers;
mod logs;
mod pod_slices;
mod prepare;
mod quarantine;
mod slice_properties;
mod subpath;
mod systemd;
mod unmount;
mod view;
mod volumes;

pub use crate::pod_spec::{Allocatable, HostPaths};
pub(crate) use cgroup::CgroupChange;
pub use cgroup::PodCgroups;
pub(crate) use dirs::PodDirs;
pub use error::{HostCause, HostError};
pub(crate) use file_limits::cut_oversized;
pub use hosts::HostsFileError;
pub(crate) use logs::PodLogs;
pub use podwright_tasks::{Pool, PoolError, PoolKey, PoolLimits};
pub use subpath::SubPathError;
pub use systemd::{SystemdError, SystemdManager};
pub(crate) use volumes::PodVolumes;
pub use volumes::{ClaimError, FileError, HostPathError, VolumeError};

use io::HostIo;

/// The node's settings.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The directories of the pods' files.
    pub paths: HostPaths,
    /// The node's name.
    pub node_name: String,
    /// The node's label `kubernetes.io/hostname`; `None`: another component sets the node's labels.
    pub hostname_label: Option<String>,
    /// The node's addresses, the preferred one first.
    pub host_ips: Vec<String>,
    /// `clusterDomain`; may be empty.
    pub cluster_domain: String,
    /// The node's allocatable resources.
    pub allocatable: Allocatable,
    /// The limits of the cgroup above all pods.
    pub node_allocatable: NodeAllocatable,
    /// `podPidsLimit`; `None`: no limit per pod.
    pub pod_pids_limit: Option<i64>,
    /// CPU limits are enforced (`cpuCFSQuota`).
    pub cpu_cfs_quota: bool,
    /// `cpuCFSQuotaPeriod`.
    pub cpu_cfs_period: Duration,
    /// The kernel's huge page sizes, in bytes.
    pub huge_page_sizes: Vec<u64>,
    /// The node's own hosts file, which pods on the host network get: `/etc/hosts`.
    pub hosts_file: PathBuf,
}

/// The limits of all pods combined (`enforceNodeAllocatable`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeAllocatable {
    /// Thousandths of a core; applied as a weight against the node's other processes.
    pub cpu_millis: i64,
    /// Bytes.
    pub memory: i64,
    /// Processes and threads.
    pub pids: i64,
}

/// The pods' resources on this node. Clones share the thread pool.
#[derive(Clone, Debug)]
pub struct Host {
    io: HostIo,
    cgroups: PodCgroups,
    dirs: PodDirs,
    volumes: PodVolumes,
    logs: PodLogs,
}

impl Host {
    /// `cgroups` is `None` if pods have no cgroups (`cgroupsPerQOS: false`).
    pub fn new(config: HostConfig, cgroups: Option<CgroupTree>, pool: Pool) -> Self {
        let io = HostIo { config: Arc::new(config), pool };
        Self {
            cgroups: PodCgroups::new(io.clone(), cgroups),
            dirs: PodDirs::new(io.clone()),
            volumes: PodVolumes::new(io.clone(), Arc::new(NoApiServer)),
            logs: PodLogs::new(io.clone()),
            io,
        }
    }

    /// With access to the API objects that volumes refer to.
    pub fn with_objects(self, objects: Arc<dyn ObjectClient>) -> Self {
        Self { volumes: PodVolumes::new(self.io.clone(), objects), ..self }
    }

    /// With the systemd cgroup driver.
    pub fn with_systemd(self, systemd: Arc<SystemdManager>) -> Self {
        Self { cgroups: self.cgroups.with_systemd(systemd), ..self }
    }

    /// The cgroups of pods and QoS classes.
    pub fn cgroups(&self) -> &PodCgroups {
        &self.cgroups
    }

    /// The pods' data directories.
    pub(crate) fn dirs(&self) -> &PodDirs {
        &self.dirs
    }

    /// The pods' volumes.
    pub(crate) fn volumes(&self) -> &PodVolumes {
        &self.volumes
    }

    /// The pods' log directories and the links to the logs.
    pub(crate) fn logs(&self) -> &PodLogs {
        &self.logs
    }

    /// The API objects that volumes refer to.
    pub(crate) fn objects(&self) -> &dyn ObjectClient {
        self.volumes.objects()
    }

    fn paths(&self) -> &HostPaths {
        self.io.paths()
    }
}

#[cfg(test)]
pub(crate) mod tests;
