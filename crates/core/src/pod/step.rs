//! One step of one pod: what is known of it, what the node offers, and the effects so far.

use std::time::Duration;

use super::{Ctx, PodFacts};
use crate::model::{Call, CallId, Effect, Name, Now, Out, RuntimeCall, SandboxId, SavedTime, Time};

/// What the parts of a pod's machine work on in one step.
pub(super) struct PodStep<'a, 'c> {
    pub(super) facts: &'a mut PodFacts,
    pub(super) ctx: &'a mut Ctx<'c>,
    pub(super) out: &'a mut Out,
}

impl PodStep<'_, '_> {
    pub(super) fn now(&self) -> Now {
        self.ctx.now
    }

    /// Sends a call unless it is under way, in doubt, or has to wait for its next try. True if it was sent.
    pub(super) fn ask(&mut self, call: impl Into<Call>, limit: Duration) -> bool {
        let call = call.into();
        self.facts.calls.may_send(&call.key(), self.ctx.now.boot) && self.send(call, limit)
    }

    /// As `ask`, but also while a call of the same key is under way: a stop with a shorter timeout.
    pub(super) fn send(&mut self, call: impl Into<Call>, limit: Duration) -> bool {
        let (facts, ctx, call) = (&mut *self.facts, &mut *self.ctx, call.into());
        if call.changes_runtime() {
            // A plan on an old observation starts containers twice; a stop can only be too late.
            let sure = call.is_stop() || (facts.observed.fresh() && !facts.calls.in_doubt());
            if !ctx.runtime_up || !sure {
                return false;
            }
        } else if call.is_image() && !ctx.runtime_up {
            return false;
        }
        *ctx.last_call += 1;
        let id = CallId(*ctx.last_call);
        ctx.owners.insert(id, facts.record.uid.clone());
        facts.calls.sent(id, call.clone(), ctx.now.boot, limit);
        let (uid, pod) = (facts.record.uid.clone(), facts.record.pod.clone());
        self.out.effects.push(Effect::Call { id, uid, pod, call, limit });
        true
    }

    pub(super) fn cancel(&mut self, test: impl Fn(&Call) -> bool) {
        let cancelled = self.facts.calls.cancel(test);
        self.out.effects.extend(cancelled.into_iter().map(|id| Effect::Cancel { id }));
    }

    pub(super) fn stop_sandbox(&mut self, id: &SandboxId) -> bool {
        self.ask(RuntimeCall::StopSandbox { id: id.clone() }, self.ctx.config.runtime_request_timeout)
    }

    /// A Warning event.
    pub(super) fn warn(&mut self, reason: &'static str, container: Option<&Name>, message: String) {
        self.facts.event(true, reason, container, message, self.out);
    }

    /// A Normal event.
    pub(super) fn notify(&mut self, reason: &'static str, container: Option<&Name>, message: String) {
        self.facts.event(false, reason, container, message, self.out);
    }

    /// A line of the pod's history.
    pub(super) fn history(&mut self, what: &str, cause: &str) {
        self.facts.history.record(self.ctx.now, what, cause);
    }
}

impl Ctx<'_> {
    /// A moment on the wall clock, on the boot clock: never in the past, and a jump of the wall clock can't wedge it.
    pub(super) fn boot_time(&self, wall: jiff::Timestamp) -> Duration {
        let ahead = wall.duration_since(self.now.wall);
        self.now.boot + Duration::try_from(ahead).unwrap_or(Duration::ZERO)
    }

    /// A moment on the boot clock, in a form that outlives the agent and a reboot.
    pub(super) fn saved_time(&self, boot: Time) -> SavedTime {
        let left = boot.saturating_sub(self.now.boot);
        let wall = jiff::SignedDuration::try_from(left).ok().and_then(|left| self.now.wall.checked_add(left).ok());
        SavedTime { boot_id: self.config.boot_id.clone(), boot, wall: wall.unwrap_or(self.now.wall) }
    }
}
