//! The agent's death and return, and the accidents of the machine around it.

use std::time::Duration;

use jiff::SignedDuration;
use podwright_core::model::{CallError, Event};
use podwright_core::node::Node;
use podwright_core::record;

use crate::flight::Stage;
use crate::keeper::Wire;
use crate::world::{Item, World, trace};

impl World {
    /// A new agent reads the journal and begins.
    pub(crate) fn start_agent(&mut self) {
        if self.node.is_some() {
            return;
        }
        self.epoch += 1;
        self.config.boot_id = self.clock.boot_id();
        let records = self.journal.records();
        trace!(self, "== agent {} starts with {} records", self.epoch, records.len());
        self.checks.agent_starts(&records);
        let node = Node::new(self.config.clone(), records);
        if self.recording.is_some() {
            self.record(record::begin(&node, self.clock.read()));
        }
        self.node = Some(node);
        self.last_commit = self.clock.now;
        self.wake = None;
        self.send(Duration::ZERO, Event::Wake);
        if !self.faults.no_stream && !self.runtime.down {
            let delay = self.rng.millis(0, 50);
            self.send(delay, Event::EventStream { up: true });
        }
        let sources: Vec<_> = self.sources.keys().copied().collect();
        for source in sources {
            let late = self.rng.chance(self.faults.source_late);
            let delay = if late { self.rng.millis(1_000, 20_000) } else { self.rng.millis(0, 200) };
            self.announce(source, delay);
        }
    }

    /// The agent dies. Its answers are lost; what the runtime is at goes on, except that stops are waited for no more.
    pub(crate) fn crash(&mut self, how: &str) {
        if self.node.take().is_none() {
            return;
        }
        trace!(self, "== agent dies {how}");
        self.epoch += 1;
        let lost = self.journal.crash();
        self.checks.agent_dies(lost);
        self.keeper.agent_dies();
        for files in self.sources.values_mut() {
            files.reported = false;
        }
        self.by_call.clear();
        let flights: Vec<u64> = self.flights.keys().copied().collect();
        for id in flights {
            let Some(flight) = self.flights.get(&id) else { continue };
            let uid = flight.uid.clone();
            if flight.call.changes_runtime() {
                self.checks.disturb(&uid);
            }
            // A runtime drops what its caller went away from, or finishes it.
            let dropped = flight.stage == Stage::Stopping || !flight.call.changes_runtime() || self.rng.chance(300);
            if dropped {
                self.drop_flight(id);
            } else if let Some(flight) = self.flights.get_mut(&id) {
                flight.answered = true;
            }
        }
        let by_chance = if self.calm { Duration::from_millis(100) } else { self.rng.millis(50, 15_000) };
        let delay = self.restart_after.unwrap_or(by_chance);
        self.after(delay, Item::AgentStarts);
    }

    pub(crate) fn runtime_down(&mut self) {
        trace!(self, "== runtime goes away");
        self.checks.disturb_all();
        let flights: Vec<u64> = self.flights.iter().filter(|(_, f)| f.needs_runtime()).map(|(id, _)| *id).collect();
        for id in flights {
            if let Some(f) = self.flights.get_mut(&id) {
                f.deaf = true;
            }
            // It may have been done; the answer is lost all the same.
            if self.rng.chance(400) {
                self.apply(id);
            }
            let error = CallError::ConnectionLost { message: "transport is closing".into() };
            self.lose(id, error);
        }
        self.runtime.down = true;
        if !self.faults.no_stream {
            self.send(Duration::from_millis(1), Event::EventStream { up: false });
        }
        let delay = self.rng.millis(100, 30_000);
        self.after(delay, Item::RuntimeUp);
    }

    pub(crate) fn runtime_up(&mut self) {
        if !self.runtime.down {
            return;
        }
        trace!(self, "== runtime is back");
        self.runtime.down = false;
        if !self.faults.no_stream {
            let delay = self.rng.millis(1, 500);
            self.send(delay, Event::EventStream { up: true });
        }
    }

    pub(crate) fn reboot(&mut self) {
        let wiped = self.rng.chance(500);
        trace!(self, "== reboot, the runtime {}", if wiped { "forgot everything" } else { "remembers" });
        self.crash("with the machine");
        let flights: Vec<u64> = self.flights.keys().copied().collect();
        for id in flights {
            self.drop_flight(id);
        }
        self.queue.retain(|_, item| !matches!(item, Item::Exit { .. } | Item::KillTimer(_)));
        self.clock.now += Duration::from_secs(20);
        self.checks.reboot(&self.runtime, wiped);
        self.runtime.reboot(wiped, self.clock.wall());
        self.host.reboot();
        self.clock.reboot();
        self.runtime.down = false;
    }

    pub(crate) fn jump(&mut self) {
        let seconds = i64::try_from(self.rng.below(200_000)).unwrap_or(0) - 100_000;
        trace!(self, "== wall clock jumps by {seconds} s");
        self.clock.jump(SignedDuration::from_secs(seconds));
        self.checks.jumped = true;
    }

    pub(crate) fn sandbox_dies(&mut self) {
        let Some(id) = self.any_ready_sandbox() else { return };
        trace!(self, "== sandbox {id} dies");
        let uid = self.runtime.sandboxes[&id].uid.clone();
        self.checks.disturb(&uid);
        if let Some(sandbox) = self.runtime.sandboxes.get_mut(&id) {
            sandbox.ready = false;
        }
        self.hint(&uid);
    }

    /// Somebody removes the cgroup of a pod that runs. A living agent finds out when it makes the next sandbox, a new one at once.
    pub(crate) fn cgroup_goes(&mut self) {
        let Some(id) = self.any_ready_sandbox() else { return };
        let uid = self.runtime.sandboxes[&id].uid.clone();
        if self.host.get(&uid).is_none_or(|host| !host.cgroup) {
            return;
        }
        trace!(self, "== the cgroup of {uid} is gone");
        self.host.change(&uid, |host| host.cgroup = false);
        self.checks.cgroup_goes(uid, self.epoch);
        if self.rng.chance(500) {
            self.crash("beside a lost cgroup");
        }
    }

    /// Nothing goes wrong any more: faults end, files are whole, and every source speaks once more.
    pub fn calm_down(&mut self) {
        trace!(self, "== calm");
        self.calm = true;
        self.faults = crate::faults::Faults::default();
        self.journal.broken = false;
        self.retry_commit();
        self.runtime_up();
        self.keeper_up();
        let pending = self.queue.iter().filter(|(_, item)| {
            let fault = matches!(item, Item::RuntimeDown | Item::Reboot | Item::Jump | Item::SandboxDies | Item::Act);
            fault
                || matches!(item, Item::CgroupGoes)
                || matches!(item, Item::Disk { full: true } | Item::Crash | Item::Wire(Wire::Down))
        });
        let pending: Vec<_> = pending.map(|(at, _)| *at).collect();
        for at in pending {
            self.queue.remove(&at);
        }
        self.end_hangs();
        if self.node.is_none() {
            self.after(Duration::from_millis(10), Item::AgentStarts);
        }
        self.send(Duration::from_millis(20), Event::EventStream { up: true });
        let sources: Vec<_> = self.sources.keys().copied().collect();
        for source in sources {
            self.write(source, |files| files.values_mut().for_each(|f| f.broken = false));
        }
    }
}
