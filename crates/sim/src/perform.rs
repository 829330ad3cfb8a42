//! Effects of core: calls take off, looks and lists are taken, keepers are asked.

use std::time::Duration;

use podwright_core::model::{CallError, Effect, Event, PodUid, RuntimeReady, Seq};

use crate::flight::unavailable;
use crate::world::{Item, World};

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
                    self.send(answer, Event::Listed { seq, result: Err(CallError::failed("list failed")) });
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
                let found = if failed { Err(CallError::failed("EIO")) } else { Ok(self.host.found()) };
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
            Effect::RequestObject { id, request, .. } => self.request(id, request),
            Effect::Event(_) | Effect::KeepAside { .. } | Effect::StatusChanged { .. } | Effect::RuntimeChanged => {}
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
            let error = CallError::failed("the runtime could not tell");
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
}
