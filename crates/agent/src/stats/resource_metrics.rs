//! `/metrics/resource`: what metrics-server reads for `kubectl top` and autoscaling (Kubernetes: `resourceMetricsCollector`).

use podwright_linux::cgroup::Bound;

use super::exposition::{self, Family};
use super::sample::{CgroupSample, Sample};
use super::summary::working_set;

/// The text; `None`: sampling failed, which is itself reported.
pub(super) fn text(sample: Option<&Sample>) -> String {
    let mut error = Family::gauge(
        "resource_scrape_error",
        "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
    );
    error.add(&[], Some(if sample.is_some() { 0.0 } else { 1.0 }), None);
    let mut families = vec![error];
    if let Some(sample) = sample {
        families.extend(node_families(sample));
        families.extend(pod_families(sample));
        families.extend(container_families(sample));
    }
    exposition::text(families)
}

fn node_families(sample: &Sample) -> [Family; 3] {
    let mut cpu = Family::counter(
        "node_cpu_usage_seconds_total",
        "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
    );
    let mut memory =
        Family::gauge("node_memory_working_set_bytes", "[STABLE] Current working set of the node in bytes");
    let mut swap = Family::gauge(
        "node_swap_usage_bytes",
        "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems",
    );
    let at = Some(sample.root.at);
    cpu.add(&[], cpu_seconds(&sample.root), at);
    memory.add(&[], working_set(&sample.root.usage.memory).map(|bytes| bytes as f64), at);
    let host = &sample.host;
    let used = host.swap_total.zip(host.swap_free).map(|(total, free)| total.saturating_sub(free));
    swap.add(&[], used.map(|bytes| bytes as f64), at);
    [cpu, memory, swap]
}

fn pod_families(sample: &Sample) -> [Family; 3] {
    let mut cpu = Family::counter(
        "pod_cpu_usage_seconds_total",
        "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
    );
    let mut memory = Family::gauge("pod_memory_working_set_bytes", "[STABLE] Current working set of the pod in bytes");
    let mut swap = Family::gauge(
        "pod_swap_usage_bytes",
        "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems",
    );
    for pod in &sample.pods {
        let Some(cgroup) = &pod.cgroup else { continue };
        let labels = [("namespace", pod.namespace.as_str()), ("pod", pod.name.as_str())];
        cpu.add(&labels, cpu_seconds(cgroup), Some(cgroup.at));
        memory.add(&labels, working_set(&cgroup.usage.memory).map(|bytes| bytes as f64), Some(cgroup.at));
        swap.add(&labels, cgroup.usage.memory.swap.map(|bytes| bytes as f64), Some(cgroup.at));
    }
    [cpu, memory, swap]
}

fn container_families(sample: &Sample) -> [Family; 5] {
    let mut cpu = Family::counter(
        "container_cpu_usage_seconds_total",
        "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
    );
    let mut memory =
        Family::gauge("container_memory_working_set_bytes", "[STABLE] Current working set of the container in bytes");
    let mut start = Family::gauge(
        "container_start_time_seconds",
        "[STABLE] Start time of the container since unix epoch in seconds",
    );
    let mut swap = Family::gauge(
        "container_swap_usage_bytes",
        "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems",
    );
    let mut swap_limit = Family::gauge(
        "container_swap_limit_bytes",
        "[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems",
    );
    for pod in &sample.pods {
        for container in &pod.containers {
            // metrics-server drops a pod with a container of which only a part is known.
            let Some(cgroup) = &container.cgroup else { continue };
            let (Some(seconds), Some(bytes)) = (cpu_seconds(cgroup), working_set(&cgroup.usage.memory)) else {
                continue;
            };
            let labels = [
                ("container", container.name.as_str()),
                ("namespace", pod.namespace.as_str()),
                ("pod", pod.name.as_str()),
            ];
            let at = Some(cgroup.at);
            cpu.add(&labels, Some(seconds), at);
            memory.add(&labels, Some(bytes as f64), at);
            start.add(&labels, Some(container.created.as_nanosecond() as f64 / 1e9), None);
            swap.add(&labels, cgroup.usage.memory.swap.map(|bytes| bytes as f64), at);
            if let Some(Bound::At(limit)) = cgroup.usage.memory.swap_limit {
                swap_limit.add(&labels, Some(limit as f64), at);
            }
        }
    }
    [cpu, memory, start, swap, swap_limit]
}

fn cpu_seconds(cgroup: &CgroupSample) -> Option<f64> {
    cgroup.usage.cpu.usage_ns.map(|ns| ns as f64 / 1e9)
}
