//! Pods of every kind on a node with API server faults, and the checks of their final state.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use podwright_testbed::wait_until;
use serde_json::{Value, json};

use crate::cluster_node::ClusterNode;
use crate::suite::{LIMIT, container, one, sh, sleeper};

/// Pods that keep running, a job that completes on a signal of the test, and static pods: one is edited, one removed, one added.
pub(crate) struct MixedWorkload {
    containers: BTreeMap<String, Value>,
}

impl MixedWorkload {
    /// Starts everything and waits until it runs.
    pub(crate) fn begin(node: &ClusterNode<'_>) -> Self {
        for i in 0..3 {
            node.put(&format!("ready{i}"), &one(&sleeper("c")));
        }
        for name in ["edited", "removed"] {
            node.put_static(name, "old");
        }
        let go = node.scratch.dir("go").expect("a directory");
        let mut job = one(&sh("c", "while [ ! -e /go/now ]; do sleep 0.1; done; exit 4"));
        job["restartPolicy"] = json!("Never");
        job["containers"][0]["volumeMounts"] = json!([{"name": "go", "mountPath": "/go"}]);
        job["volumes"] = json!([{"name": "go", "hostPath": {"path": go}}]);
        node.put("job", &job);
        let names = (0..3).map(|i| format!("ready{i}"));
        let containers = names.map(|name| (name.clone(), id(&node.wait_ready(&name)))).collect();
        node.wait_phase("job", "Running");
        for name in ["edited", "removed"] {
            node.wait_mirror(name, "old");
        }
        Self { containers }
    }

    /// The job completes and the static pods change while the API server is faulty; waits until the node has done its part.
    pub(crate) fn progress(&self, node: &ClusterNode<'_>) {
        std::fs::write(node.scratch.dir("go").expect("there").join("now"), "").expect("written");
        node.put_static("added", "new");
        node.put_static("edited", "new");
        node.scratch.remove_manifest("removed.json").expect("removed");
        for name in ["added", "edited"] {
            node.wait_static(name, "new");
        }
        wait_until(LIMIT, "the removed one to go and the job to end", || {
            ensure!(node.agent.pod(&format!("removed-{}", node.name))?.is_none(), "it is known");
            let job = node.agent.pod("job")?.context("not known")?;
            ensure!(container(&job, "c")["state"]["terminated"].is_object(), "{:#}", job["status"]);
            Ok(())
        });
    }

    /// The API server has the final state, no container was restarted, and pods can be created and deleted.
    pub(crate) fn verify(self, node: &ClusterNode<'_>) {
        let job = node.wait_phase("job", "Failed");
        assert_eq!(container(&job, "c")["state"]["terminated"]["exitCode"], 4, "{:#}", job["status"]);
        for name in ["added", "edited"] {
            node.wait_mirror(name, "new");
        }
        node.wait_gone(&format!("removed-{}", node.name));
        // Bound by the test: the scheduler needs long after an outage.
        let mut late = one(&sleeper("c"));
        late["nodeName"] = json!(node.name);
        node.put("late", &late);
        node.wait_ready("late");
        for (name, before) in &self.containers {
            // The controllers may have marked the node as lost; that is corrected soon.
            let pod = node.wait_ready(name);
            assert_eq!(&id(&pod), before, "{name} was created again");
            assert_eq!(container(&pod, "c")["restartCount"], 0, "{:#}", pod["status"]);
        }
        for name in ["added.json", "edited.json"] {
            node.scratch.remove_manifest(name).expect("removed");
        }
        for name in self.containers.keys().map(String::as_str).chain(["job", "late"]) {
            node.delete("pods", name);
        }
        node.wait_nothing_left();
    }
}

fn id(pod: &Value) -> Value {
    container(pod, "c")["containerID"].clone()
}
