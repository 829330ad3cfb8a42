//! The node's readiness follows that of its runtime.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use podwright_testbed::{ControlPlane, wait_until};
use serde_json::Value;

use crate::cluster_node::ClusterNode;
use crate::suite::{condition, container, one, sleeper};

fn ready(node: &ClusterNode<'_>) -> anyhow::Result<Value> {
    Ok(condition(&node.get_node()?, "Ready").clone())
}

/// Waits for this status; returns the time since `began`.
fn wait_ready(node: &ClusterNode<'_>, status: &str, message: &str, began: Instant) -> Duration {
    wait_until(Duration::from_secs(30), &format!("the node's readiness to be {status}"), || {
        let ready = ready(node)?;
        ensure!(ready["status"] == status && ready["message"] == message, "{ready:#}");
        Ok(())
    });
    began.elapsed()
}

#[test]
fn a_runtime_outage_makes_the_node_not_ready_and_a_restart_does_not() {
    let mut node = ClusterNode::start(ControlPlane::shared(), "follows");
    node.put("web", &one(&sleeper("c")));
    node.wait_ready("web");
    let since = ready(&node).expect("there")["lastTransitionTime"].clone();
    node.runtime.containerd().expect("it is containerd").restart().expect("restarted");
    // Long enough to notice a wrong change.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(ready(&node).expect("there")["lastTransitionTime"], since);

    let began = Instant::now();
    node.runtime.containerd().expect("it is containerd").stop().expect("stopped");
    let down = wait_ready(&node, "False", "container runtime is down", began);
    assert!(down > Duration::from_secs(4), "{down:?}: a moment is enough");
    node.runtime.start_again().expect("started");
    let up = wait_ready(&node, "True", "kubelet is posting ready status", Instant::now());
    println!("not ready after {down:?}, ready after {up:?}");
    assert!(up < Duration::from_secs(15), "{up:?}");

    let pod = node.wait_ready("web");
    assert_eq!(container(&pod, "c")["restartCount"], 0, "{:#}", pod["status"]);
    node.delete("pods", "web");
    node.wait_nothing_left();
}

#[test]
fn a_node_registers_without_its_runtime_and_stays_ready_through_a_short_outage() {
    let mut node = ClusterNode::start(ControlPlane::shared(), "without");
    node.put_static("web", "text");
    node.wait_mirror("web", "text");
    let since = ready(&node).expect("there")["lastTransitionTime"].clone();
    node.agent.kill9().expect("killed");
    node.runtime.containerd().expect("it is containerd").stop().expect("stopped");
    node.agent.start_again().expect("started again");
    // Short: the runtime's start counts towards the 5 s that it may be down.
    std::thread::sleep(Duration::from_millis(500));
    node.runtime.start_again().expect("started");
    node.put_static("later", "text");
    node.wait_mirror("later", "text");
    let now = ready(&node).expect("there");
    assert_eq!((&now["status"], &now["lastTransitionTime"]), (&"True".into(), &since), "{now:#}");

    node.agent.kill9().expect("killed");
    node.runtime.containerd().expect("it is containerd").stop().expect("stopped");
    let mut starts = vec![];
    while starts.iter().min().is_none_or(|best| *best >= Duration::from_secs(3)) {
        assert!(starts.len() < 3, "there after {starts:?}");
        starts.push(node.starts_anew(ready));
        let now = ready(&node).expect("there");
        assert_eq!((&now["status"], &now["reason"]), (&"False".into(), &"KubeletNotReady".into()), "{now:#}");
    }
    node.put_static("last", "text");
    let known = || node.agent.pod("last-without")?.context("not known");
    wait_until(Duration::from_secs(30), "the new pod to be known", known);
    // Long enough to notice a wrong start.
    std::thread::sleep(Duration::from_secs(1));
    let last = known().expect("it is known");
    assert_eq!(last["status"]["phase"], "Pending", "{:#}", last["status"]);
    node.runtime.start_again().expect("started");
    let up = wait_ready(&node, "True", "kubelet is posting ready status", Instant::now());
    println!("there after {starts:?}, ready {up:?} after its runtime was");
    for name in ["web", "later", "last"] {
        node.wait_mirror(name, "text");
        let pod = node.agent.pod(&format!("{name}-without")).expect("an answer").expect("it is known");
        assert_eq!(container(&pod, "c")["restartCount"], 0, "{:#}", pod["status"]);
        node.scratch.remove_manifest(&format!("{name}.json")).expect("removed");
    }
    node.wait_nothing_left();
}
