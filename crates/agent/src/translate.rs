//! From a pod to what the runtime is asked for: pure, so that every rule is a table test.
//!
//! [`sandbox_config`] and [`container_config`] are the two results; the rest of the room are their parts, one noun each.
//! What only this machine can tell (paths of volumes, addresses) comes in through [`NodeFacts`], [`Situation`] and
//! [`HostView`]; nothing here touches a file or a clock.

use std::path::{Path, PathBuf};

use podwright_core::model::{CallError, Pod};

use crate::host::HostPaths;

mod annotations;
mod cgroup;
mod container;
pub mod dns;
mod env;
mod expand;
mod mounts;
mod names;
mod references;
mod resources;
mod sandbox;
mod security;
mod service_links;

pub use cgroup::{CgroupDriver, cgroup_parent};
pub use container::{ContainerAsk, container_config};
pub use dns::HostDns;
pub use expand::{expand, expand_strict};
pub use mounts::{needs_environment, sub_paths};
pub use names::{container_log_path, display_name, hostname_and_domain};
pub use references::References;
pub use sandbox::sandbox_config;
pub use security::{effective_run_as_user, image_user};

/// What translation needs to know of the node; fixed while the agent runs.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// The node's name.
    pub node_name: String,
    /// The node's addresses, the first one preferred.
    pub host_ips: Vec<String>,
    /// Where things lie.
    pub paths: HostPaths,
    /// The cluster's DNS servers (`clusterDNS`); may be empty.
    pub cluster_dns: Vec<String>,
    /// The cluster's domain (`clusterDomain`); may be empty.
    pub cluster_domain: String,
    /// The resolver file pods inherit (`resolvConf`); `None`: DNS is switched off for them.
    pub resolv_conf: Option<PathBuf>,
    /// How cgroups are named.
    pub cgroup_driver: CgroupDriver,
    /// The node has cgroup v2.
    pub cgroup_v2: bool,
    /// The kernel can limit swap: then containers get none, as with `swapBehavior: NoSwap`.
    pub swap_limits: bool,
    /// CPU limits are enforced (`cpuCFSQuota`).
    pub cpu_cfs_quota: bool,
    /// The period of that enforcement (`cpuCFSQuotaPeriod`), in microseconds.
    pub cpu_cfs_period_us: i64,
    /// With cgroup v2: only the culprit is killed when memory runs out, not its whole container.
    pub single_process_oom_kill: bool,
    /// All memory of the machine, in bytes: the OOM score is relative to it.
    pub memory_capacity: i64,
    /// Containers without a seccomp profile get the runtime's (`seccompDefault`).
    pub seccomp_default: bool,
    /// The kernel enforces SELinux labels.
    pub selinux: bool,
    /// Sizes of huge pages this kernel has, in bytes.
    pub hugepage_sizes: Vec<u64>,
    /// Paths under /sys that reveal the machine's temperature, masked beside the usual ones.
    pub thermal_paths: Vec<String>,
}

impl Default for NodeFacts {
    fn default() -> Self {
        Self {
            node_name: "node".into(),
            host_ips: vec!["127.0.0.1".into()],
            paths: HostPaths {
                root_dir: "/var/lib/podwright".into(),
                pod_logs_dir: "/var/log/pods".into(),
                container_logs_dir: "/var/log/containers".into(),
                cgroup_root: "/".into(),
            },
            cluster_dns: Vec::new(),
            cluster_domain: String::new(),
            resolv_conf: Some("/etc/resolv.conf".into()),
            cgroup_driver: CgroupDriver::Cgroupfs,
            cgroup_v2: false,
            swap_limits: false,
            cpu_cfs_quota: true,
            cpu_cfs_period_us: 100_000,
            single_process_oom_kill: false,
            memory_capacity: i64::MAX,
            seccomp_default: false,
            selinux: false,
            hugepage_sizes: Vec::new(),
            thermal_paths: Vec::new(),
        }
    }
}

/// What the runtime can do, from its own status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeFeatures {
    /// `hostUsers: false` works.
    pub user_namespaces: bool,
    /// Mounts can be read-only all the way down.
    pub recursive_read_only: bool,
    /// It follows `supplementalGroupsPolicy`.
    pub supplemental_groups_policy: bool,
}

/// What may change while the agent runs, as it is now.
#[derive(Clone, Debug, Default)]
pub struct Situation {
    /// The host's resolver file, read.
    pub dns: HostDns,
    /// The runtime's abilities.
    pub features: RuntimeFeatures,
    /// The pod's range of user ids, when it has a user namespace of its own.
    pub userns: Option<IdRange>,
}

/// Ids of one pod's user namespace: 0 in the pod is `host_id` here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The first id on the host.
    pub host_id: u32,
    /// How many.
    pub length: u32,
}

/// Where the pod's things lie on this machine.
pub trait HostView {
    /// The directory (or file) of a volume. `Err`: why there is none.
    fn volume(&self, pod: &Pod, volume: &str) -> Result<PathBuf, String>;
    /// The bind mount that stands for the `index`th volume mount's subPath.
    fn sub_path(&self, pod: &Pod, container: &str, index: usize, volume: &str, sub_path: &str) -> PathBuf;
    /// The pod's hosts file.
    fn hosts_file(&self, pod: &Pod) -> PathBuf;
    /// The file a container's last words go to.
    fn termination_log(&self, pod: &Pod, container: &str, attempt: u32) -> PathBuf;
    /// The value of a `fieldRef`.
    fn field(&self, pod: &Pod, path: &str, ips: &[String]) -> Result<String, String>;
    /// The value of a `resourceFieldRef` without a container name of its own.
    fn resource_field(
        &self,
        pod: &Pod,
        container: &str,
        selector: &k8s_openapi::api::core::v1::ResourceFieldSelector,
    ) -> Result<String, String>;
}

/// A pod that cannot be expressed to the runtime, and the word users see for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TranslateError {
    /// `CreateContainerConfigError` or `CreatePodSandboxError`.
    pub reason: &'static str,
    /// What is wrong.
    pub message: String,
}

impl TranslateError {
    pub(crate) fn container(message: impl Into<String>) -> Self {
        Self { reason: "CreateContainerConfigError", message: message.into() }
    }

    pub(crate) fn sandbox(message: impl Into<String>) -> Self {
        Self { reason: "CreatePodSandboxError", message: message.into() }
    }
}

impl From<TranslateError> for CallError {
    fn from(error: TranslateError) -> Self {
        Self::new(error.reason, error.message)
    }
}

/// A path as the runtime wants it. Paths that are not UTF-8 cannot be said in the protocol.
pub(crate) fn path_text(path: &Path) -> Result<String, TranslateError> {
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| TranslateError::container(format!("path {} is not UTF-8", path.display())))
}

#[cfg(test)]
pub(crate) mod tests;
