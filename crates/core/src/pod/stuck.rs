//! What keeps a pod from going on at all, for a condition that everybody sees: events fade, and a log is on the node.
//!
//! Not what a pod waits for in its ordinary life, which its containers' statuses tell.

use std::time::Duration;

use super::kill::Killing;
use super::{Machine, State};
use crate::actions::Waiting;
use crate::model::{Call, CallKey, Now, RuntimeCall, Time};

/// So long after its deadline a container that is still there is stuck: the two seconds an end may overrun, and the runtime's own time.
pub(super) const OVERDUE: Duration = Duration::from_secs(5);

/// So long the runtime may take for the end of a sandbox, whose turn among others' it may have to wait for.
const SANDBOX: Duration = Duration::from_secs(20);

/// One failed look is an accident.
const UNSEEN: u32 = 2;

impl Machine {
    /// Why it is stuck, in the words of the event that told it first.
    pub(super) fn stuck(&self, now: Now) -> Option<Waiting> {
        if let Some((_, message)) = self.observed.trouble().filter(|(count, _)| *count >= UNSEEN) {
            let message = format!("the runtime does not report this pod: {message}");
            return Some(Waiting { reason: "FailedSync".into(), message });
        }
        if self.state() >= State::Terminated {
            return None;
        }
        let failed = self.calls.retries().find(|(key, _)| is_end(key));
        let failed =
            failed.and_then(|(_, retry)| retry.message.as_ref()).map(|why| format!("the pod can't be stopped: {why}"));
        let message = failed.or_else(|| self.overdue(now.boot)).or_else(|| self.slow_sandbox(now.boot))?;
        Some(Waiting { reason: "FailedKillPod".into(), message })
    }

    fn overdue(&self, now: Time) -> Option<String> {
        let overdue = |killing: &Killing, id| killing.deadline_of(id).is_some_and(|deadline| deadline + OVERDUE <= now);
        let late = self.observed.seen.alive().filter(|c| overdue(&self.killing, &c.id));
        let late: Vec<&str> = late.map(|c| c.name.as_str()).collect();
        (!late.is_empty()).then(|| format!("the grace period is over; still running: {}", late.join(", ")))
    }

    fn slow_sandbox(&self, now: Time) -> Option<String> {
        let slow = self.sandbox_stops().any(|at| at <= now);
        slow.then(|| format!("the runtime has not stopped the sandbox for {} s", SANDBOX.as_secs()))
    }

    /// When each stop of a sandbox that is under way has taken too long.
    pub(super) fn sandbox_stops(&self) -> impl Iterator<Item = Time> {
        let stops =
            self.calls.under_way().filter(|(call, _)| matches!(call, Call::Runtime(RuntimeCall::StopSandbox { .. })));
        stops.map(|(_, at)| at + SANDBOX)
    }
}

fn is_end(key: &CallKey) -> bool {
    matches!(key, CallKey::Stop(_) | CallKey::Sandbox(_))
}
