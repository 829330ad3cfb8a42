//! Metrics of pods and containers, for a kubelet that takes them from its runtime instead of its own cAdvisor.
//!
//! Names, types and units are cAdvisor's; the labels that all of them have are containerd's. The CRI has whole numbers only, so
//! times are full seconds. What is not known is left out, and never zero.

mod container;
mod network;

use std::collections::BTreeMap;

use podwright_cri::v1::{self, MetricType};
use podwright_linux::beneath::TreeUsage;
use podwright_linux::cgroup::CgroupUsage;
use podwright_net::InterfaceCounters;

/// What was measured of a container.
#[derive(Clone, Debug, Default)]
pub(crate) struct MetricSample {
    pub(crate) usage: CgroupUsage,
    /// Nanoseconds since 1970.
    pub(crate) started_at_ns: i64,
    /// Nanoseconds since 1970.
    pub(crate) at_ns: i64,
    /// The writable layer, with the time of its measurement in nanoseconds since 1970.
    pub(crate) layer: Option<(TreeUsage, i64)>,
    /// The file system of the writable layer.
    pub(crate) file_system: Option<LayerFileSystem>,
    /// Files of block devices by their numbers, such as `/dev/sda`.
    pub(crate) device_names: BTreeMap<(u32, u32), String>,
}

/// The file system of the writable layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LayerFileSystem {
    /// The file of its device, such as `/dev/sda1`; empty if it has none.
    pub(crate) device: String,
    /// Bytes of all of it.
    pub(crate) size: u64,
    pub(crate) inodes: u64,
    pub(crate) inodes_free: u64,
}

/// The values of the labels that every metric has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MetricSubject {
    pub(crate) pod: String,
    pub(crate) namespace: String,
    /// Empty for a pod.
    pub(crate) container: String,
    /// Of the container or the sandbox.
    pub(crate) id: String,
    /// As the pod names it; empty for a pod.
    pub(crate) image: String,
}

impl MetricSubject {
    fn label_values(&self) -> [&String; BASE_LABELS.len()] {
        [&self.pod, &self.namespace, &self.container, &self.id, &self.image]
    }
}

/// A metric, and how it is made from a sample.
struct Family<S: 'static> {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    /// Keys after those of [`BASE_LABELS`].
    labels: &'static [&'static str],
    points: fn(&S) -> Vec<Point>,
}

/// One value of a metric.
#[derive(Debug, PartialEq, Eq)]
struct Point {
    /// The values of the family's own labels.
    labels: Vec<String>,
    value: u64,
    /// Nanoseconds since 1970; 0: it was read for this call.
    measured_at_ns: i64,
}

impl<S> Family<S> {
    const fn counter(name: &'static str, help: &'static str, points: fn(&S) -> Vec<Point>) -> Self {
        Self { name, help, kind: MetricType::Counter, labels: &[], points }
    }

    const fn gauge(name: &'static str, help: &'static str, points: fn(&S) -> Vec<Point>) -> Self {
        Self { name, help, kind: MetricType::Gauge, labels: &[], points }
    }

    const fn labelled(self, labels: &'static [&'static str]) -> Self {
        Self { labels, ..self }
    }

    fn descriptor(&self) -> v1::MetricDescriptor {
        let keys = BASE_LABELS.iter().chain(self.labels);
        v1::MetricDescriptor {
            name: self.name.into(),
            help: self.help.into(),
            label_keys: keys.map(|key| (*key).to_owned()).collect(),
        }
    }

    fn metrics(&self, sample: &S, subject: &MetricSubject) -> impl Iterator<Item = v1::Metric> {
        (self.points)(sample).into_iter().map(|point| v1::Metric {
            name: self.name.into(),
            timestamp: point.measured_at_ns,
            metric_type: self.kind.into(),
            label_values: subject.label_values().into_iter().cloned().chain(point.labels).collect(),
            value: Some(v1::UInt64Value { value: point.value }),
        })
    }
}

/// All metrics that there are.
pub(crate) fn descriptors() -> Vec<v1::MetricDescriptor> {
    let of_containers = container::FAMILIES.iter().map(Family::descriptor);
    of_containers.chain(network::FAMILIES.iter().map(Family::descriptor)).collect()
}

pub(crate) fn of_container(sample: &MetricSample, subject: &MetricSubject) -> Vec<v1::Metric> {
    container::FAMILIES.iter().flat_map(|family| family.metrics(sample, subject)).collect()
}

/// The network belongs to the pod, not to one of its containers.
pub(crate) fn of_pod(interfaces: &[InterfaceCounters], subject: &MetricSubject) -> Vec<v1::Metric> {
    let pod: Vec<_> = interfaces.iter().filter(|counters| counters.name != "lo").cloned().collect();
    network::FAMILIES.iter().flat_map(|family| family.metrics(&pod, subject)).collect()
}

fn one(value: Option<u64>) -> Vec<Point> {
    value.map(|value| Point { labels: vec![], value, measured_at_ns: 0 }).into_iter().collect()
}

fn labelled<const N: usize>(labels: [&str; N], value: Option<u64>) -> Option<Point> {
    Some(Point { labels: labels.map(str::to_owned).to_vec(), value: value?, measured_at_ns: 0 })
}

/// In the order of [`MetricSubject::label_values`].
const BASE_LABELS: [&str; 5] = ["pod", "namespace", "container", "id", "image"];

#[cfg(test)]
mod tests;
