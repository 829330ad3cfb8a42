//! Limits of containers and sandboxes in the runtime's units.

use std::collections::BTreeMap;

use podwright_core::model::{Container, Pod};
use podwright_core::qos::{self, Amounts};
use podwright_cri::v1::{HugepageLimit, LinuxContainerResources};

use super::NodeFacts;

/// One container's limits, with its place in an OOM kill.
pub(super) fn container_resources(pod: &Pod, container: &Container, facts: &NodeFacts) -> LinuxContainerResources {
    let limits = qos::container_cgroup(pod, container);
    let mut resources = LinuxContainerResources {
        cpu_shares: i64::try_from(limits.cpu_shares).unwrap_or(i64::MAX),
        memory_limit_in_bytes: limits.memory_limit.unwrap_or_default(),
        oom_score_adj: qos::oom_score_adj(pod, container, facts.memory_capacity),
        hugepage_limits: hugepage_limits(&limits.hugepages, facts),
        ..Default::default()
    };
    enforce_cpu(&mut resources, limits.cpu_quota_us, facts);
    if facts.cgroup_v2 && !facts.single_process_oom_kill {
        resources.unified.insert("memory.oom.group".into(), "1".into());
    }
    no_swap(&mut resources, facts);
    resources
}

/// A limit of memory that can be swapped out is none (Go kubelet: `ConfigureNoSwap`). v1 limits both together, and only where
/// memory is limited.
fn no_swap(resources: &mut LinuxContainerResources, facts: &NodeFacts) {
    if !facts.swap_limits {
        return;
    }
    if facts.cgroup_v2 {
        resources.unified.insert("memory.swap.max".into(), "0".into());
    } else {
        resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes;
    }
}

/// The sum over the containers, without overhead (Go kubelet: calculateSandboxResources).
pub(super) fn sandbox_resources(pod: &Pod, facts: &NodeFacts) -> LinuxContainerResources {
    let mut bare = pod.clone();
    if let Some(spec) = &mut bare.spec {
        spec.overhead = None;
    }
    let requests = qos::pod_requests(&bare);
    let limits = qos::pod_limits(&bare);
    let cpu_limit = millis(&limits);
    let wanted = if requests.contains_key("cpu") { millis(&requests) } else { cpu_limit };
    plain(wanted, cpu_limit, bytes(&limits), facts)
}

/// What the pod costs beside its containers: asked for and limited alike.
pub(super) fn overhead(pod: &Pod, facts: &NodeFacts) -> LinuxContainerResources {
    let Some(overhead) = pod.spec.as_ref().and_then(|spec| spec.overhead.as_ref()) else {
        return LinuxContainerResources::default();
    };
    let amounts = qos::amounts(Some(overhead));
    plain(millis(&amounts), millis(&amounts), bytes(&amounts), facts)
}

fn plain(wanted_millis: i64, limit_millis: i64, memory: i64, facts: &NodeFacts) -> LinuxContainerResources {
    let mut resources = LinuxContainerResources {
        cpu_shares: i64::try_from(qos::milli_cpu_to_shares(wanted_millis)).unwrap_or(i64::MAX),
        memory_limit_in_bytes: memory,
        ..Default::default()
    };
    enforce_cpu(&mut resources, qos::milli_cpu_to_quota(limit_millis), facts);
    resources
}

/// Core counts the quota in periods of 100 ms; another period needs another quota.
fn enforce_cpu(resources: &mut LinuxContainerResources, quota_us: Option<i64>, facts: &NodeFacts) {
    if !facts.cpu_cfs_quota {
        return;
    }
    resources.cpu_period = facts.cpu_cfs_period_us;
    resources.cpu_quota = match quota_us {
        None => 0,
        Some(quota) if facts.cpu_cfs_period_us == CORE_PERIOD_US => quota,
        Some(quota) => (quota.saturating_mul(facts.cpu_cfs_period_us) / CORE_PERIOD_US).max(QUOTA_US_MIN),
    };
}

/// Every page size the kernel has is limited, to nothing unless the container asks for some.
fn hugepage_limits(wanted: &BTreeMap<i64, i64>, facts: &NodeFacts) -> Vec<HugepageLimit> {
    let limits = crate::host::huge_page_limits(wanted, &facts.hugepage_sizes);
    limits.into_iter().map(|(page_size, limit)| HugepageLimit { page_size, limit }).collect()
}

fn millis(amounts: &Amounts) -> i64 {
    amounts.get("cpu").map_or(0, |amount| amount.milli_value())
}

fn bytes(amounts: &Amounts) -> i64 {
    amounts.get("memory").map_or(0, |amount| amount.value())
}

/// The period of [`qos::milli_cpu_to_quota`].
const CORE_PERIOD_US: i64 = 100_000;

/// The kernel's least quota.
const QUOTA_US_MIN: i64 = 1000;
