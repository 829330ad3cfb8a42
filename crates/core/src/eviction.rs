//! Pods that take more than they may are ended.

use std::time::Duration;

use crate::model::{Event, Pod, PodUid, Source};
use crate::quantity::Amount;

/// Kubernetes: who takes more than its own limit gets no more time than this.
const GRACE: Duration = Duration::from_secs(1);

/// Kubernetes: `SystemCriticalPriority`.
const CRITICAL: i32 = 2_000_000_000;

/// A volume on disk that has a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limited {
    /// Its name.
    pub volume: String,
    /// In bytes.
    pub limit: u64,
    /// The same as its pod says it.
    text: String,
}

impl Limited {
    /// The emptyDirs of a pod that are limited and on disk; the kernel itself limits those in memory. A critical pod is never
    /// evicted.
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
            // Zero is no limit.
            (limit > 0).then(|| Self { volume: volume.name.clone(), limit, text: text.0.clone() })
        });
        limited.collect()
    }

    /// What follows from so many bytes in it.
    pub fn taken(&self, uid: &PodUid, bytes: u64) -> Option<Event> {
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
    fn what_is_limited_on_disk_may_take_as_much() {
        let volumes = json!([
            {"name": "small", "emptyDir": {"sizeLimit": "1Ki"}}, {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Ki"}},
            {"name": "free", "emptyDir": {}}, {"name": "zero", "emptyDir": {"sizeLimit": "0"}}, {"name": "host", "hostPath": {"path": "/"}},
        ]);
        let mut pod: Pod = serde_json::from_value(json!({"spec": {"containers": [], "volumes": volumes}})).unwrap();
        let limited = Limited::of(&pod, Source::Api);
        assert_eq!(limited.iter().map(|l| (l.volume.as_str(), l.limit)).collect::<Vec<_>>(), [("small", 1024)]);
        let uid = PodUid::from("u");
        assert!(limited[0].taken(&uid, 1024).is_none());
        let Some(Event::Kill { evicted: Some((reason, message)), grace, .. }) = limited[0].taken(&uid, 1025) else {
            panic!()
        };
        assert_eq!((reason.as_str(), grace), ("Evicted", Some(GRACE)));
        assert_eq!(message, "Usage of EmptyDir volume \"small\" exceeds the limit \"1Ki\". ");
        assert_eq!(Limited::of(&pod, Source::Local), limited);
        assert_eq!(Limited::of(&pod, Source::File), [], "static pods are critical");
        pod.spec.as_mut().unwrap().priority = Some(CRITICAL);
        assert_eq!(Limited::of(&pod, Source::Api), []);
    }
}
