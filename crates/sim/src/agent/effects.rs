//! Effects of core: calls begin, observations and lists are taken, requests go to the object store.

use std::time::Duration;

use podwright_core::model::{CallError, Effect, Event, PodUid, RuntimeReady, Seq};

use crate::calls::unavailable;
use crate::check;
use crate::env::{Env, Scheduled};
use crate::world::World;

impl World {
    pub(crate) fn perform(&mut self, effect: Effect) {
        if self.perform_eviction(&effect) {
            return;
        }
        match effect {
            Effect::Call { id, uid, pod, call, limit } => {
                let (calls, mut cx) = self.call_parts();
                calls.begin(&mut cx, id, uid, pod, call, limit);
            }
            Effect::Cancel { id } => {
                let (calls, mut cx) = self.call_parts();
                calls.cancel(&mut cx, id);
            }
            Effect::Observe { uid, seq } => self.observe(uid, seq),
            Effect::List { seq } => self.list(seq),
            Effect::CheckRuntime => {
                let delay = self.env.rng.millis(0, 5);
                let ready = RuntimeReady { network: true, ..RuntimeReady::default() };
                let result = if self.runtime.down { Err(unavailable()) } else { Ok(ready) };
                self.env.send(delay, Event::Runtime { result });
            }
            Effect::FindLeftovers { seq } => {
                let failed = self.env.rng.chance(self.env.faults.host_fails);
                let found = if failed { Err(CallError::failed("EIO")) } else { Ok(self.host.pod_uids()) };
                let delay = self.env.rng.millis(0, 20);
                self.env.send(delay, Event::Leftovers { seq, found });
            }
            Effect::Sweep { uid } => {
                let (checks, truth) = self.check_parts();
                check::check_sweep(checks, &truth, &uid);
                self.host.remove_all(&uid);
            }
            Effect::RequestObject { id, request, .. } => self.store.request(&mut self.env, id, request),
            Effect::Event(_)
            | Effect::SaveQuarantinedRecord { .. }
            | Effect::StatusChanged(_)
            | Effect::PodRemoved { .. }
            | Effect::AllowShutdown { .. }
            | Effect::ReadNode { .. }
            | Effect::RemoveUnusedImages { .. }
            | Effect::Evicted { .. }
            | Effect::RuntimeChanged => {}
        }
    }

    fn list(&mut self, seq: Seq) {
        let (read, answer) = observation_times(&mut self.env);
        let epoch = self.env.epoch();
        if self.runtime.down {
            self.env.send(answer, Event::Listed { seq, result: Err(unavailable()) });
        } else if self.env.rng.chance(self.env.faults.observe_fails) {
            self.env.send(answer, Event::Listed { seq, result: Err(CallError::failed("list failed")) });
        } else {
            self.env.after(read, Scheduled::List { epoch, seq, answer });
        }
    }

    fn observe(&mut self, uid: PodUid, seq: Seq) {
        let (read, answer) = observation_times(&mut self.env);
        let epoch = self.env.epoch();
        let hung = self.env.faults.hung_pod.as_ref() == Some(&uid);
        if self.runtime.down || self.runtime.unobservable.as_ref() == Some(&uid) {
            self.checks.disturb(&uid);
            self.env.send(answer, Event::Observed { uid, seq, result: Err(unavailable()), covered: false });
        } else if hung || self.env.rng.chance(self.env.faults.observe_fails) {
            self.checks.disturb(&uid);
            let delay = if hung || self.env.rng.chance(200) { Duration::from_secs(10) } else { answer };
            let error = CallError::failed("observation failed");
            self.env.send(delay, Event::Observed { uid, seq, result: Err(error), covered: false });
        } else {
            if read + answer > Duration::from_millis(100) {
                self.checks.disturb(&uid);
            }
            self.env.after(read, Scheduled::Observe { epoch, uid, seq, answer });
        }
    }

    /// The runtime's state of a pod at this moment.
    pub(crate) fn observe_now(&mut self, uid: PodUid, seq: Seq, answer: Duration) {
        let result = if self.runtime.down { Err(unavailable()) } else { Ok(self.runtime.observe(&uid)) };
        let covered = !self.env.rng.chance(100);
        self.env.send(answer, Event::Observed { uid, seq, result, covered });
    }

    pub(crate) fn list_now(&mut self, seq: Seq, answer: Duration) {
        let result = if self.runtime.down { Err(unavailable()) } else { Ok(self.runtime.list()) };
        self.env.send(answer, Event::Listed { seq, result });
    }
}

/// When the runtime is read, and how long its answer then takes.
fn observation_times(env: &mut Env) -> (Duration, Duration) {
    if env.rng.chance(env.faults.observe_late) {
        let read = env.rng.millis(0, 3000);
        return (read, env.rng.millis(0, 3000));
    }
    (env.rng.millis(0, 3), env.rng.millis(0, 3))
}
