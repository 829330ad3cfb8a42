//! The status of a pod, computed from what is known, and published when it changes.

use super::bring_up::BringUp;
use super::progress::Progress;
use super::setup::Setup;
use super::{Ctx, PodFacts, State, stuck, waits};
use crate::model::{CallKey, Out, PodStatus};
use crate::status;

/// Inputs of a status.
pub(super) struct StatusFacts<'a> {
    pub(super) facts: &'a PodFacts,
    pub(super) bring_up: &'a BringUp,
    pub(super) setup: &'a Setup,
}

impl StatusFacts<'_> {
    pub(super) fn with_input<T>(&self, ctx: &Ctx<'_>, compute: impl FnOnce(&status::StatusInput<'_>) -> T) -> T {
        let facts = self.facts;
        let trouble = self.trouble();
        compute(&status::StatusInput {
            pod: &facts.record.pod,
            seen: &facts.observed.seen,
            record: &facts.record,
            waiting: &self.bring_up.waiting,
            hold: facts.hold.as_ref(),
            trouble: trouble.as_deref(),
            host_ips: &ctx.config.host_ips,
            runtime: ctx.runtime,
            now: ctx.now.wall,
            unsure: !facts.record.is_terminated() && facts.may_run_unseen(),
            is_static: facts.is_static(),
        })
    }

    /// The last failure of the setup of the pod while it starts.
    fn trouble(&self) -> Option<String> {
        if self.facts.state() != State::Syncing {
            return None;
        }
        if self.setup.is_network_missing() {
            return Some("NetworkNotReady: the runtime has no network for pods yet".into());
        }
        let whole =
            |key: &CallKey| matches!(key, CallKey::RunSandbox | CallKey::Volume(_) | CallKey::Cgroup | CallKey::Dirs);
        let mut failing = self.facts.calls.retries().filter(|(key, _)| whole(key));
        let state = self.facts.state();
        failing.find_map(|(key, retry)| Some(format!("{}: {}", waits::reason_of(key, state), retry.message.as_ref()?)))
    }
}

/// Publishes the status if it changed.
pub(super) fn publish(facts: &mut PodFacts, progress: &Progress, ctx: &Ctx<'_>, out: &mut Out) {
    let Some(status) = new_status(facts, progress, ctx, out) else { return };
    if facts.record.status.as_ref() != Some(&status) {
        note_phase(facts, &status, ctx);
        facts.record.set(|r| &mut r.status, Some(status));
    }
}

fn new_status(facts: &PodFacts, progress: &Progress, ctx: &Ctx<'_>, out: &mut Out) -> Option<PodStatus> {
    let stuck = stuck::stuck(facts, &progress.stops, ctx.now);
    let old = facts.record.status.as_ref();
    let mark = |status| status::stuck(status, old, stuck.as_ref(), ctx.now.wall);
    // Before the first observation the journaled status is kept: a new one would be computed from an empty state.
    if let Some(remembered) = old.filter(|_| !facts.observed.known()) {
        return stuck.is_some().then(|| mark(remembered.clone()));
    }
    let input = StatusFacts { facts, bring_up: &progress.bring_up, setup: &progress.setup };
    let computed = mark(input.with_input(ctx, status::pod_status));
    let Some(old) = old else { return Some(computed) };
    let is_replaced = |name: &str| facts.record.containers.get(name).is_some_and(|m| m.voided.is_some());
    match status::check_transition(old, computed, &facts.record.pod, is_replaced) {
        Ok(status) => Some(status),
        Err(illegal) => {
            facts.event(true, "FailedSync", None, format!("status refused: {illegal}"), out);
            None
        }
    }
}

fn note_phase(facts: &mut PodFacts, status: &PodStatus, ctx: &Ctx<'_>) {
    let old = facts.record.status.as_ref().and_then(|s| s.phase.clone());
    if old != status.phase {
        let cause = match (&status.reason, &status.message) {
            (Some(reason), Some(message)) => format!("{reason}: {message}"),
            (Some(reason), None) => reason.clone(),
            (None, _) => String::new(),
        };
        let phase = status.phase.as_deref().unwrap_or_default();
        facts.history.record(ctx.now, &format!("pod phase is {phase}"), &cause);
    }
}
