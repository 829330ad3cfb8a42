//! A world for the machines: one sandbox, a few containers, a shim that dies, an agent that crashes, steps that fail, callers that go
//! away. Every choice is an [`Action`]; what is possible in a state is a list, so that one world serves random runs and the search
//! through all states.

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use crate::container::SignalPath;
use crate::*;

/// One choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Run,
    Create(usize),
    Start(usize),
    Stop(usize, u64),
    Remove(usize),
    StopSandbox,
    RemoveSandbox,
    Abandon(WaiterId),
    /// The step at this place ends, well or not.
    End(usize, bool),
    /// The shim dies. The steps in flight through it have happened, or not.
    ShimDies {
        happened: bool,
    },
    PauseDies,
    /// The process ends.
    ProcessEnds(usize),
    ReportExit(usize),
    /// A second, different exit of a container whose exit was reported.
    ReportAnotherExit(usize),
    Wake(usize),
    /// The agent is killed and started again. Its own steps in flight have happened, or not.
    AgentCrashes {
        happened: bool,
    },
}

/// How many of each kind of trouble are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    pub(super) calls: u8,
    pub(super) failures: u8,
    pub(super) shim_losses: u8,
    pub(super) abandons: u8,
    pub(super) crashes: u8,
    pub(super) other: u8,
    /// Timers that expire: a kill is repeated for ever, so the search needs an end.
    pub(super) wakes: u8,
}

/// A step or message in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Flight {
    Sandbox(SandboxStep),
    Create(usize),
    Launch {
        container: usize,
        aborted: bool,
    },
    Cleanup(usize),
    Watch(usize),
    /// A message to the shim, without a result.
    Signal(usize),
}

impl Flight {
    pub(super) fn is_through_shim(&self) -> bool {
        use SandboxStep::{Adopt, SetUpNamespaces, ShutDownShim};
        matches!(self, Self::Sandbox(SetUpNamespaces | ShutDownShim | Adopt) | Self::Launch { .. } | Self::Signal(_))
    }
}

/// What a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Call {
    Run,
    Create(usize),
    Start(usize),
    Stop(usize),
    Remove(usize),
    StopSandbox,
    RemoveSandbox,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Process {
    None,
    Alive,
    /// With an exit record in a file, or without one.
    Dead {
        recorded: bool,
    },
}

/// The real sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct RealSandbox {
    pub(super) record: Option<SandboxRecordState>,
    pub(super) has: SandboxResources,
    /// Its end was requested.
    pub(super) stop_requested: bool,
    /// The release of the network was reported to this agent.
    pub(super) network_released: bool,
}

/// The real container.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RealContainer {
    pub(super) record: Option<ContainerRecordState>,
    pub(super) process: Process,
    pub(super) reported: bool,
    /// The agent observes its exit without a shim.
    pub(super) watched: bool,
    /// The file `stop-signal`.
    pub(super) stop_signal_recorded: bool,
    pub(super) stop_signals: u8,
    pub(super) killed: bool,
    /// Its launch was aborted.
    pub(super) aborted: bool,
    /// Callers of StopContainer that still wait, with their deadlines.
    pub(super) demands: BTreeMap<WaiterId, MachineTime>,
    /// Its removal, or the end of its sandbox, was requested.
    pub(super) forced: bool,
    pub(super) wake: Option<MachineTime>,
    pub(super) first_exit: Option<ExitRecord>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) machines: Machines,
    pub(super) now: MachineTime,
    pub(super) next_waiter: u64,
    pub(super) waiting: BTreeMap<WaiterId, Call>,
    pub(super) flights: Vec<Flight>,
    pub(super) sandbox: RealSandbox,
    pub(super) containers: Vec<RealContainer>,
    pub(super) budget: Budget,
    /// The first broken rule.
    pub(super) broken: Option<String>,
}

pub(super) fn sandbox_id() -> SandboxId {
    SandboxId("s".into())
}

pub(super) fn container_id(index: usize) -> ContainerId {
    ContainerId(format!("c{index}"))
}

pub(super) fn index_of(id: &ContainerId) -> usize {
    id.0[1..].parse().expect("made by container_id")
}

fn container_key(index: usize) -> ContainerKey {
    ContainerKey { sandbox: sandbox_id(), name: format!("n{index}"), attempt: 0 }
}

fn sandbox_key() -> SandboxKey {
    SandboxKey { name: "p".into(), namespace: "d".into(), uid: "u".into(), attempt: 0 }
}

pub(super) const PLANNED: SandboxResources =
    SandboxResources { shim: true, namespaces: true, network: true, shm: true, pause: true };

impl World {
    pub(super) fn new(containers: usize, budget: Budget) -> Self {
        let container = RealContainer {
            record: None,
            process: Process::None,
            reported: false,
            watched: false,
            stop_signal_recorded: false,
            stop_signals: 0,
            killed: false,
            aborted: false,
            demands: BTreeMap::new(),
            forced: false,
            wake: None,
            first_exit: None,
        };
        Self {
            machines: Machines::default(),
            now: Duration::from_secs(1),
            next_waiter: 0,
            waiting: BTreeMap::new(),
            flights: vec![],
            sandbox: RealSandbox::default(),
            containers: vec![container; containers],
            budget,
            broken: None,
        }
    }

    pub(super) fn moment(&self) -> Moment {
        Moment { boot: self.now, wall_ns: 0 }
    }

    /// Every choice of this state.
    pub(super) fn actions(&self) -> Vec<Action> {
        let mut all = vec![];
        for (place, flight) in self.flights.iter().enumerate() {
            all.push(Action::End(place, true));
            let aborted = matches!(flight, Flight::Launch { aborted: true, .. });
            let can_fail = !matches!(flight, Flight::Signal(_) | Flight::Watch(_));
            if aborted || (can_fail && self.budget.failures > 0) {
                all.push(Action::End(place, false));
            }
        }
        for (index, container) in self.containers.iter().enumerate() {
            let asked_to_end = container.killed || container.stop_signals > 0;
            if container.process == Process::Alive && (asked_to_end || self.budget.other > 0) {
                all.push(Action::ProcessEnds(index));
            }
            if self.can_report(index) {
                all.push(Action::ReportExit(index));
            }
            if container.reported && self.budget.other > 0 {
                all.push(Action::ReportAnotherExit(index));
            }
            if container.wake.is_some() && self.budget.wakes > 0 {
                all.push(Action::Wake(index));
            }
        }
        self.calls(&mut all);
        self.accidents(&mut all);
        all
    }

    fn calls(&self, all: &mut Vec<Action>) {
        if self.budget.abandons > 0 {
            all.extend(self.waiting.keys().map(|waiter| Action::Abandon(*waiter)));
        }
        if self.budget.calls == 0 {
            return;
        }
        if self.machines.sandbox(&sandbox_id()).is_none() {
            if self.next_waiter == 0 {
                all.push(Action::Run);
            }
            return;
        }
        all.extend([Action::StopSandbox, Action::RemoveSandbox]);
        for (index, container) in self.containers.iter().enumerate() {
            if self.machines.container(&container_id(index)).is_some() {
                all.extend([
                    Action::Start(index),
                    Action::Stop(index, 0),
                    Action::Stop(index, 10),
                    Action::Remove(index),
                ]);
            } else if container.record.is_none() && container.first_exit.is_none() && !container.forced {
                all.push(Action::Create(index));
            }
        }
    }

    fn accidents(&self, all: &mut Vec<Action>) {
        let adopting = self.flights.contains(&Flight::Sandbox(SandboxStep::Adopt));
        if self.budget.shim_losses > 0 && (self.sandbox.has.shim || adopting) {
            all.push(Action::ShimDies { happened: true });
            if self.flights.iter().any(Flight::is_through_shim) {
                all.push(Action::ShimDies { happened: false });
            }
        }
        if self.budget.other > 0 && self.sandbox.has.pause {
            all.push(Action::PauseDies);
        }
        if self.budget.crashes > 0 {
            all.push(Action::AgentCrashes { happened: true });
            if !self.flights.is_empty() {
                all.push(Action::AgentCrashes { happened: false });
            }
        }
    }

    fn can_report(&self, index: usize) -> bool {
        let container = &self.containers[index];
        let adopting = self.flights.contains(&Flight::Sandbox(SandboxStep::Adopt));
        container.process == (Process::Dead { recorded: true })
            && !container.reported
            && ((self.sandbox.has.shim && !adopting) || container.watched)
    }

    pub(super) fn apply(&mut self, action: &Action) {
        let container = |index: usize, event| MachineEvent::Container(container_id(index), event);
        let sandbox = |event| MachineEvent::Sandbox(sandbox_id(), event);
        match *action {
            Action::Run => {
                let waiter = self.call(Call::Run);
                self.feed(MachineEvent::Run { id: sandbox_id(), waiter, key: sandbox_key(), planned: PLANNED });
            }
            Action::Create(index) => {
                let waiter = self.call(Call::Create(index));
                self.feed(MachineEvent::Create { id: container_id(index), waiter, key: container_key(index) });
            }
            Action::Start(index) => {
                let waiter = self.call(Call::Start(index));
                self.feed(container(index, ContainerEvent::Start(waiter)));
            }
            Action::Stop(index, seconds) => {
                let waiter = self.call(Call::Stop(index));
                let timeout = Duration::from_secs(seconds);
                self.containers[index].demands.insert(waiter, self.now + timeout);
                self.feed(container(index, ContainerEvent::Stop(waiter, timeout)));
            }
            Action::Remove(index) => {
                let waiter = self.call(Call::Remove(index));
                self.containers[index].forced = true;
                self.feed(container(index, ContainerEvent::Remove(waiter)));
            }
            Action::StopSandbox | Action::RemoveSandbox => {
                self.sandbox.stop_requested = true;
                self.containers.iter_mut().for_each(|c| c.forced = true);
                let event = if *action == Action::StopSandbox {
                    SandboxEvent::Stop(self.call(Call::StopSandbox))
                } else {
                    SandboxEvent::Remove(self.call(Call::RemoveSandbox))
                };
                self.feed(sandbox(event));
            }
            Action::Abandon(waiter) => self.abandon(waiter),
            Action::End(place, ok) => self.end(place, ok),
            Action::ShimDies { happened } => self.shim_dies(happened),
            Action::PauseDies => {
                self.budget.other -= 1;
                self.sandbox.has.pause = false;
                for index in 0..self.containers.len() {
                    self.end_process(index);
                }
                self.feed(sandbox(SandboxEvent::PauseExited));
            }
            Action::ProcessEnds(index) => {
                let asked_to_end = self.containers[index].killed || self.containers[index].stop_signals > 0;
                self.budget.other -= u8::from(!asked_to_end);
                self.end_process(index);
            }
            Action::ReportExit(index) => {
                self.containers[index].reported = true;
                self.feed(container(index, ContainerEvent::Exited(ExitRecord::of_process(7, false, 0))));
            }
            Action::ReportAnotherExit(index) => {
                self.budget.other -= 1;
                self.feed(container(index, ContainerEvent::Exited(ExitRecord::of_process(9, false, 0))));
            }
            Action::Wake(index) => self.wake(index),
            Action::AgentCrashes { happened } => self.agent_crashes(happened),
        }
    }

    fn call(&mut self, call: Call) -> WaiterId {
        self.budget.calls = self.budget.calls.saturating_sub(1);
        let waiter = WaiterId(self.next_waiter);
        self.next_waiter += 1;
        self.waiting.insert(waiter, call);
        waiter
    }

    fn end_process(&mut self, index: usize) {
        let recorded = self.sandbox.has.shim || self.containers[index].watched;
        let container = &mut self.containers[index];
        if container.process == Process::Alive {
            container.process = Process::Dead { recorded };
        }
    }

    fn abandon(&mut self, waiter: WaiterId) {
        self.budget.abandons = self.budget.abandons.saturating_sub(1);
        let Some(call) = self.waiting.remove(&waiter) else { return };
        for container in &mut self.containers {
            container.demands.remove(&waiter);
        }
        let event = match call {
            Call::Create(i) | Call::Start(i) | Call::Stop(i) | Call::Remove(i) => {
                MachineEvent::Container(container_id(i), ContainerEvent::Abandon(waiter))
            }
            Call::Run | Call::StopSandbox | Call::RemoveSandbox => {
                MachineEvent::Sandbox(sandbox_id(), SandboxEvent::Abandon(waiter))
            }
        };
        self.feed(event);
    }

    fn wake(&mut self, index: usize) {
        let Some(at) = self.containers[index].wake.take() else { return };
        self.budget.wakes -= 1;
        self.now = self.now.max(at);
        self.feed(MachineEvent::Container(container_id(index), ContainerEvent::Wake));
        self.check_woken(index);
    }

    fn shim_dies(&mut self, happened: bool) {
        self.budget.shim_losses -= 1;
        let (lost, kept): (Vec<_>, Vec<_>) = self.flights.drain(..).partition(Flight::is_through_shim);
        self.flights = kept;
        for flight in lost.into_iter().filter(|_| happened) {
            self.perform(&flight, true);
        }
        self.sandbox.has.shim = false;
        self.feed(MachineEvent::Sandbox(sandbox_id(), SandboxEvent::ShimLost));
    }

    fn agent_crashes(&mut self, happened: bool) {
        self.budget.crashes -= 1;
        for flight in mem::take(&mut self.flights).into_iter().filter(|_| happened) {
            self.perform(&flight, true);
        }
        self.waiting.clear();
        self.sandbox.network_released = false;
        for container in &mut self.containers {
            container.demands.clear();
            (container.watched, container.wake, container.reported) = (false, None, false);
        }
        let sandboxes = self.sandbox.record.map(|state| (sandbox_id(), sandbox_key(), state));
        let records = self.containers.iter().enumerate();
        let containers = records.filter_map(|(i, c)| Some((container_id(i), container_key(i), c.record.clone()?)));
        let mut out = vec![];
        let (sandboxes, containers) = (sandboxes.into_iter().collect(), containers.collect());
        self.machines = Machines::restore(sandboxes, containers, self.moment(), &mut out);
        self.take(out);
    }

    /// The step at this place ends.
    fn end(&mut self, place: usize, ok: bool) {
        let flight = self.flights.remove(place);
        if !ok && !matches!(flight, Flight::Launch { aborted: true, .. }) {
            self.budget.failures -= 1;
        }
        if let Some(event) = self.perform(&flight, ok) {
            self.feed(event);
        }
    }

    /// Does what a step does. Returns its result, for the case that it is not lost.
    fn perform(&mut self, flight: &Flight, ok: bool) -> Option<MachineEvent> {
        let result = if ok { Ok(()) } else { Err(Failure::new("failed")) };
        let event = |index: usize, event| Some(MachineEvent::Container(container_id(index), event));
        match *flight {
            Flight::Sandbox(SandboxStep::Adopt) => {
                let lives = mem::replace(&mut self.sandbox.has.shim, ok);
                let found =
                    if ok { Ok(self.found_all(lives)) } else { Err(AdoptError::Failed(Failure::new("failed"))) };
                Some(MachineEvent::Sandbox(sandbox_id(), SandboxEvent::Adopted(found)))
            }
            Flight::Sandbox(step) => {
                self.perform_step(step, ok);
                Some(MachineEvent::Sandbox(sandbox_id(), SandboxEvent::StepDone(step, result)))
            }
            Flight::Create(index) => {
                self.containers[index].record = ok.then_some(ContainerRecordState::Created);
                event(index, ContainerEvent::CreateDone(result))
            }
            Flight::Launch { container, .. } => {
                if ok {
                    self.containers[container].process = Process::Alive;
                    return event(container, ContainerEvent::Launched);
                }
                event(container, ContainerEvent::LaunchFailed(Failure::new("failed")))
            }
            Flight::Cleanup(index) => {
                if ok {
                    self.containers[index].record = None;
                }
                event(index, ContainerEvent::Cleaned(result))
            }
            Flight::Watch(index) => {
                let found = self.found(index);
                self.containers[index].watched = matches!(found, Found::Alive { .. });
                event(index, ContainerEvent::Watched(found))
            }
            Flight::Signal(index) => {
                self.stop_signal(index);
                None
            }
        }
    }

    fn perform_step(&mut self, step: SandboxStep, ok: bool) {
        let has = &mut self.sandbox.has;
        match step {
            SandboxStep::WriteRecord if ok => self.sandbox.record = Some(SandboxRecordState::Creating(PLANNED)),
            SandboxStep::ForkShim => has.shim = ok,
            // A step that fails leaves something behind.
            SandboxStep::SetUpNamespaces => (has.namespaces, has.pause) = (true, ok),
            SandboxStep::Attach => (has.network, has.shm) = (true, ok),
            SandboxStep::EndPause if ok => has.pause = false,
            SandboxStep::ReleaseNetwork if ok => (has.network, self.sandbox.network_released) = (false, true),
            SandboxStep::ReleaseNamespaces if ok => (has.namespaces, has.shm) = (false, false),
            SandboxStep::ShutDownShim if ok => has.shim = false,
            SandboxStep::RemoveFiles if ok => self.sandbox.record = None,
            _ => {}
        }
    }

    /// A shim that lives knows which launches it has not received.
    fn found_all(&self, lives: bool) -> Vec<(ContainerId, Found)> {
        let asked = |c: &RealContainer| {
            matches!(c.record, Some(ContainerRecordState::Starting | ContainerRecordState::Running))
        };
        let containers = self.containers.iter().enumerate().filter(|(_, c)| asked(c));
        let not_launched =
            |c: &RealContainer| lives && c.process == Process::None && c.record == Some(ContainerRecordState::Starting);
        let found = |(index, c)| if not_launched(c) { Found::NotLaunched } else { self.found(index) };
        containers.map(|(index, c)| (container_id(index), found((index, c)))).collect()
    }

    fn found(&self, index: usize) -> Found {
        let container = &self.containers[index];
        match container.process {
            Process::None | Process::Dead { recorded: false } => Found::Gone,
            Process::Alive => Found::Alive { stop_signal_sent: container.stop_signal_recorded },
            Process::Dead { recorded: true } => Found::Exited(ExitRecord::of_process(7, false, 0)),
        }
    }

    /// The shim and the agent record the signal before they send it.
    fn stop_signal(&mut self, index: usize) {
        let container = &mut self.containers[index];
        if !container.stop_signal_recorded {
            container.stop_signal_recorded = true;
            self.signal(index);
        }
    }

    fn signal(&mut self, index: usize) {
        let container = &mut self.containers[index];
        container.stop_signals += u8::from(container.process == Process::Alive);
        if container.stop_signals > 1 {
            self.violated("the stop signal was sent twice");
        }
    }

    pub(super) fn feed(&mut self, event: MachineEvent) {
        let abandon = matches!(
            event,
            MachineEvent::Container(_, ContainerEvent::Abandon(_)) | MachineEvent::Sandbox(_, SandboxEvent::Abandon(_))
        );
        let mut out = vec![];
        self.machines.handle(event, self.moment(), &mut out);
        if abandon && !out.is_empty() {
            self.violated(&format!("an abandoned call has effects: {out:?}"));
        }
        self.take(out);
    }

    fn take(&mut self, effects: Vec<MachineEffect>) {
        for effect in effects {
            self.check_effect(&effect);
            match effect {
                MachineEffect::Answer(waiter, result) => self.check_answer(waiter, &result),
                MachineEffect::Sandbox(_, SandboxEffect::Step(step)) => self.flights.push(Flight::Sandbox(step)),
                MachineEffect::Sandbox(_, SandboxEffect::AdoptAfter(_)) => {
                    self.flights.push(Flight::Sandbox(SandboxStep::Adopt));
                }
                MachineEffect::Sandbox(_, SandboxEffect::Persist(state)) => self.sandbox.record = Some(state),
                MachineEffect::Sandbox(_, SandboxEffect::Publish(_)) => {}
                MachineEffect::Container(id, effect) => self.container_effect(index_of(&id), effect),
            }
        }
        self.check_flights();
    }

    fn container_effect(&mut self, index: usize, effect: ContainerEffect) {
        match effect {
            ContainerEffect::Create => self.flights.push(Flight::Create(index)),
            ContainerEffect::Launch => self.flights.push(Flight::Launch { container: index, aborted: false }),
            ContainerEffect::AbortLaunch => {
                self.containers[index].aborted = true;
                for flight in &mut self.flights {
                    if let Flight::Launch { container, aborted } = flight
                        && *container == index
                    {
                        *aborted = true;
                    }
                }
            }
            ContainerEffect::Watch => self.flights.push(Flight::Watch(index)),
            ContainerEffect::StopSignal(SignalPath::Shim) => self.flights.push(Flight::Signal(index)),
            // The machine decides here, and the file only records it.
            ContainerEffect::StopSignal(SignalPath::Pidfd) => {
                self.containers[index].stop_signal_recorded = true;
                self.signal(index);
            }
            ContainerEffect::Kill => self.containers[index].killed = true,
            ContainerEffect::KillCgroup => {}
            ContainerEffect::Cleanup => self.flights.push(Flight::Cleanup(index)),
            ContainerEffect::Persist(state) => self.containers[index].record = Some(state),
            ContainerEffect::Publish(_) => {}
            ContainerEffect::WakeAt(at) => self.containers[index].wake = Some(at),
        }
    }

    pub(super) fn violated(&mut self, rule: &str) {
        self.broken.get_or_insert_with(|| rule.to_owned());
    }
}
