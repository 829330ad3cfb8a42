//! The termination of a pod: its request, its deadline, and the plan that stops what runs, containers first, then sandboxes.

mod container_stops;

use std::time::Duration;

use super::step::PodStep;
use super::{Ctx, KillOptions, PodFacts};
use crate::model::{Call, Cause, HookKind, HostCall, Life, RuntimeCall, SandboxId, Termination, spec_of};
use crate::mutate::{self, Mutant};

pub(super) use container_stops::ContainerStops;

/// A container gets at least this long between TERM and KILL.
const MIN_STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// The grace period of an orphan before its first observation, which shows the labels with its own. No label has more.
pub(crate) const GRACE_OF_LABELS: Duration = Duration::from_secs(24 * 3600);

/// Requests the termination. The first cause stays, the deadline only moves earlier.
pub(super) fn request(facts: &mut PodFacts, cause: Cause, options: KillOptions, ctx: &Ctx<'_>) {
    if facts.record.is_terminated() {
        if matches!(cause, Cause::Deleted | Cause::Orphan) {
            mark_deleted(facts);
        }
        return;
    }
    let before = facts.record.termination().cloned();
    let (grace, shortened) = effective_grace(facts, before.as_ref().map(|e| e.grace), options.grace);
    let due = ctx.now.boot + if mutate::is_active(Mutant::GraceTwice) { grace * 2 } else { grace };
    let deadline = match &before {
        Some(_) if mutate::is_active(Mutant::DeadlineMovesLater) => due,
        Some(e) => e.deadline.resume(&ctx.config.boot_id).min(due),
        None => due,
    };
    if before.is_none() || shortened {
        let why = format!("{}, grace period {} s", describe_cause(cause), grace.as_secs());
        let what = if before.is_none() { "termination requested" } else { "deadline moved earlier" };
        facts.history.record(ctx.now, what, &why);
    }
    let deleted = matches!(cause, Cause::Deleted | Cause::Orphan);
    let termination = Termination {
        admitted: facts.record.was_admitted(),
        restart_requested: facts.record.restart_requested(),
        cause: before.as_ref().map_or(cause, |e| e.cause),
        deleted: deleted || before.as_ref().is_some_and(|e| e.deleted),
        grace,
        deadline: ctx.saved_time(deadline),
        exceeded_limit: before.as_ref().map_or(options.exceeded_limit, |e| e.exceeded_limit),
        status_override: options.evicted.or(before.as_ref().and_then(|e| e.status_override.clone())),
    };
    facts.record.change_life(|life| life.begin_termination(termination));
}

/// It was deleted, or left config: its content is removed, and a new instance under its UID may follow.
pub(super) fn mark_deleted(facts: &mut PodFacts) {
    facts.record.change_life(|life| match life.termination_mut() {
        Some(termination) => !std::mem::replace(&mut termination.deleted, true),
        None => false,
    });
}

/// A new instance under this UID was requested while this one terminates.
pub(super) fn request_restart(facts: &mut PodFacts) {
    facts.record.change_life(|life| match life.termination_mut() {
        Some(termination) => !std::mem::replace(&mut termination.restart_requested, true),
        None => false,
    });
}

/// The minimum of the given grace periods; the pod's own only if none is given; at least a second. True if the result is shorter
/// than before.
fn effective_grace(facts: &PodFacts, current: Option<Duration>, requested: Option<Duration>) -> (Duration, bool) {
    let seconds = |n: i64| Duration::from_secs(u64::try_from(n).unwrap_or(0));
    let pod = &facts.record.pod;
    let deletion = pod.metadata.deletion_grace_period_seconds.map(seconds);
    let own = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds).map(seconds);
    let grace = [current, deletion, requested].into_iter().flatten().min().or(own).unwrap_or(Duration::from_secs(30));
    let grace = grace.max(Duration::from_secs(1));
    (grace, current.is_some_and(|c| grace < c))
}

/// The grace period for one container of a pod that keeps running: the pod's own, else two seconds.
pub(super) fn container_grace(facts: &PodFacts) -> Duration {
    let seconds = spec_of(&facts.record.pod).termination_grace_period_seconds;
    seconds.map_or(MIN_STOP_TIMEOUT, |s| Duration::from_secs(u64::try_from(s).unwrap_or(0)))
}

/// Why a pod terminates, for its history.
pub(super) fn describe_cause(cause: Cause) -> &'static str {
    match cause {
        Cause::Deleted => "the pod was deleted",
        Cause::Evicted => "the pod is evicted",
        Cause::Removed => "its manifest was removed",
        Cause::Ended => "no container is to be restarted",
        Cause::Orphan => "no source has this pod",
        Cause::Stopped => "stopped by a user",
        Cause::Shutdown => "the node shuts down",
    }
}

impl ContainerStops {
    /// The plan of a terminating pod.
    pub(super) fn plan_termination(&mut self, step: &mut PodStep<'_, '_>) {
        if !step.facts.observed.known() {
            return;
        }
        take_grace_of_labels(step.facts, step.ctx);
        let Life::Terminating(termination) = &step.facts.record.life else { return };
        let deadline = termination.deadline.resume(&step.ctx.config.boot_id);
        self.set_pod_deadline(deadline);
        let alive: Vec<_> = step.facts.observed.seen.alive().map(|c| c.id.clone()).collect();
        for id in &alive {
            // Go's killPodWithSyncResult: why the pod ends is in its status, not in the events of its containers.
            self.add(id, deadline, "");
        }
        self.proceed(step);
        let now = step.now().boot;
        let stopped_long_ago = self.all_overdue(&alive, now) || mutate::is_active(Mutant::NoTimeAfterOutage);
        let overdue = now >= deadline + MIN_STOP_TIMEOUT && stopped_long_ago;
        if (alive.is_empty() && step.facts.observed.fresh() && !step.facts.calls.starting()) || overdue {
            self.stop_all_sandboxes(step);
        }
        if self.nothing_left(step.facts) {
            step.facts.record.change_life(Life::terminated);
        }
    }

    /// Observed after our last call: nothing runs, and nothing can start any more.
    fn nothing_left(&self, facts: &PodFacts) -> bool {
        facts.observed.fresh()
            && !facts.calls.any(Call::changes_runtime)
            && !facts.calls.in_doubt()
            && facts.observed.seen.is_stopped()
            && facts.observed.seen.sandboxes.iter().all(|s| self.is_sandbox_stopped(&s.id))
    }

    fn stop_all_sandboxes(&self, step: &mut PodStep<'_, '_>) {
        let sandboxes = step.facts.observed.seen.sandboxes.iter();
        let stop: Vec<_> =
            sandboxes.filter(|s| s.ready || !self.is_sandbox_stopped(&s.id)).map(|s| s.id.clone()).collect();
        for id in stop {
            // One that we stopped and that still looks ready is observed again first.
            if !self.is_sandbox_stopped(&id) || step.facts.observed.fresh() {
                step.stop_sandbox(&id);
            }
        }
    }
}

/// The spec of an orphan is lost; its containers carry the grace period they were created with.
fn take_grace_of_labels(facts: &mut PodFacts, ctx: &Ctx<'_>) {
    if facts.record.termination().is_some_and(|e| e.cause == Cause::Orphan && e.grace == GRACE_OF_LABELS) {
        let grace = facts.observed.seen.alive().filter_map(|c| c.grace).max().unwrap_or(MIN_STOP_TIMEOUT);
        let grace = grace.min(GRACE_OF_LABELS - MIN_STOP_TIMEOUT);
        request(facts, Cause::Orphan, KillOptions { grace: Some(grace), ..KillOptions::default() }, ctx);
    }
}

/// Stops sandboxes that a call in doubt brought up after the termination. True if there was one.
pub(super) fn stop_surfaced(step: &mut PodStep<'_, '_>) -> bool {
    let sandboxes = step.facts.observed.seen.sandboxes.iter();
    let ready: Vec<SandboxId> = sandboxes.filter(|s| s.ready).map(|s| s.id.clone()).collect();
    if step.facts.observed.fresh() {
        for id in &ready {
            step.stop_sandbox(id);
        }
    }
    !ready.is_empty()
}

/// Calls that a termination cancels: they only prepare a start. A call that may start something in the runtime is awaited.
pub(super) fn is_interruptible(call: &Call) -> bool {
    matches!(
        call,
        Call::Runtime(
            RuntimeCall::PullImage { .. }
                | RuntimeCall::ImageStatus { .. }
                | RuntimeCall::Hook { kind: HookKind::PostStart, .. }
        ) | Call::Host(HostCall::PrepareContainer { .. } | HostCall::MakeDirs | HostCall::MountVolume { .. })
    )
}
