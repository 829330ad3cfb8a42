//! The same workload of one API server on this agent and on the Go kubelet, one after the other as the same node on one
//! containerd: how long users wait for pods, jobs and deletions, and the cost.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use podwright_testbed::image::BUSYBOX;
use podwright_testbed::{Agent, ApiWatch, Containerd, ControlPlane, Flavor, GoKubelet, Scratch};
use serde_json::{Value, json};

use crate::idle::at_rest;
use crate::pods;
use crate::report::{Table, verdict};
use crate::runtime_calls::RuntimeCalls;

pub(crate) const NODE: &str = "bench";
const PODS: &str = "/api/v1/namespaces/bench/pods";
/// Repetitions; the median is reported.
const TIMES: usize = 7;
const MANY: [usize; 2] = [60, 150];
/// The duration of the idle measurement.
const AT_REST: Duration = Duration::from_secs(40);
const LIMIT: Duration = Duration::from_secs(300);

/// The results of one agent, in the order of [`ROWS`].
type Measured = Vec<f64>;

/// The measurement, its unit, and the goal as a fraction of the Go kubelet's value.
const ROWS: [(&str, &str, Option<f64>); 14] = [
    ("start: created → Ready", "s", Some(0.8)),
    ("delete: requested → object gone", "s", Some(0.25)),
    ("job: created → Succeeded", "s", Some(0.25)),
    ("crash: created → running again", "s", None),
    ("60 at once, up", "s", Some(0.6)),
    ("60 at once, down", "s", Some(0.6)),
    ("RSS with 60 pods", "MiB", Some(0.25)),
    ("CPU at rest with 60 pods, of a core", "%", Some(0.1)),
    ("context switches at rest with 60 pods", "/s", None),
    ("150 at once, up", "s", Some(0.6)),
    ("150 at once, down", "s", Some(0.6)),
    ("RSS with 150 pods", "MiB", Some(0.25)),
    ("CPU at rest with 150 pods, of a core", "%", Some(0.1)),
    ("context switches at rest with 150 pods", "/s", None),
];

pub(crate) fn measure() -> Result<Table> {
    let plane = ControlPlane::shared();
    plane.namespace(NODE)?;
    let kubeconfig = plane.node_kubeconfig(NODE)?;
    let scratch = Scratch::new()?;
    let containerd = Containerd::start(&scratch, Flavor::V2)?;
    let bare = RuntimeCalls::new(&scratch, &containerd.endpoint())?;
    let mut agent = Agent::new(&scratch)
        .runtime(&containerd)
        .hostname(NODE)
        .kubeconfig(&kubeconfig)
        .config(json!({"maxPods": 200}))
        .start()
        .context("our agent")?;
    let ours = workload(plane, agent.pid())?;
    agent.sigterm()?;
    bare.clear()?;
    plane.kubectl(&["delete", "node", NODE])?;
    let kubelet = GoKubelet::start_joined(&scratch, &containerd, NODE, &kubeconfig, &json!({"maxPods": 200}))?;
    let theirs = workload(plane, kubelet.pid())?;
    drop(kubelet);
    bare.clear()?;
    let floor = floor(&bare)?;

    let head = ["", "podwright", "Go kubelet", "bare calls", "ratio", "goal", ""];
    let mut table = Table::new("A node of a cluster", &head);
    for (((name, unit, goal), ours), theirs) in ROWS.iter().zip(&ours).zip(&theirs) {
        let ratio = ours / theirs;
        let bare = floor.iter().find(|(of, _)| of == name);
        table.row(&[
            (*name).to_owned(),
            format!("{ours:.2} {unit}"),
            format!("{theirs:.2} {unit}"),
            bare.map_or(String::new(), |(_, took)| format!("{took:.2} s")),
            format!("{ratio:.2}"),
            goal.map_or(String::new(), |goal| format!("≤ {goal}")),
            goal.map_or(String::new(), |goal| verdict(ratio <= goal)),
        ]);
    }
    table.note(&format!(
        "Pods with networks of their own, bound to the node when they are created; medians of {TIMES}, measured by a watch of the API server. \
         Bare calls: the same pods by CRI calls alone, 4 at a time; no agent is faster. The Go kubelet leaves dead sandboxes to a later \
         clean-up, podwright removes them before the object is deleted."
    ));
    Ok(table)
}

/// The times of plain CRI calls for the rows that can be compared.
fn floor(bare: &RuntimeCalls) -> Result<Vec<(&'static str, f64)>> {
    let mut singles = [vec![], vec![]];
    for _ in 0..TIMES {
        let (up, down) = bare.up_and_down(1, false)?;
        singles.iter_mut().zip([up, down]).for_each(|(all, took)| all.push(took.as_secs_f64()));
    }
    let [up, down] = singles.map(median);
    let mut rows = vec![(ROWS[0].0, up), (ROWS[1].0, down)];
    for (many, names) in MANY.into_iter().zip([[4, 5], [9, 10]]) {
        let (up, down) = bare.up_and_down(many, false)?;
        rows.extend([(ROWS[names[0]].0, up.as_secs_f64()), (ROWS[names[1]].0, down.as_secs_f64())]);
    }
    Ok(rows)
}

fn workload(plane: &ControlPlane, pid: u32) -> Result<Measured> {
    let mut singles = [vec![], vec![], vec![], vec![]];
    // The first round warms up caches and is not counted.
    for n in 0..=TIMES {
        let name = format!("one{n}");
        let start = create(plane, &[(name.clone(), pods::sleeper(false))], is_ready)?;
        let delete = delete(plane, &[name])?;
        let job = format!("job{n}");
        let done =
            create(plane, &[(job.clone(), shell("Never", "true"))], |pod| pod["status"]["phase"] == "Succeeded")?;
        let crash = format!("crash{n}");
        let again = create(plane, &[(crash.clone(), crashing())], |pod| {
            let container = &pod["status"]["containerStatuses"][0];
            container["restartCount"] == 1 && container["state"]["running"].is_object()
        })?;
        self::delete(plane, &[job, crash])?;
        if n > 0 {
            singles.iter_mut().zip([start, delete, done, again]).for_each(|(all, took)| all.push(took.as_secs_f64()));
        }
    }
    let mut took: Measured = singles.into_iter().map(median).collect();
    for many in MANY {
        let (up, rest, down) = burst(plane, many, || at_rest(pid, AT_REST))?;
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let rss = rest.rss_kib as f64 / 1024.0;
        took.extend([up.as_secs_f64(), down.as_secs_f64(), rss, rest.cpu, rest.switches]);
    }
    Ok(took)
}

/// Creates many pods at once, measures something, and deletes them: the times of both, and the measurement.
pub(crate) fn burst<T>(
    plane: &ControlPlane,
    many: usize,
    measure: impl FnOnce() -> Result<T>,
) -> Result<(Duration, T, Duration)> {
    let names: Vec<String> = (0..many).map(|n| format!("many{n}")).collect();
    let pods: Vec<(String, Value)> = names.iter().map(|name| (name.clone(), pods::sleeper(false))).collect();
    let up = create(plane, &pods, is_ready)?;
    let measured = measure()?;
    Ok((up, measured, delete(plane, &names)?))
}

pub(crate) fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn shell(restart: &str, script: &str) -> Value {
    json!({"terminationGracePeriodSeconds": 1, "restartPolicy": restart,
        "containers": [{"name": "c", "image": BUSYBOX, "command": ["sh", "-c", script]}]})
}

/// Fails once, then keeps running.
fn crashing() -> Value {
    let mut spec =
        shell("Always", "[ -e /v/been ] || { touch /v/been; exit 1; }; trap 'exit 0' TERM; sleep 1000 & wait");
    spec["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    spec
}

fn is_ready(pod: &Value) -> bool {
    pods::ready(&json!({"items": [pod]})) == 1
}

/// A watch from now on.
fn watch(plane: &ControlPlane) -> Result<ApiWatch> {
    let list = plane.api().get(PODS)?;
    let version = list["metadata"]["resourceVersion"].as_str().context("a version")?;
    plane.api().watch(&format!("{PODS}?resourceVersion={version}"), LIMIT)
}

/// The time from the first create until the last pod is as expected.
fn create(plane: &ControlPlane, all: &[(String, Value)], wanted: impl Fn(&Value) -> bool) -> Result<Duration> {
    let watch = watch(plane)?;
    let began = Instant::now();
    for (name, spec) in all {
        let mut spec = spec.clone();
        spec["nodeName"] = json!(NODE);
        plane.api().create(PODS, &json!({"metadata": {"name": name}, "spec": spec}))?;
    }
    let mut open: BTreeSet<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    for event in watch {
        let pod = &event["object"];
        if wanted(pod) {
            open.remove(pod["metadata"]["name"].as_str().unwrap_or_default());
        }
        if open.is_empty() {
            return Ok(began.elapsed());
        }
    }
    bail!("not as wanted: {open:?}")
}

/// The time from the first delete until the last pod is gone.
fn delete(plane: &ControlPlane, names: &[String]) -> Result<Duration> {
    let watch = watch(plane)?;
    let began = Instant::now();
    for name in names {
        plane.api().delete(&format!("{PODS}/{name}"), None)?;
    }
    let mut open: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    for event in watch {
        if event["type"] == "DELETED" {
            open.remove(event["object"]["metadata"]["name"].as_str().unwrap_or_default());
        }
        if open.is_empty() {
            return Ok(began.elapsed());
        }
    }
    bail!("not gone: {open:?}")
}
