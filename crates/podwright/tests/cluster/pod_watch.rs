//! Records a watch of the pods of a namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::JoinHandle;
use std::time::Duration;

use podwright_testbed::ControlPlane;
use serde_json::{Value, json};

use crate::cluster_node::ClusterNode;
use crate::suite::{condition, one, sleeper};

/// A pod that no scheduler handles: its event ends the watch.
const SIGN: &str = "the-end";

/// In the long tests there may be no event for this long.
const PATIENCE: Duration = Duration::from_secs(600);

/// A watch on its own thread.
pub(crate) struct PodWatch(JoinHandle<Vec<Value>>);

impl PodWatch {
    /// Starts the watch; existing pods come first, as ADDED.
    pub(crate) fn begin(node: &ClusterNode<'_>) -> Self {
        Self::of_namespace(node.plane, node.name)
    }

    /// The same, of any namespace.
    pub(crate) fn of_namespace(plane: &ControlPlane, namespace: &str) -> Self {
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        let list = plane.api().get(&pods).expect("a list");
        let version = list["metadata"]["resourceVersion"].as_str().expect("a version");
        let path = format!("{pods}?resourceVersion={version}");
        let there = list["items"].as_array().into_iter().flatten();
        let mut events: Vec<Value> = there.map(|pod| json!({"type": "ADDED", "object": pod})).collect();
        let mut watch = plane.api().watch(&path, PATIENCE).expect("a watch");
        Self(std::thread::spawn(move || {
            loop {
                let event = watch.next().expect("the watch goes on until the sign");
                if event["object"]["metadata"]["name"] == SIGN {
                    return events;
                }
                events.push(event);
            }
        }))
    }

    /// Stops the watch; returns its events.
    pub(crate) fn end(self, node: &ClusterNode<'_>) -> Vec<Value> {
        self.end_in(node.plane, node.name)
    }

    /// The same, of the namespace given to [`Self::of_namespace`].
    pub(crate) fn end_in(self, plane: &ControlPlane, namespace: &str) -> Vec<Value> {
        let mut spec = one(&sleeper("c"));
        spec["schedulerName"] = json!("nobody");
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        plane.api().create(&pods, &json!({"metadata": {"name": SIGN}, "spec": spec})).expect("created");
        let events = self.0.join().expect("no panic");
        plane.api().delete(&format!("{pods}/{SIGN}"), None).expect("deleted");
        events
    }
}

/// Every wrong Ready condition: of a pod `not…` that is ready, or of a pod `ready…` that is not after it was. Pods that
/// are being deleted are rightly not ready.
pub(crate) fn flips(events: &[Value]) -> Vec<String> {
    let (mut found, mut were_ready) = (vec![], BTreeSet::new());
    for pod in events.iter().map(|event| &event["object"]) {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let is_ready = condition(pod, "Ready")["status"] == "True";
        let is_wrong = match name {
            _ if !pod["metadata"]["deletionTimestamp"].is_null() => false,
            name if name.starts_with("not") => is_ready,
            name if name.starts_with("ready") => !is_ready && were_ready.contains(name),
            _ => false,
        };
        if is_wrong {
            found.push(format!("{name}: {:#}", pod["status"]));
        }
        if is_ready {
            were_ready.insert(name);
        }
    }
    found
}

/// The last object of every pod before its deletion.
pub(crate) fn last_states(events: &[Value]) -> BTreeMap<&str, &Value> {
    let states = events.iter().filter(|event| event["type"] != "DELETED");
    states.map(|event| (event["object"]["metadata"]["name"].as_str().expect("a name"), &event["object"])).collect()
}
