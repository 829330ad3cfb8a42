//! Names and limits of the cgroups of pods and containers.

use std::collections::BTreeMap;

use super::class::{BEST_EFFORT, BURSTABLE, GUARANTEED, qos_class};
use super::resources::{
    Amounts, HUGEPAGES, container_limits, container_requests, pod_level_limits, pod_limits_with, pod_requests,
};
use crate::model::{Container, Pod};
use crate::quantity::Amount;

/// The limits of one cgroup; `None` is unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupLimits {
    /// Weight relative to siblings, in cgroup v1 shares; `podwright_linux::cgroup::cpu_weight` converts.
    pub cpu_shares: u64,
    /// CPU time per period.
    pub cpu_quota_us: Option<i64>,
    /// The period of the quota.
    pub cpu_period_us: u64,
    /// Bytes of memory.
    pub memory_limit: Option<i64>,
    /// Maximum of processes and threads.
    pub pids_limit: Option<i64>,
    /// Bytes of huge pages by page size; other sizes get none.
    pub hugepages: BTreeMap<i64, i64>,
}

/// The limits of a pod's own cgroup.
pub fn pod_cgroup(pod: &Pod, pod_pids_limit: Option<i64>) -> CgroupLimits {
    let requests = pod_requests(pod);
    let mut cpu_declared = true;
    let mut memory_declared = true;
    let limits = pod_limits_with(pod, |container| {
        cpu_declared &= !get(container, "cpu").is_zero();
        memory_declared &= !get(container, "memory").is_zero();
    });
    let whole = pod_level_limits(pod);
    cpu_declared |= !get(&whole, "cpu").is_zero();
    memory_declared |= !get(&whole, "memory").is_zero();

    let mut result = CgroupLimits {
        cpu_shares: MIN_SHARES,
        cpu_period_us: PERIOD_US,
        pids_limit: pod_pids_limit.filter(|limit| *limit > 0),
        hugepages: hugepages(&requests),
        ..CgroupLimits::default()
    };
    let class = qos_class(pod);
    if class != BEST_EFFORT {
        result.cpu_shares = milli_cpu_to_shares(get(&requests, "cpu").milli_value());
        // If only some containers have a limit, the pod has none.
        if class == GUARANTEED || cpu_declared {
            result.cpu_quota_us = milli_cpu_to_quota(get(&limits, "cpu").milli_value());
        }
        if class == GUARANTEED || memory_declared {
            result.memory_limit = Some(get(&limits, "memory").value()).filter(|bytes| *bytes > 0);
        }
    }
    result
}

/// The limits of one container; a pod-level limit replaces a missing one.
pub fn container_cgroup(pod: &Pod, container: &Container) -> CgroupLimits {
    let requests = container_requests(container);
    let own = container_limits(container);
    let whole = pod_level_limits(pod);
    let limit = |name: &str| Some(get(&own, name)).filter(|l| !l.is_zero()).unwrap_or_else(|| get(&whole, name));
    let wanted_cpu = requests.get("cpu").copied().unwrap_or_else(|| limit("cpu"));
    CgroupLimits {
        cpu_shares: milli_cpu_to_shares(wanted_cpu.milli_value()),
        cpu_quota_us: milli_cpu_to_quota(limit("cpu").milli_value()),
        cpu_period_us: PERIOD_US,
        memory_limit: Some(limit("memory").value()).filter(|bytes| *bytes > 0),
        pids_limit: None,
        hugepages: hugepages(&own),
    }
}

/// The components of the pod's cgroup under the hierarchy's root, with the cgroupfs driver's names:
/// `kubepods/burstable/pod<uid>`; guaranteed pods are directly in `kubepods`.
pub fn pod_cgroup_name(root: &str, pod: &Pod) -> Vec<String> {
    let mut path = qos_cgroup_name(root, qos_class(pod));
    path.push(format!("pod{}", pod.metadata.uid.as_deref().unwrap_or_default()));
    path
}

/// The components of the cgroup of all pods of one QoS class.
pub fn qos_cgroup_name(root: &str, class: &str) -> Vec<String> {
    let mut path: Vec<String> = root.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
    path.push("kubepods".into());
    match class {
        BURSTABLE => path.push("burstable".into()),
        BEST_EFFORT => path.push("besteffort".into()),
        _ => {}
    }
    path
}

/// CPU shares of the burstable cgroup: the sum of the requests of its pods.
pub fn burstable_shares<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> u64 {
    let millis = pods
        .into_iter()
        .filter(|pod| qos_class(pod) == BURSTABLE)
        .fold(0i64, |sum, pod| sum.saturating_add(get(&pod_requests(pod), "cpu").milli_value()));
    milli_cpu_to_shares(millis)
}

/// Kubernetes: `MilliCPUToShares`.
pub fn milli_cpu_to_shares(millis: i64) -> u64 {
    let millis = u64::try_from(millis).unwrap_or(0);
    (millis.saturating_mul(SHARES_PER_CPU) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// Kubernetes: `MilliCPUToQuota`; zero is unlimited.
pub fn milli_cpu_to_quota(millis: i64) -> Option<i64> {
    (millis > 0).then(|| (millis.saturating_mul(100_000) / 1000).max(MIN_QUOTA_US))
}

fn get(amounts: &Amounts, name: &str) -> Amount {
    amounts.get(name).copied().unwrap_or(Amount::ZERO)
}

fn hugepages(amounts: &Amounts) -> BTreeMap<i64, i64> {
    let mut pages = BTreeMap::new();
    for (name, amount) in amounts {
        let size = name.strip_prefix(HUGEPAGES).and_then(|size| size.parse::<Amount>().ok()).map(Amount::value);
        if let Some(size) = size.filter(|size| *size > 0) {
            let entry = pages.entry(size).or_insert(0i64);
            *entry = entry.saturating_add(amount.value());
        }
    }
    pages
}

/// Kernel minimum.
const MIN_SHARES: u64 = 2;
/// Kernel maximum.
const MAX_SHARES: u64 = 262_144;
/// One core.
const SHARES_PER_CPU: u64 = 1024;
/// `cpuCFSQuotaPeriod`'s default.
const PERIOD_US: u64 = 100_000;
/// Kernel minimum.
const MIN_QUOTA_US: i64 = 1000;
