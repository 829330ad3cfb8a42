//! The life of one pod on this node, from first sight to forgotten.
//!
//! ```text
//!  waiting ──▶ syncing ── deleted, removed, evicted, ended ──▶ terminating ── nothing runs ──▶ terminated ── cleaned up ──▶ finished
//! ```
//!
//! Nothing here waits, and nothing here remembers how far it got: each event changes what we know, then the plan of the
//! state compares what is wanted with what was seen and asks for the calls that are missing. The state itself is read off
//! the durable record, so that an agent that comes back continues where it was.

mod absorb;
mod answer;
mod ask;
mod bring_up;
mod calls;
mod cgroup;
mod clean_up;
mod history;
mod inputs;
mod kill;
mod observed;
mod probing;
mod queries;
mod stuck;
mod sync;
mod update;
mod volumes;
mod waits;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::NodeConfig;
use crate::actions::Waiting;
use crate::model::{
    Answer, CallError, CallId, Effect, FullName, Now, Out, Pod, PodRecord, PodSnapshot, PodStatus, PodUid, Record, Seq,
    Source, full_name,
};
use crate::status;

pub use crate::model::State;
pub use history::History;
pub use waits::Wait;

pub(crate) use kill::GRACE_OF_LABELS;

use calls::Calls;
use kill::Killing;
use observed::Observed;
use probing::Probing;

/// What every step of a pod may look at and draw from.
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
    /// How often the runtime was away.
    pub(crate) outages: u64,
    /// Its source has yet to say whether it is still wanted: what runs goes on, nothing is begun.
    pub(crate) source_not_synced: bool,
}

/// How a kill is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KillOptions {
    /// A shorter time than the pod's own.
    pub grace: Option<Duration>,
    /// Eviction's reason and message.
    pub evicted: Option<(String, String)>,
    /// Who waits for the end.
    pub waiter: Option<u64>,
}

/// One pod's machine.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Machine {
    record: PodRecord,
    unsaved: bool,
    full_name: FullName,
    /// A source wants it. An orphan has none.
    has_config: bool,
    /// Why it isn't its turn: reason and message.
    hold: Option<Waiting>,
    observed: Observed,
    calls: Calls,
    /// Host-side work done by this process: cgroup, directories, volumes.
    setup: sync::Setup,
    bring_up: bring_up::BringUp,
    killing: Killing,
    probing: Probing,
    history: History,
    /// A bug was met: nothing is done for this pod any more.
    quarantine: Option<String>,
    /// Those who wait for the end of this pod.
    waiters: Vec<u64>,
    /// What is gone already, at the very end.
    cleaned: clean_up::Cleaned,
}

impl Machine {
    /// A pod seen for the first time. One that ran here before, and that the journal has lost, goes on from what its object says.
    pub(crate) fn new(uid: PodUid, source: Source, pod: Arc<Pod>, origin: Option<String>, now: Now) -> Self {
        let status = pod.status.clone().filter(|status| status.container_statuses.is_some());
        let record = PodRecord { origin, status, ..PodRecord::new(uid, source, pod, now.wall) };
        let mut machine = Self::from_record(record);
        machine.unsaved = true;
        machine
    }

    /// A pod the journal remembers.
    pub(crate) fn from_record(record: PodRecord) -> Self {
        let (full_name, history) = (full_name(&record.pod), History::remembered(&record.history));
        Self {
            record,
            unsaved: false,
            full_name,
            has_config: true,
            hold: None,
            observed: Observed::default(),
            calls: Calls::default(),
            setup: sync::Setup::default(),
            bring_up: bring_up::BringUp::default(),
            killing: Killing::default(),
            probing: Probing::default(),
            history,
            quarantine: None,
            waiters: vec![],
            cleaned: clean_up::Cleaned::default(),
        }
    }

    /// Compare what is wanted with what was seen, and ask for what is missing. The second half of every event.
    pub(crate) fn step(&mut self, ctx: &mut Ctx<'_>, out: &mut Out) {
        if self.quarantine.is_none() {
            self.calls.runtime_is_back(ctx.outages);
            self.settle_doubts(ctx);
            self.settle_starts(ctx);
            self.absorb_lost(ctx);
            loop {
                let before = self.state();
                self.plan(ctx, out);
                if self.state() == before {
                    break;
                }
                let after = self.state();
                if let Some(what) = reached(after) {
                    self.history.record(ctx.now, what, "");
                }
            }
            if ctx.runtime_up {
                self.observed.look(&self.record.uid, ctx.seq, ctx.now.boot, &mut out.effects);
            }
            self.publish(ctx, out);
            self.check();
        }
        // Nothing is done for a pod in quarantine, so its end is not to be waited for either.
        if self.record.is_terminated() || self.quarantine.is_some() {
            self.release_waiters(out);
        }
        if std::mem::take(&mut self.unsaved) {
            self.record.history = self.history.tail();
            out.effects.push(Effect::StatusChanged(Box::new(PodSnapshot::of(&self.record))));
            out.records.push(Record::Put(Box::new(self.record.clone())));
        }
    }

    /// Whoever waits for the end is told, exactly once.
    pub(crate) fn release_waiters(&mut self, out: &mut Out) {
        out.effects.extend(self.waiters.drain(..).map(|waiter| Effect::Released { waiter }));
    }

    fn plan(&mut self, ctx: &mut Ctx<'_>, out: &mut Out) {
        match self.state() {
            State::Waiting => {}
            State::Syncing => self.plan_sync(ctx, out),
            State::Terminating => self.plan_kill(ctx, out),
            State::Terminated => self.plan_clean_up(ctx, out),
            State::Finished => self.plan_removal(ctx, out),
        }
    }

    /// Publish what the status is now, if it is news.
    fn publish(&mut self, ctx: &Ctx<'_>, out: &mut Out) {
        let Some(status) = self.new_status(ctx, out) else { return };
        if self.record.status.as_ref() != Some(&status) {
            self.note_phase(&status, ctx);
            self.record.status = Some(status);
            self.unsaved = true;
        }
    }

    fn new_status(&self, ctx: &Ctx<'_>, out: &mut Out) -> Option<PodStatus> {
        let stuck = self.stuck(ctx.now);
        let mark = |status| status::stuck(status, self.record.status.as_ref(), stuck.as_ref(), ctx.now.wall);
        // Before the first look a remembered status is truer than anything computed from nothing.
        if let Some(remembered) = self.record.status.as_ref().filter(|_| !self.observed.known()) {
            return stuck.is_some().then(|| mark(remembered.clone()));
        }
        let computed = mark(self.compute_status(ctx));
        match &self.record.status {
            Some(old) => match status::check_transition(old, computed, &self.record.pod, |name| self.is_replaced(name))
            {
                Ok(status) => Some(status),
                Err(illegal) => {
                    self.event(true, "FailedSync", None, format!("status refused: {illegal}"), out);
                    None
                }
            },
            None => Some(computed),
        }
    }

    fn is_replaced(&self, name: &str) -> bool {
        self.record.containers.get(name).is_some_and(|m| m.voided.is_some())
    }

    fn compute_status(&self, ctx: &Ctx<'_>) -> PodStatus {
        self.with_status_input(ctx, status::pod_status)
    }

    /// What there is to compute a status from.
    fn with_status_input<T>(&self, ctx: &Ctx<'_>, f: impl FnOnce(&status::StatusInput<'_>) -> T) -> T {
        let trouble = self.trouble();
        f(&status::StatusInput {
            pod: &self.record.pod,
            seen: &self.observed.seen,
            record: &self.record,
            waiting: &self.bring_up.waiting,
            hold: self.hold.as_ref(),
            trouble: trouble.as_deref(),
            host_ips: &ctx.config.host_ips,
            runtime: ctx.runtime,
            now: ctx.now.wall,
            unsure: !self.record.is_terminated() && self.may_run_unseen(),
            is_static: self.is_static(),
        })
    }

    fn may_run_unseen(&self) -> bool {
        !self.observed.fresh() || self.calls.starting() || self.calls.in_doubt()
    }

    fn note_phase(&mut self, status: &PodStatus, ctx: &Ctx<'_>) {
        let old = self.record.status.as_ref().and_then(|s| s.phase.clone());
        if old != status.phase {
            let cause = match (&status.reason, &status.message) {
                (Some(reason), Some(message)) => format!("{reason}: {message}"),
                (Some(reason), None) => reason.clone(),
                (None, _) => String::new(),
            };
            let phase = status.phase.as_deref().unwrap_or_default();
            self.history.record(ctx.now, &format!("pod phase is {phase}"), &cause);
        }
    }

    /// An invariant, always on: a panic here is caught by the event loop and costs this pod only.
    fn check(&self) {
        assert!(!self.record.is_terminated() || !self.calls.starting(), "a start is under way in a terminated pod");
    }
}

/// What the history says of a state that a plan reached. The request of a termination has a line of its own.
fn reached(state: State) -> Option<&'static str> {
    match state {
        State::Terminated => Some("all containers stopped"),
        State::Finished => Some("volumes and cgroup removed"),
        State::Waiting | State::Syncing | State::Terminating => None,
    }
}

impl Machine {
    /// A call came back.
    pub(crate) fn done(&mut self, id: CallId, result: Result<Answer, CallError>, ctx: &mut Ctx<'_>, out: &mut Out) {
        let Some(sent) = self.calls.returned(id) else { return };
        if sent.call.changes_runtime() {
            self.observed.acted(ctx.seq.draw());
        }
        self.answered(sent, result, ctx, out);
    }
}
