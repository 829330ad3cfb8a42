//! Delivery of events to core: core handles one event, its records go to the journal, then its effects are performed.

use podwright_core::model::{Event, Out, Source};

use crate::check;
use crate::object_store::StoreEvent;
use crate::trace::{trace_event, trace_output};
use crate::world::World;

impl World {
    /// Core handles one event.
    pub(crate) fn deliver(&mut self, event: Event) {
        if !self.agent.is_running() {
            return;
        }
        trace_event(&self.env, &event);
        self.agent.events += 1;
        self.sources.note_delivery(&event);
        let (checks, truth) = self.check_parts();
        check::check_event(checks, &truth, &event);
        let out = self.agent.handle(event, self.env.clock.read());
        trace_output(&self.env, &out);
        let (checks, truth) = self.check_parts();
        check::check_output(checks, &truth, &out);
        if self.env.rng.chance(self.env.faults.crash) && self.env.rng.chance(300) {
            return self.crash_agent("before its records were written");
        }
        if let Some(at) = out.wake_at {
            self.agent.wake_at(&mut self.env, at);
        }
        self.agent.commit_later(&mut self.env, out);
    }

    /// Writes the records of one event and performs its effects. The agent may die after any of these.
    pub(crate) fn commit(&mut self, out: Out) {
        if !out.records.is_empty() {
            self.agent.write_records(&mut self.env, out.records);
        }
        let env = &mut self.env;
        let crash_after = env.rng.chance(env.faults.crash).then(|| env.rng.index(out.effects.len() + 1));
        for effect in out.effects.into_iter().take(crash_after.unwrap_or(usize::MAX)) {
            self.perform(effect);
        }
        if crash_after.is_some() {
            self.crash_agent("after its records were written");
        }
    }

    /// A source reports all its pods.
    pub(crate) fn source_reports(&mut self, source: Source) {
        self.sources.take_announced(source);
        if !self.agent.is_running() || self.sources.is_off(source) {
            return;
        }
        if source != self.store.source() {
            let set = self.sources.report(source);
            return self.deliver(set);
        }
        if self.store.unreachable {
            // It is announced again when the API server is back.
            return;
        }
        self.store.begin_watch();
        if source == Source::Api && !self.sources.has_reported(source) {
            self.deliver(Event::NodeKnown { uid: Some("node-uid".into()), labels: None });
        }
        let list = self.store.list(&mut self.env);
        self.deliver(list);
    }

    pub(crate) fn store_event(&mut self, event: StoreEvent) {
        match event {
            StoreEvent::Request { epoch, id, request } => {
                if epoch == self.env.epoch() {
                    let Self { env, store, checks, runtime, .. } = self;
                    store.answer(env, checks, runtime, id, request);
                }
            }
            StoreEvent::Watch { stream, change } => {
                let source = self.store.source();
                if self.store.is_current_watch(stream) && self.sources.has_reported(source) {
                    self.deliver(Event::Source { source, change });
                }
            }
            StoreEvent::SetGate { uid, open } => self.store.set_gate(&mut self.env, &uid, open),
        }
    }
}
