//! The cause of the state of a pod in one sentence, and the reason that selects the advice.

use jiff::Timestamp;
use podwright_agent::event_loop::{CorrelatedEvent, Explanation};
use podwright_core::model;
use podwright_core::pod::{State, Wait};

use crate::print::plain;

mod blocked;
mod crash;
mod ended;
mod quarantine;
mod rejection;

pub(super) use crash::is_restarted;

/// Why a pod is in its state.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Headline {
    /// The end of the sentence that begins with the name of the pod.
    pub(super) text: String,
    /// Selects the advice, with the message that came with it.
    pub(super) reason: String,
    pub(super) message: String,
}

impl Headline {
    fn new(text: &str, reason: &str, message: &str) -> Self {
        Self { text: plain(&without_error_numbers(text)), reason: reason.to_owned(), message: message.to_owned() }
    }

    fn of_wait(wait: &Wait, text: &str) -> Self {
        Self::new(text, &wait.reason, &wait.message)
    }
}

/// Without the numbers of errors of the kernel, such as ` (os error 111)`: their texts precede them.
fn without_error_numbers(text: &str) -> String {
    const BEGIN: &str = " (os error ";
    let mut parts = text.split(BEGIN);
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.parse::<u32>().is_ok() => shown.push_str(rest),
            _ => shown.extend([BEGIN, part]),
        }
    }
    shown
}

/// The cause, if the state of the pod alone does not show it. `waits` is everything that the pod waits for.
pub(super) fn of(
    explanation: &Explanation,
    waits: &[Wait],
    events: &[&CorrelatedEvent],
    now: Timestamp,
) -> Option<Headline> {
    let state = explanation.state?;
    // Nothing is done for it in any state: what else it waits for does not matter.
    if let Some(quarantined) = quarantine::quarantined(waits, now) {
        return Some(quarantined);
    }
    let runtime = || runtime_missing(waits);
    match state {
        State::Waiting => match rejection::held(explanation) {
            Some(held) if held.reason == PREDECESSOR => Some(runtime().unwrap_or(held)),
            held => held.or_else(runtime),
        },
        State::Syncing => runtime()
            .or_else(|| crash::crash(explanation, events, now))
            .or_else(|| blocked::blocked(explanation, waits, now)),
        State::Terminating => runtime().or_else(|| ended::terminating(waits, now)),
        State::Terminated | State::Finished => {
            rejection::rejected(explanation).or_else(|| ended::ended(explanation, waits))
        }
    }
}

/// An init container that is restarted whenever it exits, beside the other containers.
fn is_sidecar(explanation: &Explanation, name: &str) -> bool {
    let spec = explanation.pod.as_ref().and_then(|pod| pod.spec.as_ref());
    let mut inits = spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten());
    inits.any(|init| init.name == name && model::is_sidecar(init))
}

/// Nothing is known of the pod, and nothing can be done for it, while the runtime does not respond.
fn runtime_missing(waits: &[Wait]) -> Option<Headline> {
    let wait = waits.iter().find(|wait| [NO_RUNTIME, RUNTIME_STARTING].contains(&wait.reason.as_str()))?;
    Some(Headline::of_wait(wait, &format!("cannot be observed: {}", wait.message)))
}

/// The runtime does not respond.
pub(super) const NO_RUNTIME: &str = "NoRuntime";
/// The runtime has not responded since the agent was started.
pub(super) const RUNTIME_STARTING: &str = "RuntimeStarting";
/// Another pod of the same name has not terminated yet.
const PREDECESSOR: &str = "WaitingForPredecessor";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_headline_has_no_numbers_of_errors() {
        for (text, expected) in [
            ("a (refused (os error 111)), twice", "a (refused), twice"),
            ("x: gone (os error 2): y (os error 13)", "x: gone: y"),
            ("x (os error of mine) (os error 5", "x (os error of mine) (os error 5"),
        ] {
            assert_eq!(Headline::new(text, "", "").text, expected);
        }
    }
}
