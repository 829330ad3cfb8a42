//! Changes that others make to running pods and to the node.

use std::time::Duration;

use anyhow::{Result, ensure};
use podwright_testbed::image::BUSYBOX;
use podwright_testbed::{ControlPlane, wait_until};
use serde_json::{Value, json};

use crate::cluster_node::ClusterNode;
use crate::pod_watch::{PodWatch, last_states};
use crate::suite::{LIMIT, condition, container, one, sleeper};

/// Waits until a pod fulfils the condition; returns it.
fn wait_pod(node: &ClusterNode<'_>, name: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    wait_until(LIMIT, &format!("{name}: {what}"), || -> Result<Value> {
        let pod = node.get("pods", name)?;
        ensure!(is(&pod), "{:#}", pod["status"]);
        Ok(pod)
    })
}

#[test]
fn a_running_pod_applies_mutable_changes_and_reports_the_others() {
    let node = ClusterNode::start(ControlPlane::shared(), "changed");
    let mut spec = one(&sleeper("c"));
    spec["containers"][0]["resources"] = json!({"requests": {"cpu": "10m"}});
    spec["readinessGates"] = json!([{"conditionType": "example.com/gate"}]);
    node.put("web", &spec);
    let closed = wait_pod(&node, "web", "its containers are ready", |pod| {
        condition(pod, "ContainersReady")["status"] == "True" && pod["status"]["phase"] == "Running"
    });
    assert_eq!(condition(&closed, "Ready")["reason"], "ReadinessGatesNotReady", "{:#}", closed["status"]);
    let id = container(&closed, "c")["containerID"].clone();
    let path = format!("{}/web", node.path("pods"));
    let gate = json!({"type": "example.com/gate", "status": "True"});
    node.plane.api().patch(&format!("{path}/status"), &json!({"status": {"conditions": [gate]}})).expect("patched");
    let open = node.wait_ready("web");
    assert_eq!(condition(&open, "example.com/gate")["status"], "True");

    // The ephemeral container sees the processes of its target.
    let look = "tr '\\0' ' ' < /proc/1/cmdline > /dev/termination-log; exit 5";
    let debug = ["-n", node.name, "debug", "web", "--image", BUSYBOX, "--image-pull-policy=IfNotPresent", "--target=c"];
    let debug: Vec<&str> =
        debug.into_iter().chain(["-c", "eye", "--profile=general", "--", "sh", "-c", look]).collect();
    node.plane.kubectl(&debug).expect("kubectl debug");
    let eye = |pod: &Value| pod["status"]["ephemeralContainerStatuses"][0]["state"]["terminated"].clone();
    let pod = wait_pod(&node, "web", "somebody looked into it", |pod| eye(pod).is_object());
    assert_eq!(eye(&pod)["exitCode"], 5, "{:#}", pod["status"]);
    assert!(eye(&pod)["message"].as_str().is_some_and(|text| text.contains("trap 'exit 0'")), "{:#}", pod["status"]);

    let more = json!({"name": "c", "resources": {"requests": {"cpu": "20m"}}});
    node.plane.api().patch(&format!("{path}/resize"), &json!({"spec": {"containers": [more]}})).expect("patched");
    let pod = wait_pod(&node, "web", "it has the requested CPU", |pod| {
        container(pod, "c")["resources"]["requests"]["cpu"] == "20m"
    });
    let generation = &pod["metadata"]["generation"];
    assert!(generation.as_i64() > Some(1), "{generation}");
    assert_eq!(
        (&pod["status"]["observedGeneration"], &condition(&pod, "Ready")["observedGeneration"]),
        (generation, generation)
    );
    assert_eq!(condition(&pod, "Ready")["status"], "True", "{:#}", pod["status"]);
    let now = container(&pod, "c");
    assert_eq!((&now["containerID"], &now["restartCount"]), (&id, &json!(0)), "{:#}", pod["status"]);

    let watched = PodWatch::begin(&node);
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web"}});
    node.plane.api().create(&format!("{path}/eviction"), &eviction).expect("evicted");
    node.wait_gone("web");
    let events = watched.end(&node);
    let last = last_states(&events)["web"];
    assert_eq!(condition(last, "DisruptionTarget")["reason"], "EvictionByEvictionAPI", "{:#}", last["status"]);
    assert_eq!(last["status"]["phase"], "Succeeded", "{:#}", last["status"]);
    node.wait_nothing_left();
}

/// A pod with a node selector.
fn picky(node: &ClusterNode<'_>, name: &str, more: Value) {
    let mut spec = one(&sleeper("c"));
    spec["nodeSelector"] = json!({"kubernetes.io/hostname": node.name, "example.com/disk": "ssd"});
    spec.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    node.create("pods", &json!({"metadata": {"name": name}, "spec": spec}));
}

#[test]
fn node_labels_count_regardless_of_who_set_them() {
    let mut node = ClusterNode::start(ControlPlane::shared(), "labelled");
    // The pod is bound without a scheduler.
    picky(&node, "wrong", json!({"nodeName": node.name}));
    let wrong = node.wait_phase("wrong", "Failed");
    assert_eq!(wrong["status"]["reason"], "NodeAffinity", "{:#}", wrong["status"]);
    node.plane.kubectl(&["label", "node", node.name, "example.com/disk=ssd"]).expect("labelled");
    picky(&node, "first", json!({}));
    picky(&node, "bound", json!({"nodeName": node.name}));
    for name in ["first", "bound"] {
        node.wait_ready(name);
    }
    node.agent.kill9().expect("killed");
    node.agent.start_again().expect("started again");
    picky(&node, "second", json!({"nodeName": node.name}));
    node.wait_ready("second");
    // An admitted pod stays, even if a restarted agent would not admit it any more.
    let instance =
        |pod: &Value| [container(pod, "c")["containerID"].clone(), container(pod, "c")["restartCount"].clone()];
    let admitted = ["first", "bound", "second"].map(|name| (name, instance(&node.wait_ready(name))));
    node.plane.kubectl(&["label", "node", node.name, "example.com/disk-"]).expect("the label is gone");
    node.agent.kill9().expect("killed");
    node.agent.start_again().expect("started again");
    picky(&node, "third", json!({"nodeName": node.name}));
    node.wait_phase("third", "Failed");
    for (name, before) in &admitted {
        assert_eq!(instance(&node.phase(name, "Running").expect("it runs on")), *before, "{name}");
    }
    node.delete_all();
    node.wait_nothing_left();
}

#[test]
fn no_mirror_pod_is_created_for_a_node_that_is_being_deleted() {
    let node = ClusterNode::start(ControlPlane::shared(), "going");
    node.put_static("first", "text");
    node.wait_mirror("first", "text");
    let path = format!("/api/v1/nodes/{}", node.name);
    let hold = |finalizers: Value| json!({"metadata": {"finalizers": finalizers}});
    node.plane.api().patch(&path, &hold(json!(["example.com/hold"]))).expect("patched");
    node.plane.api().delete(&path, None).expect("deleted");
    // The deletion reaches the agent with a delay: a pod before that gets a mirror pod, and the next one is tried.
    let mut names = vec!["first".to_owned()];
    loop {
        let name = format!("next{}", names.len());
        node.put_static(&name, "text");
        node.wait_static(&name, "text");
        std::thread::sleep(Duration::from_secs(2));
        let mirror = format!("{}/{name}-{}", node.path("pods"), node.name);
        names.push(name);
        match node.plane.api().request("GET", &mirror, None).expect("an answer").status {
            404 => break,
            status => assert!(names.len() < 6, "{status}: mirrors are made for {names:?}"),
        }
    }
    let gone = json!([{"op": "remove", "path": "/metadata/finalizers"}]).to_string();
    node.plane.kubectl(&["patch", "node", node.name, "--type=json", "-p", &gone]).expect("let go");
    for name in names {
        node.scratch.remove_manifest(&format!("{name}.json")).expect("removed");
    }
    node.wait_nothing_left();
}
