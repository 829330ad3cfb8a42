//! The runtime as the node sees it: its health and the last relist.

use crate::health::RuntimeHealth;
use crate::model::{CallError, Effect, Listing, PodUid, RuntimeReady, Seq, Time};
use crate::node_status::RuntimeFacts;
use crate::pleg::Pleg;

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct RuntimeState {
    pub(super) health: RuntimeHealth,
    pub(super) pleg: Pleg,
}

impl RuntimeState {
    pub(super) fn facts(&self) -> &RuntimeFacts {
        self.health.facts()
    }

    pub(super) fn is_up(&self) -> bool {
        self.health.up
    }

    pub(super) fn is_pending(&self) -> bool {
        self.health.is_pending()
    }

    /// It answers, and its pods are known from a complete list.
    pub(super) fn is_listed(&self) -> bool {
        self.health.up && self.pleg.as_of.is_some()
    }

    /// The result of a request about one pod: one that could not reach the runtime starts a check.
    pub(super) fn note_result<T>(&mut self, uid: &PodUid, result: &Result<T, CallError>, now: Time) {
        if result.as_ref().is_err_and(CallError::is_unavailable) {
            self.health.unavailable_for(uid, now);
        }
    }

    /// The event stream was connected or lost. True if the runtime has restarted, so that every pod is planned again.
    pub(super) fn on_event_stream(&mut self, up: bool, now: Time) -> bool {
        // A stream that reconnects shows that the runtime is up: the periodic check is not waited for.
        if !up || !self.health.up {
            self.health.check_now(now);
        }
        if !self.pleg.stream(up, now) {
            return false;
        }
        // The runtime restarted too quickly for any check to notice: calls that failed meanwhile are retried at once.
        self.health.outages += 1;
        true
    }

    /// A relist finished. False if it failed.
    pub(super) fn on_listed(&mut self, seq: Seq, result: Result<Listing, CallError>, now: Time) -> bool {
        if result.as_ref().is_err_and(CallError::is_unavailable) {
            self.health.assume_down(now);
        }
        let listing = result.ok();
        let complete = listing.is_some();
        self.pleg.listed(seq, listing);
        complete
    }

    /// A health check finished. True if the runtime has become reachable or its network state changed.
    pub(super) fn on_checked(
        &mut self,
        result: Result<RuntimeReady, CallError>,
        now: Time,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let before = self.health.facts().clone();
        let changed = self.health.checked(result, now);
        if *self.health.facts() != before {
            effects.push(Effect::RuntimeChanged);
        }
        if changed {
            // Pods that waited continue after one complete list.
            self.pleg.request();
        }
        changed
    }

    /// Requests the health check and the relist when they are due.
    pub(super) fn schedule(&mut self, seq: &mut Seq, now: Time, effects: &mut Vec<Effect>) {
        if self.health.begin(now) {
            effects.push(Effect::CheckRuntime);
        }
        if self.health.up
            && let Some(seq) = self.pleg.begin(seq, now)
        {
            effects.push(Effect::List { seq });
        }
    }

    pub(super) fn wake(&self) -> Option<Time> {
        let list = if self.health.up { self.pleg.wake() } else { None };
        list.into_iter().chain(self.health.wake()).min()
    }
}
