//! Local eviction: pods that exceed the size limit of an emptyDir volume.

use std::time::Duration;

use crate::model::{Event, Pod, PodUid, Source};
use crate::quantity::Amount;

/// Kubernetes: `immediateEvictionGracePeriodSeconds`.
const GRACE: Duration = Duration::from_secs(1);

/// Kubernetes: `SystemCriticalPriority`.
const CRITICAL: i32 = 2_000_000_000;

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

impl LimitedVolume {
    /// The limited volumes of a pod; the kernel itself limits those in memory. A critical pod is never evicted and has none.
    pub fn of(pod: &Pod, source: Source) -> Vec<Self> {
        let priority = pod.spec.as_ref().and_then(|spec| spec.priority);
        if source.is_static() || priority.is_some_and(|priority| priority >= CRITICAL) {
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

    /// The eviction that follows if `bytes` exceed the limit.
    pub fn check_usage(&self, uid: &PodUid, bytes: u64) -> Option<Event> {
        (bytes > self.limit).then(|| Event::Kill {
            uid: uid.clone(),
            grace: Some(GRACE),
            evicted: Some((
                "Evicted".into(),
                format!("Usage of EmptyDir volume {:?} exceeds the limit {:?}. ", self.volume, self.text),
            )),
            waiter: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_evicted_if_a_limited_volume_on_disk_exceeds_its_limit() {
        let volumes = json!([
            {"name": "small", "emptyDir": {"sizeLimit": "1Ki"}}, {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Ki"}},
            {"name": "free", "emptyDir": {}}, {"name": "zero", "emptyDir": {"sizeLimit": "0"}}, {"name": "host", "hostPath": {"path": "/"}},
        ]);
        let mut pod: Pod = serde_json::from_value(json!({"spec": {"containers": [], "volumes": volumes}})).unwrap();
        let limited = LimitedVolume::of(&pod, Source::Api);
        assert_eq!(limited.iter().map(|l| (l.volume.as_str(), l.limit)).collect::<Vec<_>>(), [("small", 1024)]);
        let uid = PodUid::from("u");
        assert!(limited[0].check_usage(&uid, 1024).is_none());
        let Some(Event::Kill { evicted: Some((reason, message)), grace, .. }) = limited[0].check_usage(&uid, 1025)
        else {
            panic!()
        };
        assert_eq!((reason.as_str(), grace), ("Evicted", Some(GRACE)));
        assert_eq!(message, "Usage of EmptyDir volume \"small\" exceeds the limit \"1Ki\". ");
        assert_eq!(LimitedVolume::of(&pod, Source::Local), limited);
        assert_eq!(LimitedVolume::of(&pod, Source::File), [], "static pods are critical");
        pod.spec.as_mut().unwrap().priority = Some(CRITICAL);
        assert_eq!(LimitedVolume::of(&pod, Source::Api), []);
    }
}
