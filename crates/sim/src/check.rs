//! The checkers: they watch every turn of core and every step of the world, and know the truth that core only sees parts of.
//!
//! `turn` judges what core is told and what it asks for, `call` each call, `record` what it writes down, `truth` what happens in the runtime because of it, `end`
//! what is left when the world has become quiet.

mod call;
mod cgroup;
mod end;
mod keeper;
pub(crate) use keeper::taken_back;
mod record;
mod truth;
mod turn;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use podwright_core::model::{Call, CallId, ContainerId, PodRecord, PodUid, Seq};
use podwright_core::pod::State;

use crate::runtime::Runtime;
use crate::world::World;

/// A broken rule.
#[derive(Clone, Debug)]
pub struct Violation {
    /// When, in the world's time.
    pub at: Duration,
    /// Which rule.
    pub rule: &'static str,
    /// What was seen.
    pub text: String,
}

/// What the checkers know.
#[derive(Clone, Debug, Default)]
pub struct Checks {
    /// Records as core last wrote them.
    latest: BTreeMap<PodUid, Arc<PodRecord>>,
    /// How often a UID's record was dropped.
    lives: BTreeMap<PodUid, u32>,
    states: BTreeMap<PodUid, State>,
    turn: u64,
    /// In which turn a look was asked for.
    drawn: BTreeMap<Seq, u64>,
    /// The turn of the newest look that came back, by pod.
    sight: BTreeMap<PodUid, u64>,
    listed: Option<(u64, BTreeSet<PodUid>)>,
    /// The turn in which the pod's last runtime call came back.
    returned: BTreeMap<PodUid, u64>,
    /// Calls core waits for.
    calls: BTreeMap<CallId, (PodUid, Call)>,
    /// When a call may be given up at the earliest: twice its limit after it was sent.
    patience: BTreeMap<CallId, Duration>,
    /// Starts whose fate nobody knows, with the moment at which they may be given up.
    doubts: Vec<(PodUid, Call, Duration)>,
    /// Pods whose calls or looks were hit by a fault: no promise about their times.
    disturbed: BTreeSet<PodUid>,
    /// Pods whose memory was lost with the disk or the machine: no promise about what ran before.
    tainted: BTreeSet<PodUid>,
    hooks: BTreeMap<(ContainerId, bool), u32>,
    /// The deadline for which a stop was sent.
    stopped_by: BTreeMap<ContainerId, Duration>,
    /// When a preStop hook began.
    hooked: BTreeMap<ContainerId, Duration>,
    /// Exits that are, or were, in a record.
    exits: BTreeSet<ContainerId>,
    waiters: BTreeSet<u64>,
    /// What core was told of objects.
    objects: keeper::Explanation,
    /// Pods whose end someone asked for, in this life.
    kills: BTreeSet<PodUid>,
    restarts: BTreeSet<PodUid>,
    /// Instances whose probe or postStart hook was told to have failed.
    unwell: BTreeSet<ContainerId>,
    /// Cgroups that went under what ran in them, and what was left outside.
    cgroups: cgroup::Cgroups,
    /// Turns and effects in the running minute.
    minute: Minute,
    /// All runtime calls and looks of this pod hang.
    pub stuck_pod: Option<PodUid>,
    /// The wall clock was set: durations read off it mean nothing.
    pub jumped: bool,
    /// The machine was started anew at least once.
    pub rebooted: bool,
    /// The last moment of each pod's life that was worth a measurement.
    pub marks: Marks,
}

/// Moments for scenarios that measure.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    /// The KILLs that were sent, in order.
    pub kills: Vec<Signal>,
    /// When the end of a pod was first written down.
    pub accepted: BTreeMap<PodUid, Duration>,
    /// The stop signals that were sent, in order.
    pub terms: Vec<Signal>,
    /// When a process began, in order.
    pub starts: Vec<(Duration, PodUid, String)>,
    /// When the record was dropped.
    pub forgotten: BTreeMap<PodUid, Duration>,
    /// When the object of a deleted pod went.
    pub deleted: BTreeMap<PodUid, Duration>,
}

/// A stop signal.
#[derive(Clone, Debug)]
pub struct Signal {
    /// When.
    pub at: Duration,
    /// To which pod.
    pub uid: PodUid,
    /// To which container.
    pub name: String,
    /// Which other containers of the pod ran at that moment.
    pub beside: Vec<String>,
}

#[derive(Clone, Debug, Default)]
struct Minute {
    began: Duration,
    wakes: u32,
    effects: u32,
    /// Wakes in a row without time passing.
    still: u32,
    last: Duration,
}

impl Checks {
    pub(crate) fn life(&self, uid: &PodUid) -> u32 {
        self.lives.get(uid).copied().unwrap_or(0)
    }

    pub(crate) fn disturb(&mut self, uid: &PodUid) {
        self.disturbed.insert(uid.clone());
    }

    pub(crate) fn disturb_all(&mut self) {
        self.disturbed.extend(self.latest.keys().cloned());
    }

    pub(crate) fn after_handling(&mut self, turn: u64) {
        self.turn = turn;
    }

    /// The agent is gone, with what only it knew; some records never reached the disk.
    pub(crate) fn agent_dies(&mut self, lost: Vec<PodUid>) {
        self.tainted.extend(lost);
        self.disturb_all();
        self.waiters.clear();
    }

    /// A new agent has read these.
    pub(crate) fn agent_starts(&mut self, records: &[PodRecord]) {
        self.latest = records.iter().map(|r| (r.uid.clone(), Arc::new(r.clone()))).collect();
        self.disturb_all();
        let ends = |uid: &PodUid| self.latest.get(uid).is_some_and(|r| r.ending.is_some());
        self.marks.accepted.retain(|uid, _| ends(uid));
        self.states.clear();
        self.drawn.clear();
        self.sight.clear();
        self.listed = None;
        self.returned.clear();
        self.calls.clear();
        self.patience.clear();
        self.doubts.clear();
        self.objects.clear();
    }

    pub(crate) fn reboot(&mut self, runtime: &Runtime, wiped: bool) {
        self.rebooted = true;
        self.disturb_all();
        if wiped {
            self.tainted.extend(runtime.uids());
        }
    }

    /// The record as core last wrote it.
    pub fn record(&self, uid: &PodUid) -> Option<&PodRecord> {
        self.latest.get(uid).map(|record| &**record)
    }
}

impl World {
    /// A rule is broken. Only the first counts.
    pub(crate) fn broken(&mut self, rule: &'static str, text: String) {
        if self.violation.is_none() {
            if self.tracing {
                println!("{:>10.3} !! {rule}: {text}", self.clock.now.as_secs_f64() - 1000.0);
                let now = self.clock.read();
                for (uid, machine) in self.node.iter().flat_map(|n| n.workers().iter()) {
                    println!("           {uid} is {:?} and waits for {:?}", machine.state(), machine.waits(now));
                }
            }
            self.violation = Some(Violation { at: self.clock.now, rule, text });
        }
    }
}
