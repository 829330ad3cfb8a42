//! Numbers for monitors, by the names the Go kubelet gave them where it has such numbers.
//!
//! What is counted is counted where it happens; what can be seen on the pods is seen when a monitor asks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use podwright_core::model::{Call, Pod, PodRecord, PodUid, Source, is_terminal};
use podwright_core::status::stuck_for;
use prometheus::core::Collector;
use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

use crate::feed::PodView;

/// From a millisecond to four minutes: what calls on a runtime take.
const SECONDS: [f64; 14] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 240.0];

/// Kubernetes: the kubelet's steps for the starts of pods.
const STARTS: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

/// Everything that is counted.
pub struct Metrics {
    registry: Registry,
    operations: IntCounterVec,
    failures: IntCounterVec,
    durations: HistogramVec,
    relist: Histogram,
    relist_interval: Histogram,
    last_relist: IntGauge,
    pod_start: Histogram,
    started_pods: IntCounter,
    failed_pods: IntCounter,
    started_containers: IntCounterVec,
    running_pods: IntGauge,
    running_containers: IntGaugeVec,
    desired_pods: IntGaugeVec,
    active_pods: IntGaugeVec,
    stuck_pods: IntGaugeVec,
    /// Pods whose start was counted.
    counted: Mutex<BTreeSet<PodUid>>,
    /// The last list of everything.
    listed: Mutex<Option<Instant>>,
    /// When counting began: a pod that an earlier agent has seen says nothing of a start.
    since: Timestamp,
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
        let interval = timed("kubelet_pleg_relist_interval_seconds", "The time between such lists.");
        let pod_start = HistogramOpts::new(
            "kubelet_pod_start_duration_seconds",
            "From the first sight of a pod to its phase Running.",
        );
        let containers = of("kubelet_running_containers", "Containers, by their state.");
        let metrics = Self {
            registry: Registry::new(),
            operations: valid(IntCounterVec::new(operations, &kind)),
            failures: valid(IntCounterVec::new(failures, &kind)),
            durations: valid(HistogramVec::new(durations, &kind)),
            relist: valid(Histogram::with_opts(relist)),
            relist_interval: valid(Histogram::with_opts(interval)),
            last_relist: valid(IntGauge::new(
                "kubelet_pleg_last_seen_seconds",
                "When the last such list came, as a Unix time.",
            )),
            pod_start: valid(Histogram::with_opts(pod_start.buckets(STARTS.to_vec()))),
            started_pods: valid(IntCounter::new("kubelet_started_pods_total", "Sandboxes asked of the runtime.")),
            failed_pods: valid(IntCounter::new("kubelet_started_pods_errors_total", "Those of them that failed.")),
            started_containers: valid(IntCounterVec::new(
                of("kubelet_started_containers_total", "Containers asked to start, by type."),
                &["container_type"],
            )),
            running_pods: valid(IntGauge::new("kubelet_running_pods", "Pods that have a running container.")),
            running_containers: valid(IntGaugeVec::new(containers, &["container_state"])),
            desired_pods: valid(IntGaugeVec::new(
                of("kubelet_desired_pods", "Pods that are wanted; static: not from an API server."),
                &["static"],
            )),
            active_pods: valid(IntGaugeVec::new(
                of("kubelet_active_pods", "Those of them that have not ended."),
                &["static"],
            )),
            stuck_pods: valid(IntGaugeVec::new(
                of(
                    "podwright_stuck_pods",
                    "Pods that the runtime does not end (FailedKillPod) or tell about (FailedSync).",
                ),
                &["reason"],
            )),
            counted: Mutex::default(),
            listed: Mutex::default(),
            since: Timestamp::now(),
        };
        let all: [Box<dyn Collector>; 15] = [
            Box::new(metrics.operations.clone()),
            Box::new(metrics.failures.clone()),
            Box::new(metrics.durations.clone()),
            Box::new(metrics.relist.clone()),
            Box::new(metrics.relist_interval.clone()),
            Box::new(metrics.last_relist.clone()),
            Box::new(metrics.pod_start.clone()),
            Box::new(metrics.started_pods.clone()),
            Box::new(metrics.failed_pods.clone()),
            Box::new(metrics.started_containers.clone()),
            Box::new(metrics.running_pods.clone()),
            Box::new(metrics.running_containers.clone()),
            Box::new(metrics.desired_pods.clone()),
            Box::new(metrics.active_pods.clone()),
            Box::new(metrics.stuck_pods.clone()),
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
    pub(crate) fn record_call_end(&self, kind: &str, took: Duration, failed: bool) {
        self.operations.with_label_values(&[kind]).inc();
        self.durations.with_label_values(&[kind]).observe(took.as_secs_f64());
        if failed {
            self.failures.with_label_values(&[kind]).inc();
            self.failed_pods.inc_by(u64::from(kind == RUN_SANDBOX));
        }
    }

    /// A call for this pod goes out.
    pub(crate) fn record_call_start(&self, call: &Call, pod: &Pod) {
        match call {
            Call::RunSandbox { .. } => self.started_pods.inc(),
            Call::StartContainer { name, .. } => {
                self.started_containers.with_label_values(&[container_type(pod, name.as_str())]).inc();
            }
            _ => {}
        }
    }

    /// A list of everything came back.
    pub(crate) fn record_relist(&self, took: Duration) {
        self.relist.observe(took.as_secs_f64());
        self.last_relist.set(Timestamp::now().as_second());
        let before = self.listed.lock().expect("no panic under this lock").replace(Instant::now());
        if let Some(before) = before {
            self.relist_interval.observe(before.elapsed().as_secs_f64());
        }
    }

    /// A pod's status changed; `None`: it is gone.
    pub(crate) fn record_status(&self, uid: &PodUid, record: Option<&PodRecord>) {
        let mut counted = self.counted.lock().expect("no panic under this lock");
        let Some(record) = record else {
            counted.remove(uid);
            return;
        };
        let phase = record.status.as_ref().and_then(|status| status.phase.as_deref());
        if phase == Some("Running") && record.first_seen >= self.since && counted.insert(uid.clone()) {
            let took = Timestamp::now().duration_since(record.first_seen);
            self.pod_start.observe(took.as_secs_f64().max(0.0));
        }
    }

    /// All of it as monitors read it.
    pub fn text(&self, pods: &[std::sync::Arc<PodView>]) -> String {
        self.update_pod_gauges(pods);
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::warn!(%error, "metrics can't be written");
        }
        text.extend_from_slice(process().as_bytes());
        String::from_utf8_lossy(&text).into_owned()
    }

    fn update_pod_gauges(&self, pods: &[std::sync::Arc<PodView>]) {
        let mut states = BTreeMap::from([("running", 0), ("exited", 0)]);
        // Kubernetes: those of an API server have the empty label.
        let (mut desired, mut active) =
            (BTreeMap::from([("", 0), ("true", 0)]), BTreeMap::from([("", 0), ("true", 0)]));
        let mut stuck = BTreeMap::from([("FailedKillPod", 0), ("FailedSync", 0)]);
        let mut running = 0;
        for view in pods {
            let status = view.status.as_deref();
            let ended = status.is_some_and(|status| is_terminal(status.phase.as_deref()));
            let label = if view.source == Source::Api { "" } else { "true" };
            *desired.entry(label).or_insert(0) += 1;
            *active.entry(label).or_insert(0) += i64::from(!ended);
            if let Some(reason) = status.and_then(stuck_for) {
                *stuck.entry(reason).or_insert(0) += 1;
            }
            let mut runs = false;
            for state in status.into_iter().flat_map(containers).filter_map(state) {
                runs |= state == "running";
                *states.entry(state).or_insert(0) += 1;
            }
            running += i64::from(runs);
        }
        self.running_pods.set(running);
        for (gauges, counts) in [
            (&self.running_containers, &states),
            (&self.desired_pods, &desired),
            (&self.active_pods, &active),
            (&self.stuck_pods, &stuck),
        ] {
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

/// The runtime's word; what waits is no container yet.
fn state(container: &ContainerStatus) -> Option<&'static str> {
    match container.state.as_ref() {
        Some(state) if state.running.is_some() => Some("running"),
        Some(state) if state.terminated.is_some() => Some("exited"),
        _ => None,
    }
}

/// The kubelet's word for it.
fn container_type(pod: &Pod, name: &str) -> &'static str {
    let spec = pod.spec.as_ref();
    let init = spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten()).any(|c| c.name == name);
    let app = spec.into_iter().flat_map(|spec| &spec.containers).any(|c| c.name == name);
    match (init, app) {
        (true, _) => "init_container",
        (_, true) => "container",
        _ => "ephemeral_container",
    }
}

const RUN_SANDBOX: &str = "run_podsandbox";

/// The kubelet's word for a call on the runtime; other calls are not counted here.
pub(crate) fn operation(call: &Call) -> Option<&'static str> {
    Some(match call {
        Call::RunSandbox { .. } => RUN_SANDBOX,
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
        metrics.record_call_start(&call, &Pod::default());
        metrics.record_call_end(operation(&call).expect("a call on the runtime"), Duration::from_millis(70), true);
        metrics.record_relist(Duration::from_millis(3));
        assert_eq!(operation(&Call::MakeDirs), None);
        let text = metrics.text(&[]);
        for line in [
            "kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"} 1",
            "kubelet_runtime_operations_errors_total{operation_type=\"run_podsandbox\"} 1",
            "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"run_podsandbox\",le=\"0.1\"} 1",
            "kubelet_pleg_relist_duration_seconds_count 1",
            "kubelet_pleg_relist_interval_seconds_count 0",
            "kubelet_started_pods_errors_total 1",
            "kubelet_desired_pods{static=\"true\"} 0",
            "kubelet_active_pods{static=\"\"} 0",
            "kubelet_started_pods_total 1",
            "podwright_stuck_pods{reason=\"FailedSync\"} 0",
            "kubelet_running_pods 0",
            "kubelet_running_containers{container_state=\"running\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        let resident = text.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes "));
        assert!(resident.and_then(|bytes| bytes.parse::<u64>().ok()).is_some_and(|bytes| bytes > 1 << 20), "{text}");
    }

    #[test]
    fn containers_are_counted_by_type_and_starts_in_the_kubelets_steps() {
        let metrics = Metrics::default();
        let pod = serde_json::json!({"metadata": {}, "spec": {
            "initContainers": [{"name": "i"}], "containers": [{"name": "c"}]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let types: Vec<&str> = ["i", "c", "debug"].map(|name| container_type(&pod, name)).into();
        assert_eq!(types, ["init_container", "container", "ephemeral_container"]);
        assert!(metrics.text(&[]).contains("kubelet_pod_start_duration_seconds_bucket{le=\"3600\"} 0"));
    }
}
