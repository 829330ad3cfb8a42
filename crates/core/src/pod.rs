//! The life of one pod on this node, from its first appearance until its record is removed.
//!
//! ```text
//!  waiting ──▶ syncing ── deleted, removed, evicted, ended ──▶ terminating ── nothing runs ──▶ terminated ── cleaned up ──▶ finished
//! ```
//!
//! Nothing here waits, and no step number is kept: each event changes what is known ([`PodFacts`]), then the plan of the state
//! (`progress`) compares what is wanted with what was observed and asks for the calls that are missing. The state itself is part
//! of the durable record (`journaled`), so that a restarted agent continues where the former one was.

mod absorb;
mod bring_up;
mod calls;
mod cleanup;
mod facts;
mod history;
mod hooks;
mod inputs;
mod journaled;
mod observed;
mod probing;
mod progress;
mod publish;
mod results;
mod setup;
mod step;
mod stuck;
mod termination;
mod update;
mod waits;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::NodeConfig;
use crate::model::{
    Answer, CallError, CallId, Effect, Now, Out, Pod, PodRecord, PodSnapshot, PodUid, Record, Seq, Source, Time,
};

pub use crate::model::State;
pub use facts::PodFacts;
pub use history::History;
pub use waits::Wait;

pub(crate) use termination::GRACE_OF_LABELS;

use journaled::Journaled;
use progress::Progress;
use step::PodStep;

/// What the node offers to every step of a pod.
pub(crate) struct Ctx<'a> {
    pub(crate) now: Now,
    pub(crate) config: &'a NodeConfig,
    /// The runtime answers.
    pub(crate) runtime_up: bool,
    /// Why pods can have no network, if so.
    pub(crate) no_network: Option<&'a str>,
    /// The runtime's name.
    pub(crate) runtime: &'a str,
    pub(crate) seq: &'a mut Seq,
    pub(crate) last_call: &'a mut u64,
    pub(crate) owners: &'a mut BTreeMap<CallId, PodUid>,
    /// How often the runtime was unavailable so far.
    pub(crate) outages: u64,
    /// Its source has not reported yet whether it is still wanted: what runs goes on, nothing is started.
    pub(crate) source_not_synced: bool,
}

/// Options of a termination.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KillOptions {
    /// A shorter grace period than the pod's own.
    pub grace: Option<Duration>,
    /// Eviction's reason and message.
    pub evicted: Option<(String, String)>,
    /// The request that waits for the end.
    pub waiter: Option<u64>,
}

/// One pod's machine.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Machine {
    facts: PodFacts,
    progress: Progress,
    /// Requests of its termination that wait for its end.
    waiters: Vec<u64>,
}

impl Machine {
    /// A pod seen for the first time. One that ran here before, and that the journal has lost, continues from its object's status.
    pub(crate) fn new(uid: PodUid, source: Source, pod: Arc<Pod>, origin: Option<String>, now: Now) -> Self {
        let status = pod.status.clone().filter(|status| status.container_statuses.is_some());
        let record = PodRecord { origin, status, ..PodRecord::new(uid, source, pod, now.wall) };
        Self { facts: PodFacts::new(Journaled::new(record)), progress: Progress::default(), waiters: vec![] }
    }

    /// A pod from the journal.
    pub(crate) fn from_record(record: PodRecord) -> Self {
        Self { facts: PodFacts::new(Journaled::restored(record)), progress: Progress::default(), waiters: vec![] }
    }

    /// What is known of it.
    pub fn facts(&self) -> &PodFacts {
        &self.facts
    }

    /// Compares what is wanted with what was observed, and asks for what is missing. The second half of every event.
    pub(crate) fn step(&mut self, ctx: &mut Ctx<'_>, out: &mut Out) {
        if self.facts.quarantine.is_none() {
            self.advance(ctx, out);
        }
        // Nothing is done for a pod in quarantine, so nothing waits for its end either.
        if self.facts.record.is_terminated() || self.facts.quarantine.is_some() {
            self.release_waiters(out);
        }
        let history = &self.facts.history;
        if let Some(record) = self.facts.record.take_unsaved(|| history.tail()) {
            out.effects.push(Effect::StatusChanged(Box::new(PodSnapshot::of(&record))));
            out.records.push(Record::Put(record));
        }
    }

    fn advance(&mut self, ctx: &mut Ctx<'_>, out: &mut Out) {
        let facts = &mut self.facts;
        if facts.calls.runtime_is_back(ctx.outages) {
            facts.observed.runtime_is_back();
            self.progress.stops.runtime_is_back();
        }
        absorb::settle_doubts(facts, ctx);
        for id in absorb::settle_starts(facts, ctx.now) {
            self.progress.bring_up.start_settled(&id);
        }
        absorb::absorb_disappeared(facts, ctx.now);
        loop {
            let before = facts.state();
            self.progress.advance(&mut PodStep { facts, ctx, out });
            let after = facts.state();
            if after == before {
                break;
            }
            if let Some(what) = reached(after) {
                facts.history.record(ctx.now, what, "");
            }
        }
        if ctx.runtime_up {
            facts.observed.look(&facts.record.uid, ctx.seq, ctx.now.boot, &mut out.effects);
        }
        publish::publish(facts, &self.progress, ctx, out);
        check(facts);
    }

    /// A call returned.
    pub(crate) fn done(&mut self, id: CallId, result: Result<Answer, CallError>, ctx: &mut Ctx<'_>, out: &mut Out) {
        let Some(sent) = self.facts.calls.returned(id) else { return };
        if sent.call.changes_runtime() {
            self.facts.observed.acted(ctx.seq.draw());
        }
        self.progress.returned(sent, result, &mut PodStep { facts: &mut self.facts, ctx, out });
    }

    /// When it wants to be stepped again, if nothing else happens.
    pub(crate) fn wake(&self, now: Now) -> Option<Time> {
        if self.facts.quarantine.is_some() {
            return None;
        }
        self.progress.wake(&self.facts, now)
    }

    /// Nothing is left of it and no source wants it: its record may go.
    pub(crate) fn is_gone(&self) -> bool {
        self.progress.cleanup.is_complete(&self.facts)
    }

    /// Each request that waits for the end is answered exactly once.
    pub(crate) fn release_waiters(&mut self, out: &mut Out) {
        out.effects.extend(self.waiters.drain(..).map(|waiter| Effect::Released { waiter }));
    }
}

/// An invariant, always on: a panic here is caught by the event loop and costs this pod only.
fn check(facts: &PodFacts) {
    assert!(!facts.record.is_terminated() || !facts.calls.starting(), "a start is under way in a terminated pod");
}

/// The history line for a state that a plan reached. The request of a termination has a line of its own.
fn reached(state: State) -> Option<&'static str> {
    match state {
        State::Terminated => Some("all containers stopped"),
        State::Finished => Some("volumes and cgroup removed"),
        State::Waiting | State::Syncing | State::Terminating => None,
    }
}
