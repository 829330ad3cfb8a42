//! Translates a pod into the runtime's configurations. Pure, so that every rule is a table test.
//!
//! [`sandbox_config`] and [`container_config`] are the two results; the submodules build their parts. Facts about the node
//! (volume paths, addresses) come in through [`NodeSettings`], [`Situation`] and [`HostView`]; nothing here reads a file or a
//! clock.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::ResourceFieldSelector;
use podwright_core::model::Pod;

use crate::pod_spec::{FieldRefError, HostPaths, VolumeSpecError};

mod annotations;
mod cgroup;
mod container;
mod dns;
mod env;
mod error;
mod expand;
mod mounts;
mod references;
mod resources;
mod sandbox;
mod security;
mod service_links;

pub(crate) use cgroup::cgroup_parent;
pub use container::{ContainerRequest, container_config};
pub use dns::HostDns;
pub use error::{MountError, NonRootViolation, ProfileError, TranslateError};
pub(crate) use mounts::{needs_environment, sub_paths};
pub use podwright_core::qos::CgroupDriver;
pub use references::References;
pub(crate) use resources::{container_resources, overhead, resized_sandbox};
pub use sandbox::sandbox_config;

/// Settings of the node that sandbox and container configurations depend on; constant while the agent runs.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// The node's name.
    pub node_name: String,
    /// The node's addresses, the preferred one first.
    pub host_ips: Vec<String>,
    /// The directories of the pods' files.
    pub paths: HostPaths,
    /// The cluster's DNS servers (`clusterDNS`); may be empty.
    pub cluster_dns: Vec<String>,
    /// The cluster's domain (`clusterDomain`); may be empty.
    pub cluster_domain: String,
    /// The resolver file that pods inherit (`resolvConf`); `None`: pods resolve with the node's loopback address only.
    pub resolv_conf: Option<PathBuf>,
    /// `cgroupDriver`.
    pub cgroup_driver: CgroupDriver,
    /// The node has cgroup v2.
    pub cgroup_v2: bool,
    /// The kernel can limit swap. Containers then get none, as with `swapBehavior: NoSwap`.
    pub swap_limits: bool,
    /// CPU limits are enforced (`cpuCFSQuota`).
    pub cpu_cfs_quota: bool,
    /// `cpuCFSQuotaPeriod`, in microseconds.
    pub cpu_cfs_period_us: i64,
    /// `singleProcessOOMKill`, with cgroup v2: an OOM kill ends one process, not the whole container.
    pub single_process_oom_kill: bool,
    /// The node's memory in bytes, to which OOM scores are relative.
    pub memory_capacity: i64,
    /// `seccompDefault`: containers without a seccomp profile get the runtime's default.
    pub seccomp_default: bool,
    /// The kernel enforces SELinux labels.
    pub selinux: bool,
    /// The kernel's huge page sizes, in bytes.
    pub hugepage_sizes: Vec<u64>,
    /// Paths under /sys that reveal the node's temperature; masked in addition to the default ones.
    pub thermal_paths: Vec<String>,
}

impl Default for NodeSettings {
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

/// Optional features of the runtime, from its status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeFeatures {
    /// `hostUsers: false`.
    pub user_namespaces: bool,
    /// `recursiveReadOnly` of volume mounts.
    pub recursive_read_only: bool,
    /// `supplementalGroupsPolicy`.
    pub supplemental_groups_policy: bool,
}

/// Inputs of a translation that change while the agent runs.
#[derive(Clone, Debug, Default)]
pub struct Situation {
    /// The current content of the node's resolver file.
    pub dns: HostDns,
    /// The runtime's current features.
    pub features: RuntimeFeatures,
    /// The pod's user ids on the node; `None`: it has no user namespace of its own.
    pub userns: Option<IdRange>,
}

/// The ids of one pod's user namespace: 0 in the pod is `host_id` on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The first id on the node.
    pub host_id: u32,
    /// The number of ids.
    pub length: u32,
}

/// Paths and values that only the node knows.
pub trait HostView {
    /// The directory (or file) of a volume.
    fn volume(&self, pod: &Pod, volume: &str) -> Result<PathBuf, VolumeSpecError>;
    /// The bind mount of the subPath of the container's `index`th volume mount.
    fn sub_path(&self, pod: &Pod, container: &str, index: usize, volume: &str, sub_path: &str) -> PathBuf;
    /// The pod's hosts file.
    fn hosts_file(&self, pod: &Pod) -> PathBuf;
    /// The file that receives a container's termination message.
    fn termination_log(&self, pod: &Pod, container: &str, attempt: u32) -> PathBuf;
    /// The value of a `fieldRef`.
    fn field(&self, pod: &Pod, path: &str, ips: &[String]) -> Result<String, FieldRefError>;
    /// The value of a `resourceFieldRef`; `container` applies, whatever the selector names.
    fn resource_field(
        &self,
        pod: &Pod,
        container: &str,
        selector: &ResourceFieldSelector,
    ) -> Result<String, FieldRefError>;
}

/// A path as the CRI carries it: a UTF-8 string.
fn utf8_path(path: &Path) -> Result<String, TranslateError> {
    path.to_str().map(str::to_owned).ok_or_else(|| TranslateError::PathNotUtf8(path.into()))
}

#[cfg(test)]
pub(crate) mod tests;
