//! What is told of the node when its status changes, as the kubelet tells it.

use k8s_openapi::api::core::v1::{Node, NodeStatus};

/// An event about the node itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEvent {
    /// People should look at it.
    pub warning: bool,
    /// In a word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// What follows from the step to the status `wanted`. `None`: the object is made with it.
///
/// Readiness is told when it changes, the pressures also when nothing was said of them before (Kubernetes: ReadyCondition,
/// MemoryPressureCondition, MachineInfo).
pub fn changes(name: &str, had: Option<&NodeStatus>, wanted: &NodeStatus) -> Vec<NodeEvent> {
    let mut told = vec![];
    let boot = |status: &NodeStatus| status.node_info.as_ref().map(|info| info.boot_id.clone()).unwrap_or_default();
    let (had_boot, boot) = (had.map(boot).unwrap_or_default(), boot(wanted));
    if !had_boot.is_empty() && had_boot != boot {
        let message = format!("Node {name} has been rebooted, boot id: {boot}");
        told.push(NodeEvent { warning: true, reason: "Rebooted", message });
    }
    let said = |status: &NodeStatus, kind: &str| {
        status.conditions.iter().flatten().find(|c| c.type_ == kind).map(|c| c.status.clone())
    };
    for (kind, reason) in FINE {
        let fine = |status: &NodeStatus| said(status, kind).is_some_and(|status| status == "False");
        if fine(wanted) && !had.is_some_and(fine) {
            told.push(now(name, reason));
        }
    }
    let ready = |status: &NodeStatus| said(status, "Ready");
    if let (Some(before), Some(after)) = (had.and_then(ready), ready(wanted))
        && before != after
    {
        told.push(now(name, if after == "True" { "NodeReady" } else { "NodeNotReady" }));
    }
    told
}

/// Whether pods may be scheduled here is told when it changes; a node that was not known before counts as one that takes pods.
pub fn schedulable(name: &str, unschedulable: &mut bool, node: &Node) -> Option<NodeEvent> {
    let is = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
    let was = std::mem::replace(unschedulable, is);
    (was != is).then(|| now(name, if is { "NodeNotSchedulable" } else { "NodeSchedulable" }))
}

fn now(name: &str, reason: &'static str) -> NodeEvent {
    NodeEvent { warning: false, reason, message: format!("Node {name} status is now: {reason}") }
}

/// Conditions that are fine when they are False, and how that is told.
const FINE: [(&str, &str); 3] = [
    ("MemoryPressure", "NodeHasSufficientMemory"),
    ("DiskPressure", "NodeHasNoDiskPressure"),
    ("PIDPressure", "NodeHasSufficientPID"),
];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(boot: &str, pressure: &str, ready: &str) -> NodeStatus {
        let condition = |kind: &str, status: &str| json!({"type": kind, "status": status});
        let mut info = serde_json::to_value(k8s_openapi::api::core::v1::NodeSystemInfo::default()).unwrap();
        info["bootID"] = json!(boot);
        let conditions = [("MemoryPressure", pressure), ("DiskPressure", pressure), ("PIDPressure", pressure)];
        let conditions = conditions.into_iter().chain([("Ready", ready)]).filter(|(_, status)| !status.is_empty());
        let conditions: Vec<_> = conditions.map(|(kind, status)| condition(kind, status)).collect();
        serde_json::from_value(json!({"nodeInfo": info, "conditions": conditions})).unwrap()
    }

    #[test]
    fn changes_are_told_and_a_new_start_is_none() {
        let fine = ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"];
        let wanted = status("b", "False", "True");
        let cases = [
            (None, fine.to_vec()),
            (Some(status("b", "False", "True")), vec![]),
            (Some(status("b", "False", "False")), vec!["NodeReady"]),
            (Some(status("b", "False", "Unknown")), vec!["NodeReady"]),
            (Some(status("b", "Unknown", "")), fine.to_vec()),
            (Some(status("a", "False", "True")), vec!["Rebooted"]),
            (Some(status("", "False", "True")), vec![]),
        ];
        for (had, told) in cases {
            let reasons: Vec<&str> = changes("n", had.as_ref(), &wanted).iter().map(|event| event.reason).collect();
            assert_eq!(reasons, told, "{had:?}");
        }
        let down = changes("n", Some(&wanted), &status("b", "False", "False"));
        assert_eq!(down[0].message, "Node n status is now: NodeNotReady");
    }

    #[test]
    fn who_closes_the_node_is_heard() {
        let node = |closed| Node {
            spec: Some(k8s_openapi::api::core::v1::NodeSpec { unschedulable: closed, ..Default::default() }),
            ..Node::default()
        };
        let mut was = false;
        let mut told = |closed| schedulable("n", &mut was, &node(closed)).map(|event| event.reason);
        assert_eq!(
            [None, Some(true), Some(true), None].map(&mut told),
            [None, Some("NodeNotSchedulable"), None, Some("NodeSchedulable")]
        );
    }
}
