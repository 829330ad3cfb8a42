//! From the kernel's counters to the messages of the CRI.

use std::path::Path;

use podwright_cri::v1;
use podwright_linux::beneath::TreeUsage;
use podwright_linux::cgroup::{Bound, CpuUsage, IoUsage, MemoryUsage, PidUsage, Pressure, Stall};
use podwright_net::InterfaceCounters;

pub(super) fn cpu(usage: &CpuUsage, nano_cores: Option<u64>, timestamp: i64) -> v1::CpuUsage {
    v1::CpuUsage {
        timestamp,
        usage_core_nano_seconds: number(usage.usage_ns),
        usage_nano_cores: number(nano_cores),
        psi: psi(usage.pressure),
    }
}

/// The working set is what cannot be reclaimed easily (cAdvisor: usage without inactive files).
pub(super) fn memory(usage: &MemoryUsage, timestamp: i64) -> v1::MemoryUsage {
    let working_set = usage.usage.map(|used| used.saturating_sub(usage.inactive_file.unwrap_or(0)));
    let available = match (usage.limit, working_set) {
        (Some(Bound::At(limit)), Some(working_set)) => Some(limit.saturating_sub(working_set)),
        _ => None,
    };
    v1::MemoryUsage {
        timestamp,
        working_set_bytes: number(working_set),
        available_bytes: number(available),
        usage_bytes: number(usage.usage),
        rss_bytes: number(usage.rss),
        page_faults: number(usage.total_page_faults.or(usage.page_faults)),
        major_page_faults: number(usage.total_major_page_faults.or(usage.major_page_faults)),
        psi: psi(usage.pressure),
    }
}

/// `None`: swap is not accounted.
pub(super) fn swap(usage: &MemoryUsage, timestamp: i64) -> Option<v1::SwapUsage> {
    let used = usage.swap?;
    let available = match usage.swap_limit {
        Some(Bound::At(limit)) => Some(limit.saturating_sub(used)),
        _ => None,
    };
    let (swap_available_bytes, swap_usage_bytes) = (number(available), number(Some(used)));
    Some(v1::SwapUsage { timestamp, swap_available_bytes, swap_usage_bytes })
}

/// The CRI has only the pressure of block devices.
pub(super) fn io(usage: &IoUsage, timestamp: i64) -> Option<v1::IoUsage> {
    usage.pressure.map(|pressure| v1::IoUsage { timestamp, psi: psi(Some(pressure)) })
}

pub(super) fn processes(usage: &PidUsage, timestamp: i64) -> Option<v1::ProcessUsage> {
    usage.current.map(|count| v1::ProcessUsage { timestamp, process_count: number(Some(count)) })
}

pub(super) fn file_system(root_dir: &Path, usage: TreeUsage, timestamp: i64) -> v1::FilesystemUsage {
    v1::FilesystemUsage {
        timestamp,
        fs_id: Some(v1::FilesystemIdentifier { mountpoint: root_dir.to_string_lossy().into_owned() }),
        used_bytes: number(Some(usage.bytes)),
        inodes_used: number(Some(usage.inodes)),
    }
}

/// The default interface is `eth0`, as with containerd and CNI; without it the first.
pub(super) fn network(counters: &[InterfaceCounters], timestamp: i64) -> v1::NetworkUsage {
    let shown = |counters: &InterfaceCounters| v1::NetworkInterfaceUsage {
        name: counters.name.clone(),
        rx_bytes: number(Some(counters.rx_bytes)),
        rx_errors: number(Some(counters.rx_errors)),
        tx_bytes: number(Some(counters.tx_bytes)),
        tx_errors: number(Some(counters.tx_errors)),
    };
    let pod: Vec<&InterfaceCounters> = counters.iter().filter(|counters| counters.name != "lo").collect();
    let default = pod.iter().find(|counters| counters.name == "eth0").or(pod.first()).copied();
    let is_default = |counters: &InterfaceCounters| default.is_some_and(|default| default.name == counters.name);
    v1::NetworkUsage {
        timestamp,
        default_interface: default.map(shown),
        interfaces: pod.into_iter().filter(|counters| !is_default(counters)).map(shown).collect(),
    }
}

/// `None` if none of them is known.
pub(super) fn sum_of_nano_cores(containers: &[v1::ContainerStats]) -> Option<u64> {
    let rates = containers.iter().filter_map(|stats| stats.cpu?.usage_nano_cores);
    rates.map(|rate| rate.value).reduce(u64::saturating_add)
}

fn psi(pressure: Option<Pressure>) -> Option<v1::PsiStats> {
    let data = |stall: Stall| v1::PsiData {
        total: stall.total_us.saturating_mul(1000),
        avg10: stall.avg10,
        avg60: stall.avg60,
        avg300: stall.avg300,
    };
    pressure.map(|pressure| v1::PsiStats { full: Some(data(pressure.full)), some: Some(data(pressure.some)) })
}

fn number(value: Option<u64>) -> Option<v1::UInt64Value> {
    value.map(|value| v1::UInt64Value { value })
}
