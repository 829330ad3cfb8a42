//! What others ask of a pod.

use std::time::Duration;

use super::{History, Machine, State};
use crate::actions;
use crate::model::{Cause, FullName, Now, PodRecord, PodSeen, SandboxId, Seq, Time, spec_of};

impl Machine {
    /// Where it is in its life.
    pub fn state(&self) -> State {
        self.record.life.state()
    }

    /// Its record.
    pub fn record(&self) -> &PodRecord {
        &self.record
    }

    /// What the runtime has of it, as last seen.
    pub fn seen(&self) -> &PodSeen {
        &self.observed.seen
    }

    /// Its story.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Namespace and name.
    pub fn full_name(&self) -> &FullName {
        &self.full_name
    }

    /// It ends and its source had it no more at some time since, maybe a former agent's: whoever wants it now wants a new life.
    pub(crate) fn left_config(&self) -> bool {
        let left = self.record.termination().is_some_and(|e| e.deleted && self.is_static());
        self.state() >= State::Terminating && (!self.has_config || left)
    }

    /// A source wants it.
    pub fn has_config(&self) -> bool {
        self.has_config
    }

    pub(crate) fn is_static(&self) -> bool {
        self.record.source.is_static()
    }

    /// Its claim on its name: something of it runs, whoever began it; or it had its turn.
    pub(crate) fn claim(&self) -> (bool, bool) {
        (!self.observed.seen.is_stopped(), self.record.was_admitted())
    }

    pub(crate) fn is_quarantined(&self) -> bool {
        self.quarantine.is_some()
    }

    pub(crate) fn is_held(&self) -> bool {
        self.hold.is_some()
    }

    pub(crate) fn is_held_for(&self, reason: &str) -> bool {
        self.hold.as_ref().is_some_and(|h| h.reason == reason)
    }

    pub(crate) fn sight_at(&self) -> Option<Seq> {
        self.observed.at()
    }

    /// Its dead containers, directories and logs are to go.
    pub(crate) fn content_should_go(&self) -> bool {
        self.record
            .termination()
            .is_some_and(|e| e.cause == Cause::Evicted || (e.deleted && self.record.is_terminated()))
    }

    /// When it wants to be woken, if nothing else happens.
    pub(crate) fn wake(&self, now: Now) -> Option<Time> {
        if self.quarantine.is_some() {
            return None;
        }
        let mine = match self.state() {
            State::Syncing => {
                let mine = [self.bring_up.wake(now.boot), self.probing.wake(&self.calls), self.killing.wake(now.boot)];
                // Before it is seen, or while it is held back, nothing ends it.
                let deadline = self.active_deadline(now).filter(|_| self.observed.known() && self.hold.is_none());
                mine.into_iter().flatten().chain(deadline).min()
            }
            State::Terminating => {
                let mine = [self.probing.wake(&self.calls), self.killing.wake(now.boot)];
                let slow = self.sandbox_stops().filter(|at| *at > now.boot);
                mine.into_iter().flatten().chain(slow).min()
            }
            _ => None,
        };
        mine.into_iter().chain(self.calls.wake(now.boot)).chain(self.observed.wake(now.boot)).min()
    }

    /// When `activeDeadlineSeconds` ends it.
    pub(super) fn active_deadline(&self, now: Now) -> Option<Time> {
        let allowed = spec_of(&self.record.pod).active_deadline_seconds?;
        let start = self.record.status.as_ref()?.start_time.as_ref()?.0;
        let due = start.checked_add(jiff::SignedDuration::from_secs(allowed)).ok()?;
        Some(now.boot + Duration::try_from(due.duration_since(now.wall)).unwrap_or(Duration::ZERO))
    }

    /// The minimum of what is present; the pod's own only if nothing is; at least a second.
    pub(super) fn effective_grace(&self, current: Option<Duration>, asked: Option<Duration>) -> (Duration, bool) {
        let seconds = |n: i64| Duration::from_secs(u64::try_from(n).unwrap_or(0));
        let deletion = self.record.pod.metadata.deletion_grace_period_seconds.map(seconds);
        let own = self.record.pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds).map(seconds);
        let grace = [current, deletion, asked].into_iter().flatten().min().or(own).unwrap_or(Duration::from_secs(30));
        let grace = grace.max(Duration::from_secs(1));
        (grace, current.is_some_and(|c| grace < c))
    }

    pub(super) fn current_sandbox(&self) -> Option<SandboxId> {
        actions::current_sandbox(&self.observed.seen, &self.record).map(|s| s.id.clone())
    }

    pub(super) fn ips(&self) -> Vec<String> {
        let current = self.current_sandbox();
        self.observed.seen.sandboxes.iter().find(|s| Some(&s.id) == current.as_ref()).map_or(vec![], |s| s.ips.clone())
    }
}
