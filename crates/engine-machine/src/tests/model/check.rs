//! The rules that hold in every state of the model.

use super::world::{Action, Budget, Call, Flight, Process, World, index_of, sandbox_id};
use crate::*;

impl World {
    pub(super) fn check_effect(&mut self, effect: &MachineEffect) {
        match effect {
            MachineEffect::Container(_, ContainerEffect::Launch) if self.sandbox.stop_requested => {
                self.violated("a container is launched after the stop of its sandbox was requested");
            }
            MachineEffect::Container(id, ContainerEffect::Kill | ContainerEffect::AbortLaunch) => {
                let (now, container) = (self.now, &self.containers[index_of(id)]);
                let due = container.demands.values().any(|deadline| *deadline <= now);
                if !container.forced && !due && !container.killed && !container.aborted {
                    self.violated("a kill that no request demands");
                }
            }
            MachineEffect::Container(id, ContainerEffect::Persist(ContainerRecordState::Exited(record))) => {
                let first = self.containers[index_of(id)].first_exit.get_or_insert_with(|| record.clone());
                if first != record {
                    self.violated("an exit record changed");
                }
                self.check_leak(index_of(id));
            }
            MachineEffect::Sandbox(_, SandboxEffect::Step(SandboxStep::ReleaseNetwork))
                if self.sandbox.network_released =>
            {
                self.violated("the network is released after it was released");
            }
            MachineEffect::Sandbox(_, SandboxEffect::Step(SandboxStep::ReleaseNetwork | SandboxStep::EndPause))
                if self.containers.iter().any(|c| c.process == Process::Alive) && !self.pause_is_dead() =>
            {
                self.violated("a sandbox is undone while a container runs");
            }
            _ => {}
        }
    }

    fn pause_is_dead(&self) -> bool {
        !self.sandbox.has.pause && self.sandbox.has.namespaces
    }

    /// A container counts as ended only when its process has.
    fn check_leak(&mut self, index: usize) {
        if self.containers[index].process == Process::Alive {
            self.violated("an exit is recorded while the process lives");
        }
    }

    pub(super) fn check_answer(&mut self, waiter: WaiterId, result: &Result<(), Refusal>) {
        let Some(call) = self.waiting.remove(&waiter) else {
            return self.violated("an answer without a caller");
        };
        for container in &mut self.containers {
            container.demands.remove(&waiter);
        }
        if result.is_err() {
            return;
        }
        let lives = |index: usize| self.containers[index].process == Process::Alive;
        let wrong = match call {
            Call::Stop(index) => lives(index),
            Call::Remove(index) => lives(index) || self.containers[index].record.is_some(),
            Call::StopSandbox => !self.sandbox.has.is_empty() || (0..self.containers.len()).any(lives),
            Call::RemoveSandbox => !self.sandbox.has.is_empty() || self.sandbox.record.is_some(),
            Call::Start(index) => self.containers[index].process == Process::None,
            Call::Create(index) => self.containers[index].record.is_none(),
            Call::Run => self.sandbox.has != super::world::PLANNED,
        };
        if wrong {
            self.violated(&format!("{call:?} succeeded without its effect"));
        }
    }

    /// A deadline that has passed kills.
    pub(super) fn check_woken(&mut self, index: usize) {
        let container = &self.containers[index];
        let has_shim = self.machines.container(&super::world::container_id(index)).is_some_and(Container::has_shim);
        let due = container.demands.values().any(|deadline| *deadline <= self.now);
        if has_shim && due && !container.killed {
            self.violated("a deadline passed without a kill");
        }
    }

    /// At most one step of an object is in flight.
    pub(super) fn check_flights(&mut self) {
        let sandbox = self.flights.iter().filter(|f| matches!(f, Flight::Sandbox(_))).count();
        let steps_of = |index: usize| {
            let of = |f: &&Flight| match f {
                Flight::Create(i) | Flight::Cleanup(i) | Flight::Launch { container: i, .. } => *i == index,
                Flight::Sandbox(_) | Flight::Watch(_) | Flight::Signal(_) => false,
            };
            self.flights.iter().filter(of).count()
        };
        if sandbox > 1 || (0..self.containers.len()).any(|index| steps_of(index) > 1) {
            self.violated(&format!("two steps of one object are in flight: {:?}", self.flights));
        }
    }

    /// From here on nothing fails. Every call is answered, and Stop and Remove of the sandbox end in nothing. The rule that breaks.
    pub(super) fn check_end(mut self) -> Option<String> {
        self.budget = Budget { calls: 0, failures: 0, shim_losses: 0, abandons: 0, crashes: 0, other: 0, wakes: 50 };
        self.drain();
        if self.broken.is_none() && !self.waiting.is_empty() {
            return Some(format!("calls are never answered: {:?}", self.waiting));
        }
        for action in [Action::StopSandbox, Action::RemoveSandbox] {
            if self.machines.sandbox(&sandbox_id()).is_some() {
                self.apply(&action);
                self.drain();
            }
        }
        if self.broken.is_some() {
            return self.broken;
        }
        let left = self.containers.iter().any(|c| c.process == Process::Alive || c.record.is_some());
        let gone = self.machines == Machines::default();
        if left || !gone || !self.sandbox.has.is_empty() || self.sandbox.record.is_some() || !self.waiting.is_empty() {
            return Some(format!("something is left after Stop and Remove: {self:?}"));
        }
        None
    }

    /// Lets everything that is under way come to its end.
    fn drain(&mut self) {
        for _ in 0..200 {
            let actions = self.actions();
            let is_wake = |a: &&Action| matches!(a, Action::Wake(_));
            let first = actions.iter().find(|a| !is_wake(a));
            // A timer without a process to kill would repeat for ever.
            let waits = self.containers.iter().any(|c| c.process == Process::Alive && !c.killed);
            let Some(action) = first.or(actions.iter().find(is_wake).filter(|_| waits)) else { return };
            self.apply(&action.clone());
            if self.broken.is_some() {
                return;
            }
        }
        self.violated("it never comes to rest");
    }
}
