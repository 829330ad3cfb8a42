//! One run of the compared pods from manifests, without an API server.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use podwright_testbed::{GoKubelet, Scratch};
use serde_json::{Value, json};

use super::cases::{self, Compared};
use super::objects;
use super::pair::{Kubelet, Observed, Pair};
use super::served_runtime::ServedRuntime;
use super::stable::{frequent_syncs, stable_fields, wait_running};
use crate::suite::TestNode;

/// Runs all pods; returns their fields once they are stable, with the objects of some in the runtime.
pub(crate) fn run(pair: Pair) -> Observed {
    match pair.kubelet {
        Kubelet::Podwright => run_podwright(pair),
        Kubelet::Go => run_go_kubelet(pair),
    }
}

fn run_podwright(pair: Pair) -> Observed {
    let mut node = TestNode::start(pair.runtime);
    let found = observe(pair, &node.scratch, &node.runtime.socket(), || node.agent.pods());
    node.remove_all();
    node.wait_nothing_left();
    node.agent.sigterm().expect("the agent stops");
    found
}

fn run_go_kubelet(pair: Pair) -> Observed {
    let scratch = Scratch::new().expect("a scratch");
    let runtime = ServedRuntime::start(&scratch, pair.runtime).expect("the runtime starts");
    let kubelet = GoKubelet::start_standalone(&scratch, &runtime, "node", &frequent_syncs());
    let kubelet = kubelet.expect("the Go kubelet starts");
    observe(pair, &scratch, &runtime.socket(), || kubelet.pods())
}

/// Writes the manifests and waits for the pods.
fn observe(pair: Pair, scratch: &Scratch, socket: &Path, pods: impl Fn() -> Result<Value>) -> Observed {
    let (who, cases) = (pair.to_string(), cases::all());
    let began = Instant::now();
    put(scratch, &cases, true);
    wait_running(&who, &cases, "-node", &pods);
    put(scratch, &cases, false);
    let mut found = stable_fields(&who, &cases, "-node", &pods);
    add_objects(&mut found, scratch, socket, &pods().expect("the pods are listed"));
    println!("{who}: {} pods stable after {:.1?}", cases.len(), began.elapsed());
    found
}

/// Writes the manifests of the pods that start early, or of all others.
fn put(scratch: &Scratch, cases: &[Compared], early: bool) {
    for case in cases.iter().filter(|case| case.starts_early() == early) {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": case.name}, "spec": case.spec});
        scratch.put_manifest(&format!("{}.json", case.name), &pod).expect("written");
    }
}

/// Adds the runtime objects of the running pods.
fn add_objects(found: &mut Observed, scratch: &Scratch, socket: &Path, pods: &Value) {
    for name in objects::COMPARED {
        let full = format!("{name}-node");
        let pod = pods["items"].as_array().into_iter().flatten().find(|p| p["metadata"]["name"] == full);
        let objects = objects::of(scratch, socket, pod.expect("the pod exists"));
        found.get_mut(name).expect("a case with that name").extend(objects);
    }
}
