//! Metric families built for one response, in the Prometheus text format.

use jiff::Timestamp;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use crate::metrics::encode;

/// A metric with its values.
pub(super) struct Family {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    metrics: Vec<Metric>,
}

impl Family {
    /// A value that goes up and down.
    pub(super) fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: MetricType::GAUGE, metrics: vec![] }
    }

    /// A value that only grows.
    pub(super) fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: MetricType::COUNTER, metrics: vec![] }
    }

    /// Adds a value; `at` is the time it was read. A missing value adds nothing.
    pub(super) fn add(&mut self, labels: &[(&str, &str)], value: Option<f64>, at: Option<Timestamp>) {
        let Some(value) = value else { return };
        let mut metric = Metric::default();
        let pair = |(name, value): &(&str, &str)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        };
        metric.set_label(labels.iter().map(pair).collect());
        match self.kind {
            MetricType::COUNTER => {
                let mut counter = Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            }
            _ => {
                let mut gauge = Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
        }
        if let Some(at) = at {
            metric.set_timestamp_ms(at.as_millisecond());
        }
        self.metrics.push(metric);
    }
}

/// The text of these families in the order of their names; empty ones are left out.
pub(super) fn text(mut families: Vec<Family>) -> String {
    families.retain(|family| !family.metrics.is_empty());
    families.sort_by_key(|family| family.name);
    let families: Vec<MetricFamily> = families.into_iter().map(into_proto).collect();
    encode(&families)
}

fn into_proto(family: Family) -> MetricFamily {
    let mut proto = MetricFamily::default();
    proto.set_name(family.name.to_owned());
    proto.set_help(family.help.to_owned());
    proto.set_field_type(family.kind);
    proto.set_metric(family.metrics);
    proto
}
