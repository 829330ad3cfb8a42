//! The reason why a pod makes no progress, for a condition in its status: events expire, and logs stay on the node.
//!
//! Ordinary waits are in the statuses of its containers.

use std::time::Duration;

use super::termination::ContainerStops;
use super::{PodFacts, State};
use crate::actions::Waiting;
use crate::model::{Call, CallKey, Now, RuntimeCall, Time};

/// A container that still runs this long after its deadline is stuck: the two seconds that a stop may take longer, and the
/// runtime's own time.
pub(super) const OVERDUE: Duration = Duration::from_secs(5);

/// Time for the stop of a sandbox, which may be queued behind others.
const SANDBOX: Duration = Duration::from_secs(20);

/// Failed observations in a row before the pod counts as stuck.
const UNSEEN: u32 = 2;

/// Why it is stuck, with the text of the event that reported it first.
pub(super) fn stuck(facts: &PodFacts, stops: &ContainerStops, now: Now) -> Option<Waiting> {
    if let Some((_, message)) = facts.observed.trouble().filter(|(count, _)| *count >= UNSEEN) {
        let message = format!("the runtime does not report this pod: {message}");
        return Some(Waiting { reason: "FailedSync".into(), message });
    }
    if facts.state() >= State::Terminated {
        return None;
    }
    let failed = facts.calls.retries().find(|(key, _)| is_stop_of_running(key, facts, stops));
    let failed =
        failed.and_then(|(_, retry)| retry.message.as_ref()).map(|why| format!("the pod can't be stopped: {why}"));
    let message = failed.or_else(|| overdue(facts, stops, now.boot)).or_else(|| slow_sandbox(facts, now.boot))?;
    Some(Waiting { reason: "FailedKillPod".into(), message })
}

fn overdue(facts: &PodFacts, stops: &ContainerStops, now: Time) -> Option<String> {
    let overdue = |id| stops.deadline_of(id).is_some_and(|deadline| deadline + OVERDUE <= now);
    let late = facts.observed.seen.alive().filter(|c| overdue(&c.id));
    let late: Vec<&str> = late.map(|c| c.name.as_str()).collect();
    (!late.is_empty()).then(|| format!("the grace period is over; still running: {}", late.join(", ")))
}

fn slow_sandbox(facts: &PodFacts, now: Time) -> Option<String> {
    let slow = sandbox_stops(facts).any(|at| at <= now);
    slow.then(|| format!("the runtime has not stopped the sandbox for {} s", SANDBOX.as_secs()))
}

/// When each stop of a sandbox that is under way has taken too long.
pub(super) fn sandbox_stops(facts: &PodFacts) -> impl Iterator<Item = Time> {
    let stops =
        facts.calls.under_way().filter(|(call, _)| matches!(call, Call::Runtime(RuntimeCall::StopSandbox { .. })));
    stops.map(|(_, at)| at + SANDBOX)
}

/// The retry is for a container that still runs, or for a sandbox whose network is not released yet. The removal of an old
/// sandbox has the same key as its stop, and blocks nothing.
fn is_stop_of_running(key: &CallKey, facts: &PodFacts, stops: &ContainerStops) -> bool {
    let seen = &facts.observed.seen;
    match key {
        CallKey::Stop(id) => seen.container(id).is_some_and(|c| c.state.may_run()),
        CallKey::Sandbox(id) => {
            let newest = seen.sandbox().is_some_and(|s| s.id == *id);
            let unreleased = !stops.is_sandbox_stopped(id) && (newest || facts.record.termination().is_some());
            seen.sandboxes.iter().any(|s| s.id == *id && (s.ready || unreleased))
        }
        _ => false,
    }
}
