//! The same manifests under this agent and under the Go kubelet, one after the other on one containerd: the pods they report are
//! compared field by field, and so are the objects they create in the runtime.

#[expect(dead_code, reason = "only the test node and the cases of the suite are used here")]
mod suite;

#[expect(dead_code, reason = "shared with cluster_compare")]
mod comparison;

use std::collections::BTreeMap;
use std::time::Instant;

use podwright_testbed::{Flavor, GoKubelet};
use serde_json::{Value, json};

use comparison::accepted::Setting;
use comparison::cases::{self, Compared};
use comparison::difference::assert_same;
use comparison::fields::Fields;
use comparison::objects;
use comparison::stable::{stable_fields, wait_running};
use suite::TestNode;

#[test]
fn pods_get_the_same_statuses_as_from_the_go_kubelet() {
    let mut node = TestNode::start(Flavor::V2);
    let cases = cases::all();
    let began = Instant::now();
    put(&node, &cases, true);
    wait_running("podwright", &cases, "-node", || node.agent.pods());
    put(&node, &cases, false);
    let mut ours = stable_fields("podwright", &cases, "-node", || node.agent.pods());
    add_objects(&mut ours, &node, &node.agent.pods().expect("the pods are listed"));
    println!("podwright: {} pods stable after {:.1?}", cases.len(), began.elapsed());
    for case in &cases {
        node.remove(case.name);
    }
    node.wait_nothing_left();
    node.agent.sigterm().expect("the agent stops");

    put(&node, &cases, true);
    let began = Instant::now();
    let kubelet = GoKubelet::start_standalone(&node.scratch, &node.containerd, "node", &json!({}))
        .expect("the Go kubelet starts");
    wait_running("the Go kubelet", &cases, "-node", || kubelet.pods());
    put(&node, &cases, false);
    let mut theirs = stable_fields("the Go kubelet", &cases, "-node", || kubelet.pods());
    add_objects(&mut theirs, &node, &kubelet.pods().expect("the pods are listed"));
    println!("the Go kubelet: {} pods stable after {:.1?}", cases.len(), began.elapsed());
    drop(kubelet);

    assert_same(Setting::Standalone, &cases, &ours, &theirs);
}

/// Writes the manifests of the pods that start early, or of all others.
fn put(node: &TestNode, cases: &[Compared], early: bool) {
    for case in cases.iter().filter(|case| case.starts_early() == early) {
        node.put(case.name, &case.spec);
    }
}

/// Adds the runtime objects of the running pods.
fn add_objects(fields: &mut BTreeMap<&'static str, Fields>, node: &TestNode, pods: &Value) {
    for name in objects::COMPARED {
        let full = format!("{name}-node");
        let pod = pods["items"].as_array().into_iter().flatten().find(|p| p["metadata"]["name"] == full);
        let found = objects::of(node, pod.expect("the pod exists"));
        fields.get_mut(name).expect("a case with that name").extend(found);
    }
}
