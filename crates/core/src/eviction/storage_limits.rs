//! Limits of local storage that pods set for themselves: `sizeLimit` of emptyDir volumes, and limits of `ephemeral-storage`.

use crate::model::{DiskLayout, Pod, PodUsage, Source, is_sidecar, spec_of};
use crate::preemption::is_critical;
use crate::qos::{container_limits, pod_limits};
use crate::quantity::Amount;

/// Kubernetes: `v1.ResourceEphemeralStorage`.
const EPHEMERAL_STORAGE: &str = "ephemeral-storage";

/// An emptyDir volume on disk with a size limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitedVolume {
    /// Name of the volume.
    pub volume: String,
    /// In bytes.
    pub limit: u64,
    /// The limit as written in the spec.
    text: String,
}

/// A limit that a pod exceeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExceededLimit {
    /// The label of the metric `kubelet_evictions`.
    pub signal: &'static str,
    /// `status.message`.
    pub message: String,
}

impl LimitedVolume {
    /// The limited volumes of a pod; the kernel itself limits those in memory. A critical pod is never evicted and has none.
    pub fn of(pod: &Pod, source: Source) -> Vec<Self> {
        if is_critical(pod, source) {
            return vec![];
        }
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let limited = volumes.filter_map(|volume| {
            let source =
                volume.empty_dir.as_ref().filter(|source| source.medium.as_deref().unwrap_or("").is_empty())?;
            let text = source.size_limit.as_ref()?;
            let limit = Amount::try_from(text).ok().and_then(|amount| u64::try_from(amount.value()).ok())?;
            // Zero means unlimited.
            (limit > 0).then(|| Self { volume: volume.name.clone(), limit, text: text.0.clone() })
        });
        limited.collect()
    }

    /// The limit and the message for the pod's status, once the volume exceeds its limit.
    pub fn exceeded(&self) -> ExceededLimit {
        let message = format!("Usage of EmptyDir volume {:?} exceeds the limit {:?}. ", self.volume, self.text);
        ExceededLimit { signal: "emptydirfs.limit", message }
    }
}

/// The pod has limits of local storage, so that its usage must be known.
pub fn has_storage_limits(pod: &Pod, source: Source) -> bool {
    !is_critical(pod, source) && pod_limits(pod).contains_key(EPHEMERAL_STORAGE)
}

/// The limit of the whole pod, or of a container, that the pod exceeds (Go kubelet: `podEphemeralStorageLimitEviction`,
/// `containerEphemeralStorageLimitEviction`).
pub fn exceeded_limit(
    pod: &Pod,
    source: Source,
    usage: &PodUsage,
    layout: Option<DiskLayout>,
) -> Option<ExceededLimit> {
    if is_critical(pod, source) {
        return None;
    }
    let bytes = |count: u64| Amount::from_bytes(i64::try_from(count).unwrap_or(i64::MAX));
    let limit = pod_limits(pod).get(EPHEMERAL_STORAGE).copied()?;
    if bytes(usage.ephemeral_storage.unwrap_or(0)) > limit {
        let message = format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ");
        return Some(ExceededLimit { signal: "ephemeralpodfs.limit", message });
    }
    let spec = spec_of(pod);
    let limited = spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(|c| is_sidecar(c)));
    for container in limited {
        let limit = container_limits(container).get(EPHEMERAL_STORAGE).copied().filter(|limit| !limit.is_zero());
        let used = usage.containers.iter().find(|used| used.name == container.name);
        let (Some(limit), Some(used)) = (limit, used) else { continue };
        // The writable layer counts on the file system of the root directory only, so not while that is unknown.
        let rootfs = used.rootfs.filter(|_| layout == Some(DiskLayout::Shared));
        let total = [used.logs, rootfs].into_iter().flatten().fold(0u64, |sum, part| sum.saturating_add(part.bytes));
        if bytes(total) > limit {
            let name = &container.name;
            let message = format!("Container {name} exceeded its local ephemeral storage limit \"{limit}\". ");
            return Some(ExceededLimit { signal: "ephemeralcontainerfs.limit", message });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::{ContainerUsage, DiskAmount};

    #[test]
    fn only_limits_of_volumes_on_disk_count_and_critical_pods_have_none() {
        let volumes = json!([
            {"name": "small", "emptyDir": {"sizeLimit": "1Ki"}}, {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Ki"}},
            {"name": "free", "emptyDir": {}}, {"name": "zero", "emptyDir": {"sizeLimit": "0"}}, {"name": "host", "hostPath": {"path": "/"}},
        ]);
        let mut pod: Pod = serde_json::from_value(json!({"spec": {"containers": [], "volumes": volumes}})).unwrap();
        let limited = LimitedVolume::of(&pod, Source::Api);
        assert_eq!(limited.iter().map(|l| (l.volume.as_str(), l.limit)).collect::<Vec<_>>(), [("small", 1024)]);
        assert_eq!(limited[0].exceeded().message, "Usage of EmptyDir volume \"small\" exceeds the limit \"1Ki\". ");
        assert_eq!(LimitedVolume::of(&pod, Source::Local), limited);
        assert_eq!(LimitedVolume::of(&pod, Source::File), [], "static pods are critical");
        pod.spec.as_mut().unwrap().priority = Some(2_000_000_000);
        assert_eq!(LimitedVolume::of(&pod, Source::Api), []);
    }

    #[test]
    fn limits_of_the_pod_and_of_containers_are_enforced() {
        let limited = |limit: &str| json!({"limits": {"ephemeral-storage": limit}});
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "containers": [{"name": "a", "resources": limited("1Ki")}, {"name": "b", "resources": limited("2Ki")}],
            "initContainers": [{"name": "side", "restartPolicy": "Always", "resources": limited("3Ki")}]}}))
        .unwrap();
        let usage = |name: &str, rootfs: u64, logs: u64, total: u64| {
            let amount = |bytes| Some(DiskAmount { bytes, inodes: 0 });
            let container =
                ContainerUsage { name: name.into(), memory: None, rootfs: amount(rootfs), logs: amount(logs) };
            PodUsage { ephemeral_storage: Some(total), containers: vec![container], ..PodUsage::default() }
        };
        let of_a = "Container a exceeded its local ephemeral storage limit \"1Ki\". ";
        let of_side = "Container side exceeded its local ephemeral storage limit \"3Ki\". ";
        let of_pod = "Pod ephemeral local storage usage exceeds the total limit of containers 6Ki. ";
        let (shared, separate) = (Some(DiskLayout::Shared), Some(DiskLayout::SeparateImages));
        let table = [
            (usage("a", 1024, 0, 1024), shared, None),
            (usage("a", 1000, 25, 1025), shared, Some(("ephemeralcontainerfs.limit", of_a))),
            (usage("a", 1000, 25, 1025), separate, None),
            (usage("a", 0, 1025, 1025), separate, Some(("ephemeralcontainerfs.limit", of_a))),
            (usage("a", 1000, 25, 1025), None, None),
            (usage("a", 0, 1025, 1025), None, Some(("ephemeralcontainerfs.limit", of_a))),
            (usage("side", 3073, 0, 3073), shared, Some(("ephemeralcontainerfs.limit", of_side))),
            (usage("a", 0, 0, 6144), shared, None),
            (usage("a", 0, 0, 6145), shared, Some(("ephemeralpodfs.limit", of_pod))),
            (PodUsage::default(), shared, None),
        ];
        for (usage, layout, expected) in table {
            let found = exceeded_limit(&pod, Source::Api, &usage, layout);
            let found = found.as_ref().map(|limit| (limit.signal, limit.message.as_str()));
            assert_eq!(found, expected, "{usage:?}");
            assert_eq!(exceeded_limit(&pod, Source::File, &usage, layout), None, "static pods are critical");
        }
        assert!(has_storage_limits(&pod, Source::Api) && !has_storage_limits(&Pod::default(), Source::Api));
    }
}
