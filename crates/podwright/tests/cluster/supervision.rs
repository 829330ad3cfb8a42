//! The agent of a cluster node does not go on with half of its tasks.

use podwright_testbed::ControlPlane;
use serde_json::json;

use crate::cluster_node::ClusterNode;
use crate::suite::supervision::kill_each_task;
use crate::suite::{container, one, sleeper};

/// Tasks that only a node of a cluster has.
const EXPECTED: [&str; 7] =
    ["event-forwarding", "event-sink", "node-events", "node-lease", "node-object", "node-status", "pod-watch"];

#[test]
fn a_failed_task_of_a_cluster_node_ends_the_agent_and_the_containers_keep_running() {
    let verbose = json!({"logging": {"verbosity": 4}});
    let mut node = ClusterNode::configured(ControlPlane::shared(), "supervised", |agent| agent.config(verbose));
    node.put("web", &one(&sleeper("c")));
    let before = container(&node.wait_phase("web", "Running"), "c").clone();
    kill_each_task(&mut node.agent, &EXPECTED);
    node.wait_joined();
    let after = container(&node.wait_phase("web", "Running"), "c").clone();
    assert_eq!((&after["restartCount"], &after["containerID"]), (&json!(0), &before["containerID"]), "{after:#}");
    node.delete_all();
}
