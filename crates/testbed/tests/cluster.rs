//! The control plane: it starts, it schedules, components can be restarted, and the Go kubelet can join it.

use std::time::Duration;

use anyhow::ensure;
use podwright_testbed::{Component, Containerd, ControlPlane, Flavor, GoKubelet, Scratch, image, wait_until};
use serde_json::{Value, json};

#[test]
fn a_scheduled_pod_runs_on_the_go_kubelet_and_is_deleted() {
    let scratch = Scratch::new().expect("a scratch");
    let plane = ControlPlane::shared();
    plane.namespace("joined").expect("a namespace");
    let containerd = Containerd::start(&scratch, Flavor::V2).expect("containerd starts");
    let kubeconfig = plane.node_kubeconfig("go-node").expect("a kubeconfig");
    let _kubelet =
        GoKubelet::start_joined(&scratch, &containerd, "go-node", &kubeconfig, &json!({})).expect("it starts");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"nodeSelector": {"kubernetes.io/hostname": "go-node"}, "terminationGracePeriodSeconds": 1,
                 "containers": [{"name": "web", "image": image::BUSYBOX, "command": ["sleep", "600"]}]},
    });
    let at = "/api/v1/namespaces/joined/pods";
    plane.api().create(at, &pod).expect("created");
    wait_until(Duration::from_secs(60), "the pod to run", || {
        let pod = plane.api().get(&format!("{at}/web"))?;
        ensure!(pod["status"]["phase"] == "Running", "{:#}", pod["status"]);
        Ok(())
    });
    let output = plane.kubectl(&["delete", "pod", "-n", "joined", "web"]).expect("deleted");
    assert!(output.contains("\"web\" deleted"), "{output}");
    plane.kubectl(&["delete", "node", "go-node"]).expect("deleted");
}

#[test]
fn a_node_has_only_the_permissions_of_a_node() {
    let plane = ControlPlane::shared();
    plane.namespace("secrets").expect("a namespace");
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"k": "v"}});
    plane.api().create("/api/v1/namespaces/secrets/secrets", &secret).expect("created");
    let node = plane.node_api("some-node").expect("a client");
    let refused = node.request("GET", "/api/v1/namespaces/secrets/secrets/s", None).expect("a response");
    assert_eq!(refused.status, 403, "{}", refused.body);
    let other = json!({"metadata": {"name": "other-node"}});
    assert_eq!(node.request("POST", "/api/v1/nodes", Some(&other)).expect("a response").status, 403);
}

#[test]
fn components_can_be_restarted_and_a_watch_from_a_compacted_version_is_gone() {
    let scratch = Scratch::new().expect("a scratch");
    let plane = ControlPlane::start(&scratch).expect("it starts");
    let maps = "/api/v1/namespaces/default/configmaps";
    let made = plane.api().create(maps, &json!({"metadata": {"name": "m"}})).expect("created");
    let first = made["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();
    let mut seen =
        plane.api().watch(&format!("{maps}?resourceVersion={first}"), Duration::from_secs(10)).expect("watch");
    let change = json!({"data": {"a": "b"}});
    plane.api().patch(&format!("{maps}/m"), &change).expect("patched");
    let event = seen.find(|event| event["object"]["metadata"]["name"] == "m").expect("an event");
    assert_eq!((&event["type"], &event["object"]["data"]["a"]), (&json!("MODIFIED"), &json!("b")));

    plane.stop(Component::ApiServer).expect("stopped");
    assert!(plane.api().get(maps).is_err(), "it is stopped");
    plane.compact().expect("compacted");
    plane.start_again(Component::ApiServer).expect("started");
    let list = plane.api().get(maps).expect("it responds again");
    assert!(list["items"].as_array().expect("a list").iter().any(|map| map["metadata"]["name"] == "m"));
    let mut late =
        plane.api().watch(&format!("{maps}?resourceVersion={first}"), Duration::from_secs(10)).expect("watch");
    let gone: Value = late.next().expect("an event");
    assert_eq!((&gone["type"], &gone["object"]["code"]), (&json!("ERROR"), &json!(410)), "{gone}");
}
