//! The results of the checks of `/healthz` (Kubernetes: k8s.io/component-base/metrics/prometheus/slis).

use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, IntGaugeVec, Opts};

use super::valid;

/// The last result of each check, and how often each had which result.
pub struct HealthcheckMetrics {
    last: IntGaugeVec,
    total: IntCounterVec,
}

impl Default for HealthcheckMetrics {
    fn default() -> Self {
        let last = Opts::new("kubernetes_healthcheck", "This metric records the result of a single healthcheck.");
        let total = Opts::new("kubernetes_healthchecks_total", "This metric records the results of all healthcheck.");
        Self {
            last: valid(IntGaugeVec::new(last, &["name", "type"])),
            total: valid(IntCounterVec::new(total, &["name", "type", "status"])),
        }
    }
}

impl HealthcheckMetrics {
    /// Counts the result of a check.
    pub fn record(&self, name: &str, passed: bool) {
        self.last.with_label_values(&[name, HEALTHZ]).set(i64::from(passed));
        let status = if passed { "success" } else { "error" };
        self.total.with_label_values(&[name, HEALTHZ, status]).inc();
    }

    /// Forgets all results (`DELETE /metrics/slis`).
    pub fn reset(&self) {
        self.last.reset();
        self.total.reset();
    }

    pub(super) fn gather(&self) -> Vec<MetricFamily> {
        let families = self.last.collect().into_iter().chain(self.total.collect());
        families.filter(|family| !family.get_metric().is_empty()).collect()
    }
}

const HEALTHZ: &str = "healthz";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::encode;

    #[test]
    fn results_are_counted_until_a_reset() {
        let metrics = HealthcheckMetrics::default();
        metrics.record("ping", true);
        metrics.record("syncloop", true);
        metrics.record("syncloop", false);
        let text = encode(&metrics.gather());
        for line in [
            r#"kubernetes_healthcheck{name="ping",type="healthz"} 1"#,
            r#"kubernetes_healthcheck{name="syncloop",type="healthz"} 0"#,
            r#"kubernetes_healthchecks_total{name="syncloop",status="error",type="healthz"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        metrics.reset();
        assert_eq!(encode(&metrics.gather()), "");
    }
}
