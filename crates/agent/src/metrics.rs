//! Numbers for monitors, by the names the Go kubelet gave them where it has such numbers.
//!
//! What is counted is counted where it happens; what can be seen on the pods is seen when a monitor asks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use podwright_core::model::{Call, PodRecord, PodUid};
use podwright_core::status::is_terminal;
use prometheus::core::Collector;
use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

use crate::feed::View;

/// From a millisecond to four minutes: what calls on a runtime take.
const SECONDS: [f64; 14] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 240.0];

/// Everything that is counted.
pub struct Metrics {
    registry: Registry,
    operations: IntCounterVec,
    failures: IntCounterVec,
    durations: HistogramVec,
    relist: Histogram,
    pod_start: Histogram,
    started_pods: IntCounter,
    started_containers: IntCounter,
    running_pods: IntGauge,
    running_containers: IntGaugeVec,
    desired_pods: IntGaugeVec,
    /// Pods whose start was counted.
    counted: Mutex<BTreeSet<PodUid>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let of = |name: &str, help: &str| Opts::new(name, help);
        let timed = |name: &str, help: &str| HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
        let kind = ["operation_type"];
        let operations = of("kubelet_runtime_operations_total", "Calls on the container runtime, by kind.");
        let failures = of("kubelet_runtime_operations_errors_total", "Those of them that failed, by kind.");
        let durations = timed("kubelet_runtime_operations_duration_seconds", "How long they took, by kind.");
        let relist = timed("kubelet_pleg_relist_duration_seconds", "How long lists of everything in the runtime took.");
        let pod_start =
            timed("kubelet_pod_start_duration_seconds", "From the first sight of a pod to its phase Running.");
        let containers = of("kubelet_running_containers", "Containers, by their state.");
        let metrics = Self {
            registry: Registry::new(),
            operations: valid(IntCounterVec::new(operations, &kind)),
            failures: valid(IntCounterVec::new(failures, &kind)),
            durations: valid(HistogramVec::new(durations, &kind)),
            relist: valid(Histogram::with_opts(relist)),
            pod_start: valid(Histogram::with_opts(pod_start)),
            started_pods: valid(IntCounter::new("kubelet_started_pods_total", "Sandboxes asked of the runtime.")),
            started_containers: valid(IntCounter::new(
                "kubelet_started_containers_total",
                "Containers asked to start.",
            )),
            running_pods: valid(IntGauge::new("kubelet_running_pods", "Pods that have a running container.")),
            running_containers: valid(IntGaugeVec::new(containers, &["container_state"])),
            desired_pods: valid(IntGaugeVec::new(
                of("kubelet_desired_pods", "Pods that are wanted, by source."),
                &["source"],
            )),
            counted: Mutex::default(),
        };
        let all: [Box<dyn Collector>; 10] = [
            Box::new(metrics.operations.clone()),
            Box::new(metrics.failures.clone()),
            Box::new(metrics.durations.clone()),
            Box::new(metrics.relist.clone()),
            Box::new(metrics.pod_start.clone()),
            Box::new(metrics.started_pods.clone()),
            Box::new(metrics.started_containers.clone()),
            Box::new(metrics.running_pods.clone()),
            Box::new(metrics.running_containers.clone()),
            Box::new(metrics.desired_pods.clone()),
        ];
        for collector in all {
            valid(metrics.registry.register(collector));
        }
        metrics
    }
}

/// Names are fixed at compile time: a test makes all of them.
fn valid<T>(made: Result<T, prometheus::Error>) -> T {
    made.expect("a metric with a valid name that is there once")
}

impl Metrics {
    /// A call came back.
    pub(crate) fn called(&self, kind: &str, took: Duration, failed: bool) {
        self.operations.with_label_values(&[kind]).inc();
        self.durations.with_label_values(&[kind]).observe(took.as_secs_f64());
        if failed {
            self.failures.with_label_values(&[kind]).inc();
        }
    }

    /// A call goes out.
    pub(crate) fn sent(&self, call: &Call) {
        match call {
            Call::RunSandbox { .. } => self.started_pods.inc(),
            Call::StartContainer { .. } => self.started_containers.inc(),
            _ => {}
        }
    }

    /// A list of everything came back.
    pub(crate) fn listed(&self, took: Duration) {
        self.relist.observe(took.as_secs_f64());
    }

    /// A pod's status changed; `None`: it is gone.
    pub(crate) fn changed(&self, uid: &PodUid, record: Option<&PodRecord>) {
        let mut counted = self.counted.lock().expect("no panic under this lock");
        let Some(record) = record else {
            counted.remove(uid);
            return;
        };
        let phase = record.status.as_ref().and_then(|status| status.phase.as_deref());
        if phase == Some("Running") && counted.insert(uid.clone()) {
            let took = jiff::Timestamp::now().duration_since(record.first_seen);
            // A pod that an earlier agent began says nothing of a start.
            self.pod_start.observe(took.as_secs_f64().max(0.0));
        }
    }

    /// All of it as monitors read it.
    pub fn text(&self, pods: &[std::sync::Arc<View>]) -> String {
        self.look_at(pods);
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::warn!(%error, "metrics can't be written");
        }
        text.extend_from_slice(process().as_bytes());
        String::from_utf8_lossy(&text).into_owned()
    }

    fn look_at(&self, pods: &[std::sync::Arc<View>]) {
        let (mut states, mut sources) =
            (BTreeMap::from([("running", 0), ("waiting", 0), ("exited", 0)]), BTreeMap::new());
        let mut running = 0;
        for view in pods {
            let status = view.status.as_deref();
            let ended = status.is_some_and(|status| is_terminal(status.phase.as_deref()));
            if !ended {
                *sources.entry(view.source.as_str()).or_insert(0) += 1;
            }
            let mut runs = false;
            for container in status.into_iter().flat_map(containers) {
                let state = state(container);
                runs |= state == "running";
                *states.entry(state).or_insert(0) += 1;
            }
            running += i64::from(runs);
        }
        self.running_pods.set(running);
        for (gauges, counts) in [(&self.running_containers, &states), (&self.desired_pods, &sources)] {
            gauges.reset();
            for (label, count) in counts {
                gauges.with_label_values(&[*label]).set(*count);
            }
        }
    }
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let all = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    all.into_iter().flatten().flatten()
}

fn state(container: &ContainerStatus) -> &'static str {
    match container.state.as_ref() {
        Some(state) if state.running.is_some() => "running",
        Some(state) if state.terminated.is_some() => "exited",
        _ => "waiting",
    }
}

/// The kubelet's word for a call on the runtime; other calls are not counted here.
pub(crate) fn operation(call: &Call) -> Option<&'static str> {
    Some(match call {
        Call::RunSandbox { .. } => "run_podsandbox",
        Call::StopSandbox { .. } => "stop_podsandbox",
        Call::RemoveSandbox { .. } => "remove_podsandbox",
        Call::CreateContainer { .. } => "create_container",
        Call::StartContainer { .. } => "start_container",
        Call::StopContainer { .. } => "stop_container",
        Call::RemoveContainer { .. } => "remove_container",
        Call::ImageStatus { .. } => "image_status",
        Call::PullImage { .. } => "pull_image",
        _ => return None,
    })
}

/// The process itself, as every program with metrics shows it.
fn process() -> String {
    let page = rustix::param::page_size() as u64;
    let ticks = rustix::param::clock_ticks_per_second();
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut memory = statm.split_whitespace().map_while(|word| word.parse::<u64>().ok()).map(|pages| pages * page);
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in parentheses may hold anything; what counts follows it.
    let times: Vec<u64> = stat
        .rsplit(") ")
        .next()
        .into_iter()
        .flat_map(str::split_whitespace)
        .skip(11)
        .take(2)
        .filter_map(|word| word.parse().ok())
        .collect();
    let files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let (virtual_size, resident) = (memory.next().unwrap_or(0), memory.next().unwrap_or(0));
    let cpu = times.iter().sum::<u64>() as f64 / ticks as f64;
    let mut text = String::new();
    for (name, kind, help, value) in [
        ("process_cpu_seconds_total", "counter", "Time on a CPU.", cpu.to_string()),
        ("process_open_fds", "gauge", "Open files.", files.to_string()),
        ("process_resident_memory_bytes", "gauge", "Memory in use.", resident.to_string()),
        ("process_virtual_memory_bytes", "gauge", "Memory mapped.", virtual_size.to_string()),
    ] {
        text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_is_counted_by_the_kubelets_names() {
        let metrics = Metrics::default();
        let call = Call::RunSandbox { attempt: 0 };
        metrics.sent(&call);
        metrics.called(operation(&call).expect("a call on the runtime"), Duration::from_millis(70), true);
        metrics.listed(Duration::from_millis(3));
        assert_eq!(operation(&Call::MakeDirs), None);
        let text = metrics.text(&[]);
        for line in [
            "kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"} 1",
            "kubelet_runtime_operations_errors_total{operation_type=\"run_podsandbox\"} 1",
            "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"run_podsandbox\",le=\"0.1\"} 1",
            "kubelet_pleg_relist_duration_seconds_count 1",
            "kubelet_started_pods_total 1",
            "kubelet_running_pods 0",
            "kubelet_running_containers{container_state=\"running\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        let resident = text.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes "));
        assert!(resident.and_then(|bytes| bytes.parse::<u64>().ok()).is_some_and(|bytes| bytes > 1 << 20), "{text}");
    }
}
