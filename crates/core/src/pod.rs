//! The life of one pod on this node, from its first appearance until its record is removed.
//!
//! ```text
//!  waiting ──▶ syncing ── deleted, removed, evicted, ended ──▶ terminating ── nothing runs ──▶ terminated ── cleaned up ──▶ finished
//! ```
//!
//! Nothing here waits, and no step number is kept: each event changes what is known ([`PodFacts`]), then the plan of the state
//! (`progress`) compares the desired with the observed state and requests the missing calls. The state itself is part of the
//! durable record (`journaled`), so that a restarted agent continues where the former one was.

mod bring_up;
mod calls;
mod cleanup;
mod facts;
mod forecast;
mod handover;
mod history;
mod hooks;
mod inputs;
mod journaled;
mod observed;
mod probing;
mod progress;
mod publish;
mod record_update;
mod resizing;
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
pub(crate) use cleanup::reclaim_dead;
pub use facts::PodFacts;
pub(crate) use facts::Quarantine;
pub use forecast::{Forecast, forecast};
pub use history::History;
pub use waits::Wait;

pub(crate) use handover::{is_status_of, meet_object};
pub(crate) use resizing::{allocate_resize, refuse_resize};
pub(crate) use termination::GRACE_OF_LABELS;

use facts::ObjectStatus;
use journaled::Journaled;
use progress::Progress;
use step::PodStep;

/// State of the node that a step of a pod reads.
pub(crate) struct Ctx<'a> {
    pub(crate) now: Now,
    pub(crate) config: &'a NodeConfig,
    /// The runtime answers.
    pub(crate) runtime_up: bool,
    /// Why the pod network is not ready; `None`: it is.
    pub(crate) no_network: Option<&'a str>,
    /// The runtime's name.
    pub(crate) runtime: &'a str,
    pub(crate) seq: &'a mut Seq,
    pub(crate) last_call: &'a mut u64,
    pub(crate) owners: &'a mut BTreeMap<CallId, PodUid>,
    /// How often the runtime was unavailable so far.
    pub(crate) outages: u64,
    /// Its source is not synced, so the pod may have been removed: running containers continue, nothing is started.
    pub(crate) source_not_synced: bool,
}

/// Options of a termination.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct KillOptions {
    /// A shorter grace period than the pod's own.
    pub grace: Option<Duration>,
    /// Eviction's reason and message.
    pub evicted: Option<(String, String)>,
    /// The pod exceeds a limit of its own.
    pub exceeded_limit: bool,
    /// Annotations of the event about the eviction.
    pub annotations: Vec<(&'static str, String)>,
}

/// One pod's machine.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Machine {
    facts: PodFacts,
    progress: Progress,
}

impl Machine {
    /// A pod seen for the first time. One that ran here before, and that the journal has lost, continues from its object's status.
    pub(crate) fn new(uid: PodUid, source: Source, pod: Arc<Pod>, origin: Option<String>, now: Now) -> Self {
        let status = pod.status.clone().filter(|status| status.container_statuses.is_some());
        let record = PodRecord { origin, status, ..PodRecord::new(uid, source, pod, now.wall) };
        Self { facts: PodFacts::new(Journaled::new(record)), progress: Progress::default() }
    }

    /// A pod from the journal.
    pub(crate) fn from_record(record: PodRecord) -> Self {
        let mut facts = PodFacts::new(Journaled::restored(record));
        facts.object_status = ObjectStatus::Restored(facts.record.status.as_ref().and_then(handover::last_change));
        Self { facts, progress: Progress::default() }
    }

    /// The facts that all parts of the machine read.
    pub fn facts(&self) -> &PodFacts {
        &self.facts
    }

    /// Compares the desired with the observed state, and requests the missing calls. The second half of every event.
    pub(crate) fn step(&mut self, ctx: &mut Ctx<'_>, out: &mut Out) {
        if self.facts.quarantine.is_none() {
            self.advance(ctx, out);
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
        record_update::settle_doubts(facts, ctx);
        for id in record_update::settle_starts(facts, ctx.now) {
            self.progress.bring_up.start_settled(&id);
        }
        record_update::record_disappeared(facts, ctx.now);
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
            facts.observed.request(&facts.record.uid, ctx.seq, ctx.now.boot, &mut out.effects);
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
        if let Some(quarantine) = &self.facts.quarantine {
            return quarantine.until;
        }
        self.progress.wake(&self.facts, now)
    }

    /// Nothing is left of it and no source wants it: its record may be removed.
    pub(crate) fn is_gone(&self) -> bool {
        self.progress.cleanup.is_complete(&self.facts)
    }
}

/// Ends a quarantine whose time has passed. Comes before admission: a pod in quarantine is not admitted.
pub(crate) fn end_due_quarantine(machine: &mut Machine, now: Now) {
    let until = machine.facts.quarantine.as_ref().and_then(|quarantine| quarantine.until);
    if until.is_some_and(|until| until <= now.boot) {
        machine.facts.end_quarantine("the pod is tried again", now);
    }
}

/// Restarts a pod that was terminated for a shutdown that was cancelled, once it has terminated.
pub(crate) fn resume_after_shutdown(machine: &mut Machine, now: Now) {
    let facts = &machine.facts;
    if !facts.record.is_suspended() || !facts.record.is_finished() || !facts.calls.idle() {
        return;
    }
    let mut record = facts.record().clone();
    record.resume();
    let mut resumed = PodFacts::new(Journaled::new(record));
    resumed.has_config = facts.has_config;
    // The object shows the end of the instance before.
    resumed.object_status = ObjectStatus::Done;
    resumed.observed = facts.observed.clone();
    resumed.history = facts.history.clone();
    resumed.history.record(now, "begins again", "the node does not shut down");
    *machine = Machine { facts: resumed, progress: Progress::default() };
}

/// Asserts an invariant, in release builds too. The event loop catches the panic and quarantines this pod.
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
