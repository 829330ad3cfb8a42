//! `kubelet_volume_stats_*`: the sizes of volumes with a claim (Kubernetes: `volumeStatsCollector`).

use std::collections::BTreeSet;

use super::disk_usage::VolumeUsage;
use super::exposition::{self, Family};

/// The text for volumes with their namespaces. A claim that several pods use is reported once.
pub(super) fn text(volumes: &[(String, VolumeUsage)]) -> String {
    let mut families: Vec<(Family, Value)> =
        METRICS.iter().map(|(name, help, value)| (Family::gauge(name, help), *value)).collect();
    let mut seen = BTreeSet::new();
    for (namespace, volume) in volumes {
        let Some(claim) = volume.claim.as_deref() else { continue };
        if !seen.insert((namespace, claim)) {
            continue;
        }
        let labels = [("namespace", namespace.as_str()), ("persistentvolumeclaim", claim)];
        for (family, value) in &mut families {
            family.add(&labels, Some(value(volume) as f64), None);
        }
    }
    exposition::text(families.into_iter().map(|(family, _)| family).collect())
}

type Value = fn(&VolumeUsage) -> u64;

const METRICS: [(&str, &str, Value); 6] = [
    ("kubelet_volume_stats_capacity_bytes", "[ALPHA] Capacity in bytes of the volume", |v| v.fs.capacity),
    ("kubelet_volume_stats_available_bytes", "[ALPHA] Number of available bytes in the volume", |v| v.fs.available),
    ("kubelet_volume_stats_used_bytes", "[ALPHA] Number of used bytes in the volume", |v| v.used),
    ("kubelet_volume_stats_inodes", "[ALPHA] Maximum number of inodes in the volume", |v| v.fs.inodes),
    ("kubelet_volume_stats_inodes_free", "[ALPHA] Number of free inodes in the volume", |v| v.fs.inodes_free),
    ("kubelet_volume_stats_inodes_used", "[ALPHA] Number of used inodes in the volume", |v| v.inodes_used),
];
