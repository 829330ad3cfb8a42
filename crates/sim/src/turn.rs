//! One turn of the agent: core handles an event, its records go to the disk, then its effects are performed.

use std::time::Duration;

use podwright_core::model::{Event, Out, Record};
use podwright_core::record;

use crate::world::{Item, World, trace};

impl World {
    /// Core handles one event.
    pub(crate) fn turn(&mut self, event: Event) {
        if self.node.is_none() {
            return;
        }
        if self.tracing {
            self.trace_event(&event);
        }
        self.turns += 1;
        self.check_event(&event);
        let mut out = Out::default();
        let (now, catch) = (self.clock.read(), self.catch_panics);
        // Before it is handled: an event that makes core panic is the one people want to see.
        let recorded = self.recording.is_some().then(|| event.clone());
        if let Some(event) = &recorded {
            self.record(record::step(now, event, &out));
        }
        match &mut self.node {
            Some(node) if catch => drop(node.handle_guarded(event, now, &mut out)),
            Some(node) => node.handle(event, now, &mut out),
            None => {}
        }
        if let Some(event) = recorded {
            self.recording.as_mut().and_then(Vec::pop);
            self.record(record::step(now, &event, &out));
        }
        self.checks.after_handling(self.turns);
        if self.tracing {
            self.trace_out(&out);
        }
        self.check_turn(&out);
        if self.rng.chance(self.faults.crash) && self.rng.chance(300) {
            return self.crash("before its records were written");
        }
        self.commit_later(out);
    }

    pub(crate) fn record(&mut self, line: serde_json::Result<String>) {
        if let Some(lines) = &mut self.recording {
            lines.push(line.expect("everything core is told can be written down"));
        }
    }

    /// Records and effects of a turn go to the disk together, behind those of the turns before.
    pub(crate) fn commit_later(&mut self, out: Out) {
        if out == Out::default() {
            return;
        }
        let at = if out.records.is_empty() { self.clock.now } else { self.clock.now + self.rng.millis(0, 4) };
        let at = at.max(self.last_commit);
        self.last_commit = at;
        let epoch = self.epoch;
        self.after(at - self.clock.now, Item::Commit { epoch, out });
    }

    pub(crate) fn retry_commit(&mut self) {
        if self.node.is_some() && self.journal.owes() {
            self.write_records(vec![]);
        }
    }

    fn write_records(&mut self, records: Vec<Record>) {
        if let Some(error) = self.journal.commit(records) {
            trace!(self, "== journal: {}", error.as_deref().unwrap_or("works again"));
            self.send(Duration::ZERO, Event::Journal { error });
        }
    }

    pub(crate) fn commit(&mut self, out: Out) {
        if !out.records.is_empty() {
            self.write_records(out.records);
        }
        let mut performed =
            if self.rng.chance(self.faults.crash) { self.rng.index(out.effects.len() + 1) } else { usize::MAX };
        let dies = performed != usize::MAX;
        for effect in out.effects {
            if performed == 0 {
                break;
            }
            performed = performed.saturating_sub(1);
            self.perform(effect);
        }
        if dies {
            self.crash("after its records were written");
        }
    }
}
