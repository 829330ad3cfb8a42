//! The work of this process on one pod, and the plan of each state. Nothing here is journaled: a restarted agent observes the pod
//! instead.

use super::bring_up::BringUp;
use super::cleanup::{self, Cleanup};
use super::probing::Probing;
use super::record_update;
use super::resizing::Resizing;
use super::setup::Setup;
use super::step::PodStep;
use super::termination::{self, ContainerStops};
use super::{KillOptions, PodFacts, State, hooks, stuck};
use crate::actions::{self, Actions, Inputs};
use crate::model::{Cause, Now, RuntimeCall, Time};
use crate::mutate::{self, Mutant};
use crate::status;

/// Work of this process on the pod, done and in progress.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Progress {
    pub(super) setup: Setup,
    #[serde(default)]
    pub(super) resizing: Resizing,
    pub(super) bring_up: BringUp,
    pub(super) stops: ContainerStops,
    pub(super) probing: Probing,
    pub(super) cleanup: Cleanup,
}

impl Progress {
    /// Compares the desired with the observed state, and requests the missing calls.
    pub(super) fn advance(&mut self, step: &mut PodStep<'_, '_>) {
        match step.facts.state() {
            State::Waiting => {}
            State::Syncing => self.sync(step),
            State::Terminating => {
                step.cancel(termination::is_interruptible);
                self.probing.plan(step);
                self.stops.plan_termination(step);
            }
            State::Terminated => {
                self.probing.stop_all();
                self.cleanup.plan_terminated(step);
            }
            State::Finished => self.cleanup.plan_finished(step),
        }
    }

    /// Starts the pod and keeps it running: host work first, then the sandbox, then its containers.
    fn sync(&mut self, step: &mut PodStep<'_, '_>) {
        if step.facts.hold.is_some() || !step.facts.observed.known() || ended(&self.bring_up, &self.setup, step) {
            return;
        }
        self.probing.plan(step);
        if step.ctx.source_not_synced || !self.setup.plan(step) {
            return;
        }
        if !step.facts.observed.fresh() || step.facts.calls.in_doubt() {
            return self.stops.proceed(step);
        }
        if self.setup.stop_outside(&mut self.stops, step) {
            return;
        }
        hooks::plan_post_start(step);
        let waits_for_cgroup = self.resizing.plan(&self.setup, step);
        let actions = self.actions(step);
        self.act(&actions, waits_for_cgroup, step);
        cleanup::remove_dead(step);
    }

    fn actions(&self, step: &PodStep<'_, '_>) -> Actions {
        actions::pod_actions(&Inputs {
            pod: &step.facts.record.pod,
            seen: &step.facts.observed.seen,
            record: &step.facts.record,
            probes: self.probing.failures(),
            restart_now: self.bring_up.restart_now(),
            now: step.ctx.now,
            backoff_max: step.ctx.config.backoff_max,
            hash: crate::hash::container_hash,
        })
    }

    fn act(&mut self, actions: &Actions, waits_for_cgroup: bool, step: &mut PodStep<'_, '_>) {
        journal_plan(step.facts, actions);
        self.bring_up.waiting.follow_plan(&actions.waiting, step);
        for kill in &actions.kill {
            let grace = kill.grace.unwrap_or_else(|| termination::container_grace(step.facts));
            self.bring_up.restart_begun(&kill.name);
            self.stops.add(&kill.id, step.now().boot + grace, &kill.message);
        }
        self.stops.proceed(step);
        for id in &actions.stop_sandboxes {
            if !step.facts.observed.seen.alive().any(|c| c.sandbox == *id) {
                step.stop_sandbox(id);
            }
        }
        if actions.kill_pod {
            termination::request(step.facts, Cause::Ended, KillOptions::default(), step.ctx);
            return;
        }
        let sandbox = match actions.create_sandbox {
            Some(attempt) => {
                self.create_sandbox(attempt, actions, step);
                None
            }
            None => step.facts.current_sandbox(),
        };
        if waits_for_cgroup {
            return;
        }
        let wake_at = actions.wake_at.map(|at| step.ctx.boot_time(at));
        self.bring_up.plan(&actions.start, sandbox.as_ref(), wake_at, step);
    }

    fn create_sandbox(&self, attempt: u32, actions: &Actions, step: &mut PodStep<'_, '_>) {
        match actions.replaces.as_ref().filter(|id| !self.stops.is_sandbox_stopped(id)) {
            // Stopping the dead one releases its network.
            Some(id) => {
                let message = "Pod sandbox changed, it will be killed and re-created.";
                if step.stop_sandbox(id) {
                    step.notify("SandboxChanged", None, message.into());
                }
            }
            None => {
                let limit = step.ctx.config.runtime_request_timeout * 2;
                step.request(RuntimeCall::RunSandbox { attempt }, limit);
            }
        }
    }

    /// An observation changed the observed state.
    pub(super) fn observation_changed(&mut self, facts: &mut PodFacts, now: Now) {
        record_update::update_record(facts, now);
        let seen = &facts.observed.seen;
        self.stops.retain(|id| seen.container(id).is_some_and(|c| c.state.may_run()));
    }

    /// Objects that the pod refers to have changed: what they are needed for is tried again at once.
    pub(super) fn objects_changed(&mut self, facts: &mut PodFacts) {
        facts.calls.reset_volume_backoff();
        self.setup.objects_changed(facts);
        self.bring_up.waiting.objects_changed(facts);
    }

    /// When to step again, if nothing else happens.
    pub(super) fn wake(&self, facts: &PodFacts, now: Now) -> Option<Time> {
        let probe = self.probing.wake(&facts.calls);
        let stop = self.stops.wake(now.boot);
        let mine = match facts.state() {
            State::Syncing => {
                // The deadline does not apply before the first observation and while the pod is held.
                let deadline = facts.active_deadline(now).filter(|_| facts.observed.known() && facts.hold.is_none());
                [self.bring_up.wake(now.boot), probe, stop, deadline].into_iter().flatten().min()
            }
            State::Terminating => {
                let slow = stuck::sandbox_stops(facts).filter(|at| *at > now.boot);
                [probe, stop].into_iter().flatten().chain(slow).min()
            }
            _ => None,
        };
        mine.into_iter().chain(facts.calls.wake(now.boot)).chain(facts.observed.wake(now.boot)).min()
    }
}

/// Requests the termination of a pod whose containers have all finished or whose active deadline has passed.
fn ended(bring_up: &BringUp, setup: &Setup, step: &mut PodStep<'_, '_>) -> bool {
    let status = step.facts.record.status.as_ref();
    let exceeded = |s| status::active_deadline_exceeded(&step.facts.record.pod, s, step.ctx.now.wall);
    if status.is_some_and(exceeded) && !mutate::is_active(Mutant::NoActiveDeadline) {
        let (reason, message) =
            ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline".to_owned());
        step.notify(reason, None, message.clone());
        let options = KillOptions { evicted: Some((reason.to_owned(), message)), ..KillOptions::default() };
        termination::request(step.facts, Cause::Ended, options, step.ctx);
        return true;
    }
    // Only a fresh observation may end a pod, and nothing that is still starting may be overlooked.
    let input = super::publish::StatusFacts { facts: step.facts, bring_up, setup };
    if !step.facts.may_run_unseen() && input.with_input(step.ctx, status::has_terminal_phase) {
        termination::request(step.facts, Cause::Ended, KillOptions::default(), step.ctx);
        return true;
    }
    false
}

/// Journals the state that the plan depends on, before its calls are sent.
fn journal_plan(facts: &mut PodFacts, actions: &Actions) {
    if let Some(cursor) = &actions.cursor {
        facts.record.set(|r| &mut r.cursor, Some(cursor.clone()));
    }
    let replaced = actions.kill.iter().filter(|k| k.replace).map(|k| (&k.name, &k.id));
    for (name, id) in actions.restart_all.iter().chain(replaced) {
        facts.record.edit_container(name, |memory| memory.voided = Some(id.clone()));
    }
}
