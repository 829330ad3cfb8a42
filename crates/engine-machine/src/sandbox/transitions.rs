//! The transitions of a sandbox: what each event does in each state.

use std::collections::BTreeSet;
use std::mem;
use std::time::Duration;

use super::{
    AdoptError, FailedRun, RemovePhase, Sandbox, SandboxEffect, SandboxEvent, SandboxRecordState, SandboxStep,
};
use super::{Shim, State, StopPhase, Teardown};
use crate::container::Found;
use crate::mutate::{MachineMutant, made};
use crate::stop::answer_all;
use crate::{ContainerId, Failure, Lifecycle, MachineEffect, MachineTime, WaiterId};

/// A sandbox while it handles an event.
pub(super) struct SandboxTransitions<'a>(pub(super) &'a mut Sandbox);

impl SandboxTransitions<'_> {
    pub(super) fn handle(&mut self, event: SandboxEvent, now: MachineTime, out: &mut Vec<MachineEffect>) {
        match event {
            SandboxEvent::Stop(waiter) => self.stop(waiter, out),
            SandboxEvent::Remove(waiter) => self.remove(waiter, out),
            SandboxEvent::Abandon(waiter) => self.abandon(waiter),
            SandboxEvent::StepDone(step, result) => self.step_done(step, result, out),
            SandboxEvent::Adopted(result) => self.adopted(result, now, out),
            SandboxEvent::ShimLost => self.shim_lost(now, out),
            SandboxEvent::PauseExited => self.pause_exited(out),
        }
    }

    fn stop(&mut self, waiter: WaiterId, out: &mut Vec<MachineEffect>) {
        match &mut self.0.state {
            State::Creating { queued: teardown, .. } | State::Stopping { teardown, .. } => {
                teardown.stops.insert(waiter);
            }
            State::NotReady { .. } | State::Removing { .. } | State::Gone if self.0.held.is_empty() => {
                out.push(MachineEffect::Answer(waiter, Ok(())));
            }
            _ => self.begin_stop(Teardown { stops: BTreeSet::from([waiter]), ..Teardown::default() }, out),
        }
    }

    fn remove(&mut self, waiter: WaiterId, out: &mut Vec<MachineEffect>) {
        match &mut self.0.state {
            State::Creating { queued: teardown, .. } | State::Stopping { teardown, .. } => {
                teardown.removal.get_or_insert_default().insert(waiter);
            }
            State::Removing { waiters, .. } => {
                waiters.insert(waiter);
            }
            State::Gone => out.push(MachineEffect::Answer(waiter, Ok(()))),
            State::NotReady { adopting: false } if self.0.held.is_empty() => {
                self.begin_removal(BTreeSet::from([waiter]), None);
            }
            State::Ready { .. } | State::NotReady { .. } => {
                let removal = Some(BTreeSet::from([waiter]));
                self.begin_stop(Teardown { removal, ..Teardown::default() }, out);
            }
        }
    }

    fn abandon(&mut self, waiter: WaiterId) {
        match &mut self.0.state {
            State::Creating { run, queued, .. } => {
                run.take_if(|run| *run == waiter);
                queued.abandon(waiter);
            }
            State::Stopping { teardown, .. } => teardown.abandon(waiter),
            State::Removing { waiters, failed_run, .. } => {
                waiters.remove(&waiter);
                if let Some(failed) = failed_run {
                    failed.run.take_if(|run| *run == waiter);
                }
            }
            State::Ready { .. } | State::NotReady { .. } | State::Gone => {}
        }
    }

    /// From here on nothing is created or started in it. The record says so before anything is undone.
    fn begin_stop(&mut self, teardown: Teardown, out: &mut Vec<MachineEffect>) {
        let adopting = self.0.is_adopting();
        if teardown.failed_run.is_none() {
            self.0.emit(SandboxEffect::Persist(SandboxRecordState::NotReady(self.0.held)), out);
        }
        self.0.state = State::Stopping { phase: StopPhase::Containers { adopting }, teardown };
    }

    fn begin_removal(&mut self, waiters: BTreeSet<WaiterId>, failed_run: Option<FailedRun>) {
        self.0.state = State::Removing { phase: RemovePhase::Containers, waiters, failed_run };
    }

    fn step_done(&mut self, step: SandboxStep, result: Result<(), Failure>, out: &mut Vec<MachineEffect>) {
        match &mut self.0.state {
            State::Creating { step: current, broken, .. } if *current == step => {
                let lost = || Failure::new("the shim or the pause process ended during RunPodSandbox");
                let result = if *broken { result.and(Err(lost())) } else { result };
                match result {
                    Ok(()) => self.next_step(step, out),
                    Err(failure) => self.run_failed(failure, out),
                }
            }
            State::Stopping { phase, .. } if *phase == StopPhase::Undo(step) => match result {
                Ok(()) => {
                    self.0.held.undone(step);
                    self.undo_next(out);
                }
                Err(failure) => self.teardown_failed(&failure, out),
            },
            State::Removing { phase: RemovePhase::Files, waiters, failed_run } if step == SandboxStep::RemoveFiles => {
                let (waiters, failed_run) = (mem::take(waiters), failed_run.take());
                match result {
                    Ok(()) => self.removed(waiters, failed_run, out),
                    Err(failure) => self.removal_failed(waiters, failed_run, &failure, out),
                }
            }
            _ => {}
        }
    }

    /// The next step of Run.
    fn next_step(&mut self, done: SandboxStep, out: &mut Vec<MachineEffect>) {
        let State::Creating { step, planned, run, queued, .. } = &mut self.0.state else { return };
        let next = match done {
            SandboxStep::WriteRecord => Some(SandboxStep::ForkShim),
            SandboxStep::ForkShim => Some(SandboxStep::SetUpNamespaces),
            SandboxStep::SetUpNamespaces => Some(SandboxStep::Attach),
            _ => None,
        };
        if let Some(next) = next {
            *step = next;
            self.0.held.begun(next, *planned);
            return self.0.emit(SandboxEffect::Step(next), out);
        }
        let (run, queued) = (run.take(), mem::take(queued));
        self.0.held = *planned;
        self.0.state = State::Ready { shim: Shim::Connected, losses: vec![] };
        self.0.emit(SandboxEffect::Persist(SandboxRecordState::Ready(self.0.held)), out);
        self.0.emit(SandboxEffect::Publish(Lifecycle::Created), out);
        self.0.emit(SandboxEffect::Publish(Lifecycle::Started), out);
        answer_all(run, Ok(()), out);
        if queued.is_requested() {
            self.begin_stop(queued, out);
        }
    }

    fn run_failed(&mut self, failure: Failure, out: &mut Vec<MachineEffect>) {
        let State::Creating { run, queued, .. } = &mut self.0.state else { return };
        let failed_run = Some(FailedRun { run: run.take(), failure });
        let teardown = Teardown { failed_run, ..mem::take(queued) };
        self.begin_stop(teardown, out);
    }

    /// The next step of a stop, or its end.
    fn undo_next(&mut self, out: &mut Vec<MachineEffect>) {
        let State::Stopping { phase, teardown } = &mut self.0.state else { return };
        if let Some(step) = self.0.held.next_undo() {
            *phase = StopPhase::Undo(step);
            return self.0.emit(SandboxEffect::Step(step), out);
        }
        let Teardown { stops, removal, failed_run } = mem::take(teardown);
        self.0.state = State::NotReady { adopting: false };
        if failed_run.is_none() {
            self.0.emit(SandboxEffect::Persist(SandboxRecordState::NotReady(self.0.held)), out);
            self.publish_stop(out);
        }
        answer_all(stops, Ok(()), out);
        if removal.is_some() || failed_run.is_some() {
            self.begin_removal(removal.unwrap_or_default(), failed_run);
        }
    }

    fn teardown_failed(&mut self, failure: &Failure, out: &mut Vec<MachineEffect>) {
        let State::Stopping { teardown, .. } = &mut self.0.state else { return };
        let Teardown { stops, removal, failed_run } = mem::take(teardown);
        self.removal_failed(removal.unwrap_or_default(), failed_run, failure, out);
        answer_all(stops, Err(failure), out);
    }

    /// A stop or a removal failed: the sandbox is listed, so that a later call or the sweep can finish it.
    fn removal_failed(
        &mut self,
        waiters: BTreeSet<WaiterId>,
        failed_run: Option<FailedRun>,
        failure: &Failure,
        out: &mut Vec<MachineEffect>,
    ) {
        self.0.state = State::NotReady { adopting: false };
        self.0.emit(SandboxEffect::Persist(SandboxRecordState::NotReady(self.0.held)), out);
        answer_all(waiters, Err(failure), out);
        if let Some(FailedRun { run, failure }) = failed_run {
            answer_all(run, Err(&failure), out);
        }
    }

    fn removed(&mut self, waiters: BTreeSet<WaiterId>, failed_run: Option<FailedRun>, out: &mut Vec<MachineEffect>) {
        self.0.state = State::Gone;
        match failed_run {
            Some(FailedRun { run, failure }) => answer_all(run, Err(&failure), out),
            None => self.0.emit(SandboxEffect::Publish(Lifecycle::Deleted), out),
        }
        answer_all(waiters, Ok(()), out);
    }

    /// A container could not be removed: neither can the sandbox.
    pub(super) fn container_not_removed(&mut self, failure: &Failure, out: &mut Vec<MachineEffect>) {
        if let State::Removing { phase: RemovePhase::Containers, waiters, failed_run } = &mut self.0.state {
            let (waiters, failed_run) = (mem::take(waiters), failed_run.take());
            self.removal_failed(waiters, failed_run, failure, out);
        }
    }

    /// Moves on when its containers have ended or are gone. True if it did.
    pub(super) fn containers_changed(&mut self, running: bool, present: bool, out: &mut Vec<MachineEffect>) -> bool {
        match &mut self.0.state {
            State::Stopping { phase: StopPhase::Containers { adopting: false }, .. }
                if !running || made(MachineMutant::SandboxDoesNotWait) =>
            {
                self.undo_next(out);
                true
            }
            State::Removing { phase, .. } if *phase == RemovePhase::Containers && !present => {
                *phase = RemovePhase::Files;
                self.0.emit(SandboxEffect::Step(SandboxStep::RemoveFiles), out);
                true
            }
            _ => false,
        }
    }

    fn shim_lost(&mut self, now: MachineTime, out: &mut Vec<MachineEffect>) {
        match &mut self.0.state {
            // The shim would have sent this result.
            State::Creating { step: SandboxStep::SetUpNamespaces, .. } => {
                self.run_failed(Failure::new("the shim ended while it made the namespaces"), out);
            }
            State::Creating { broken, .. } => *broken = true,
            State::Ready { .. } => {
                self.count_loss(now, out, |_| SandboxEffect::Step(SandboxStep::Adopt));
            }
            State::Stopping { phase: phase @ StopPhase::Containers { .. }, .. } => {
                *phase = StopPhase::Containers { adopting: false };
            }
            State::Stopping { phase: StopPhase::Undo(SandboxStep::ShutDownShim), .. } => {
                self.0.held.undone(SandboxStep::ShutDownShim);
                self.undo_next(out);
            }
            State::NotReady { adopting } => *adopting = false,
            State::Stopping { .. } | State::Removing { .. } | State::Gone => {}
        }
    }

    /// Replaces a lost shim, unless too many were lost. `retry` gets their number.
    fn count_loss(
        &mut self,
        now: MachineTime,
        out: &mut Vec<MachineEffect>,
        retry: impl FnOnce(usize) -> SandboxEffect,
    ) {
        let State::Ready { shim, losses } = &mut self.0.state else { return };
        losses.retain(|at| now.saturating_sub(*at) < LOSS_PERIOD);
        losses.push(now);
        if losses.len() >= LOSSES_MAX {
            return self.degrade(false, out);
        }
        *shim = Shim::Adopting;
        let retry = retry(losses.len());
        self.0.emit(retry, out);
    }

    /// Not ready any more, without a request. Its containers can still be stopped.
    fn degrade(&mut self, adopting: bool, out: &mut Vec<MachineEffect>) {
        self.0.state = State::NotReady { adopting };
        self.0.emit(SandboxEffect::Persist(SandboxRecordState::NotReady(self.0.held)), out);
        self.publish_stop(out);
    }

    fn adopted(
        &mut self,
        result: Result<Vec<(ContainerId, Found)>, AdoptError>,
        now: MachineTime,
        out: &mut Vec<MachineEffect>,
    ) {
        match &mut self.0.state {
            State::Ready { shim, .. } if *shim == Shim::Adopting => match result {
                Ok(_) => *shim = Shim::Connected,
                Err(AdoptError::NamespacesLost) => self.degrade(false, out),
                // Without a pause a shortage of memory for some milliseconds would use up all tries.
                Err(AdoptError::Failed(_)) => self.count_loss(now, out, |losses| {
                    SandboxEffect::AdoptAfter(if losses == 1 { RETRY_FIRST } else { RETRY_LATER })
                }),
            },
            State::Stopping { phase: StopPhase::Containers { adopting }, .. } | State::NotReady { adopting } => {
                *adopting = false;
            }
            _ => {}
        }
    }

    fn pause_exited(&mut self, out: &mut Vec<MachineEffect>) {
        match &mut self.0.state {
            State::Creating { broken, .. } => *broken = true,
            State::Ready { .. } => {
                self.0.held.pause = false;
                self.degrade(self.0.is_adopting(), out);
            }
            // The step that ends it, or a later stop, counts it.
            State::Stopping { .. } | State::NotReady { .. } | State::Removing { .. } | State::Gone => {}
        }
    }

    fn publish_stop(&mut self, out: &mut Vec<MachineEffect>) {
        if !mem::replace(&mut self.0.stop_published, true) {
            self.0.emit(SandboxEffect::Publish(Lifecycle::Stopped), out);
        }
    }
}

/// A sandbox whose shims are lost this often within [`LOSS_PERIOD`] is given up.
const LOSSES_MAX: usize = 3;
const LOSS_PERIOD: Duration = Duration::from_secs(60);
/// After a failed adoption: the containers run on, but their output is not read meanwhile.
const RETRY_FIRST: Duration = Duration::from_secs(2);
const RETRY_LATER: Duration = Duration::from_secs(10);
