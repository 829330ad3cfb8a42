//! Records a watch of the pods of a namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::JoinHandle;
use std::time::Duration;

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
        let list = node.plane.api().get(&node.path("pods")).expect("a list");
        let version = list["metadata"]["resourceVersion"].as_str().expect("a version");
        let path = format!("{}?resourceVersion={version}", node.path("pods"));
        let there = list["items"].as_array().into_iter().flatten();
        let mut events: Vec<Value> = there.map(|pod| json!({"type": "ADDED", "object": pod})).collect();
        let mut watch = node.plane.api().watch(&path, PATIENCE).expect("a watch");
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
        let mut spec = one(&sleeper("c"));
        spec["schedulerName"] = json!("nobody");
        node.put(SIGN, &spec);
        let events = self.0.join().expect("no panic");
        node.delete("pods", SIGN);
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
    let told = events.iter().filter(|event| event["type"] != "DELETED");
    told.map(|event| (event["object"]["metadata"]["name"].as_str().expect("a name"), &event["object"])).collect()
}
