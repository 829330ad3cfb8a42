//! The same manifests under this agent and under the Go kubelet, one after the other on one containerd: the pods they report are
//! compared field by field, and so are the objects they create in the runtime.

#[expect(dead_code, reason = "only the test node and the cases of the suite are used here")]
mod suite;

#[expect(dead_code, reason = "shared with cluster_compare")]
mod comparison;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use podwright_testbed::{Flavor, GoKubelet, HttpResponse, wait_until};
use serde_json::{Value, json};

use comparison::accepted::Setting;
use comparison::cases::{self, Compared};
use comparison::difference::assert_same;
use comparison::fields::Fields;
use comparison::objects;
use comparison::stable::{frequent_syncs, stable_fields, wait_running};
use comparison::stats::{self, Reported};
use suite::{LIMIT, TestNode};

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
    let kubelet = GoKubelet::start_standalone(
        &node.scratch,
        node.runtime.containerd().expect("it is containerd"),
        "node",
        &frequent_syncs(),
    )
    .expect("the Go kubelet starts");
    wait_running("the Go kubelet", &cases, "-node", || kubelet.pods());
    put(&node, &cases, false);
    let mut theirs = stable_fields("the Go kubelet", &cases, "-node", || kubelet.pods());
    add_objects(&mut theirs, &node, &kubelet.pods().expect("the pods are listed"));
    println!("the Go kubelet: {} pods stable after {:.1?}", cases.len(), began.elapsed());
    drop(kubelet);

    assert_same(Setting::Standalone, &cases, &ours, &theirs);
}

#[test]
fn stats_and_metrics_have_the_form_of_the_go_kubelets() {
    // The Go kubelet measures volumes first after this period.
    let changes = json!({"volumeStatsAggPeriod": "5s"});
    let mut node = TestNode::configured(Flavor::V2, changes.clone());
    let pods = stats::pods();
    let put = |node: &TestNode| pods.iter().for_each(|(name, spec)| node.put(name, spec));
    put(&node);
    pods.iter().for_each(|(name, _)| drop(node.wait_phase(name, "Running")));
    let ours = reported(|path| node.agent.get(path));
    pods.iter().for_each(|(name, _)| node.remove(name));
    node.wait_nothing_left();
    node.agent.sigterm().expect("the agent stops");

    put(&node);
    let kubelet = GoKubelet::start_standalone(
        &node.scratch,
        node.runtime.containerd().expect("it is containerd"),
        "node",
        &changes,
    )
    .expect("the Go kubelet starts");
    for (name, _) in &pods {
        wait_until(LIMIT, &format!("{name} to run under the Go kubelet"), || {
            let pod = kubelet.pod(&format!("{name}-node"))?;
            ensure!(pod.is_some_and(|pod| pod["status"]["phase"] == "Running"), "not running yet");
            Ok(())
        });
    }
    let theirs = reported(|path| kubelet.get(path));
    drop(kubelet);
    stats::assert_same(&ours, &theirs);
}

/// Asks twice, because a rate needs two samples, and waits until volumes are measured.
fn reported(get: impl Fn(&str) -> anyhow::Result<HttpResponse>) -> Reported {
    let text = |path: &str| {
        let response = wait_until(LIMIT, path, || {
            let response = get(path)?;
            ensure!(response.status == 200, "{}: {}", response.status, response.body);
            Ok(response)
        });
        response.body
    };
    let json = |path: &str| serde_json::from_str::<Value>(&text(path)).expect("JSON");
    json("/stats/summary");
    std::thread::sleep(Duration::from_secs(11));
    let summary = wait_until(LIMIT, "a summary with rates and volumes", || {
        let summary = json("/stats/summary");
        let busy = summary["pods"].as_array().into_iter().flatten().find(|pod| pod["podRef"]["name"] == "busy-node");
        let busy = busy.context("no pod")?;
        ensure!(busy["cpu"]["usageNanoCores"].is_u64() && busy["volume"][0]["usedBytes"].is_u64(), "{busy:#}");
        Ok(summary)
    });
    let few = json("/stats/summary?only_cpu_and_memory=true");
    let (resource, cadvisor) = (text("/metrics/resource"), text("/metrics/cadvisor"));
    Reported { summary, few, resource, cadvisor, probes: text("/metrics/probes") }
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
