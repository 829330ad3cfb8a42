//! The deletion of a pod as seen on a watch.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use podwright_testbed::{ControlPlane, wait_until};
use serde_json::{Value, json};

use crate::cluster_node::ClusterNode;
use crate::suite::{LIMIT, container, one, sh, sleeper};

/// Extra time for a busy host in addition to the pods' grace period.
const SLACK: Duration = Duration::from_secs(8);

#[test]
fn the_object_is_deleted_only_after_the_exit_code_is_reported() {
    let node = ClusterNode::start(ControlPlane::shared(), "reported");
    let mut spec = one(&sh("c", "trap 'sleep 1; exit 7' TERM; touch /tmp/up; while :; do sleep 0.1; done"));
    spec["terminationGracePeriodSeconds"] = json!(20);
    spec["containers"][0]["readinessProbe"] =
        json!({"exec": {"command": ["test", "-e", "/tmp/up"]}, "periodSeconds": 1});
    node.put("p", &spec);
    let pod = node.wait_ready("p");
    let version = pod["metadata"]["resourceVersion"].as_str().expect("a version");
    let path = format!("{}?resourceVersion={version}", node.path("pods"));
    let watch = node.plane.api().watch(&path, Duration::from_secs(30)).expect("a watch");
    node.delete("pods", "p");
    let mut last = Value::Null;
    for event in watch {
        if event["type"] == "DELETED" {
            break;
        }
        last = event["object"].clone();
    }
    assert_eq!(last["status"]["phase"], "Failed", "{:#}", last["status"]);
    assert_eq!(container(&last, "c")["state"]["terminated"]["exitCode"], 7, "{:#}", last["status"]);
    node.wait_nothing_left();
}

#[test]
fn a_pod_deleted_at_any_step_is_removed_within_its_grace_period() {
    let node = ClusterNode::start(ControlPlane::shared(), "steps");
    // Accepts connections and never responds.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let began = node.scratch.dir("began").expect("a directory");
    let mut witness = sh("c", "touch /began/it; trap 'exit 0' TERM; while :; do sleep 0.1; done");
    witness["volumeMounts"] = json!([{"name": "began", "mountPath": "/began"}]);
    let mut spec = one(&witness);
    spec["volumes"] = json!([{"name": "began", "hostPath": {"path": began}}]);
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut spec = spec.clone();
        change(&mut spec);
        spec
    };
    let image = format!("{}/never:1", silent.local_addr().expect("an address"));
    let steps = [
        ("pull", "ContainerCreating", changed(&|spec| spec["containers"][0]["image"] = json!(image))),
        (
            "mount",
            "ContainerCreating",
            changed(&|spec| {
                let volumes = spec["volumes"].as_array_mut().expect("a list");
                volumes.push(json!({"name": "s", "secret": {"secretName": "nobody"}}));
            }),
        ),
        ("config", "CreateContainerConfigError", {
            changed(&|spec| spec["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "nobody"}}]))
        }),
        ("init", "PodInitializing", changed(&|spec| spec["initContainers"] = json!([sleeper("i")]))),
    ];
    for (name, _, spec) in &steps {
        node.put(name, spec);
    }
    let mut hook = one(&sleeper("c"));
    hook["containers"][0]["lifecycle"] = json!({"postStart": {"exec": {"command": ["sleep", "1000"]}}});
    node.put("hook", &hook);
    for (name, reason, _) in &steps {
        wait_until(LIMIT, &format!("{name} to wait for {reason}"), || {
            let pod = node.get("pods", name)?;
            ensure!(container(&pod, "c")["state"]["waiting"]["reason"] == *reason, "{:#}", pod["status"]);
            let init = container(&pod, "i");
            ensure!(*name != "init" || init["state"]["running"].is_object(), "{:#}", pod["status"]);
            Ok(())
        });
    }
    wait_until(LIMIT, "the pull and the hook to be under way", || {
        let events = node.list("events")?;
        let has = |pod: &str, reason: &str| {
            events.iter().any(|event| event["involvedObject"]["name"] == pod && event["reason"] == reason)
        };
        ensure!(has("pull", "Pulling") && has("hook", "Created"), "not yet");
        Ok(())
    });
    std::thread::sleep(Duration::from_millis(500));
    let names: Vec<&str> = steps.iter().map(|(name, ..)| *name).chain(["hook"]).collect();
    let asked = Instant::now();
    names.iter().for_each(|name| node.delete("pods", name));
    names.iter().for_each(|name| node.wait_gone(name));
    let took = asked.elapsed();
    println!("all gone after {took:?}");
    // The grace period, the 2 s that a termination may exceed it, and the margin for a busy host.
    assert!(took < Duration::from_secs(2 + 2) + SLACK, "{took:?}");
    node.wait_nothing_left();
    assert!(!began.join("it").exists(), "a container was started after all");
}

/// The runtime is frozen: one pod runs, for the other RunPodSandbox is in flight.
#[test]
fn pods_deleted_while_the_runtime_is_frozen_are_removed_after_it_resumes() {
    let node = ClusterNode::start(ControlPlane::shared(), "thaws");
    let began = node.scratch.dir("began").expect("a directory");
    node.put("runs", &one(&sleeper("c")));
    node.wait_ready("runs");
    node.runtime.freeze().expect("stopped");
    let mut witness = sh("c", "touch /began/it; sleep 1000");
    witness["volumeMounts"] = json!([{"name": "began", "mountPath": "/began"}]);
    let mut spec = one(&witness);
    spec["volumes"] = json!([{"name": "began", "hostPath": {"path": began}}]);
    // Bound by the test: the scheduler might find the node not ready.
    spec["nodeName"] = json!(node.name);
    node.put("sandbox", &spec);
    wait_until(LIMIT, "the sandbox to be asked for", || node.agent.pod("sandbox")?.context("not known"));
    std::thread::sleep(Duration::from_millis(500));
    for name in ["runs", "sandbox"] {
        node.delete("pods", name);
    }
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(node.agent.get("/healthz").expect("it answers").status, 200);
    node.runtime.thaw().expect("goes on");
    let thawed = Instant::now();
    for name in ["runs", "sandbox"] {
        node.wait_gone(name);
    }
    println!("gone {:?} after it thawed", thawed.elapsed());
    assert!(thawed.elapsed() < Duration::from_secs(2 + 2) + SLACK, "{:?}", thawed.elapsed());
    node.wait_nothing_left();
    assert!(!began.join("it").exists(), "a container was started after all");
}
