//! The transitions of a container: what each event does in each state.

use std::collections::BTreeSet;
use std::mem;
use std::time::Duration;

use super::{Container, ContainerEffect, ContainerEvent, ContainerRecordState, Found, Gate, Launch, Search};
use super::{ShownContainer, SignalPath, State};
use crate::mutate::{MachineMutant, made};
use crate::stop::{Stop, answer_all};
use crate::{ExitRecord, Failure, Lifecycle, MachineEffect, MachineTime, Moment, Refusal, WaiterId};

/// A container while it handles an event.
pub(super) struct ContainerTransitions<'a>(pub(super) &'a mut Container);

impl ContainerTransitions<'_> {
    pub(super) fn handle(&mut self, event: ContainerEvent, gate: Gate, now: Moment, out: &mut Vec<MachineEffect>) {
        match event {
            ContainerEvent::Start(waiter) => self.start(waiter, gate, out),
            ContainerEvent::Stop(waiter, timeout) => self.stop(waiter, timeout, now.boot, out),
            ContainerEvent::Remove(waiter) => self.remove(Some(waiter), now.boot, out),
            ContainerEvent::Abandon(waiter) => self.abandon(waiter, out),
            ContainerEvent::CreateDone(result) => self.create_done(result, out),
            ContainerEvent::Launched => self.launched(now.boot, out),
            ContainerEvent::LaunchFailed(failure) => self.launch_failed(failure.message, now, out),
            ContainerEvent::Exited(record) => self.exited(record, now, out),
            ContainerEvent::ShimLost { adopting } => self.shim_lost(adopting, out),
            ContainerEvent::Adopted(found) => self.adopted(found, now, out),
            ContainerEvent::AdoptionEnded => self.adoption_ended(out),
            ContainerEvent::Watched(found) => self.watched(found, now, out),
            ContainerEvent::Cleaned(result) => self.cleaned(result, now, out),
            ContainerEvent::Wake => self.apply_stop(false, now.boot, out),
            ContainerEvent::ForceStop => self.force_stop(now.boot, out),
            ContainerEvent::ForceRemove => self.remove(None, now.boot, out),
        }
    }

    fn start(&mut self, waiter: WaiterId, gate: Gate, out: &mut Vec<MachineEffect>) {
        let refusal = match &self.0.state {
            State::Created => match gate {
                Gate::Ready => None,
                Gate::Adopting => Some(Refusal::ShimReplaced(self.0.key.sandbox.clone())),
                Gate::NotReady if made(MachineMutant::LaunchWhileStopping) => None,
                Gate::NotReady => Some(Refusal::SandboxNotReady(self.0.key.sandbox.clone())),
            },
            State::Starting { .. } => Some(Refusal::AlreadyStarting),
            State::Creating { .. } | State::Removing { .. } | State::Gone => {
                Some(Refusal::NoContainer(self.0.id.clone()))
            }
            State::Running { .. } => Some(Refusal::NotCreated(ShownContainer::Running)),
            State::Unknown { .. } => Some(Refusal::NotCreated(ShownContainer::Unknown)),
            State::Exited(_) => Some(Refusal::NotCreated(ShownContainer::Exited)),
        };
        if let Some(refusal) = refusal {
            return out.push(MachineEffect::Answer(waiter, Err(refusal)));
        }
        self.0.state = State::Starting { start: Some(waiter), launch: Launch::InFlight, stop: Stop::default() };
        self.0.emit(ContainerEffect::Persist(ContainerRecordState::Starting), out);
        self.0.emit(ContainerEffect::Launch, out);
    }

    fn stop(&mut self, waiter: WaiterId, timeout: Duration, now: MachineTime, out: &mut Vec<MachineEffect>) {
        match &mut self.0.state {
            State::Creating { stops, .. } => {
                stops.insert(waiter);
            }
            State::Starting { stop, .. } | State::Running { stop } | State::Unknown { stop, .. } => {
                stop.request(waiter, timeout, now);
                self.apply_stop(true, now, out);
            }
            State::Created | State::Exited(_) | State::Removing { .. } | State::Gone => {
                out.push(MachineEffect::Answer(waiter, Ok(())));
            }
        }
    }

    fn force_stop(&mut self, now: MachineTime, out: &mut Vec<MachineEffect>) {
        if let State::Starting { stop, .. } | State::Running { stop } | State::Unknown { stop, .. } = &mut self.0.state
        {
            stop.force();
            self.apply_stop(true, now, out);
        }
    }

    fn remove(&mut self, waiter: Option<WaiterId>, now: MachineTime, out: &mut Vec<MachineEffect>) {
        match &mut self.0.state {
            State::Creating { removal, .. } => removal.get_or_insert_default().extend(waiter),
            State::Starting { stop, .. } | State::Running { stop } | State::Unknown { stop, .. } => {
                stop.remove(waiter);
                self.apply_stop(true, now, out);
            }
            State::Removing { waiters, .. } => {
                if made(MachineMutant::JoinedTwice) {
                    out.extend(waiter.map(|waiter| MachineEffect::Answer(waiter, Ok(()))));
                }
                waiters.extend(waiter);
            }
            State::Created | State::Exited(_) => self.clean_up(waiter.into_iter().collect(), out),
            State::Gone => answer_all(waiter, Ok(()), out),
        }
    }

    /// Removes what is left of a container without a process.
    fn clean_up(&mut self, waiters: BTreeSet<WaiterId>, out: &mut Vec<MachineEffect>) {
        let record = match mem::replace(&mut self.0.state, State::Gone) {
            State::Exited(record) => Some(record),
            _ => None,
        };
        self.0.state = State::Removing { record, waiters };
        self.0.emit(ContainerEffect::Cleanup, out);
    }

    fn abandon(&mut self, waiter: WaiterId, out: &mut Vec<MachineEffect>) {
        let is_caller = |caller: &mut WaiterId| *caller == waiter;
        match &mut self.0.state {
            State::Creating { create, stops, removal } => {
                create.take_if(is_caller);
                stops.remove(&waiter);
                removal.as_mut().map(|waiters| waiters.remove(&waiter));
            }
            State::Starting { start, stop, .. } => {
                start.take_if(is_caller);
                stop.abandon(waiter);
            }
            State::Running { stop } | State::Unknown { stop, .. } => {
                stop.abandon(waiter);
                if made(MachineMutant::AbandonKills) {
                    self.0.emit(ContainerEffect::Kill, out);
                }
            }
            State::Removing { waiters, .. } => {
                waiters.remove(&waiter);
            }
            State::Created | State::Exited(_) | State::Gone => {}
        }
    }

    fn create_done(&mut self, result: Result<(), Failure>, out: &mut Vec<MachineEffect>) {
        let State::Creating { create, stops, removal } = &mut self.0.state else { return };
        let (create, stops, removal) = (create.take(), mem::take(stops), removal.take());
        if result.is_ok() {
            self.0.state = State::Created;
            self.0.emit(ContainerEffect::Publish(Lifecycle::Created), out);
        } else {
            self.0.state = State::Gone;
        }
        answer_all(create, result.as_ref().copied(), out);
        answer_all(stops, Ok(()), out);
        match removal {
            Some(waiters) if self.0.state == State::Created => self.clean_up(waiters, out),
            Some(waiters) => answer_all(waiters, Ok(()), out),
            None => {}
        }
    }

    fn launched(&mut self, now: MachineTime, out: &mut Vec<MachineEffect>) {
        let State::Starting { launch: Launch::InFlight, .. } = self.0.state else { return };
        self.runs(None, now, out);
    }

    /// The program of a starting container runs: with its shim, or attached without one.
    fn runs(&mut self, attached: Option<Search>, now: MachineTime, out: &mut Vec<MachineEffect>) {
        let State::Starting { start, stop, .. } = &mut self.0.state else { return };
        let (start, mut stop) = (start.take(), mem::take(stop));
        if made(MachineMutant::StopLostInStart) {
            stop = Stop::default();
        }
        let kill = stop.kill_again_now(now);
        self.0.state = match attached {
            None => State::Running { stop },
            Some(search) => State::Unknown { stop, search },
        };
        self.0.emit(ContainerEffect::Persist(ContainerRecordState::Running), out);
        self.0.emit(ContainerEffect::Publish(Lifecycle::Started), out);
        answer_all(start, Ok(()), out);
        if kill {
            self.0.emit(ContainerEffect::Kill, out);
        }
        self.apply_stop(true, now, out);
    }

    fn launch_failed(&mut self, message: String, now: Moment, out: &mut Vec<MachineEffect>) {
        let State::Starting { start, .. } = &mut self.0.state else { return };
        let start = start.take();
        let failure = Failure::new(message);
        answer_all(start, Err(&failure), out);
        self.ended(ExitRecord::start_error(failure.message, now.wall_ns), out);
    }

    fn exited(&mut self, record: ExitRecord, now: Moment, out: &mut Vec<MachineEffect>) {
        match &mut self.0.state {
            // The launcher ended before it executed the program.
            State::Starting { launch: Launch::InFlight, .. } => {
                self.launch_failed("the launcher ended before the program was executed".into(), now, out);
            }
            State::Starting { .. } => {
                self.runs(Some(Search::Idle), now.boot, out);
                self.ended(record, out);
            }
            State::Running { .. } | State::Unknown { .. } => self.ended(record, out),
            State::Exited(first) if made(MachineMutant::LastExitWins) => {
                *first = record.clone();
                self.0.emit(ContainerEffect::Persist(ContainerRecordState::Exited(record)), out);
            }
            State::Creating { .. } | State::Created | State::Exited(_) | State::Removing { .. } | State::Gone => {}
        }
    }

    /// The process is gone: record it, answer every caller, and go on with a removal.
    fn ended(&mut self, record: ExitRecord, out: &mut Vec<MachineEffect>) {
        let stop = match &mut self.0.state {
            State::Starting { stop, .. } | State::Running { stop } | State::Unknown { stop, .. } => mem::take(stop),
            _ => return,
        };
        self.0.state = State::Exited(record.clone());
        // What the process left behind, if it was not the init of a PID namespace.
        self.0.emit(ContainerEffect::KillCgroup, out);
        self.0.emit(ContainerEffect::Persist(ContainerRecordState::Exited(record)), out);
        self.0.emit(ContainerEffect::Publish(Lifecycle::Stopped), out);
        if let Some(waiters) = stop.answer(out) {
            self.clean_up(waiters, out);
        }
    }

    pub(super) fn shim_lost(&mut self, adopting: bool, out: &mut Vec<MachineEffect>) {
        match &mut self.0.state {
            State::Starting { launch, .. } => match (*launch, adopting) {
                (Launch::Watching, _) => {}
                (_, true) => *launch = Launch::Adopting,
                (_, false) => self.watch_launch(out),
            },
            State::Running { stop } => {
                let search = if adopting { Search::Adopting } else { Search::Idle };
                self.0.state = State::Unknown { stop: mem::take(stop), search };
                self.search(out);
            }
            State::Unknown { search, .. } => {
                match (*search, adopting) {
                    (Search::Idle, true) => *search = Search::Adopting,
                    (Search::Adopting, false) => *search = Search::Idle,
                    _ => {}
                }
                self.search(out);
            }
            _ => {}
        }
    }

    fn adoption_ended(&mut self, out: &mut Vec<MachineEffect>) {
        match &mut self.0.state {
            State::Starting { launch: Launch::Adopting, .. } => self.watch_launch(out),
            State::Unknown { search, .. } if *search == Search::Adopting => {
                *search = Search::Idle;
                self.search(out);
            }
            _ => {}
        }
    }

    /// No shim will report the result of the launch: look for the process.
    fn watch_launch(&mut self, out: &mut Vec<MachineEffect>) {
        if let State::Starting { launch, .. } = &mut self.0.state {
            *launch = Launch::Watching;
            if !made(MachineMutant::LostLaunchForgotten) {
                self.0.emit(ContainerEffect::Watch, out);
            }
        }
    }

    /// A container without a shim is searched for when it has to be stopped.
    fn search(&mut self, out: &mut Vec<MachineEffect>) {
        if let State::Unknown { stop, search } = &mut self.0.state
            && *search == Search::Idle
            && stop.is_requested()
            && !made(MachineMutant::NotWatched)
        {
            *search = Search::Watching;
            self.0.emit(ContainerEffect::Watch, out);
        }
    }

    fn adopted(&mut self, found: Found, now: Moment, out: &mut Vec<MachineEffect>) {
        match (&mut self.0.state, found) {
            // The caller of that start is gone with the former agent: it can be started again.
            (State::Starting { start: None, launch: Launch::Adopting, stop }, Found::NotLaunched)
                if !stop.is_requested() =>
            {
                self.0.state = State::Created;
                self.0.emit(ContainerEffect::Persist(ContainerRecordState::Created), out);
            }
            (State::Starting { launch: Launch::Adopting, .. }, found) => self.lost_start(found, None, now, out),
            (State::Unknown { stop, search: Search::Adopting | Search::Idle }, Found::Alive { .. }) => {
                self.0.state = State::Running { stop: mem::take(stop) };
                self.apply_stop(true, now.boot, out);
            }
            (State::Unknown { search: Search::Adopting | Search::Idle, .. }, Found::Gone | Found::NotLaunched) => {
                self.ended(ExitRecord::unknown(now.wall_ns), out);
            }
            (State::Running { .. } | State::Unknown { .. }, Found::Exited(record)) => self.ended(record, out),
            // The answer of `Watch` decides.
            _ => {}
        }
    }

    fn watched(&mut self, found: Found, now: Moment, out: &mut Vec<MachineEffect>) {
        match (&mut self.0.state, found) {
            (State::Starting { launch: Launch::Watching, .. }, found) => {
                let search = match found {
                    Found::Alive { stop_signal_sent } => Search::Attached { stop_signal_sent },
                    Found::Exited(_) | Found::Gone | Found::NotLaunched => Search::Idle,
                };
                self.lost_start(found, Some(search), now, out);
            }
            (State::Unknown { search, .. }, Found::Alive { stop_signal_sent }) if *search == Search::Watching => {
                *search = Search::Attached { stop_signal_sent };
                self.apply_stop(true, now.boot, out);
            }
            (State::Unknown { search: Search::Watching, .. }, Found::Gone | Found::NotLaunched) => {
                self.ended(ExitRecord::unknown(now.wall_ns), out);
            }
            (State::Unknown { .. }, Found::Exited(record)) => self.ended(record, out),
            _ => {}
        }
    }

    /// The shim was lost during the launch: it has failed unless there is a process or an exit.
    fn lost_start(&mut self, found: Found, attached: Option<Search>, now: Moment, out: &mut Vec<MachineEffect>) {
        match found {
            Found::Alive { .. } if !made(MachineMutant::LostStartFailed) => self.runs(attached, now.boot, out),
            Found::Exited(record) => {
                self.runs(Some(Search::Adopting), now.boot, out);
                self.ended(record, out);
            }
            Found::Alive { .. } | Found::Gone | Found::NotLaunched => {
                self.launch_failed("the shim was lost before the program was executed".into(), now, out);
            }
        }
    }

    /// The stop rules. With `signal`, the stop signal is requested too: it is sent once however often it is requested, because the
    /// shim, or the agent in its place, records that it was sent.
    fn apply_stop(&mut self, signal: bool, now: MachineTime, out: &mut Vec<MachineEffect>) {
        let (effect, wake) = match &mut self.0.state {
            State::Starting { launch: Launch::InFlight, stop, .. } => {
                (stop.take_kill(now).then_some(ContainerEffect::AbortLaunch), stop.next_wake())
            }
            State::Running { stop } => {
                let kill = stop.take_kill(now);
                if kill && made(MachineMutant::AnsweredAtKill) {
                    stop.answer_early(out);
                }
                let signal = signal && stop.is_requested() && !stop.is_killed();
                let effect = match (kill, signal) {
                    (true, _) => Some(ContainerEffect::Kill),
                    (false, true) => Some(ContainerEffect::StopSignal(SignalPath::Shim)),
                    (false, false) => None,
                };
                (effect, stop.next_wake())
            }
            State::Unknown { stop, search: Search::Attached { stop_signal_sent } } => {
                let signalled = *stop_signal_sent && !made(MachineMutant::SignalAgain);
                if stop.take_kill(now) {
                    (Some(ContainerEffect::Kill), stop.next_wake())
                } else if signal && stop.is_requested() && !stop.is_killed() && !signalled {
                    *stop_signal_sent = true;
                    (Some(ContainerEffect::StopSignal(SignalPath::Pidfd)), stop.next_wake())
                } else {
                    (None, stop.next_wake())
                }
            }
            State::Unknown { .. } => return self.search(out),
            _ => return,
        };
        if let Some(effect) = effect {
            self.0.emit(effect, out);
        }
        if let Some(wake) = wake {
            self.0.emit(ContainerEffect::WakeAt(wake), out);
        }
    }

    fn cleaned(&mut self, result: Result<(), Failure>, now: Moment, out: &mut Vec<MachineEffect>) {
        let State::Removing { record, waiters } = &mut self.0.state else { return };
        if result.is_err() && made(MachineMutant::CleanupHangs) {
            return;
        }
        let (record, waiters) = (record.take(), mem::take(waiters));
        match &result {
            Ok(()) => {
                self.0.state = State::Gone;
                self.0.emit(ContainerEffect::Publish(Lifecycle::Deleted), out);
            }
            // What is left can not be started: one that never was has failed to start.
            Err(failure) => {
                let failed = || {
                    let text = format!("removed before it was started, and the removal failed: {failure}");
                    ExitRecord::start_error(text, now.wall_ns)
                };
                let record = record.unwrap_or_else(failed);
                self.0.state = State::Exited(record.clone());
                self.0.emit(ContainerEffect::Persist(ContainerRecordState::Exited(record)), out);
            }
        }
        answer_all(waiters, result.as_ref().copied(), out);
    }
}
