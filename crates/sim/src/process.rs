//! Processes: they are told to stop, killed, hooked and probed, and end.

use std::time::Duration;

use podwright_core::model::{
    Answer, Call, CallError, ContainerId, HookKind, Name, PodUid, ProbeKind, ProbeVerdict, RuntimeCall, SandboxId,
};

use crate::behaviour::{Behaviour, Hook, Term};
use crate::flight::{Flight, Stage};
use crate::manifest::{behaviour_of, find};
use crate::world::{Item, World, trace};

impl World {
    pub(crate) fn behaviour(&self, container: &ContainerId) -> Option<Behaviour> {
        let place = self.runtime.truth(container)?.behaviour;
        self.behaviours.get(place).or(self.behaviours.first()).cloned()
    }

    pub(crate) fn stop(&mut self, flight: u64, uid: &PodUid, id: &ContainerId, timeout: Duration) {
        let Some(c) = self.runtime.containers.get_mut(id).filter(|c| c.state.may_run()) else {
            return self.land(flight, Ok(Answer::Done));
        };
        if let Some(f) = self.flights.get_mut(&flight) {
            f.stage = Stage::Stopping;
        }
        if timeout.is_zero() {
            return self.patience_over(flight);
        }
        let first = !std::mem::replace(&mut c.termed, true);
        if first {
            trace!(self, "   {uid} {id} TERM, KILL in {timeout:?}");
            self.check_term(uid, id);
            if let Some(Term::Obeys { after, code }) = self.behaviour(id).map(|b| b.term) {
                self.after(after, Item::Exit { id: id.clone(), code, by_itself: false });
            }
        }
        self.after(timeout, Item::KillTimer(flight));
    }

    pub(crate) fn patience_over(&mut self, flight: u64) {
        let Some(f) = self.flights.get(&flight).filter(|f| f.stage == Stage::Stopping && !f.answered) else { return };
        if let Call::Runtime(RuntimeCall::StopContainer { id, .. }) = &f.call {
            let (uid, id) = (f.uid.clone(), id.clone());
            self.kill(&uid, &id);
        }
    }

    fn kill(&mut self, uid: &PodUid, id: &ContainerId) {
        let Some(c) = self.runtime.containers.get_mut(id).filter(|c| c.state.may_run() && !c.killed) else { return };
        c.killed = true;
        trace!(self, "   {uid} {id} KILL");
        self.check_kill(uid, id);
        let delay = self.rng.millis(1, 20);
        self.after(delay, Item::Exit { id: id.clone(), code: 137, by_itself: false });
    }

    /// A process ends: whoever waits for it hears.
    pub(crate) fn exit(&mut self, id: &ContainerId, code: i32, by_itself: bool) {
        let Some(uid) = self.runtime.containers.get(id).map(|c| c.uid.clone()) else { return };
        if !self.runtime.exit(id, code, self.clock.wall()) {
            return;
        }
        trace!(self, "   {uid} {id} exits {code}{}", if by_itself { " by itself" } else { "" });
        let waiting: Vec<u64> = self.flights.iter().filter(|(_, f)| f.waits_for(id)).map(|(n, _)| *n).collect();
        for flight in waiting {
            let hook = self.flights.get(&flight).is_some_and(|f| f.stage == Stage::Hooking);
            let gone = CallError::failed("the container is gone");
            self.land(flight, if hook { Err(gone) } else { Ok(Answer::Done) });
        }
        self.hint(&uid);
    }

    pub(crate) fn stop_sandbox(&mut self, flight: u64, uid: &PodUid, id: &SandboxId) {
        let inside: Vec<_> =
            self.runtime.inside(id).filter(|(_, c)| c.state.may_run()).map(|(id, _)| id.clone()).collect();
        for container in inside {
            self.check_kill(uid, &container);
            self.exit(&container, 137, false);
        }
        if let Some(sandbox) = self.runtime.sandboxes.get_mut(id) {
            sandbox.ready = false;
        }
        trace!(self, "   {uid} sandbox {id} is stopped");
        self.land(flight, Ok(Answer::Done));
        self.hint(uid);
    }

    pub(crate) fn begin_hook(&mut self, flight: u64, kind: HookKind, name: &Name, limit: Duration) {
        let Some(f) = self.flights.get_mut(&flight) else { return };
        f.stage = Stage::Hooking;
        let plan = find(&f.pod, name.as_str()).map(|(c, _)| behaviour_of(c));
        let behaviour = plan.and_then(|n| self.behaviours.get(n)).cloned().unwrap_or_default();
        let hook = if kind == HookKind::PreStop { behaviour.pre_stop } else { behaviour.post_start };
        match hook {
            Hook::Ends { after, .. } => self.after(after, Item::HookEnds(flight)),
            Hook::Hangs if self.calm && kind == HookKind::PostStart => {
                self.after(Duration::from_secs(1), Item::HookEnds(flight));
            }
            Hook::Hangs => {}
        }
        self.after(limit, Item::Timeout(flight));
    }

    pub(crate) fn hook_ends(&mut self, flight: u64) {
        let Some(f) = self.flights.get(&flight) else { return };
        let Call::Runtime(RuntimeCall::Hook { kind, name, id, .. }) = &f.call else { return };
        let plan = find(&f.pod, name.as_str()).map(|(c, _)| behaviour_of(c));
        let behaviour = plan.and_then(|n| self.behaviours.get(n)).cloned().unwrap_or_default();
        let hook = if *kind == HookKind::PreStop { behaviour.pre_stop } else { behaviour.post_start };
        let runs = self.runtime.containers.get(id).is_some_and(|c| c.state.may_run());
        let well = runs && (self.calm || !matches!(hook, Hook::Ends { well: false, .. }));
        let result = if well { Ok(Answer::Done) } else { Err(CallError::failed("the hook failed")) };
        self.land(flight, result);
    }

    pub(crate) fn probe(&mut self, flight: u64, kind: ProbeKind, id: &ContainerId) {
        let delay = self.rng.millis(0, 10);
        let age = self.runtime.containers.get(id).filter(|c| c.state.may_run()).and_then(|c| c.began);
        let age = age.map(|began| self.clock.now - began);
        let health = self.behaviour(id).map(|b| match kind {
            ProbeKind::Startup => b.startup,
            ProbeKind::Readiness => b.readiness,
            ProbeKind::Liveness => b.liveness,
        });
        let good = self.calm || age.zip(health).is_some_and(|(age, health)| health.is_good(age));
        let verdict = if good { ProbeVerdict::Success } else { ProbeVerdict::Failure("not well".into()) };
        self.answer(flight, delay, Ok(Answer::Probe(verdict)));
        self.flights.remove(&flight);
    }
}

impl Flight {
    fn waits_for(&self, container: &ContainerId) -> bool {
        match &self.call {
            Call::Runtime(RuntimeCall::StopContainer { id, .. }) => self.stage == Stage::Stopping && id == container,
            Call::Runtime(RuntimeCall::Hook { id, .. }) => self.stage == Stage::Hooking && id == container,
            _ => false,
        }
    }
}
