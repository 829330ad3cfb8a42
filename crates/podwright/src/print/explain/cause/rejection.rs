//! A pod that the node does not admit: what is missing, with numbers and names.

use podwright_agent::event_loop::Explanation;
use podwright_core::model::{Pod, history_text};

use super::Headline;
use crate::print::amounts::{bytes, cpus};
use crate::print::plain;

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

/// The numbers of the kubelet's message `…: cpu, requested: 1000, used: 100, capacity: 2000` in units that users write.
fn shortage(message: &str) -> Option<String> {
    let (_, numbers) = message.split_once("enough resource: ")?;
    let (resource, numbers) = numbers.split_once(", requested: ")?;
    let (requested, numbers) = numbers.split_once(", used: ")?;
    let (used, capacity) = numbers.split_once(", capacity: ")?;
    let number = |text: &str| text.trim().parse::<i64>().ok();
    let (requested, used, capacity) = (number(requested)?, number(used)?, number(capacity)?);
    let free = capacity.saturating_sub(used).max(0);
    Some(match resource {
        "pods" => format!("{used} of at most {capacity} pods run on this node"),
        "cpu" => format!("it requests {} CPUs, {} of {} are free", cpus(requested), cpus(free), cpus(capacity)),
        _ => format!("it requests {} {resource}, {} of {} are free", bytes(requested), bytes(free), bytes(capacity)),
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
            ("cpu", [1_000_000, 100, 2000], "it requests 1000 CPUs, 1.9 of 2 are free"),
            ("cpu", [1500, 0, 1250], "it requests 1.5 CPUs, 1.25 of 1.25 are free"),
            ("memory", [900 << 40, 1 << 30, 7 << 29], "it requests 900Ti memory, 2.5Gi of 3.5Gi are free"),
            ("pods", [1, 110, 110], "110 of at most 110 pods run on this node"),
        ] {
            assert_eq!(shortage(&message(resource, numbers)).as_deref(), Some(expected));
        }
        assert_eq!(shortage("something else"), None);
    }
}
