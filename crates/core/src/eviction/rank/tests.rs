//! The vectors of the Go kubelet's `TestOrderedBy…`.

use serde_json::json;

use super::*;
use crate::model::ContainerUsage;

const MI: u64 = 1 << 20;
const LOW: i32 = -1;
const DEFAULT: i32 = 0;
const HIGH: i32 = 1;

struct Ranked {
    uid: PodUid,
    pod: Pod,
    usage: Option<PodUsage>,
}

fn ranked(name: &str, priority: i32, request: (&str, u64), usage: Option<PodUsage>) -> Ranked {
    let (resource, amount) = request;
    let requests = if amount == 0 { json!({}) } else { json!({resource: format!("{amount}Mi")}) };
    let spec = json!({"priority": priority, "containers": [{"name": "c", "resources": {"requests": requests}}]});
    Ranked { uid: name.into(), pod: serde_json::from_value(json!({"spec": spec})).unwrap(), usage }
}

fn memory(mib: u64) -> Option<PodUsage> {
    Some(PodUsage { memory: Some(mib * MI), ..PodUsage::default() })
}

fn processes(count: u64) -> Option<PodUsage> {
    Some(PodUsage { processes: Some(count), ..PodUsage::default() })
}

/// Of the writable layer, the logs and a volume; `bytes` and inodes are the same numbers.
fn disk(rootfs: u64, logs: u64, volume: u64, unit: u64) -> Option<PodUsage> {
    let amount = |n: u64| DiskAmount { bytes: n * unit, inodes: n * unit };
    let container =
        ContainerUsage { name: "c".into(), memory: None, rootfs: Some(amount(rootfs)), logs: Some(amount(logs)) };
    Some(PodUsage { containers: vec![container], volumes: amount(volume), ..PodUsage::default() })
}

/// The names in the order of eviction, given in reverse order.
fn order(pods: &[Ranked], signal: Signal, layout: DiskLayout) -> Vec<String> {
    let all: Vec<Candidate<'_>> = pods
        .iter()
        .rev()
        .map(|r| Candidate { uid: &r.uid, pod: &r.pod, source: Source::Api, usage: r.usage.as_ref() })
        .collect();
    rank(&all, signal, layout).iter().map(|candidate| candidate.uid.to_string()).collect()
}

fn names(pods: &[Ranked]) -> Vec<String> {
    pods.iter().map(|pod| pod.uid.to_string()).collect()
}

#[test]
fn memory_is_reclaimed_from_pods_above_their_requests_then_by_priority_then_by_excess() {
    let pods = [
        ranked("above-low-priority-high", LOW, ("memory", 0), memory(500)),
        ranked("above-low-priority-low", LOW, ("memory", 0), memory(50)),
        ranked("above-high-priority-high", HIGH, ("memory", 100), memory(600)),
        ranked("above-high-priority-low", HIGH, ("memory", 100), memory(150)),
        ranked("below-low-priority-high", LOW, ("memory", 1024), memory(800)),
        ranked("below-low-priority-low", LOW, ("memory", 1024), memory(200)),
        ranked("below-high-priority-high", HIGH, ("memory", 1024), memory(800)),
        ranked("below-high-priority-low", HIGH, ("memory", 1024), memory(200)),
    ];
    for signal in [Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable] {
        assert_eq!(order(&pods, signal, DiskLayout::Shared), names(&pods));
    }
    let exceeds = [
        ranked("exceeds-requests", HIGH, ("memory", 100), memory(101)),
        ranked("below-requests", LOW, ("memory", 200), memory(199)),
    ];
    assert_eq!(order(&exceeds, Signal::MemoryAvailable, DiskLayout::Shared), names(&exceeds));
    let by_excess = [
        ranked("burstable-high", DEFAULT, ("memory", 100), memory(800)),
        ranked("best-effort-high", DEFAULT, ("memory", 0), memory(500)),
        ranked("best-effort-low", DEFAULT, ("memory", 0), memory(300)),
        ranked("burstable-low", DEFAULT, ("memory", 100), memory(300)),
        ranked("guaranteed-high", DEFAULT, ("memory", 1024), memory(800)),
        ranked("guaranteed-low", DEFAULT, ("memory", 1024), memory(200)),
    ];
    assert_eq!(order(&by_excess, Signal::MemoryAvailable, DiskLayout::Shared), names(&by_excess));
}

#[test]
fn disk_is_reclaimed_in_the_same_order() {
    let pods = [
        ranked("above-low-priority-high", LOW, ("ephemeral-storage", 0), disk(200, 100, 200, MI)),
        ranked("above-low-priority-low", LOW, ("ephemeral-storage", 0), disk(10, 10, 30, MI)),
        ranked("above-high-priority-high", HIGH, ("ephemeral-storage", 100), disk(200, 150, 250, MI)),
        ranked("above-high-priority-low", HIGH, ("ephemeral-storage", 100), disk(90, 50, 10, MI)),
        ranked("below-low-priority-high", LOW, ("ephemeral-storage", 1024), disk(500, 200, 100, MI)),
        ranked("below-low-priority-low", LOW, ("ephemeral-storage", 1024), disk(50, 100, 50, MI)),
        ranked("below-high-priority-high", HIGH, ("ephemeral-storage", 1024), disk(250, 500, 50, MI)),
        ranked("below-high-priority-low", HIGH, ("ephemeral-storage", 1024), disk(100, 60, 40, MI)),
    ];
    for signal in [Signal::NodeFsAvailable, Signal::ImageFsAvailable, Signal::ContainerFsAvailable] {
        assert_eq!(order(&pods, signal, DiskLayout::Shared), names(&pods));
    }
    let exceeds = [
        ranked("exceeds-requests", HIGH, ("ephemeral-storage", 100), disk(90, 11, 0, MI)),
        ranked("below-requests", LOW, ("ephemeral-storage", 200), disk(100, 99, 0, MI)),
    ];
    assert_eq!(order(&exceeds, Signal::NodeFsAvailable, DiskLayout::Shared), names(&exceeds));
    let by_excess = [
        ranked("best-effort-high", DEFAULT, ("ephemeral-storage", 0), disk(50, 100, 150, MI)),
        ranked("burstable-high", DEFAULT, ("ephemeral-storage", 100), disk(150, 150, 50, MI)),
        ranked("best-effort-low", DEFAULT, ("ephemeral-storage", 0), disk(25, 25, 50, MI)),
        ranked("burstable-low", DEFAULT, ("ephemeral-storage", 100), disk(25, 35, 50, MI)),
        ranked("guaranteed-high", DEFAULT, ("ephemeral-storage", 400), disk(225, 100, 50, MI)),
        ranked("guaranteed-low", DEFAULT, ("ephemeral-storage", 400), disk(25, 45, 50, MI)),
    ];
    assert_eq!(order(&by_excess, Signal::NodeFsAvailable, DiskLayout::Shared), names(&by_excess));
}

#[test]
fn inodes_and_processes_are_reclaimed_by_priority_then_by_use() {
    let inodes = [
        ranked("low-priority-high-usage", LOW, ("memory", 0), disk(50_000, 100_000, 250_000, 1)),
        ranked("low-priority-low-usage", LOW, ("memory", 0), disk(60_000, 30_000, 10_000, 1)),
        ranked("high-priority-high-usage", HIGH, ("memory", 0), disk(150_000, 150_000, 50_000, 1)),
        ranked("high-priority-low-usage", HIGH, ("memory", 0), disk(10_000, 40_000, 100_000, 1)),
    ];
    assert_eq!(order(&inodes, Signal::NodeFsInodesFree, DiskLayout::Shared), names(&inodes));
    let equal = [
        ranked("high", DEFAULT, ("memory", 0), disk(200_000, 150_000, 50_000, 1)),
        ranked("medium", DEFAULT, ("memory", 0), disk(100_000, 150_000, 50_000, 1)),
        ranked("low", DEFAULT, ("memory", 0), disk(50_000, 100_000, 50_000, 1)),
    ];
    assert_eq!(order(&equal, Signal::NodeFsInodesFree, DiskLayout::Shared), names(&equal));
    let pids = [
        ranked("low-priority-high-usage", LOW, ("memory", 0), processes(20)),
        ranked("low-priority-low-usage", LOW, ("memory", 0), processes(6)),
        ranked("high-priority-high-usage", HIGH, ("memory", 0), processes(20)),
        ranked("high-priority-low-usage", HIGH, ("memory", 0), processes(5)),
    ];
    assert_eq!(order(&pids, Signal::PidAvailable, DiskLayout::Shared), names(&pids));
}

#[test]
fn only_what_is_on_the_file_system_counts() {
    let layer = ranked("layer", DEFAULT, ("memory", 0), disk(100, 0, 0, MI));
    let files = ranked("files", DEFAULT, ("memory", 0), disk(0, 30, 30, MI));
    let pods = [layer, files];
    use DiskLayout::{SeparateImages, Shared, SplitLayers};
    let table = [
        (Shared, Signal::NodeFsAvailable, "layer"),
        (SeparateImages, Signal::NodeFsAvailable, "files"),
        (SeparateImages, Signal::ImageFsAvailable, "layer"),
        (SeparateImages, Signal::ContainerFsAvailable, "layer"),
        (SplitLayers, Signal::NodeFsAvailable, "layer"),
        (SplitLayers, Signal::ContainerFsInodesFree, "layer"),
        // No files of pods are on this file system: the order is that of the names.
        (SplitLayers, Signal::ImageFsAvailable, "files"),
    ];
    for (layout, signal, first) in table {
        assert_eq!(order(&pods, signal, layout)[0], first, "{layout:?} {signal:?}");
    }
}

#[test]
fn unknown_usage_comes_first_and_critical_pods_never() {
    let pods = [
        ranked("unknown-low", LOW, ("memory", 0), None),
        ranked("unknown-high", HIGH, ("memory", 0), None),
        ranked("known", LOW, ("memory", 0), memory(500)),
    ];
    assert_eq!(order(&pods, Signal::MemoryAvailable, DiskLayout::Shared), names(&pods));
    let critical = ranked("critical", 2_000_000_000, ("memory", 0), memory(500));
    assert!(order(&[critical], Signal::MemoryAvailable, DiskLayout::Shared).is_empty());
    let fixed = ranked("static", LOW, ("memory", 0), memory(500));
    let candidate = Candidate { uid: &fixed.uid, pod: &fixed.pod, source: Source::File, usage: fixed.usage.as_ref() };
    assert!(rank(&[candidate], Signal::MemoryAvailable, DiskLayout::Shared).is_empty());
}
