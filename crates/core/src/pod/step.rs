//! One step of one pod: what is known of it, what the node offers, and the effects so far.

use std::sync::Arc;
use std::time::Duration;

use super::{Ctx, PodFacts};
use crate::model::{Call, CallId, Effect, Name, Now, Out, Pod, RuntimeCall, SandboxId, SavedTime, Time};

/// The state that the parts of a pod's machine use in one step.
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
    pub(super) fn request(&mut self, call: impl Into<Call>, limit: Duration) -> bool {
        let call = call.into();
        self.facts.calls.may_send(&call.key(), self.ctx.now.boot) && self.send(call, limit)
    }

    /// As `request`, with another pod than the record's.
    pub(super) fn request_for(&mut self, pod: Arc<Pod>, call: impl Into<Call>, limit: Duration) -> bool {
        let call = call.into();
        self.facts.calls.may_send(&call.key(), self.ctx.now.boot) && self.send_for(pod, call, limit)
    }

    /// As `request`, but also while a call of the same key is in flight: a stop with a shorter timeout.
    pub(super) fn send(&mut self, call: impl Into<Call>, limit: Duration) -> bool {
        self.send_for(Arc::clone(&self.facts.record.pod), call, limit)
    }

    fn send_for(&mut self, pod: Arc<Pod>, call: impl Into<Call>, limit: Duration) -> bool {
        let (facts, ctx, call) = (&mut *self.facts, &mut *self.ctx, call.into());
        if call.changes_runtime() {
            // A plan on an outdated observation could start a container twice; a stop is always safe.
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
        let uid = facts.record.uid.clone();
        self.out.effects.push(Effect::Call { id, uid, pod, call, limit });
        true
    }

    pub(super) fn cancel(&mut self, test: impl Fn(&Call) -> bool) {
        let cancelled = self.facts.calls.cancel(test);
        self.out.effects.extend(cancelled.into_iter().map(|id| Effect::Cancel { id }));
    }

    pub(super) fn stop_sandbox(&mut self, id: &SandboxId) -> bool {
        self.request(RuntimeCall::StopSandbox { id: id.clone() }, self.ctx.config.runtime_request_timeout)
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
    /// Converts a wall-clock time to the boot clock: never in the past, so that a jump of the wall clock cannot block the pod.
    pub(super) fn boot_time(&self, wall: jiff::Timestamp) -> Duration {
        let ahead = wall.duration_since(self.now.wall);
        self.now.boot + Duration::try_from(ahead).unwrap_or(Duration::ZERO)
    }

    /// Converts a time of the boot clock to a form that survives a restart of the agent and a reboot.
    pub(super) fn saved_time(&self, boot: Time) -> SavedTime {
        let left = boot.saturating_sub(self.now.boot);
        let wall = jiff::SignedDuration::try_from(left).ok().and_then(|left| self.now.wall.checked_add(left).ok());
        SavedTime { boot_id: self.config.boot_id.clone(), boot, wall: wall.unwrap_or(self.now.wall) }
    }
}
