//! Calls under way: each effect becomes a flight that changes the models when it arrives, and answers when it returns.

use std::sync::Arc;
use std::time::Duration;

use podwright_core::model::{
    Answer, Call, CallError, CallId, ContainerId, Effect, Event, HookKind, ImageFacts, Name, Pod, PodUid, ProbeKind,
    ProbeVerdict, RuntimeReady, Seq, Source,
};
use podwright_core::pod::full_name;

use crate::behaviour::{Behaviour, Hook, Run, Term};
use crate::faults::Fate;
use crate::manifest::{behaviour_of, find};
use crate::runtime::{NewContainer, Sandbox, container_name, sandbox_name};
use crate::world::{Item, World, trace};

/// One call under way.
#[derive(Clone, Debug)]
pub struct Flight {
    pub(crate) id: CallId,
    pub(crate) uid: PodUid,
    pub(crate) pod: Arc<Pod>,
    pub(crate) call: Call,
    /// Where it is.
    pub(crate) stage: Stage,
    /// The caller has its answer, or has gone: what still happens, happens unheard.
    pub(crate) answered: bool,
    /// The name it holds in the runtime.
    pub(crate) name: Option<String>,
    /// Which life of the UID sent it.
    pub(crate) life: u32,
    /// Its answer is lost on the way: the caller's time runs out.
    pub(crate) deaf: bool,
}

/// Where a call is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stage {
    /// On its way, or stuck.
    Under,
    /// A stop that waits for its container's end.
    Stopping,
    /// A hook that runs.
    Hooking,
    /// Done, and nobody was told.
    Landed,
}

impl Flight {
    /// It is answered by the runtime.
    pub(crate) fn needs_runtime(&self) -> bool {
        let images = matches!(self.call, Call::ImageStatus { .. } | Call::PullImage { .. });
        self.call.is_runtime() || images
    }

    fn interruptible(&self) -> bool {
        !self.call.is_runtime()
    }
}

impl World {
    /// Perform one effect.
    pub(crate) fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Call { id, uid, pod, call, limit } => self.call(id, uid, pod, call, limit),
            Effect::Cancel { id } => self.cancel(id),
            Effect::Observe { uid, seq } => self.observe(uid, seq),
            Effect::List { seq } => {
                let (look, answer) = self.look_times();
                let epoch = self.epoch;
                if self.runtime.down {
                    self.send(answer, Event::Listed { seq, result: Err(unavailable()) });
                } else if self.rng.chance(self.faults.look_fails) {
                    self.send(answer, Event::Listed { seq, result: Err(CallError::new("", "list failed")) });
                } else {
                    self.after(look, Item::List { epoch, seq, answer });
                }
            }
            Effect::CheckRuntime => {
                let delay = self.rng.millis(0, 5);
                let ready = RuntimeReady { network: true, ..RuntimeReady::default() };
                let result = if self.runtime.down { Err(unavailable()) } else { Ok(ready) };
                self.send(delay, Event::Runtime { result });
            }
            Effect::FindLeftovers { seq } => {
                let failed = self.rng.chance(self.faults.host_fails);
                let found = if failed { Err(CallError::new("", "EIO")) } else { Ok(self.host.found()) };
                let delay = self.rng.millis(0, 20);
                self.send(delay, Event::Leftovers { seq, found });
            }
            Effect::Sweep { uid } => {
                self.check_sweep(&uid);
                self.host.sweep(&uid);
            }
            Effect::Released { waiter } => self.check_released(waiter),
            Effect::WakeAt(at) => {
                let (epoch, token) = (self.epoch, self.queued + 1);
                let delay = self.clock.at_boot_time(at).saturating_sub(self.clock.now);
                self.after(delay, Item::Wake { epoch, token });
                self.wake = Some(token);
            }
            Effect::Ask { id, ask, .. } => self.ask(id, ask),
            Effect::Event(_)
            | Effect::KeepAside { .. }
            | Effect::StatusChanged { .. }
            | Effect::RuntimeChanged => {}
        }
    }

    fn look_times(&mut self) -> (Duration, Duration) {
        if self.rng.chance(self.faults.look_late) {
            let look = self.rng.millis(0, 3000);
            return (look, self.rng.millis(0, 3000));
        }
        (self.rng.millis(0, 3), self.rng.millis(0, 3))
    }

    fn observe(&mut self, uid: PodUid, seq: Seq) {
        let (look, answer) = self.look_times();
        let epoch = self.epoch;
        let stuck = self.checks.stuck_pod.as_ref() == Some(&uid);
        if self.runtime.down {
            self.checks.disturb(&uid);
            self.send(answer, Event::Observed { uid, seq, result: Err(unavailable()), covered: false });
        } else if stuck || self.rng.chance(self.faults.look_fails) {
            self.checks.disturb(&uid);
            let delay = if stuck || self.rng.chance(200) { Duration::from_secs(10) } else { answer };
            let error = CallError::new("", "the runtime could not tell");
            self.send(delay, Event::Observed { uid, seq, result: Err(error), covered: false });
        } else {
            if look + answer > Duration::from_millis(100) {
                self.checks.disturb(&uid);
            }
            self.after(look, Item::Look { epoch, uid, seq, answer });
        }
    }

    pub(crate) fn look(&mut self, epoch: u32, uid: PodUid, seq: Seq, answer: Duration) {
        if epoch == self.epoch {
            let result = if self.runtime.down { Err(unavailable()) } else { Ok(self.runtime.seen(&uid)) };
            let covered = !self.rng.chance(100);
            self.send(answer, Event::Observed { uid, seq, result, covered });
        }
    }

    pub(crate) fn list(&mut self, epoch: u32, seq: Seq, answer: Duration) {
        if epoch == self.epoch {
            let result = if self.runtime.down { Err(unavailable()) } else { Ok(self.runtime.listing()) };
            self.send(answer, Event::Listed { seq, result });
        }
    }

    /// Something happened in this pod: whoever listens may hear of it.
    pub(crate) fn hint(&mut self, uid: &PodUid) {
        if self.rng.chance(self.faults.hint_lost) {
            return;
        }
        let times = if self.rng.chance(self.faults.hint_twice) { 2 } else { 1 };
        for _ in 0..times {
            let late = self.rng.chance(self.faults.hint_late);
            let delay = if late { self.rng.millis(10, 10_000) } else { self.rng.millis(0, 3) };
            self.send(delay, Event::Hint { uid: uid.clone() });
        }
    }

    fn call(&mut self, id: CallId, uid: PodUid, pod: Arc<Pod>, call: Call, limit: Duration) {
        self.flown += 1;
        let flight = self.flown;
        self.by_call.insert(id, flight);
        let life = self.checks.life(&uid);
        let stage = Stage::Under;
        let entry = Flight {
            id,
            uid: uid.clone(),
            pod,
            call: call.clone(),
            stage,
            answered: false,
            name: None,
            life,
            deaf: false,
        };
        let needs_runtime = entry.needs_runtime();
        self.flights.insert(flight, entry);
        if needs_runtime && self.runtime.down {
            self.checks.disturb(&uid);
            let delay = self.rng.millis(0, 5);
            return self.answer(flight, delay, Err(unavailable()));
        }
        match call {
            Call::Hook { kind, name, id, .. } => {
                self.check_hook_run(&uid, kind, &id);
                self.begin_hook(flight, kind, &name, limit);
            }
            Call::Probe { kind, id, .. } => self.probe(flight, kind, &id),
            Call::PullImage { .. } => {
                let fate = self.faults.pull(&mut self.rng);
                self.schedule(flight, fate, limit);
            }
            Call::ImageStatus { .. } => {
                let delay = self.rng.millis(0, 5);
                self.schedule(flight, Fate::Fine(delay), limit);
            }
            _ if needs_runtime => self.runtime_call(flight, limit),
            _ => {
                let fate = self.faults.host_call(limit, &mut self.rng);
                self.schedule(flight, fate, limit);
            }
        }
    }

    fn runtime_call(&mut self, flight: u64, limit: Duration) {
        let Some(f) = self.flights.get_mut(&flight) else { return };
        let stuck = self.checks.stuck_pod.as_ref() == Some(&f.uid);
        let fate = match self.next_fate.take() {
            Some(fate) => fate,
            None if stuck => Fate::Never,
            None => self.faults.runtime_call(limit, &mut self.rng),
        };
        if !matches!(fate, Fate::Fine(_)) {
            self.checks.disturb(&f.uid);
        }
        let name = match &f.call {
            Call::RunSandbox { attempt } => Some(sandbox_name(&f.uid, *attempt)),
            Call::CreateContainer { name, attempt, .. } => Some(container_name(&f.uid, name, *attempt)),
            _ => None,
        };
        if let Some(name) = name {
            if let Err(message) = self.runtime.reserve(name.clone()) {
                let delay = self.rng.millis(1, 20);
                let uid = f.uid.clone();
                self.check_reserved(&uid, &message);
                return self.answer(flight, delay, Err(CallError::new("", message)));
            }
            f.name = Some(name);
        }
        self.schedule(flight, fate, limit);
    }

    fn schedule(&mut self, flight: u64, fate: Fate, limit: Duration) {
        match fate {
            Fate::Fine(after) => self.after(after, Item::Apply(flight)),
            Fate::Fails(after) => self.after(after, Item::Fail(flight)),
            Fate::Late(after) => {
                self.after(after, Item::Apply(flight));
                if let Some(f) = self.flights.get_mut(&flight) {
                    f.deaf = true;
                }
                self.after(limit, Item::Timeout(flight));
            }
            Fate::Never => self.after(limit, Item::Timeout(flight)),
        }
        let stops = self.flights.get(&flight).is_some_and(|f| matches!(f.call, Call::StopContainer { .. }));
        if stops && matches!(fate, Fate::Fine(_)) {
            self.after(limit, Item::Timeout(flight));
        }
    }

    /// The caller gets its answer, if it is still there.
    pub(crate) fn answer(&mut self, flight: u64, delay: Duration, result: Result<Answer, CallError>) {
        let Some(f) = self.flights.get_mut(&flight) else { return };
        if !std::mem::replace(&mut f.answered, true) {
            let id = f.id;
            self.by_call.remove(&id);
            self.send(delay, Event::Done { id, result });
        }
    }

    /// The flight is over.
    fn land(&mut self, flight: u64, result: Result<Answer, CallError>) {
        if let Some(f) = self.flights.get_mut(&flight).filter(|f| f.deaf && !f.answered) {
            (f.stage, f.name) = (Stage::Landed, None);
            return;
        }
        let delay = self.rng.millis(0, 2);
        self.answer(flight, delay, result);
        self.flights.remove(&flight);
    }

    /// The flight ends without effect and without an answer.
    pub(crate) fn drop_flight(&mut self, flight: u64) {
        if let Some(name) = self.flights.remove(&flight).and_then(|f| f.name) {
            self.runtime.release(&name);
        }
    }

    /// The flight ends with this error, whatever became of it.
    pub(crate) fn lose(&mut self, flight: u64, error: CallError) {
        if self.flights.contains_key(&flight) {
            self.answer(flight, Duration::from_millis(1), Err(error));
            self.drop_flight(flight);
        }
    }

    pub(crate) fn fail_flight(&mut self, flight: u64) {
        let Some(f) = self.flights.get(&flight) else { return };
        let (uid, call) = (f.uid.clone(), f.call.clone());
        trace!(self, "   {uid} fails {:?}", call.key());
        if let Call::StartContainer { id, .. } = &call
            && self.rng.chance(500)
        {
            self.runtime.fail_start(id, self.clock.wall());
            self.hint(&uid);
        }
        self.answer(flight, Duration::ZERO, Err(CallError::new("", "it did not work")));
        self.drop_flight(flight);
    }

    /// Its limit has passed: in doubt. A runtime call stays under way, and may surface yet; a stop is given up.
    pub(crate) fn time_out(&mut self, flight: u64) {
        let Some(f) = self.flights.get(&flight) else { return };
        let (runtime, over) = (f.call.is_runtime(), matches!(f.stage, Stage::Stopping | Stage::Landed));
        let (uid, key, answered) = (f.uid.clone(), f.call.key(), f.answered);
        if answered {
            return;
        }
        trace!(self, "   {uid} timed out {key:?}");
        self.checks.disturb(&uid);
        let error = CallError { in_doubt: runtime, ..CallError::new("", "deadline exceeded") };
        self.answer(flight, Duration::ZERO, Err(error));
        if over || !runtime {
            self.drop_flight(flight);
        }
    }

    fn cancel(&mut self, id: CallId) {
        let Some(flight) = self.by_call.get(&id).copied() else { return };
        let Some(f) = self.flights.get(&flight).filter(|f| f.interruptible()) else { return };
        let error = CallError { cancelled: true, ..CallError::new("", "cancelled") };
        let host = !matches!(f.call, Call::Hook { .. } | Call::Probe { .. } | Call::PullImage { .. });
        if host && self.rng.chance(500) {
            self.apply_host(flight);
        }
        let delay = self.rng.millis(0, 10);
        self.answer(flight, delay, Err(error));
        self.flights.remove(&flight);
    }

    /// What hangs ends now: the world became fair.
    pub(crate) fn end_hangs(&mut self) {
        let coming: std::collections::BTreeSet<u64> = self
            .queue
            .values()
            .filter_map(|item| match item {
                Item::Apply(f) | Item::Fail(f) | Item::HookEnds(f) | Item::KillTimer(f) => Some(*f),
                _ => None,
            })
            .collect();
        let hung: Vec<u64> = self.flights.keys().filter(|f| !coming.contains(f)).copied().collect();
        for flight in hung {
            let Some(f) = self.flights.get(&flight) else { continue };
            match (&f.call, f.answered) {
                (Call::PullImage { .. }, _) | (Call::Hook { .. }, _) => {
                    let delay = self.rng.millis(10, 3000);
                    let item = if f.stage == Stage::Hooking { Item::HookEnds(flight) } else { Item::Apply(flight) };
                    self.after(delay, item);
                }
                // The caller gave it up, or will when its time is over; the runtime lets go of its name.
                (_, true) => self.drop_flight(flight),
                (_, false) if f.stage != Stage::Stopping => {
                    let name = f.name.clone();
                    name.inspect(|name| self.runtime.release(name));
                }
                _ => {}
            }
        }
    }

    // --- arrivals ---

    /// A call arrives and has its effect.
    pub(crate) fn apply(&mut self, flight: u64) {
        let Some(f) = self.flights.get(&flight).filter(|f| f.stage == Stage::Under).cloned() else { return };
        if f.answered {
            trace!(self, "   {} late effect of {:?}", f.uid, f.call.key());
        }
        if self.runtime.down && f.needs_runtime() {
            // A call of an agent that is gone, in a runtime that is gone too.
            return self.drop_flight(flight);
        }
        let wall = self.clock.wall();
        match &f.call {
            Call::RunSandbox { attempt } => {
                self.check_sandbox_made(&f.uid);
                let id = self.runtime.run_sandbox(Sandbox {
                    uid: f.uid.clone(),
                    full_name: full_name(&f.pod),
                    source: source_of(&f.pod),
                    labelled: true,
                    attempt: *attempt,
                    ready: true,
                    created_at: wall,
                });
                trace!(self, "   {} sandbox {id} attempt {attempt} is there", f.uid);
                self.host.change(&f.uid, |h| h.logs = true);
                self.land(flight, Ok(Answer::Sandbox(id)));
                self.hint(&f.uid);
            }
            Call::CreateContainer { sandbox, name, attempt, .. } => {
                let new = new_container(&f, sandbox, name, *attempt);
                match self.runtime.create(new, wall) {
                    Ok(id) => {
                        trace!(self, "   {} container {id} = {name} attempt {attempt} is there", f.uid);
                        self.host.change(&f.uid, |h| h.logs = true);
                        self.land(flight, Ok(Answer::Container(id)));
                        self.hint(&f.uid);
                    }
                    Err(message) => {
                        self.answer(flight, Duration::ZERO, Err(CallError::new("", message)));
                        self.drop_flight(flight);
                    }
                }
            }
            Call::StartContainer { id, .. } => self.start(flight, &f.uid, id),
            Call::StopContainer { id, timeout, .. } => self.stop(flight, &f.uid, id, *timeout),
            Call::StopSandbox { id } => self.stop_sandbox(flight, &f.uid, id),
            Call::RemoveContainer { id, .. } => {
                self.runtime.remove(id);
                self.land(flight, Ok(Answer::Done));
            }
            Call::RemoveSandbox { id } => {
                let ready = self.runtime.sandboxes.get(id).is_some_and(|s| s.ready);
                if ready {
                    self.answer(flight, Duration::ZERO, Err(CallError::new("", "sandbox is not stopped")));
                    self.drop_flight(flight);
                } else {
                    self.runtime.remove_sandbox(id);
                    self.land(flight, Ok(Answer::Done));
                }
            }
            Call::ImageStatus { image, .. } => {
                let here = self.runtime.images.contains(image).then(facts);
                self.land(flight, Ok(Answer::Image(here)));
            }
            Call::PullImage { image, .. } => {
                self.runtime.images.insert(image.clone());
                self.land(flight, Ok(Answer::Image(Some(facts()))));
            }
            Call::MakeCgroup => {
                let made = self.host.get(&f.uid).is_none_or(|h| !h.cgroup);
                self.apply_host(flight);
                self.land(flight, Ok(Answer::Cgroup { made }));
            }
            _ => {
                self.apply_host(flight);
                self.land(flight, Ok(Answer::Done));
            }
        }
    }

    fn apply_host(&mut self, flight: u64) {
        let Some(f) = self.flights.get(&flight).cloned() else { return };
        let uid = &f.uid;
        match &f.call {
            Call::MakeCgroup => self.host.change(uid, |h| h.cgroup = true),
            Call::MakeDirs => self.host.change(uid, |h| h.dirs = true),
            Call::PrepareContainer { .. } => self.host.change(uid, |h| h.logs = true),
            Call::MountVolume { volume } => self.host.change(uid, |h| {
                h.volumes.insert(volume.clone());
            }),
            Call::RemoveCgroup => self.host.change(uid, |h| h.cgroup = false),
            Call::RemoveVolumes => self.host.change(uid, |h| h.volumes.clear()),
            Call::RemoveDirs => self.host.change(uid, |h| h.dirs = false),
            Call::RemoveLogs => self.host.change(uid, |h| h.logs = false),
            _ => {}
        }
    }

    fn behaviour(&self, container: &ContainerId) -> Option<Behaviour> {
        let place = self.runtime.truth(container)?.behaviour;
        self.behaviours.get(place).or(self.behaviours.first()).cloned()
    }

    fn start(&mut self, flight: u64, uid: &PodUid, id: &ContainerId) {
        match self.runtime.start(id, self.clock.now, self.clock.wall()) {
            Err(message) => {
                self.answer(flight, Duration::ZERO, Err(CallError::new("", message)));
                self.drop_flight(flight);
            }
            Ok(nth) => {
                trace!(self, "   {uid} {id} runs (start {nth})");
                if let Some(Run::Exits { after, code }) = self.behaviour(id).map(|b| b.run(nth)) {
                    self.after(after, Item::Exit { id: id.clone(), code, by_itself: true });
                }
                self.check_started(uid, id);
                self.land(flight, Ok(Answer::Done));
                self.hint(uid);
            }
        }
    }

    fn stop(&mut self, flight: u64, uid: &PodUid, id: &ContainerId, timeout: Duration) {
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
        if let Call::StopContainer { id, .. } = &f.call {
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
            let gone = CallError::new("", "the container is gone");
            self.land(flight, if hook { Err(gone) } else { Ok(Answer::Done) });
        }
        self.hint(&uid);
    }

    fn stop_sandbox(&mut self, flight: u64, uid: &PodUid, id: &podwright_core::model::SandboxId) {
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

    fn begin_hook(&mut self, flight: u64, kind: HookKind, name: &Name, limit: Duration) {
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
        let Call::Hook { kind, name, id, .. } = &f.call else { return };
        let plan = find(&f.pod, name.as_str()).map(|(c, _)| behaviour_of(c));
        let behaviour = plan.and_then(|n| self.behaviours.get(n)).cloned().unwrap_or_default();
        let hook = if *kind == HookKind::PreStop { behaviour.pre_stop } else { behaviour.post_start };
        let runs = self.runtime.containers.get(id).is_some_and(|c| c.state.may_run());
        let well = runs && (self.calm || !matches!(hook, Hook::Ends { well: false, .. }));
        let result = if well { Ok(Answer::Done) } else { Err(CallError::new("", "the hook failed")) };
        self.land(flight, result);
    }

    fn probe(&mut self, flight: u64, kind: ProbeKind, id: &ContainerId) {
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
            Call::StopContainer { id, .. } => self.stage == Stage::Stopping && id == container,
            Call::Hook { id, .. } => self.stage == Stage::Hooking && id == container,
            _ => false,
        }
    }
}

fn new_container(f: &Flight, sandbox: &podwright_core::model::SandboxId, name: &Name, attempt: u32) -> NewContainer {
    let spec = find(&f.pod, name.as_str()).map(|(c, _)| c);
    let grace = f.pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
    let hook = spec.and_then(|c| c.lifecycle.as_ref()).and_then(|l| l.pre_stop.as_ref());
    NewContainer {
        uid: f.uid.clone(),
        name: name.clone(),
        attempt,
        sandbox: sandbox.clone(),
        hash: spec.map(podwright_core::hash::container_hash),
        behaviour: spec.map_or(0, behaviour_of),
        grace: grace.and_then(|s| u64::try_from(s).ok()).map(Duration::from_secs),
        pre_stop: hook.map(|_| "{\"exec\":{}}".into()),
        life: f.life,
    }
}

fn source_of(pod: &Pod) -> Option<Source> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations.get("kubernetes.io/config.source").and_then(|text| Source::parse(text))
}

fn unavailable() -> CallError {
    CallError { unavailable: true, ..CallError::new("", "connection refused") }
}

fn facts() -> ImageFacts {
    ImageFacts { id: "sha256:image".into(), uid: Some(1000), username: String::new() }
}
