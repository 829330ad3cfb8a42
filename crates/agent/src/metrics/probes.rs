//! The results of probes (Go kubelet: `prober.ProberResults`, `prober.ProberDuration`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use podwright_core::model::{Pod, PodUid, ProbeKind, ProbeVerdict};
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts};

use super::valid;
use crate::pod_spec::{pod_name, pod_namespace, pod_uid};

/// Counters and durations by container and kind of probe.
pub(crate) struct ProbeMetrics {
    results: IntCounterVec,
    durations: HistogramVec,
    /// The labels in use, which are removed with their pod.
    labels: Mutex<BTreeMap<PodUid, BTreeSet<ProbeLabels>>>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ProbeLabels {
    kind: &'static str,
    container: String,
    pod: String,
    namespace: String,
}

impl Default for ProbeMetrics {
    fn default() -> Self {
        let results = "Cumulative number of a liveness, readiness or startup probe for a container by result.";
        let durations = "Duration in seconds for a probe response.";
        Self {
            results: valid(IntCounterVec::new(
                Opts::new("prober_probe_total", results),
                &["probe_type", "result", "container", "pod", "namespace", "pod_uid"],
            )),
            durations: valid(HistogramVec::new(
                HistogramOpts::new("prober_probe_duration_seconds", durations),
                &["probe_type", "container", "pod", "namespace"],
            )),
            labels: Mutex::default(),
        }
    }
}

impl ProbeMetrics {
    /// Counts a probe that was made.
    pub(crate) fn record(&self, pod: &Pod, container: &str, kind: ProbeKind, verdict: &ProbeVerdict, took: Duration) {
        let (name, namespace, uid) = (pod_name(pod), pod_namespace(pod), pod_uid(pod));
        let kind = match kind {
            ProbeKind::Startup => "Startup",
            ProbeKind::Readiness => "Readiness",
            ProbeKind::Liveness => "Liveness",
        };
        let result = match verdict {
            ProbeVerdict::Success => "successful",
            ProbeVerdict::Failure(_) => "failed",
            ProbeVerdict::Unknown(_) => "unknown",
        };
        self.results.with_label_values(&[kind, result, container, name, namespace, uid]).inc();
        self.durations.with_label_values(&[kind, container, name, namespace]).observe(took.as_secs_f64());
        let labels = ProbeLabels {
            kind,
            container: container.to_owned(),
            pod: name.to_owned(),
            namespace: namespace.to_owned(),
        };
        let mut all = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(uid.into()).or_default().insert(labels);
    }

    pub(super) fn pod_removed(&self, uid: &PodUid) {
        let removed = self.labels.lock().unwrap_or_else(PoisonError::into_inner).remove(uid).unwrap_or_default();
        for ProbeLabels { kind, container, pod, namespace } in removed {
            for result in RESULTS {
                let labels = [kind, result, &container, &pod, &namespace, uid.as_str()];
                let _ = self.results.remove_label_values(&labels);
            }
            let _ = self.durations.remove_label_values(&[kind, &container, &pod, &namespace]);
        }
    }

    pub(super) fn gather(&self) -> Vec<MetricFamily> {
        let families = self.durations.collect().into_iter().chain(self.results.collect());
        families.filter(|family| !family.get_metric().is_empty()).collect()
    }
}

const RESULTS: [&str; 3] = ["successful", "failed", "unknown"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::encode;

    #[test]
    fn probes_are_counted_until_their_pod_is_removed() {
        let pod =
            serde_json::json!({"metadata": {"name": "web", "namespace": "ns", "uid": "1"}, "spec": {"containers": []}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let metrics = ProbeMetrics::default();
        let took = Duration::from_millis(3);
        metrics.record(&pod, "c", ProbeKind::Liveness, &ProbeVerdict::Success, took);
        metrics.record(&pod, "c", ProbeKind::Liveness, &ProbeVerdict::Failure("no".into()), took);
        let text = encode(&metrics.gather());
        let labels = r#"container="c",namespace="ns",pod="web",pod_uid="1",probe_type="Liveness""#;
        assert!(text.contains(&format!("prober_probe_total{{{labels},result=\"successful\"}} 1\n")), "{text}");
        assert!(text.contains(&format!("prober_probe_total{{{labels},result=\"failed\"}} 1\n")), "{text}");
        assert!(text.contains(r#"prober_probe_duration_seconds_bucket{container="c",namespace="ns",pod="web",probe_type="Liveness",le="0.005"} 2"#), "{text}");
        metrics.pod_removed(&"1".into());
        assert_eq!(encode(&metrics.gather()), "");
    }
}
