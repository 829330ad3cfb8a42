//! A pod that the node does not admit: what is missing, with numbers and names.

use podwright_agent::event_loop::Explanation;
use podwright_core::model::{Pod, history_text};

use super::Headline;
use crate::print::amounts::{bytes, cpus};
use crate::print::plain;
use crate::print::shortage::Shortage;

/// The message of a pod that was rejected for good begins with this.
const REJECTED: &str = "Pod was rejected: ";

/// A pod that the node does not admit yet.
pub(super) fn held(explanation: &Explanation) -> Option<Headline> {
    let wait = explanation.waits.iter().find(|wait| wait.container.is_none())?;
    let text = match wait.reason.as_str() {
        "WaitingForPredecessor" => format!("is waiting: {}", wait.message),
        "FailedSync" => return None,
        reason => format!("is rejected: {}", rejection(explanation, reason, &wait.message)),
    };
    Some(Headline::of_wait(wait, &text))
}

/// A pod that was rejected for good: its object must be created again.
pub(super) fn rejected(explanation: &Explanation) -> Option<Headline> {
    let status = explanation.pod.as_ref()?.status.as_ref()?;
    let (reason, message) = (status.reason.as_deref()?, status.message.as_deref()?.strip_prefix(REJECTED)?);
    let text = format!("was rejected: {}", rejection(explanation, reason, message));
    Some(Headline::new(&text, reason, message))
}

/// What is missing, with numbers and names.
fn rejection(explanation: &Explanation, reason: &str, message: &str) -> String {
    let port_holder = || explanation.history.iter().rev().find(|line| line.what == history_text::REJECTED);
    let selector = || explanation.pod.as_ref().and_then(node_selector);
    let detail = match reason {
        "NodePorts" => port_holder().map(|line| format!("host {}", line.cause)),
        "NodeAffinity" => selector().map(|selector| format!("this node does not match the node selector {selector}")),
        "UnexpectedAdmissionError" => extended_resource(message),
        _ => shortage(message),
    };
    plain(&format!("{reason}: {}", detail.as_deref().unwrap_or(message)))
}

fn node_selector(pod: &Pod) -> Option<String> {
    let selector = pod.spec.as_ref()?.node_selector.as_ref().filter(|selector| !selector.is_empty())?;
    let pairs: Vec<String> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
    Some(pairs.join(","))
}

/// The resource of the kubelet's message `…; cannot allocate unhealthy devices example.com/gpu, which is unexpected`.
fn extended_resource(message: &str) -> Option<String> {
    let (_, rest) = message.split_once("unhealthy devices ")?;
    let (resource, _) = rest.split_once(',')?;
    Some(format!("nothing on this node provides {resource}"))
}

/// The numbers of the kubelet's message in units that users write.
fn shortage(message: &str) -> Option<String> {
    let shortage = Shortage::of(message)?;
    let (used, capacity) = (shortage.used, shortage.capacity);
    if shortage.resource == "pods" {
        return Some(format!("{used} of at most {capacity} pods run on this node"));
    }
    let amount = if shortage.resource == "cpu" { cpus } else { bytes };
    let what = if shortage.resource == "cpu" { "CPUs" } else { shortage.resource };
    let requested = format!("it requests {} {what}", amount(shortage.requested));
    Some(match shortage.exceeds_node() {
        true => format!("{requested}, and this node has only {} for pods", amount(capacity)),
        false => format!("{requested}, {} of {} are free", amount(shortage.free()), amount(capacity)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortages_are_shown_in_units_that_users_write() {
        let message = |resource: &str, numbers: [i64; 3]| {
            let [requested, used, capacity] = numbers;
            format!(
                "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
            )
        };
        for (resource, numbers, expected) in [
            ("cpu", [2000, 100, 2000], "it requests 2 CPUs, 1.9 of 2 are free"),
            ("cpu", [1500, 0, 1250], "it requests 1.5 CPUs, and this node has only 1.25 for pods"),
            ("memory", [3 << 30, 1 << 30, 7 << 29], "it requests 3Gi memory, 2.5Gi of 3.5Gi are free"),
            (
                "memory",
                [900 << 40, 1 << 30, 7 << 29],
                "it requests 900Ti memory, and this node has only 3.5Gi for pods",
            ),
            ("pods", [1, 110, 110], "110 of at most 110 pods run on this node"),
        ] {
            assert_eq!(shortage(&message(resource, numbers)).as_deref(), Some(expected));
        }
        assert_eq!(shortage("something else"), None);
    }
}
