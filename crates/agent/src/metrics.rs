//! Metrics for `/metrics`, with the names of the Go kubelet where it has such a metric.
//!
//! Counters and histograms are updated where the event happens; gauges over pods are computed from the pods at each scrape.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use podwright_core::model::{Call, Name, Pod, PodSnapshot, PodUid, ProbeKind, RuntimeCall, Source, is_terminal};
use podwright_core::status::stuck_for;
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

use crate::feed::PodView;

mod healthchecks;
mod probes;
mod process;
mod shutdown;

use healthchecks::HealthcheckMetrics;
use probes::ProbeMetrics;
use shutdown::ShutdownMetrics;

/// Buckets for runtime calls: from a millisecond to four minutes.
const CALL_BUCKETS: [f64; 14] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 240.0];

/// Kubernetes: the buckets of `kubelet_pod_start_duration_seconds`.
const POD_START_BUCKETS: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

/// All metrics of the agent.
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
    run_sandbox: Histogram,
    evictions: IntCounterVec,
    probes: ProbeMetrics,
    healthchecks: HealthcheckMetrics,
    shutdown: ShutdownMetrics,
    /// Pods whose start was observed in `pod_start`.
    counted: Mutex<BTreeSet<PodUid>>,
    /// When the runtime was last listed.
    last_relist_at: Mutex<Option<Instant>>,
    /// When the agent started: the start time of a pod first seen by an earlier agent is not measured.
    since: Timestamp,
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            registry: Registry::new(),
            operations: counters(
                "kubelet_runtime_operations_total",
                "Calls to the container runtime, by operation type.",
                OPERATION_TYPE,
            ),
            failures: counters(
                "kubelet_runtime_operations_errors_total",
                "Failed calls to the container runtime, by operation type.",
                OPERATION_TYPE,
            ),
            durations: valid(HistogramVec::new(
                call_buckets(
                    "kubelet_runtime_operations_duration_seconds",
                    "Duration of calls to the container runtime, by operation type.",
                ),
                &[OPERATION_TYPE],
            )),
            relist: valid(Histogram::with_opts(call_buckets(
                "kubelet_pleg_relist_duration_seconds",
                "Duration of listing all pods in the container runtime.",
            ))),
            relist_interval: valid(Histogram::with_opts(call_buckets(
                "kubelet_pleg_relist_interval_seconds",
                "Interval between two lists.",
            ))),
            last_relist: gauge("kubelet_pleg_last_seen_seconds", "Unix time of the last list."),
            pod_start: pod_start(),
            started_pods: counter("kubelet_started_pods_total", "Pod sandboxes requested from the container runtime."),
            failed_pods: counter("kubelet_started_pods_errors_total", "Pod sandboxes that failed to start."),
            started_containers: counters(
                "kubelet_started_containers_total",
                "Container starts requested, by container type.",
                "container_type",
            ),
            running_pods: gauge("kubelet_running_pods", "Pods with a running container."),
            running_containers: gauges("kubelet_running_containers", "Containers, by state.", "container_state"),
            desired_pods: gauges(
                "kubelet_desired_pods",
                "Pods that should run on this node; static: not from an API server.",
                "static",
            ),
            active_pods: gauges("kubelet_active_pods", "Pods that are not terminal.", "static"),
            stuck_pods: gauges(
                "podwright_stuck_pods",
                "Pods that the container runtime fails to stop (FailedKillPod) or to report (FailedSync).",
                "reason",
            ),
            run_sandbox: valid(Histogram::with_opts(call_buckets(
                "kubelet_run_podsandbox_duration_seconds",
                "Duration of starting pod sandboxes.",
            ))),
            evictions: counters("kubelet_evictions", "Pods that were evicted, by eviction signal.", "eviction_signal"),
            probes: ProbeMetrics::default(),
            healthchecks: HealthcheckMetrics::default(),
            shutdown: ShutdownMetrics::default(),
            counted: Mutex::default(),
            last_relist_at: Mutex::default(),
            since: Timestamp::now(),
        };
        metrics.register();
        metrics
    }
}

fn pod_start() -> Histogram {
    let help = "Time from first seeing a pod until its phase is Running.";
    let options = HistogramOpts::new("kubelet_pod_start_duration_seconds", help);
    valid(Histogram::with_opts(options.buckets(POD_START_BUCKETS.to_vec())))
}

/// The Prometheus text format of these families.
pub(crate) fn encode(families: &[MetricFamily]) -> String {
    let mut text = Vec::new();
    if let Err(error) = TextEncoder::new().encode(families, &mut text) {
        tracing::warn!(%error, "encoding metrics failed");
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn counter(name: &str, help: &str) -> IntCounter {
    valid(IntCounter::new(name, help))
}

fn counters(name: &str, help: &str, label: &str) -> IntCounterVec {
    valid(IntCounterVec::new(Opts::new(name, help), &[label]))
}

fn gauge(name: &str, help: &str) -> IntGauge {
    valid(IntGauge::new(name, help))
}

fn gauges(name: &str, help: &str, label: &str) -> IntGaugeVec {
    valid(IntGaugeVec::new(Opts::new(name, help), &[label]))
}

fn call_buckets(name: &str, help: &str) -> HistogramOpts {
    HistogramOpts::new(name, help).buckets(CALL_BUCKETS.to_vec())
}

/// Names are constants; a test creates every metric.
fn valid<T>(made: Result<T, prometheus::Error>) -> T {
    made.expect("valid and unique metric names")
}

impl Metrics {
    fn register(&self) {
        let all: [Box<dyn Collector>; 17] = [
            Box::new(self.operations.clone()),
            Box::new(self.failures.clone()),
            Box::new(self.durations.clone()),
            Box::new(self.relist.clone()),
            Box::new(self.relist_interval.clone()),
            Box::new(self.last_relist.clone()),
            Box::new(self.pod_start.clone()),
            Box::new(self.started_pods.clone()),
            Box::new(self.failed_pods.clone()),
            Box::new(self.started_containers.clone()),
            Box::new(self.running_pods.clone()),
            Box::new(self.running_containers.clone()),
            Box::new(self.desired_pods.clone()),
            Box::new(self.active_pods.clone()),
            Box::new(self.stuck_pods.clone()),
            Box::new(self.run_sandbox.clone()),
            Box::new(self.evictions.clone()),
        ];
        for collector in all.into_iter().chain(self.shutdown.collectors()) {
            valid(self.registry.register(collector));
        }
    }

    /// Counts the result of a runtime call.
    pub(crate) fn record_call_end(&self, kind: &str, took: Duration, failed: bool) {
        self.operations.with_label_values(&[kind]).inc();
        self.durations.with_label_values(&[kind]).observe(took.as_secs_f64());
        if kind == RUN_SANDBOX {
            self.run_sandbox.observe(took.as_secs_f64());
        }
        if failed {
            self.failures.with_label_values(&[kind]).inc();
            self.failed_pods.inc_by(u64::from(kind == RUN_SANDBOX));
        }
    }

    /// Counts the start of a pod or of a container.
    pub(crate) fn record_call_start(&self, call: &Call, pod: &Pod) {
        match call {
            Call::Runtime(RuntimeCall::RunSandbox { .. }) => self.started_pods.inc(),
            Call::Runtime(RuntimeCall::StartContainer { name, .. }) => {
                self.started_containers.with_label_values(&[container_type(pod, name.as_str())]).inc();
            }
            _ => {}
        }
    }

    /// Counts an eviction, by its signal.
    pub(crate) fn record_eviction(&self, signal: &str) {
        self.evictions.with_label_values(&[signal]).inc();
    }

    /// Counts a list of everything in the runtime.
    pub(crate) fn record_relist(&self, took: Duration) {
        self.relist.observe(took.as_secs_f64());
        self.last_relist.set(Timestamp::now().as_second());
        let before = self.last_relist_at.lock().expect("no panic under this lock").replace(Instant::now());
        if let Some(before) = before {
            self.relist_interval.observe(before.elapsed().as_secs_f64());
        }
    }

    /// Measures the start of a pod when its phase becomes Running.
    pub(crate) fn record_status(&self, pod: &PodSnapshot) {
        let mut counted = self.counted.lock().expect("no panic under this lock");
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if phase == Some("Running") && pod.first_seen >= self.since && counted.insert(pod.uid.clone()) {
            let took = Timestamp::now().duration_since(pod.first_seen);
            self.pod_start.observe(took.as_secs_f64().max(0.0));
        }
    }

    /// When the last graceful shutdown of the node began, and when its pods had ended.
    pub(crate) fn set_shutdown_times(&self, start: Timestamp, end: Option<Timestamp>) {
        self.shutdown.set(start, end);
    }

    /// Counts the results of probes, for `/metrics/probes`.
    pub(crate) fn probes(&self) -> &ProbeMetrics {
        &self.probes
    }

    /// Counts the results of health checks, for `/metrics/slis`.
    pub fn healthchecks(&self) -> &HealthcheckMetrics {
        &self.healthchecks
    }

    /// The text of `/metrics/probes`.
    pub fn probes_text(&self) -> String {
        encode(&self.probes.gather()) + &process::start_time_text()
    }

    /// The text of `/metrics/slis`.
    pub fn slis_text(&self) -> String {
        encode(&self.healthchecks.gather()) + &process::start_time_text()
    }

    pub(crate) fn pod_removed(&self, uid: &PodUid) {
        self.probes.pod_removed(uid);
        self.counted.lock().expect("no panic under this lock").remove(uid);
    }

    /// The Prometheus text format.
    pub fn text(&self, pods: &[std::sync::Arc<PodView>]) -> String {
        self.update_pod_gauges(pods);
        encode(&self.registry.gather()) + &process::text()
    }

    fn update_pod_gauges(&self, pods: &[std::sync::Arc<PodView>]) {
        let mut states = BTreeMap::from([("running", 0), ("exited", 0)]);
        // Kubernetes: pods from an API server have an empty `static` label.
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

/// The value of `container_state`; a waiting container is not counted.
fn state(container: &ContainerStatus) -> Option<&'static str> {
    match container.state.as_ref() {
        Some(state) if state.running.is_some() => Some("running"),
        Some(state) if state.terminated.is_some() => Some("exited"),
        _ => None,
    }
}

/// The value of `container_type`.
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

const OPERATION_TYPE: &str = "operation_type";
const RUN_SANDBOX: &str = "run_podsandbox";

/// The value of `operation_type`; `None`: the call is not counted in `kubelet_runtime_operations_*`.
pub(crate) fn operation(call: &Call) -> Option<&'static str> {
    Some(match call {
        Call::Runtime(RuntimeCall::RunSandbox { .. }) => RUN_SANDBOX,
        Call::Runtime(RuntimeCall::StopSandbox { .. }) => "stop_podsandbox",
        Call::Runtime(RuntimeCall::RemoveSandbox { .. }) => "remove_podsandbox",
        Call::Runtime(RuntimeCall::CreateContainer { .. }) => "create_container",
        Call::Runtime(RuntimeCall::StartContainer { .. }) => "start_container",
        Call::Runtime(RuntimeCall::StopContainer { .. }) => "stop_container",
        Call::Runtime(RuntimeCall::UpdateContainer { .. }) => "update_container",
        Call::Runtime(RuntimeCall::UpdateSandbox { .. }) => "update_podsandbox_resources",
        Call::Runtime(RuntimeCall::RemoveContainer { .. }) => "remove_container",
        Call::Runtime(RuntimeCall::ImageStatus { .. }) => "image_status",
        Call::Runtime(RuntimeCall::PullImage { .. }) => "pull_image",
        _ => return None,
    })
}

/// The container and the kind of a probe.
pub(crate) fn probe(call: &Call) -> Option<(Name, ProbeKind)> {
    match call {
        Call::Runtime(RuntimeCall::Probe { kind, name, .. }) => Some((name.clone(), *kind)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
