//! A live node changes hands, from the Go kubelet to this agent and back, twice: the same root directory, the same containerd. No
//! container restarts, no address changes, no condition flips, and volumes go on being updated.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use podwright_testbed::{
    Agent, Containerd, ControlPlane, Flavor, GoKubelet, Scratch, free_port, leftovers, wait_until,
};
use serde_json::{Value, json};

use crate::pod_watch::PodWatch;
use crate::suite::{LIMIT, condition, journal};
use crate::takeover_pods::{Kind, TakeoverPod, of_every_kind, plain, static_pod};

const NODE: &str = "handover";

/// Copies of a plain pod, beside one pod of each kind.
const COPIES: usize = 41;

/// A node with its runtime; agents come and go.
struct Handover<'a> {
    plane: &'a ControlPlane,
    kubeconfig: PathBuf,
    containerd: Containerd,
    scratch: Scratch,
    witness: PathBuf,
    pods: Vec<TakeoverPod>,
}

#[test]
fn the_go_kubelet_and_podwright_take_a_node_over_from_each_other() {
    let mut node = Handover::prepare(ControlPlane::shared());
    let began = Instant::now();
    let mut kubelet = node.go_kubelet();
    let first = of_every_kind(&node.witness, free_port().expect("a port"));
    node.create(first.into_iter().chain((0..COPIES).map(|i| plain(&format!("ready-copy-{i}")))).collect());
    node.scratch.put_manifest("fixed.json", &static_pod("ready-static", NODE)).expect("written");
    node.wait_settled();
    println!("{} pods run under the Go kubelet after {:.1?}", node.pods.len() + 1, began.elapsed());

    let (code, found) = node.check(&[]);
    assert_eq!(code, Some(0), "{found}");
    let (code, found) = node.check(&["--cgroup-root", "/elsewhere"]);
    assert_eq!(code, Some(1), "{found}");
    assert!(found.contains(&format!("restart  {NODE}/ready-always: its cgroup is not where")), "{found}");
    let (code, found) = node.check(&["--container-runtime-endpoint", "unix:///nowhere.sock"]);
    assert_eq!(code, Some(2), "{found}");
    // A restart of the Go kubelet changes some statuses: no more is expected of it when it takes over.
    node.wait_old_enough();
    let watched = Watched::begin(&node);
    kubelet.stop().expect("stopped");
    // The next one needs what this one restores on the host.
    drop(kubelet);
    let mut kubelet = node.go_kubelet();
    node.wait_updates("1");
    let usual = watched.end(&node, "1", "Go kubelet → Go kubelet", began);
    println!("usual: {usual:#?}");
    node.wait_settled();

    let watched = Watched::begin(&node);
    kubelet.stop().expect("stopped");
    drop(kubelet);
    let mut agent = node.podwright();
    node.wait_updates("2");
    let changes = watched.end(&node, "2", "Go kubelet → podwright", began);
    assert!(changes.is_empty(), "{changes:#?}");

    node.create(vec![plain("ready-born-here")]);
    node.wait_settled();
    node.wait_old_enough();
    let watched = Watched::begin(&node);
    agent.sigterm().expect("stopped");
    let mut kubelet = node.go_kubelet();
    node.wait_updates("3");
    let mut changes = watched.end(&node, "3", "podwright → Go kubelet", began);
    changes.retain(|what, _| !usual.contains_key(what) && !depends_on_the_mirror_pod(what));
    assert!(changes.is_empty(), "{changes:#?}\nusual: {usual:#?}");

    node.create(vec![plain("ready-born-there")]);
    node.wait_settled();
    let watched = Watched::begin(&node);
    kubelet.kill9().expect("killed");
    drop(kubelet);
    agent.start_again().expect("started again");
    node.wait_updates("4");
    let changes = watched.end(&node, "4", "Go kubelet, killed → podwright", began);
    assert!(changes.is_empty(), "{changes:#?}");

    node.remove_everything();
}

impl<'a> Handover<'a> {
    fn prepare(plane: &'a ControlPlane) -> Self {
        plane.namespace(NODE).expect("a namespace");
        let kubeconfig = plane.node_kubeconfig(NODE).expect("a kubeconfig");
        let scratch = Scratch::new().expect("a scratch");
        let containerd = Containerd::start(&scratch, Flavor::V2).expect("containerd starts");
        let witness = scratch.dir("witness").expect("a directory");
        let create = |kind: &str, object: Value| {
            plane.api().create(&format!("/api/v1/namespaces/{NODE}/{kind}"), &object).expect("created");
        };
        create("configmaps", json!({"metadata": {"name": "m"}, "data": {"key": "0"}}));
        create("secrets", json!({"metadata": {"name": "s"}, "stringData": {"key": "0"}}));
        Self { plane, kubeconfig, containerd, scratch, witness, pods: vec![] }
    }

    /// Settings that both agents get: the Go kubelet updates volumes when it syncs a pod.
    fn settings() -> Value {
        json!({"syncFrequency": "1s"})
    }

    fn go_kubelet(&self) -> GoKubelet {
        let (scratch, settings) = (&self.scratch, Self::settings());
        let kubelet = GoKubelet::start_on_agent_root(scratch, &self.containerd, NODE, &self.kubeconfig, &settings);
        kubelet.expect("the Go kubelet starts")
    }

    fn podwright(&self) -> Agent {
        let agent = Agent::new(&self.scratch).runtime(&self.containerd).hostname(NODE).config(Self::settings());
        agent.kubeconfig(&self.kubeconfig).start().expect("the agent starts")
    }

    fn create(&mut self, pods: Vec<TakeoverPod>) {
        for pod in pods {
            let mut spec = pod.spec.clone();
            spec["nodeName"] = json!(NODE);
            let object = json!({"metadata": {"name": pod.name, "labels": {"app": pod.name}}, "spec": spec});
            self.plane.api().create(&format!("/api/v1/namespaces/{NODE}/pods"), &object).expect("created");
            self.pods.push(pod);
        }
    }

    fn list(&self) -> Result<BTreeMap<String, Value>> {
        let list = self.plane.api().get(&format!("/api/v1/namespaces/{NODE}/pods"))?;
        let items = list["items"].as_array().context("a list")?;
        let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        Ok(items.iter().map(|pod| (name(pod), pod.clone())).collect())
    }

    /// What must be so of a pod by its name.
    fn kind(&self, name: &str) -> Kind {
        self.pods.iter().find(|pod| pod.name == name).map_or(Kind::Ready, |pod| pod.kind)
    }

    /// Waits until each pod is what its kind says, in the API server.
    fn wait_settled(&self) {
        wait_until(LIMIT, "all pods to be as they should", || {
            let pods = self.list()?;
            ensure!(pods.len() == self.pods.len() + 1, "{:?}", pods.keys());
            for (name, pod) in &pods {
                let (ready, phase) = (condition(pod, "Ready")["status"] == "True", &pod["status"]["phase"]);
                let restarts = pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or_default();
                let fine = match self.kind(name) {
                    Kind::Ready => ready,
                    Kind::NotReady => phase == "Running" && !ready,
                    Kind::Ended => phase == "Succeeded" || phase == "Failed",
                    Kind::Looping => restarts > 0,
                };
                ensure!(fine, "{name}: {:#}", pod["status"]);
            }
            Ok(())
        });
    }

    /// Waits until the Go kubelet takes containers for older than itself: it leaves those alone that are 10 s older
    /// (`kubeletRestartGracePeriod`), and takes the readiness of others back.
    fn wait_old_enough(&self) {
        wait_until(LIMIT, "all containers to be older than a kubelet that starts now", || {
            for (name, pod) in self.list()?.iter().filter(|(name, _)| self.kind(name) != Kind::Looping) {
                let lists = ["containerStatuses", "initContainerStatuses"].map(|list| pod["status"][list].as_array());
                for status in lists.into_iter().flatten().flatten() {
                    let Some(started) = status["state"]["running"]["startedAt"].as_str() else { continue };
                    let started: jiff::Timestamp = started.parse()?;
                    let age = started.duration_until(jiff::Timestamp::now());
                    ensure!(age.as_secs() > 11, "{name}: {age:?}");
                }
            }
            Ok(())
        });
    }

    /// The agent that runs now has all pods: it writes the new content of volumes, and probes go on.
    fn wait_updates(&self, text: &str) {
        for (kind, name) in [("configmaps", "m"), ("secrets", "s")] {
            let field = if kind == "secrets" { "stringData" } else { "data" };
            let path = format!("/api/v1/namespaces/{NODE}/{kind}/{name}");
            self.plane.api().patch(&path, &json!({field: {"key": text}})).expect("patched");
        }
        let labels = json!({"metadata": {"labels": {"round": text}}});
        let path = format!("/api/v1/namespaces/{NODE}/pods/ready-volumes");
        self.plane.api().patch(&path, &labels).expect("patched");
        let probed = ["readiness", "liveness"].map(|kind| lines(&self.witness, kind));
        wait_until(LIMIT, "the new content in the containers", || {
            for file in ["/config/key", "/secret/key", "/all/key"] {
                let content = self.read_in_container(file)?;
                ensure!(content == text, "{file} is {content:?}");
            }
            let labels = self.read_in_container("/down/labels")?;
            ensure!(labels.contains(&format!("round=\"{text}\"")), "{labels}");
            ensure!(self.read_in_container("/part")? == "0", "a subPath is not updated");
            Ok(())
        });
        wait_until(LIMIT, "probes to go on", || {
            let now = ["readiness", "liveness"].map(|kind| lines(&self.witness, kind));
            ensure!(now[0] > probed[0] + 2 && now[1] > probed[1] + 2, "{probed:?} then, {now:?} now");
            Ok(())
        });
    }

    /// A file as the running container sees it, without an agent: through /proc.
    fn read_in_container(&self, file: &str) -> Result<String> {
        let pod = self.list()?.remove("ready-volumes").context("it exists")?;
        let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().context("a container")?;
        let pid = self.containerd.pid_of(id.trim_start_matches("containerd://"))?;
        Ok(std::fs::read_to_string(format!("/proc/{pid}/root{file}"))?)
    }

    /// The exit code and the output of `takeover --check` with the configuration of the Go kubelet and these flags.
    fn check(&self, flags: &[&str]) -> (Option<i32>, String) {
        let mut check = Command::new(Agent::program().expect("built"));
        check.args(["takeover", "--check", "--hostname-override", NODE, "--root-dir"]);
        check.arg(self.scratch.root_dir().expect("there")).arg("--kubeconfig").arg(&self.kubeconfig);
        check.arg("--config").arg(self.scratch.path().join("kubelet.yaml")).args(flags);
        let output = check.output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    }

    fn remove_everything(&self) {
        self.scratch.remove_manifest("fixed.json").expect("removed");
        self.plane
            .kubectl(&["-n", NODE, "delete", "pods", "--all", "--wait=false", "--grace-period=1"])
            .expect("deleted");
        wait_until(LIMIT, "no pod to be left in the API", || {
            let pods = self.list()?;
            ensure!(pods.is_empty(), "{:?}", pods.keys());
            Ok(())
        });
        wait_until(Duration::from_secs(30), "nothing to be left", || {
            let mut left = leftovers(&self.scratch, &self.containerd)?;
            left.extend(journal::pods(&self.scratch)?);
            // Tests give this agent a directory of its own for links to logs, and the Go kubelet has none but this.
            left.retain(|left| !left.starts_with("log link /var/log/containers/"));
            ensure!(left.is_empty(), "{left:#?}");
            Ok(())
        });
    }
}

/// The pods and the node, watched while the agents change.
struct Watched {
    before: BTreeMap<String, Value>,
    counts: BTreeMap<&'static str, usize>,
    pods: PodWatch,
    node: JoinHandle<Vec<Value>>,
}

/// Lines that hooks, init containers and startup probes write: each runs once in the life of a container.
const ONCE: [&str; 5] = ["inits", "startup", "side-startup", "post-start", "pre-stop"];

impl Watched {
    fn begin(node: &Handover<'_>) -> Self {
        let of_node = node.plane.api().get(&format!("/api/v1/nodes/{NODE}")).expect("it has joined");
        let version = of_node["metadata"]["resourceVersion"].as_str().expect("a version");
        let path = format!("/api/v1/nodes?fieldSelector=metadata.name={NODE}&resourceVersion={version}");
        let mut watch = node.plane.api().watch(&path, LIMIT).expect("a watch");
        let watched = std::thread::spawn(move || {
            let mut events = vec![];
            for event in watch.by_ref() {
                let last = events.last().map_or(&of_node, |event: &Value| &event["object"]);
                let ended = round_of(&event["object"]) != round_of(last);
                events.push(event);
                if ended {
                    break;
                }
            }
            events
        });
        let pods = PodWatch::of_namespace(node.plane, NODE);
        let counts = ONCE.into_iter().map(|name| (name, lines(&node.witness, name))).collect();
        Self { before: node.list().expect("a list"), counts, pods, node: watched }
    }

    /// Everything that changed, by pod and field.
    fn end(self, node: &Handover<'_>, round: &str, what: &str, began: Instant) -> BTreeMap<String, String> {
        let sign = json!({"metadata": {"annotations": {"round": round}}});
        node.plane.api().patch(&format!("/api/v1/nodes/{NODE}"), &sign).expect("patched");
        let events = self.pods.end_in(node.plane, NODE);
        let node_events = self.node.join().expect("no panic");
        let mut found = BTreeMap::new();
        for event in &node_events {
            let ready = condition(&event["object"], "Ready");
            if ready["status"] != "True" {
                found.insert("the node is ready".to_owned(), format!("{ready} in {event}"));
            }
        }
        let after = node.list().expect("a list");
        for (name, before) in &self.before {
            let kind = node.kind(name);
            let now = after.get(name).map(|now| identity(now, kind)).unwrap_or_default();
            for (field, old, new) in differences(&identity(before, kind), &now) {
                found.insert(format!("{name}: {field}"), format!("{old} then, {new} now"));
            }
        }
        found.extend(flips(node, &self.before, &events));
        for (file, before) in self.counts {
            let now = lines(&node.witness, file);
            if now != before {
                found.insert(format!("lines of {file}"), format!("{before} then, {now} now"));
            }
        }
        println!(
            "{what}: {} pods after {:.1?}, {} events of pods, {} of the node, {} changes",
            after.len(),
            began.elapsed(),
            events.len(),
            node_events.len(),
            found.len()
        );
        found
    }
}

/// The Go kubelet continues the status of a static pod from its mirror pod only if it has seen that before it syncs the pod
/// (`updateStatusInternal`); else the readiness of its containers begins with false. Its containers go on in any case.
fn depends_on_the_mirror_pod(what: &str) -> bool {
    let field = what.strip_prefix(&format!("ready-static-{NODE}: ")).unwrap_or_default();
    let is_reset = ["condition ", "ready of ", "started of "].iter().any(|begin| field.starts_with(begin));
    field == "startTime" || is_reset || field.ends_with(" for a time")
}

/// The mark that ends a watch of the node.
fn round_of(node: &Value) -> &Value {
    &node["metadata"]["annotations"]["round"]
}

/// Each pod whose readiness was another one at any time, or whose restart count went back.
fn flips(node: &Handover<'_>, before: &BTreeMap<String, Value>, events: &[Value]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut counts = BTreeMap::<&str, u64>::new();
    for pod in events.iter().map(|event| &event["object"]) {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let Some(before) = before.get(name) else { continue };
        if node.kind(name) != Kind::Looping {
            for kind in ["Ready", "ContainersReady", "Initialized"] {
                let (then, now) = (condition(before, kind), condition(pod, kind));
                if then["status"] != now["status"] {
                    found.insert(format!("{name}: {kind} for a time"), now.to_string());
                }
            }
        }
        let count = pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or_default();
        let last = counts.entry(name).or_default();
        if count < *last {
            found.insert(format!("{name}: restart count"), format!("{last}, then {count}"));
        }
        *last = count;
    }
    found
}

/// What a handover must not change.
fn identity(pod: &Value, kind: Kind) -> BTreeMap<String, Value> {
    let status = &pod["status"];
    let mut all = BTreeMap::from([
        ("uid".to_owned(), pod["metadata"]["uid"].clone()),
        ("podIP".to_owned(), status["podIP"].clone()),
        ("podIPs".to_owned(), status["podIPs"].clone()),
        ("hostIP".to_owned(), status["hostIP"].clone()),
        ("startTime".to_owned(), status["startTime"].clone()),
        ("qosClass".to_owned(), status["qosClass"].clone()),
    ]);
    if kind == Kind::Looping {
        return all;
    }
    all.insert("phase".to_owned(), status["phase"].clone());
    for one in status["conditions"].as_array().into_iter().flatten() {
        let kept = json!([one["status"], one["reason"], one["lastTransitionTime"]]);
        all.insert(format!("condition {}", one["type"]), kept);
    }
    for list in ["containerStatuses", "initContainerStatuses"] {
        for one in status[list].as_array().into_iter().flatten() {
            for field in ["containerID", "restartCount", "state", "lastState", "ready", "started", "imageID"] {
                all.insert(format!("{field} of {}", one["name"]), one[field].clone());
            }
        }
    }
    all
}

fn differences(old: &BTreeMap<String, Value>, new: &BTreeMap<String, Value>) -> Vec<(String, Value, Value)> {
    let names: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let of = |all: &BTreeMap<String, Value>, name: &String| all.get(name).cloned().unwrap_or(Value::Null);
    let changed = names.into_iter().filter(|name| of(old, name) != of(new, name));
    changed.map(|name| (name.clone(), of(old, name), of(new, name))).collect()
}

fn lines(witness: &Path, name: &str) -> usize {
    std::fs::read_to_string(witness.join(name)).unwrap_or_default().lines().count()
}
