//! The checkers: they see every event and output of core and every step of the simulation, and the true state of which core
//! observes only parts. Rules with a number are those of `docs/invariants.md`.
//!
//! `event` checks what core is sent and what it outputs, `call` each call, `record` each record, `objects` the requests to the
//! object store, `runtime` what happens in the runtime, `settled` what is left when everything has come to rest.

mod call;
mod cgroup;
mod event;
mod objects;
mod record;
mod runtime;
mod settled;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use podwright_core::model::{Call, CallId, ContainerId, HookKind, PodRecord, PodUid, Seq};
use podwright_core::pod::State;

pub(crate) use event::{check_event, check_output};
pub(crate) use objects::{check_final_delete, check_mirror_delete, check_patched, reverted_termination};
pub(crate) use runtime::{check_kill, check_sandbox_made, check_sweep, check_term, check_world, note_start};
pub(crate) use settled::settled;

use crate::agent::Agent;
use crate::clock::Clock;
use crate::env::Env;
use crate::host::Host;
use crate::object_store::ObjectStore;
use crate::runtime::Runtime;
use crate::sources::ManifestSources;

/// A broken rule.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Begins with the rule's number in `docs/invariants.md`, if it has one.
    pub rule: &'static str,
    /// The pod, the object and the values that break it.
    pub detail: String,
}

/// What the checkers compare core's decisions with.
pub(crate) struct Truth<'a> {
    clock: &'a Clock,
    epoch: u32,
    agent: &'a Agent,
    runtime: &'a Runtime,
    host: &'a Host,
    sources: &'a ManifestSources,
    store: &'a ObjectStore,
}

impl<'a> Truth<'a> {
    pub(crate) fn new(
        env: &'a Env,
        agent: &'a Agent,
        runtime: &'a Runtime,
        host: &'a Host,
        sources: &'a ManifestSources,
        store: &'a ObjectStore,
    ) -> Self {
        Self { clock: &env.clock, epoch: env.epoch(), agent, runtime, host, sources, store }
    }

    /// When the last KILL of a terminating pod is due, in simulation time.
    fn deadline(&self, record: &PodRecord) -> Option<Duration> {
        deadline(self.clock, record)
    }
}

/// What the checks of the runtime read.
pub(crate) struct RuntimeView<'a> {
    clock: &'a Clock,
    runtime: &'a Runtime,
    journal_full: bool,
}

impl<'a> RuntimeView<'a> {
    pub(crate) fn new(clock: &'a Clock, runtime: &'a Runtime, journal_full: bool) -> Self {
        Self { clock, runtime, journal_full }
    }

    fn deadline(&self, record: &PodRecord) -> Option<Duration> {
        deadline(self.clock, record)
    }
}

/// When the last KILL of a terminating pod is due, in simulation time.
pub(crate) fn deadline(clock: &Clock, record: &PodRecord) -> Option<Duration> {
    let ending = record.termination()?;
    Some(clock.at_boot_time(ending.deadline.resume(&clock.boot_id())))
}

/// What the checkers remember of a run.
#[derive(Clone, Debug, Default)]
pub struct Checks {
    /// The first broken rule.
    pub violation: Option<Violation>,
    violation_reported: bool,
    /// Records as core last wrote them.
    latest: BTreeMap<PodUid, Arc<PodRecord>>,
    /// How often a UID's record was dropped.
    incarnations: BTreeMap<PodUid, u32>,
    states: BTreeMap<PodUid, State>,
    /// The event in which an observation was requested.
    requested: BTreeMap<Seq, u64>,
    /// The event in which the newest observation that came back was requested, by pod.
    observed: BTreeMap<PodUid, u64>,
    listed: Option<(u64, BTreeSet<PodUid>)>,
    /// The event with which the pod's last runtime call came back.
    returned: BTreeMap<PodUid, u64>,
    /// Calls that core waits for.
    calls: BTreeMap<CallId, (PodUid, Call)>,
    /// When a call may be given up at the earliest: twice its limit after it was sent.
    give_up_at: BTreeMap<CallId, Duration>,
    /// Calls that start something and whose effect core does not know, with the time at which they may be given up.
    in_doubt: Vec<(PodUid, Call, Duration)>,
    /// Pods whose calls or observations had a fault: no rule about their times holds.
    disturbed: BTreeSet<PodUid>,
    /// Pods whose record was lost with the disk or whose containers were lost with the host: no rule about what ran before
    /// holds.
    record_lost: BTreeSet<PodUid>,
    /// How often each hook ran; true: preStop.
    hooks: BTreeMap<(ContainerId, bool), u32>,
    /// When this agent process sent the first stop of a container.
    first_stops: BTreeMap<ContainerId, Duration>,
    /// The newest check of the runtime succeeded, and nothing but the observation of one pod failed since.
    runtime_answers: bool,
    /// The deadline for which a stop was sent.
    stop_deadlines: BTreeMap<ContainerId, Duration>,
    pre_stop_began: BTreeMap<ContainerId, Duration>,
    /// Exits that are, or were, in a record.
    exits: BTreeSet<ContainerId>,
    objects: objects::DeliveredObjects,
    /// Pods with a kill request, in this incarnation.
    kills: BTreeSet<PodUid>,
    restarts: BTreeSet<PodUid>,
    /// Instances whose probe or postStart hook failed.
    unhealthy: BTreeSet<ContainerId>,
    cgroups: cgroup::Cgroups,
    rate: Rate,
    /// Times of signals, starts and deletions, for tests that measure.
    pub history: History,
}

/// Times of what happened, in simulation time.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// All KILLs, in order.
    pub kills: Vec<Signal>,
    /// When the termination of a pod was first recorded.
    pub terminating: BTreeMap<PodUid, Duration>,
    /// All TERMs, in order.
    pub terms: Vec<Signal>,
    /// Starts of processes with the name of the container, in order.
    pub starts: Vec<(Duration, PodUid, String)>,
    /// When the record was dropped.
    pub forgotten: BTreeMap<PodUid, Duration>,
    /// When core removed the object of a deleted pod.
    pub deleted: BTreeMap<PodUid, Duration>,
}

/// A signal to a container.
#[derive(Clone, Debug)]
pub struct Signal {
    /// In simulation time.
    pub at: Duration,
    /// The container's pod.
    pub uid: PodUid,
    /// The container's name.
    pub name: String,
    /// The other containers of the pod that ran at that moment.
    pub others_running: Vec<String>,
}

/// Wakes and effects in the current minute.
#[derive(Clone, Debug, Default)]
struct Rate {
    began: Duration,
    wakes: u32,
    effects: u32,
    /// Consecutive wakes at the same moment.
    same_moment: u32,
    last_wake: Duration,
}

impl Checks {
    /// A rule is broken. Only the first violation is kept.
    pub(crate) fn violate(&mut self, rule: &'static str, detail: String) {
        self.violation.get_or_insert(Violation { rule, detail });
    }

    /// A violation that was not returned by this method before.
    pub(crate) fn unreported_violation(&mut self) -> Option<&Violation> {
        let new =
            self.violation.is_some() && !std::mem::replace(&mut self.violation_reported, self.violation.is_some());
        self.violation.as_ref().filter(|_| new)
    }

    /// Counts the records that were dropped for this UID: a pod that starts from scratch is a new incarnation.
    pub(crate) fn incarnation(&self, uid: &PodUid) -> u32 {
        self.incarnations.get(uid).copied().unwrap_or(0)
    }

    pub(crate) fn disturb(&mut self, uid: &PodUid) {
        self.disturbed.insert(uid.clone());
    }

    pub(crate) fn disturb_all(&mut self) {
        self.disturbed.extend(self.latest.keys().cloned());
    }

    /// The agent process died; the records of these pods did not reach the disk.
    pub(crate) fn agent_dies(&mut self, lost: Vec<PodUid>) {
        self.record_lost.extend(lost);
        self.disturb_all();
    }

    /// A new agent process has read these records.
    pub(crate) fn agent_starts(&mut self, records: &[PodRecord]) {
        self.latest = records.iter().map(|r| (r.uid.clone(), Arc::new(r.clone()))).collect();
        self.disturb_all();
        let ends = |uid: &PodUid| self.latest.get(uid).is_some_and(|r| r.termination().is_some());
        self.history.terminating.retain(|uid, _| ends(uid));
        self.states.clear();
        self.requested.clear();
        self.observed.clear();
        self.listed = None;
        self.returned.clear();
        self.calls.clear();
        self.give_up_at.clear();
        self.in_doubt.clear();
        self.first_stops.clear();
        self.runtime_answers = false;
        self.objects.clear();
    }

    /// The host reboots; `wiped`: the runtime lost its state.
    pub(crate) fn reboot(&mut self, runtime: &Runtime, wiped: bool) {
        self.disturb_all();
        if wiped {
            self.record_lost.extend(runtime.uids());
        }
    }

    /// The record as core last wrote it.
    pub fn record(&self, uid: &PodUid) -> Option<&PodRecord> {
        self.latest.get(uid).map(|record| &**record)
    }

    /// The runtime refuses a name. Only a call that hung or that a dead agent sent may have reserved it.
    pub(crate) fn check_reserved(&mut self, uid: &PodUid, message: &str) {
        if !self.disturbed.contains(uid) {
            self.violate("13 no name is requested twice", format!("{uid}: {message}"));
        }
    }

    /// A hook is run.
    pub(crate) fn check_hook_run(&mut self, uid: &PodUid, kind: HookKind, id: &ContainerId) {
        let times = self.hooks.entry((id.clone(), kind == HookKind::PreStop)).or_default();
        *times += 1;
        if *times > 1 && !self.record_lost.contains(uid) {
            self.violate("14 a hook runs once", format!("{uid} {kind:?} of {id}"));
        }
    }
}
