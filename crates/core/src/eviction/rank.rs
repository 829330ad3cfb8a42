//! The order in which pods are evicted.

use std::cmp::Reverse;

use crate::model::{DiskAmount, DiskLayout, Pod, PodUid, PodUsage, Signal, Source, StarvedResource};
use crate::preemption::is_critical;
use crate::qos::pod_requests;

/// A pod that may be evicted.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// UID of the pod.
    pub uid: &'a PodUid,
    /// The pod.
    pub pod: &'a Pod,
    /// Its source: static pods are critical.
    pub source: Source,
    /// `None`: not known. Such a pod is evicted before others.
    pub usage: Option<&'a PodUsage>,
}

/// The parts of a pod that are on the file system of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DiskParts {
    rootfs: bool,
    /// Logs and volumes.
    files: bool,
}

/// The candidates in the order of their eviction, without critical pods (Go kubelet: `rankMemoryPressure`, `rankPIDPressure`,
/// `rankDiskPressureFunc`).
pub fn rank<'a>(pods: &[Candidate<'a>], signal: Signal, layout: DiskLayout) -> Vec<Candidate<'a>> {
    let mut ranked: Vec<Candidate<'a>> = pods.iter().filter(|pod| !is_critical(pod.pod, pod.source)).copied().collect();
    ranked.sort_by_cached_key(|candidate| {
        let Candidate { uid, pod, usage, .. } = *candidate;
        let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
        if signal.resource() == StarvedResource::Pids {
            let processes = usage.map_or(0, |usage| usage.processes.unwrap_or(0));
            return ((false, false, priority), (usage.is_some(), Reverse(i128::from(processes))), uid.clone());
        }
        let used = usage.map_or(0, |usage| used(usage, signal, layout));
        let excess = i128::from(used) - i128::from(requested(pod, signal));
        let exceeds = usage.is_some() && excess > 0;
        ((usage.is_some(), !exceeds, priority), (false, Reverse(excess)), uid.clone())
    });
    ranked
}

fn used(usage: &PodUsage, signal: Signal, layout: DiskLayout) -> u64 {
    match signal.resource() {
        StarvedResource::Memory => usage.memory.unwrap_or(0),
        StarvedResource::EphemeralStorage => disk_usage(usage, disk_parts(signal, layout)).bytes,
        StarvedResource::Inodes => disk_usage(usage, disk_parts(signal, layout)).inodes,
        StarvedResource::Pids => usage.processes.unwrap_or(0),
    }
}

/// Nothing can be requested of inodes. (The Go kubelet subtracts the requested bytes from them.)
fn requested(pod: &Pod, signal: Signal) -> u64 {
    let name = match signal.resource() {
        resource @ (StarvedResource::Memory | StarvedResource::EphemeralStorage) => resource.as_str(),
        StarvedResource::Inodes | StarvedResource::Pids => return 0,
    };
    pod_requests(pod).get(name).map_or(0, |amount| u64::try_from(amount.value()).unwrap_or(0))
}

/// Kubernetes: `buildSignalToRankFunc`.
fn disk_parts(signal: Signal, layout: DiskLayout) -> DiskParts {
    let of_node = matches!(signal, Signal::NodeFsAvailable | Signal::NodeFsInodesFree);
    let of_images = matches!(signal, Signal::ImageFsAvailable | Signal::ImageFsInodesFree);
    match layout {
        DiskLayout::Shared => DiskParts { rootfs: true, files: true },
        DiskLayout::SeparateImages => DiskParts { rootfs: !of_node, files: of_node },
        DiskLayout::SplitLayers => DiskParts { rootfs: !of_images, files: !of_images },
    }
}

fn disk_usage(usage: &PodUsage, parts: DiskParts) -> DiskAmount {
    let rootfs = usage.containers.iter().filter_map(|c| c.rootfs).filter(|_| parts.rootfs);
    let logs = usage.containers.iter().filter_map(|c| c.logs).filter(|_| parts.files);
    let volumes = parts.files.then_some(usage.volumes);
    rootfs.chain(logs).chain(volumes).fold(DiskAmount::default(), DiskAmount::plus)
}

#[cfg(test)]
mod tests;
