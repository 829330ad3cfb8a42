//! Events about changes of the Node's status, as the kubelet records them.

use k8s_openapi::api::core::v1::{Node, NodeStatus};

/// An event about the node itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEvent {
    /// Type Warning instead of Normal.
    pub warning: bool,
    /// Reason of the event.
    pub reason: &'static str,
    /// Message of the event.
    pub message: String,
}

/// Events for the change from `had` to `wanted`. `None`: the object is being created.
///
/// Readiness is reported when it changes, pressures also when they were unset before (Kubernetes: ReadyCondition,
/// MemoryPressureCondition, MachineInfo).
pub fn changes(name: &str, had: Option<&NodeStatus>, wanted: &NodeStatus) -> Vec<NodeEvent> {
    let mut events = vec![];
    let boot = |status: &NodeStatus| status.node_info.as_ref().map(|info| info.boot_id.clone()).unwrap_or_default();
    let (had_boot, boot) = (had.map(boot).unwrap_or_default(), boot(wanted));
    if !had_boot.is_empty() && had_boot != boot {
        let message = format!("Node {name} has been rebooted, boot id: {boot}");
        events.push(NodeEvent { warning: true, reason: "Rebooted", message });
    }
    let said = |status: &NodeStatus, kind: &str| {
        status.conditions.iter().flatten().find(|c| c.type_ == kind).map(|c| c.status.clone())
    };
    for (kind, fine, held) in PRESSURES {
        let status = said(wanted, kind);
        if status.is_some() && status != had.and_then(|had| said(had, kind)) {
            events.push(now(name, if status.as_deref() == Some("True") { held } else { fine }));
        }
    }
    let ready = |status: &NodeStatus| said(status, "Ready");
    if let (Some(before), Some(after)) = (had.and_then(ready), ready(wanted))
        && before != after
    {
        events.push(now(name, if after == "True" { "NodeReady" } else { "NodeNotReady" }));
    }
    events
}

/// Reports a change of `spec.unschedulable`; an unknown node counts as schedulable.
pub fn schedulable(name: &str, unschedulable: &mut bool, node: &Node) -> Option<NodeEvent> {
    let is = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
    let was = std::mem::replace(unschedulable, is);
    (was != is).then(|| now(name, if is { "NodeNotSchedulable" } else { "NodeSchedulable" }))
}

fn now(name: &str, reason: &'static str) -> NodeEvent {
    NodeEvent { warning: false, reason, message: format!("Node {name} status is now: {reason}") }
}

/// The pressure conditions, with the reasons of the events when they end and when they begin.
const PRESSURES: [(&str, &str, &str); 3] = [
    ("MemoryPressure", "NodeHasSufficientMemory", "NodeHasInsufficientMemory"),
    ("DiskPressure", "NodeHasNoDiskPressure", "NodeHasDiskPressure"),
    ("PIDPressure", "NodeHasSufficientPID", "NodeHasInsufficientPID"),
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
    fn changes_are_reported_and_a_restart_is_not() {
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
        for (had, expected) in cases {
            let reasons: Vec<&str> = changes("n", had.as_ref(), &wanted).iter().map(|event| event.reason).collect();
            assert_eq!(reasons, expected, "{had:?}");
        }
        let short = changes("n", Some(&wanted), &status("b", "True", "True"));
        let held = ["NodeHasInsufficientMemory", "NodeHasDiskPressure", "NodeHasInsufficientPID"];
        assert_eq!(short.iter().map(|event| event.reason).collect::<Vec<_>>(), held);
        let down = changes("n", Some(&wanted), &status("b", "False", "False"));
        assert_eq!(down[0].message, "Node n status is now: NodeNotReady");
    }

    #[test]
    fn a_cordoned_node_is_reported() {
        let node = |closed| Node {
            spec: Some(k8s_openapi::api::core::v1::NodeSpec { unschedulable: closed, ..Default::default() }),
            ..Node::default()
        };
        let mut was = false;
        let mut event_of = |closed| schedulable("n", &mut was, &node(closed)).map(|event| event.reason);
        assert_eq!(
            [None, Some(true), Some(true), None].map(&mut event_of),
            [None, Some("NodeNotSchedulable"), None, Some("NodeSchedulable")]
        );
    }
}
