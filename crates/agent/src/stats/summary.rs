//! The body of `/stats/summary`: a sample in the form of k8s.io/kubelet/pkg/apis/stats/v1alpha1.
//!
//! A value that is not known is absent.

mod types;

use jiff::Timestamp;
use podwright_linux::cgroup::{Bound, IoUsage, MemoryUsage, UsageDetail};

use super::cgroups::timestamp;
use super::disk_usage::VolumeUsage;
use super::sample::UsedFs;
use super::sample::{CgroupSample, ContainerSample, FsSample, HostSample, InterfaceSample, PodDisk, PodSample, Sample};
use types::{
    ContainerStats, CpuStats, FsStats, InterfaceStats, IoStats, MemoryStats, MetaTime, NetworkStats, NodeStats,
    PodReference, PodStats, ProcessStats, Psi, PvcReference, RlimitStats, RuntimeStats, Summary, SwapStats,
    VolumeStats,
};

/// The summary of a sample. `started` is when the agent started.
pub(super) fn of(sample: &Sample, node: &str, started: Timestamp, detail: UsageDetail) -> Summary {
    let all = detail == UsageDetail::All;
    let host = &sample.host;
    let kubepods = sample.classes.first();
    let system = [("kubelet", sample.agent.as_ref(), Some(started)), ("pods", kubepods, None)];
    let system = system.into_iter().filter_map(|(name, cgroup, started)| {
        let cgroup = cgroup?;
        let started = started.or_else(|| cgroup.usage.modified.and_then(timestamp)).unwrap_or(cgroup.at);
        Some(container(name, started, Some(cgroup), all))
    });
    let node = NodeStats {
        node_name: node.to_owned(),
        system_containers: system.collect(),
        start_time: MetaTime(host.boot_time.unwrap_or(started)),
        cpu: cpu(&sample.root),
        memory: memory(&sample.root, host.memory_total),
        io: all.then(|| io(&sample.root)).flatten(),
        swap: node_swap(host, sample.root.at),
        network: all.then(|| network(&host.network, sample.at)).flatten(),
        fs: host.node_fs.filter(|_| all).map(|fs| used_fs(fs.at, Some(fs.used), inodes_used(&fs), Some(&fs))),
        runtime: all.then(|| runtime(host)),
        rlimit: all.then(|| rlimit(host, sample.at)),
    };
    Summary { node, pods: sample.pods.iter().map(|pod| pod_stats(pod, host, all)).collect() }
}

fn pod_stats(pod: &PodSample, host: &HostSample, all: bool) -> PodStats {
    let node_fs = host.node_fs.as_ref();
    let containers: Vec<ContainerStats> =
        pod.containers.iter().map(|sample| container_stats(sample, pod.disk.as_ref(), node_fs, all)).collect();
    let cgroup = pod.cgroup.as_ref();
    let mut stats = PodStats {
        pod_ref: PodReference { name: pod.name.clone(), namespace: pod.namespace.clone(), uid: pod.uid.clone() },
        start_time: MetaTime(pod.started),
        containers,
        cpu: cgroup.and_then(cpu),
        memory: cgroup.and_then(|cgroup| memory(cgroup, None)),
        swap: cgroup.and_then(swap),
        io: cgroup.filter(|_| all).and_then(io),
        network: pod.network.as_ref().and_then(|interfaces| network(interfaces, cgroup.map_or(pod.started, |c| c.at))),
        volume: vec![],
        ephemeral_storage: None,
        process_stats: cgroup
            .and_then(|cgroup| cgroup.usage.pids.current)
            .map(|process_count| ProcessStats { process_count }),
    };
    if let (true, Some(disk)) = (all, &pod.disk) {
        stats.volume = disk.volumes.iter().map(|volume| volume_stats(volume, &pod.namespace)).collect();
        // A part of the sum would hide what a pod uses.
        let complete = disk.complete.then(|| ephemeral_storage(&stats.containers, disk, node_fs));
        stats.ephemeral_storage = complete;
    }
    stats
}

fn container_stats(
    sample: &ContainerSample,
    disk: Option<&PodDisk>,
    node_fs: Option<&FsSample>,
    all: bool,
) -> ContainerStats {
    let mut stats = container(&sample.name, sample.created, sample.cgroup.as_ref(), all);
    if all {
        stats.rootfs = sample.rootfs.as_ref().map(layer);
        stats.logs = disk.and_then(|disk| {
            let logs = disk.logs.get(&sample.name)?;
            Some(used_fs(disk.at, Some(logs.bytes), Some(logs.inodes), node_fs))
        });
    }
    stats
}

fn container(name: &str, started: Timestamp, cgroup: Option<&CgroupSample>, all: bool) -> ContainerStats {
    ContainerStats {
        name: name.to_owned(),
        start_time: MetaTime(started),
        cpu: cgroup.and_then(cpu),
        memory: cgroup.and_then(|cgroup| memory(cgroup, None)),
        swap: cgroup.and_then(swap),
        io: cgroup.filter(|_| all).and_then(io),
        rootfs: None,
        logs: None,
    }
}

fn cpu(cgroup: &CgroupSample) -> Option<CpuStats> {
    let cpu = &cgroup.usage.cpu;
    Some(CpuStats {
        time: MetaTime(cgroup.at),
        usage_nano_cores: cgroup.nano_cores,
        usage_core_nano_seconds: Some(cpu.usage_ns?),
        psi: cpu.pressure.map(Psi::from),
    })
}

/// Kubernetes: `cadvisorInfoToCPUandMemoryStats`. The limit of the root is the memory of the node.
fn memory(cgroup: &CgroupSample, node_memory: Option<u64>) -> Option<MemoryStats> {
    let memory = &cgroup.usage.memory;
    let working_set = working_set(memory);
    memory.usage?;
    let limit = node_memory.or(match memory.limit {
        Some(Bound::At(limit)) => Some(limit),
        _ => None,
    });
    Some(MemoryStats {
        time: MetaTime(cgroup.at),
        available_bytes: limit.zip(working_set).map(|(limit, used)| limit.saturating_sub(used)),
        usage_bytes: memory.usage,
        working_set_bytes: working_set,
        rss_bytes: memory.rss,
        page_faults: memory.page_faults,
        major_page_faults: memory.major_page_faults,
        psi: memory.pressure.map(Psi::from),
    })
}

/// Memory that can't be reclaimed easily: usage without inactive page cache, as cAdvisor computes it.
pub(super) fn working_set(memory: &MemoryUsage) -> Option<u64> {
    Some(memory.usage?.saturating_sub(memory.inactive_file.unwrap_or(0)))
}

fn swap(cgroup: &CgroupSample) -> Option<SwapStats> {
    let memory = &cgroup.usage.memory;
    let used = memory.swap?;
    let available = match memory.swap_limit {
        Some(Bound::At(limit)) => Some(limit.saturating_sub(used)),
        _ => None,
    };
    Some(SwapStats { time: MetaTime(cgroup.at), swap_available_bytes: available, swap_usage_bytes: Some(used) })
}

fn node_swap(host: &HostSample, at: Timestamp) -> Option<SwapStats> {
    let (total, free) = host.swap_total.zip(host.swap_free)?;
    let used = Some(total.saturating_sub(free));
    Some(SwapStats { time: MetaTime(at), swap_available_bytes: Some(free), swap_usage_bytes: used })
}

fn io(cgroup: &CgroupSample) -> Option<IoStats> {
    let IoUsage { pressure, .. } = &cgroup.usage.io;
    Some(IoStats { time: MetaTime(cgroup.at), psi: pressure.map(Psi::from) })
}

/// `eth0` is repeated at the top level (Kubernetes: `defaultNetworkInterfaceName`).
fn network(interfaces: &[InterfaceSample], at: Timestamp) -> Option<NetworkStats> {
    if interfaces.is_empty() {
        return None;
    }
    let all: Vec<InterfaceStats> = interfaces.iter().map(InterfaceStats::from).collect();
    let default = all.iter().find(|interface| interface.name == "eth0").cloned();
    Some(NetworkStats { time: MetaTime(at), default: default.unwrap_or_default(), interfaces: all })
}

fn runtime(host: &HostSample) -> RuntimeStats {
    let image_fs = host.image_fs.as_ref();
    RuntimeStats { image_fs: image_fs.map(layer), container_fs: host.container_fs.as_ref().or(image_fs).map(layer) }
}

fn rlimit(host: &HostSample, at: Timestamp) -> RlimitStats {
    RlimitStats { time: MetaTime(at), maxpid: host.max_pid, curproc: host.tasks }
}

fn layer(layer: &UsedFs) -> FsStats {
    used_fs(layer.at, layer.used, layer.inodes_used, layer.fs.as_ref())
}

fn used_fs(at: Timestamp, used: Option<u64>, inodes_used: Option<u64>, fs: Option<&FsSample>) -> FsStats {
    FsStats {
        time: MetaTime(at),
        available_bytes: fs.map(|fs| fs.available),
        capacity_bytes: fs.map(|fs| fs.capacity),
        used_bytes: used,
        inodes_free: fs.map(|fs| fs.inodes_free),
        inodes: fs.map(|fs| fs.inodes),
        inodes_used,
    }
}

fn inodes_used(fs: &FsSample) -> Option<u64> {
    Some(fs.inodes.saturating_sub(fs.inodes_free))
}

fn volume_stats(volume: &VolumeUsage, namespace: &str) -> VolumeStats {
    let claim = volume.claim.as_ref();
    VolumeStats {
        fs: used_fs(volume.at, Some(volume.used), Some(volume.inodes_used), Some(&volume.fs)),
        name: volume.name.clone(),
        pvc_ref: claim.map(|name| PvcReference { name: name.clone(), namespace: namespace.to_owned() }),
    }
}

/// Kubernetes: `calcEphemeralStorage`.
fn ephemeral_storage(containers: &[ContainerStats], disk: &PodDisk, node_fs: Option<&FsSample>) -> FsStats {
    let (mut bytes, mut inodes) = (disk.own.bytes, disk.own.inodes);
    let layers = containers.iter().flat_map(|container| [&container.rootfs, &container.logs]).flatten();
    for fs in layers {
        bytes += fs.used_bytes.unwrap_or(0);
        inodes += fs.inodes_used.unwrap_or(0);
    }
    for volume in disk.volumes.iter().filter(|volume| volume.ephemeral) {
        bytes += volume.used;
        inodes += volume.inodes_used;
    }
    used_fs(disk.at, Some(bytes), Some(inodes), node_fs)
}
