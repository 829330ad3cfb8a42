//! Calls under way: each effect becomes a flight that changes the models when it arrives, and answers when it returns.

use std::sync::Arc;
use std::time::Duration;

use podwright_core::model::{Answer, Call, CallError, CallId, Event, Pod, PodUid, RuntimeCall};

use crate::faults::Fate;
use crate::runtime::{container_name, sandbox_name};
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
        let images =
            matches!(self.call, Call::Runtime(RuntimeCall::ImageStatus { .. } | RuntimeCall::PullImage { .. }));
        self.call.changes_runtime() || images
    }

    fn interruptible(&self) -> bool {
        !self.call.changes_runtime()
    }
}

impl World {
    pub(crate) fn call(&mut self, id: CallId, uid: PodUid, pod: Arc<Pod>, call: Call, limit: Duration) {
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
            Call::Runtime(RuntimeCall::Hook { kind, name, id, .. }) => {
                self.check_hook_run(&uid, kind, &id);
                self.begin_hook(flight, kind, &name, limit);
            }
            Call::Runtime(RuntimeCall::Probe { kind, id, .. }) => self.probe(flight, kind, &id),
            Call::Runtime(RuntimeCall::PullImage { .. }) => {
                let fate = self.faults.pull(&mut self.rng);
                self.schedule(flight, fate, limit);
            }
            Call::Runtime(RuntimeCall::ImageStatus { .. }) => {
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
            Call::Runtime(RuntimeCall::RunSandbox { attempt }) => Some(sandbox_name(&f.uid, *attempt)),
            Call::Runtime(RuntimeCall::CreateContainer { name, attempt, .. }) => {
                Some(container_name(&f.uid, name, *attempt))
            }
            _ => None,
        };
        if let Some(name) = name {
            if let Err(message) = self.runtime.reserve(name.clone()) {
                let delay = self.rng.millis(1, 20);
                let uid = f.uid.clone();
                self.check_reserved(&uid, &message);
                return self.answer(flight, delay, Err(CallError::failed(message)));
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
        let stops = self
            .flights
            .get(&flight)
            .is_some_and(|f| matches!(f.call, Call::Runtime(RuntimeCall::StopContainer { .. })));
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
    pub(crate) fn land(&mut self, flight: u64, result: Result<Answer, CallError>) {
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
        if let Call::Runtime(RuntimeCall::StartContainer { id, .. }) = &call
            && self.rng.chance(500)
        {
            self.runtime.fail_start(id, self.clock.wall());
            self.hint(&uid);
        }
        self.answer(flight, Duration::ZERO, Err(CallError::failed("it did not work")));
        self.drop_flight(flight);
    }

    /// Its limit has passed: in doubt. A runtime call stays under way, and may surface yet; a stop is given up.
    pub(crate) fn time_out(&mut self, flight: u64) {
        let Some(f) = self.flights.get(&flight) else { return };
        let (runtime, over) = (f.call.changes_runtime(), matches!(f.stage, Stage::Stopping | Stage::Landed));
        let (uid, key, answered) = (f.uid.clone(), f.call.key(), f.answered);
        if answered {
            return;
        }
        trace!(self, "   {uid} timed out {key:?}");
        self.checks.disturb(&uid);
        let message = "deadline exceeded".to_owned();
        let error = match runtime {
            true => CallError::InDoubt { reason: None, message },
            false => CallError::failed(message),
        };
        self.answer(flight, Duration::ZERO, Err(error));
        if over || !runtime {
            self.drop_flight(flight);
        }
    }

    pub(crate) fn cancel(&mut self, id: CallId) {
        let Some(flight) = self.by_call.get(&id).copied() else { return };
        let Some(f) = self.flights.get(&flight).filter(|f| f.interruptible()) else { return };
        let error = CallError::Cancelled;
        let host = !matches!(
            f.call,
            Call::Runtime(RuntimeCall::Hook { .. } | RuntimeCall::Probe { .. } | RuntimeCall::PullImage { .. })
        );
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
                (Call::Runtime(RuntimeCall::PullImage { .. }), _) | (Call::Runtime(RuntimeCall::Hook { .. }), _) => {
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
}

pub(crate) fn unavailable() -> CallError {
    CallError::Unavailable { message: "connection refused".into() }
}
