//! Resource limits of containers and sandboxes in the runtime's units.

use std::collections::BTreeMap;

use podwright_core::model::{Container, Pod};
use podwright_core::qos::{self, Amounts};
use podwright_cri::v1::{HugepageLimit, LinuxContainerResources};

use super::NodeSettings;
use crate::pod_spec::huge_page_limits;

/// One container's limits and its OOM score adjustment.
pub(crate) fn container_resources(
    pod: &Pod,
    container: &Container,
    settings: &NodeSettings,
) -> LinuxContainerResources {
    let limits = qos::container_cgroup(pod, container);
    let mut resources = LinuxContainerResources {
        cpu_shares: i64::try_from(limits.cpu_shares).unwrap_or(i64::MAX),
        memory_limit_in_bytes: limits.memory_limit.unwrap_or_default(),
        oom_score_adj: qos::oom_score_adj(pod, container, settings.memory_capacity),
        hugepage_limits: hugepage_limits(&limits.hugepages, settings),
        ..Default::default()
    };
    enforce_cpu(&mut resources, limits.cpu_quota_us, settings);
    if settings.cgroup_v2 && !settings.single_process_oom_kill {
        resources.unified.insert("memory.oom.group".into(), "1".into());
    }
    forbid_swap(&mut resources, settings);
    resources
}

/// Forbids swap, which would defeat the memory limit (Go kubelet: `ConfigureNoSwap`). cgroup v1 limits the sum of memory and
/// swap, and only if memory is limited.
fn forbid_swap(resources: &mut LinuxContainerResources, settings: &NodeSettings) {
    if !settings.swap_limits {
        return;
    }
    if settings.cgroup_v2 {
        resources.unified.insert("memory.swap.max".into(), "0".into());
    } else {
        resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes;
    }
}

/// The sum over the containers, without overhead (Go kubelet: `calculateSandboxResources`).
pub(super) fn sandbox_resources(pod: &Pod, settings: &NodeSettings) -> LinuxContainerResources {
    let mut bare = pod.clone();
    if let Some(spec) = &mut bare.spec {
        spec.overhead = None;
    }
    let requests = qos::pod_requests(&bare);
    let limits = qos::pod_limits(&bare);
    let cpu_limit = millis(&limits);
    let cpu_request = if requests.contains_key("cpu") { millis(&requests) } else { cpu_limit };
    plain(cpu_request, cpu_limit, bytes(&limits), settings)
}

/// Limits of the pod's cgroup, without overhead (Go kubelet: `generateUpdatePodSandboxResourcesRequest`). `None`: unlimited.
pub(crate) fn resized_sandbox(
    pod: &Pod,
    cpu_shares: u64,
    cpu_quota_us: Option<i64>,
    memory: Option<i64>,
    settings: &NodeSettings,
) -> LinuxContainerResources {
    let overhead = qos::amounts(pod.spec.as_ref().and_then(|spec| spec.overhead.as_ref()));
    let shares = i64::try_from(cpu_shares).unwrap_or(i64::MAX);
    let (of_cpu, of_memory) = (millis(&overhead), bytes(&overhead));
    let cpu_shares = match of_cpu {
        0 => shares,
        of_cpu => {
            let request_millis = shares.saturating_mul(1000).div_euclid(SHARES_PER_CPU) - of_cpu;
            i64::try_from(qos::milli_cpu_to_shares(request_millis)).unwrap_or(i64::MAX)
        }
    };
    let mut resources = LinuxContainerResources {
        cpu_shares,
        memory_limit_in_bytes: memory.map_or(0, |memory| (memory - of_memory).max(0)),
        ..Default::default()
    };
    let of_cpu_us = of_cpu.saturating_mul(CORE_PERIOD_US) / 1000;
    enforce_cpu(&mut resources, cpu_quota_us.map(|quota| (quota - of_cpu_us).max(QUOTA_US_MIN)), settings);
    resources
}

/// The pod's `overhead`, as request and as limit.
pub(crate) fn overhead(pod: &Pod, settings: &NodeSettings) -> LinuxContainerResources {
    let Some(overhead) = pod.spec.as_ref().and_then(|spec| spec.overhead.as_ref()) else {
        return LinuxContainerResources::default();
    };
    let amounts = qos::amounts(Some(overhead));
    plain(millis(&amounts), millis(&amounts), bytes(&amounts), settings)
}

fn plain(request_millis: i64, limit_millis: i64, memory: i64, settings: &NodeSettings) -> LinuxContainerResources {
    let mut resources = LinuxContainerResources {
        cpu_shares: i64::try_from(qos::milli_cpu_to_shares(request_millis)).unwrap_or(i64::MAX),
        memory_limit_in_bytes: memory,
        ..Default::default()
    };
    enforce_cpu(&mut resources, qos::milli_cpu_to_quota(limit_millis), settings);
    resources
}

/// Core computes the quota for periods of 100 ms; scaled here to the configured period.
fn enforce_cpu(resources: &mut LinuxContainerResources, quota_us: Option<i64>, settings: &NodeSettings) {
    if !settings.cpu_cfs_quota {
        return;
    }
    resources.cpu_period = settings.cpu_cfs_period_us;
    resources.cpu_quota = match quota_us {
        None => 0,
        Some(quota) if settings.cpu_cfs_period_us == CORE_PERIOD_US => quota,
        Some(quota) => (quota.saturating_mul(settings.cpu_cfs_period_us) / CORE_PERIOD_US).max(QUOTA_US_MIN),
    };
}

/// A limit for every page size of the kernel: 0 unless the container requests some.
fn hugepage_limits(requested: &BTreeMap<i64, i64>, settings: &NodeSettings) -> Vec<HugepageLimit> {
    let limits = huge_page_limits(requested, &settings.hugepage_sizes);
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

/// Of cgroup v1.
const SHARES_PER_CPU: i64 = 1024;

/// The kernel's smallest quota, in microseconds.
const QUOTA_US_MIN: i64 = 1000;
