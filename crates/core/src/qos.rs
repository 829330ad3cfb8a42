//! Resources of a pod: QoS class, requests and limits, cgroup values and OOM score.
//!
//! The rules are the Go kubelet's (`ComputePodQOS`, `PodRequests`, `ResourceConfigForPod`, `GetContainerOOMScoreAdjust`), since
//! a node that switches between the two must find the same cgroups. Invalid quantities count as absent here: validation
//! rejects them earlier.

mod cgroup;
mod class;
mod driver;
mod oom;
mod resources;

pub use cgroup::{
    CgroupLimits, burstable_shares, container_cgroup, milli_cpu_to_quota, milli_cpu_to_shares, pod_cgroup,
    pod_cgroup_name, qos_cgroup_name,
};
pub(crate) use class::computed_qos_class;
pub use class::{BEST_EFFORT, BURSTABLE, GUARANTEED, qos_class};
pub use driver::{CgroupDriver, slice_name};
pub use oom::oom_score_adj;
pub use resources::{Amounts, amounts, container_requests, pod_limits, pod_requests};
pub(crate) use resources::{
    HUGEPAGES, container_limits, containers_limits, containers_requests, is_extended, is_pod_level_resource,
};

#[cfg(test)]
mod tests;
