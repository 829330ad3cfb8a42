//! In-place resize of running pods through the subresource `resize`.

use anyhow::{Result, ensure};
use podwright_testbed::{ControlPlane, wait_until};
use serde_json::{Value, json};

use crate::cluster_node::ClusterNode;
use crate::suite::resources::{kernel_value, memory, quota, shares};
use crate::suite::{LIMIT, condition, container, container_id, one, sleeper};

const MIB: u64 = 1 << 20;

/// Requests and limits of CPU (thousandths) and memory (MiB).
fn resources(cpu: [u64; 2], memory: [u64; 2]) -> Value {
    let list = |n: usize| json!({"cpu": format!("{}m", cpu[n]), "memory": format!("{}Mi", memory[n])});
    json!({"requests": list(0), "limits": list(1)})
}

fn resize(node: &ClusterNode<'_>, container: &str, resources: &Value) {
    let patch = json!({"spec": {"containers": [{"name": container, "resources": resources}]}}).to_string();
    let arguments = ["-n", node.name, "patch", "pod", "web", "--subresource=resize", "-p", &patch];
    node.plane.kubectl(&arguments).expect("patched");
}

/// Waits until the container has these resources and the pod reports no resize.
fn wait_resized(node: &ClusterNode<'_>, name: &str, resources: &Value) -> Value {
    wait_until(LIMIT, &format!("{name} is resized"), || -> Result<Value> {
        let pod = node.get("pods", "web")?;
        let is = &container(&pod, name)["resources"];
        let done = ["PodResizePending", "PodResizeInProgress"].iter().all(|kind| condition(&pod, kind).is_null());
        ensure!(is == resources && done && container(&pod, name)["ready"] == true, "{:#}", pod["status"]);
        Ok(pod)
    })
}

fn allocatable_millis(node: &ClusterNode<'_>) -> u64 {
    let path = "jsonpath={.status.allocatable.cpu}";
    let text = node.plane.kubectl(&["get", "node", node.name, "-o", path]).expect("the node");
    match text.trim().strip_suffix('m') {
        Some(millis) => millis.parse().expect("a number"),
        None => text.trim().parse::<u64>().expect("a number") * 1000,
    }
}

#[test]
fn a_running_pod_is_resized_in_place() {
    let mut node = ClusterNode::start(ControlPlane::shared(), "resized");
    let (small, large) = (resources([100, 200], [32, 64]), resources([200, 400], [64, 128]));
    let [mut kept, mut restarted] = ["kept", "restarted"].map(sleeper);
    kept["resources"] = small.clone();
    restarted["resources"] = small.clone();
    restarted["resizePolicy"] = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    node.put("web", &json!({"containers": [kept, restarted]}));
    let pod = node.wait_ready("web");
    let uid = pod["metadata"]["uid"].as_str().expect("a uid");
    let of_pod = format!("{}/kubepods/burstable/pod{uid}", node.scratch.name());
    let limits = |group: &str| (shares(group), quota(group), memory(group));
    let of_container = |pod: &Value, name: &str| format!("{of_pod}/{}", container_id(container(pod, name)));
    let id = container_id(container(&pod, "kept"));
    assert_eq!(limits(&of_pod), (kernel_value(204), Some(40_000), Some(128 * MIB)));

    resize(&node, "kept", &large);
    let pod = wait_resized(&node, "kept", &large);
    assert_eq!(
        (container_id(container(&pod, "kept")), &container(&pod, "kept")["restartCount"]),
        (id.clone(), &json!(0))
    );
    assert_eq!(container(&pod, "kept")["allocatedResources"], large["requests"], "{:#}", pod["status"]);
    assert_eq!(pod["status"]["observedGeneration"], pod["metadata"]["generation"]);
    assert_eq!(limits(&of_container(&pod, "kept")), (kernel_value(204), Some(40_000), Some(128 * MIB)));
    assert_eq!(limits(&of_pod), (kernel_value(307), Some(60_000), Some(192 * MIB)));

    // A restarted agent sets the limits of the pod's cgroup again: they are the allocated ones.
    node.agent.kill9().expect("killed");
    node.agent.start_again().expect("started again");
    resize(&node, "kept", &small);
    let pod = wait_resized(&node, "kept", &small);
    assert_eq!(container_id(container(&pod, "kept")), id);
    assert_eq!(limits(&of_container(&pod, "kept")), (kernel_value(102), Some(20_000), Some(64 * MIB)));
    assert_eq!(limits(&of_pod), (kernel_value(204), Some(40_000), Some(128 * MIB)));

    resize(&node, "restarted", &large);
    let pod = wait_resized(&node, "restarted", &large);
    assert_eq!(container(&pod, "restarted")["restartCount"], 1, "{:#}", pod["status"]);
    assert_eq!(limits(&of_container(&pod, "restarted")), (kernel_value(204), Some(40_000), Some(128 * MIB)));
    assert_eq!(container_id(container(&pod, "kept")), id);

    // The API server refuses more than the node has; what other pods use, only the node knows.
    let cpu = allocatable_millis(&node);
    let mut other = one(&sleeper("c"));
    other["containers"][0]["resources"] = json!({"requests": {"cpu": format!("{}m", cpu / 2)}});
    node.put("other", &other);
    node.wait_ready("other");
    let larger = resources([cpu / 4 * 3; 2], [32, 64]);
    resize(&node, "kept", &larger);
    let deferred = wait_until(LIMIT, "the resize is deferred", || -> Result<Value> {
        let pod = node.get("pods", "web")?;
        let pending = condition(&pod, "PodResizePending").clone();
        ensure!(pending["reason"] == "Deferred", "{:#}", pod["status"]);
        Ok(pending)
    });
    let numbers = format!("requested: {}, used: {}, capacity: {cpu}", cpu / 4 * 3 + 200, cpu / 2);
    assert_eq!(deferred["message"], format!("Node didn't have enough resource: cpu, {numbers}"));
    node.plane.kubectl(&["-n", node.name, "delete", "pod", "other", "--wait=false"]).expect("deleted");
    wait_resized(&node, "kept", &larger);
    let events = node.plane.kubectl(&["-n", node.name, "get", "events", "-o", "jsonpath={.items[*].reason}"]);
    let events = events.expect("events");
    for reason in ["ResizeStarted", "ResizeCompleted", "ResizeDeferred"] {
        assert!(events.contains(reason), "{reason}: {events}");
    }
    node.delete_all();
    node.wait_nothing_left();
}
