//! The same pods under this agent and under the Go kubelet, on containerd and on the engine. From manifests: the pods they report are
//! compared field by field, and so are the objects they create in the runtime. From an API server: the statuses that it gets, and the
//! events. The reference is the Go kubelet on containerd.

#[expect(dead_code, reason = "only the test node and the cases of the suite are used here")]
mod suite;

mod comparison;

use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, ensure};
use podwright_testbed::{Flavor, GoKubelet, HttpResponse, wait_until};
use serde_json::{Value, json};

use comparison::accepted::Setting;
use comparison::difference::assert_same;
use comparison::pair::{Kubelet, Observed, Pair, REFERENCE};
use comparison::stats::{self, Reported};
use comparison::turns::Turns;
use comparison::{in_cluster, standalone};
use suite::{LIMIT, TestNode};

/// Runs the pods under a pair and compares them with the reference, which runs once for all tests of a setting.
fn compare(setting: Setting, kubelet: Kubelet, runtime: Flavor) {
    static TURNS: Turns = Turns::new(2);
    static REFERENCES: [OnceLock<Observed>; 2] = [OnceLock::new(), OnceLock::new()];
    let (run, reference): (fn(Pair) -> Observed, _) = match setting {
        Setting::Standalone => (standalone::run, &REFERENCES[0]),
        Setting::Cluster => (in_cluster::run, &REFERENCES[1]),
    };
    let run = |pair| {
        let _turn = TURNS.take();
        run(pair)
    };
    let pair = Pair { kubelet, runtime };
    let found = run(pair);
    assert_same(setting, pair, &found, reference.get_or_init(|| run(REFERENCE)));
}

#[test]
fn podwright_on_containerd_reports_the_same_as_the_go_kubelet() {
    compare(Setting::Standalone, Kubelet::Podwright, Flavor::V2);
}

#[test]
fn podwright_on_its_engine_reports_the_same_as_the_go_kubelet_on_containerd() {
    compare(Setting::Standalone, Kubelet::Podwright, Flavor::Engine);
}

#[test]
fn the_go_kubelet_reports_the_same_on_the_engine_as_on_containerd() {
    compare(Setting::Standalone, Kubelet::Go, Flavor::Engine);
}

#[test]
fn the_api_server_gets_the_same_from_podwright_on_containerd_as_from_the_go_kubelet() {
    compare(Setting::Cluster, Kubelet::Podwright, Flavor::V2);
}

#[test]
fn the_api_server_gets_the_same_from_podwright_on_its_engine_as_from_the_go_kubelet_on_containerd() {
    compare(Setting::Cluster, Kubelet::Podwright, Flavor::Engine);
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
