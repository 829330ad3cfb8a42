//! kubectl against pods of this node.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use podwright_testbed::{ControlPlane, wait_until};
use serde_json::json;

use crate::cluster_node::ClusterNode;
use crate::suite::{LIMIT, container, one, sh, sleeper};

#[test]
fn kubectl_get_describe_delete_cordon_and_drain_work() {
    let node = ClusterNode::start(ControlPlane::shared(), "by-hand");
    let kubectl = |words: &[&str]| {
        let mut all = vec!["-n", node.name];
        all.extend(words);
        node.plane.kubectl(&all).expect("kubectl")
    };
    node.put("web", &one(&sleeper("c")));
    node.wait_ready("web");
    let row = kubectl(&["get", "pods", "--no-headers"]);
    let words: Vec<&str> = row.split_whitespace().take(4).collect();
    assert_eq!(words, ["web", "1/1", "Running", "0"], "{row}");

    // Events arrive a moment after their cause.
    let wanted = [
        "Node: by-hand/",
        "PodReadyToStartContainers True",
        "Initialized True",
        "Ready True",
        "ContainersReady True",
        "PodScheduled True",
        "QoS Class: BestEffort",
        "Normal Scheduled",
        "Normal Pulled",
        "already present on machine",
        "Normal Created",
        "Normal Started",
        "kubelet",
    ];
    wait_until(Duration::from_secs(15), "kubectl describe to show all", || {
        // Columns are as wide as their widest cell.
        let output = kubectl(&["describe", "pod", "web"]);
        let output: Vec<&str> = output.split_whitespace().collect();
        let output = output.join(" ");
        let missing: Vec<&str> = wanted.iter().copied().filter(|words| !output.contains(words)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} is not in\n{output}")) }
    });
    let began = Instant::now();
    kubectl(&["delete", "pod", "web"]);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());

    let mut deaf = one(&sh("c", "trap '' TERM; while :; do sleep 0.1; done"));
    deaf["terminationGracePeriodSeconds"] = json!(60);
    for name in ["deaf", "deafer"] {
        node.put(name, &deaf);
        node.wait_ready(name);
    }
    let began = Instant::now();
    kubectl(&["delete", "pod", "deaf", "--grace-period=2"]);
    let took = began.elapsed();
    assert!((2..30).contains(&took.as_secs()), "{took:?}");
    kubectl(&["delete", "pod", "deafer", "--grace-period=0", "--force"]);
    node.wait_nothing_left();

    node.put("stays", &one(&sleeper("c")));
    node.wait_ready("stays");
    kubectl(&["cordon", node.name]);
    node.put("waits", &one(&sleeper("c")));
    let output = kubectl(&["get", "node", node.name, "--no-headers"]);
    assert!(output.contains("Ready,SchedulingDisabled"), "{output}");
    kubectl(&["drain", node.name, "--force", "--ignore-daemonsets", "--timeout=60s"]);
    node.wait_gone("stays");
    node.phase("waits", "Pending").expect("it waits for a node");
    kubectl(&["uncordon", node.name]);
    node.wait_ready("waits");
    kubectl(&["delete", "pod", "waits"]);
    node.wait_nothing_left();
}

#[test]
fn describe_of_a_mirror_pod_shows_the_events_of_the_static_pod() {
    let node = ClusterNode::start(ControlPlane::shared(), "mirrored");
    let metadata = json!({"name": "web", "namespace": node.name});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": one(&sleeper("c"))});
    node.scratch.put_manifest("web.json", &pod).expect("written");
    let mirror = node.wait_ready("web-mirrored");
    let hash = &mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"];
    assert_ne!(mirror["metadata"]["uid"], *hash);
    wait_until(Duration::from_secs(15), "the event of its start", || {
        let events = node.list("events")?;
        let started = events.iter().find(|event| event["reason"] == "Started").context("none yet")?;
        ensure!(started["involvedObject"]["uid"] == *hash, "{started:#}");
        let output = node.plane.kubectl(&["-n", node.name, "describe", "pod", "web-mirrored"])?;
        ensure!(output.split_whitespace().any(|word| word == "Started"), "{output}");
        Ok(())
    });
    node.scratch.remove_manifest("web.json").expect("removed");
    node.wait_nothing_left();
}

#[test]
fn an_edited_config_map_reaches_a_running_pod_within_a_second() {
    let node = ClusterNode::start(ControlPlane::shared(), "edited");
    node.create("configmaps", &json!({"metadata": {"name": "m"}, "data": {"k": "old"}}));
    let out = node.scratch.dir("edited").expect("a directory");
    let mut reader =
        sh("c", "trap 'exit 0' TERM; while :; do cp /m/k /out/new && mv /out/new /out/is; sleep 0.02; done");
    reader["volumeMounts"] = json!([{"name": "m", "mountPath": "/m"}, {"name": "out", "mountPath": "/out"}]);
    let mut spec = one(&reader);
    spec["volumes"] = json!([{"name": "m", "configMap": {"name": "m"}}, {"name": "out", "hostPath": {"path": out}}]);
    node.put("reader", &spec);
    let wait_for = |word: &str| {
        wait_until(LIMIT, &format!("the pod to see {word}"), || {
            let is = std::fs::read_to_string(out.join("is"))?;
            ensure!(is == word, "{is:?}");
            Ok(())
        });
    };
    wait_for("old");
    let edit = |word: &str| {
        let patch = json!({"data": {"k": word}}).to_string();
        node.plane.kubectl(&["-n", node.name, "patch", "configmap", "m", "-p", &patch]).expect("patched");
        let began = Instant::now();
        wait_for(word);
        began.elapsed()
    };
    let took = ["one", "two", "three"].map(edit);
    println!("seen after {took:?}");
    // A busy host may be late once.
    assert!(took.iter().min() < Some(&Duration::from_secs(1)), "{took:?}");
    let pod = node.phase("reader", "Running").expect("it runs");
    assert_eq!(container(&pod, "c")["restartCount"], 0, "{:#}", pod["status"]);
    node.delete("pods", "reader");
    node.wait_nothing_left();
}
