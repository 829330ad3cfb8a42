//! The whole agent as a function: routes what happened to the pods it concerns, and collects what is to be done.

mod guard;
mod housekeeping;
mod object_stores;
mod routing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::NodeConfig;
use crate::admission::{Ledger, Requests};
use crate::health::Health;
use crate::mirror::Mirrors;
use crate::model::{CallId, Effect, Event, FullName, Now, Out, Pod, PodRecord, PodUid, Record, Seq, Source, Time};
use crate::node_status::RuntimeFacts;
use crate::pleg::Pleg;
use crate::pod::{Ctx, History, Machine, State};
use crate::sources::Sources;
use crate::status_sync::StatusSync;
use crate::workers::Workers;

pub use guard::Caught;

/// Stories of pods that are gone, kept for whoever asks later.
const GONE_KEPT: usize = 200;

/// Everything the agent knows.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Node {
    config: NodeConfig,
    sources: Sources,
    workers: Workers,
    pleg: Pleg,
    health: Health,
    ledger: Ledger,
    status_sync: StatusSync,
    mirrors: Mirrors,
    /// The Node object's UID, while it may own mirrors.
    node_uid: Option<String>,
    sequences: Sequences,
    wakes: Wakes,
    housekeeping: housekeeping::Housekeeping,
    gone: VecDeque<Gone>,
    /// The pod whose event is being handled, for the one who catches a panic.
    current: Option<PodUid>,
    /// Pods that something happened to and that are to be stepped yet. Only a panic leaves any.
    touched: BTreeSet<PodUid>,
}

/// Numbers that were given out.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
struct Sequences {
    seq: Seq,
    call: u64,
    request: u64,
    owners: BTreeMap<CallId, PodUid>,
}

/// When pods want to be woken.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
struct Wakes {
    at: BTreeMap<PodUid, Time>,
    queue: BTreeSet<(Time, PodUid)>,
    /// What the hands were last asked for.
    asked: Option<Time>,
}

/// The story of a pod that is gone.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Gone {
    /// Its UID.
    pub uid: PodUid,
    /// Its name.
    pub full_name: FullName,
    /// What happened to it.
    pub history: History,
}

impl Node {
    /// A node that remembers these pods.
    pub fn new(config: NodeConfig, records: Vec<PodRecord>) -> Self {
        let pleg = Pleg::new(config.sync_frequency);
        let health = Health::new(config.sources.contains(&Source::Api));
        let mut node = Self {
            config,
            sources: Sources::default(),
            workers: Workers::default(),
            pleg,
            health,
            ledger: Ledger::default(),
            status_sync: StatusSync::default(),
            mirrors: Mirrors::default(),
            node_uid: None,
            sequences: Sequences::default(),
            wakes: Wakes::default(),
            housekeeping: housekeeping::Housekeeping::default(),
            gone: VecDeque::new(),
            current: None,
            touched: BTreeSet::new(),
        };
        let mut records = records;
        records.sort_by(|a, b| (a.first_seen, &a.uid).cmp(&(b.first_seen, &b.uid)));
        for record in records {
            if record.was_admitted() && !record.is_terminated() {
                node.ledger.reserve(record.uid.clone(), Requests::of(&record.pod));
            }
            node.workers.insert(record.uid.clone(), Machine::from_record(record));
        }
        node
    }

    /// Advance by one event. The only entrance; [`Event::Wake`] begins.
    pub fn handle(&mut self, event: Event, now: Now, out: &mut Out) {
        let touched = self.route(event, now, out);
        self.touched.extend(touched);
        self.settle_and_schedule(now, out);
    }

    /// A panic was caught while handling an event: the pod it was about is left as it is, and what it asked for half-way is
    /// taken out of `out`, which holds what others asked for too. [`Node::settle_and_schedule`] does what is left of the event.
    pub fn quarantine_current(&mut self, why: &str, now: Now, out: &mut Out) -> Option<PodUid> {
        let uid = self.current.take()?;
        let owners = &self.sequences.owners;
        out.records.retain(|record| !matches!(record, Record::Put(put) if put.uid == uid));
        out.effects.retain(|effect| match effect {
            Effect::Call { uid: of, .. } | Effect::Observe { uid: of, .. } => *of != uid,
            Effect::Cancel { id } => owners.get(id) != Some(&uid),
            _ => true,
        });
        self.workers.get_mut(&uid)?.quarantine(why, now, out);
        Some(uid)
    }

    /// The second half of every event, and what follows a panic: the pods that were touched are stepped, and the next looks and
    /// the next wake are asked for.
    pub fn settle_and_schedule(&mut self, now: Now, out: &mut Out) {
        self.settle(now, out);
        self.mirror(now, out);
        self.schedule_observation(now, out);
        self.ask_for_wake(now, out);
    }

    /// Step every pod that something happened to, until nothing follows from it.
    fn settle(&mut self, now: Now, out: &mut Out) {
        self.try_admit_waiting(now, out);
        while let Some(uid) = self.touched.pop_first() {
            self.current = Some(uid.clone());
            let room = self.settle_one(uid, now, out);
            self.current = None;
            if room {
                self.touched.extend(self.held());
                self.try_admit_waiting(now, out);
            }
        }
    }

    /// True if others may have room now.
    fn settle_one(&mut self, uid: PodUid, now: Now, out: &mut Out) -> bool {
        if !self.workers.get(&uid).is_some_and(Machine::is_quarantined) {
            self.give_turn(&uid, now, out);
        }
        let before = self.workers.get(&uid).map(Machine::state);
        self.with(&uid, now, out, |machine, ctx, out| machine.step(ctx, out));
        let Some(machine) = self.workers.get(&uid) else { return false };
        let after = machine.state();
        let room = after >= State::Terminated && self.ledger.release(uid.as_str());
        if before != Some(after) && after == State::Finished {
            self.touched.extend(self.workers.of_name(machine.full_name()).iter().cloned());
            self.housekeeping.want();
        }
        let is_static = machine.is_static();
        if is_static {
            let name = machine.full_name().clone();
            self.mirrors.mark_dirty(&name);
        }
        if machine.is_gone() {
            let waiting = self.forget(&uid, now, out);
            self.touched.extend(waiting);
        } else {
            let wake = machine.wake(now);
            self.wakes.set(&uid, wake);
            if !is_static {
                self.report(&uid, now, out);
            }
        }
        room
    }

    /// Drop a pod's record; whoever waited for that is named.
    fn forget(&mut self, uid: &PodUid, now: Now, out: &mut Out) -> BTreeSet<PodUid> {
        let Some(mut machine) = self.workers.remove(uid) else { return BTreeSet::new() };
        machine.release_waiters(out);
        let mut touched: BTreeSet<PodUid> = self.workers.of_name(machine.full_name()).iter().cloned().collect();
        self.ledger.release(uid.as_str());
        self.wakes.set(uid, None);
        self.pleg.forget(uid);
        self.status_sync.forget(uid);
        out.records.retain(|r| !matches!(r, Record::Put(p) if p.uid == *uid));
        out.records.push(Record::Forget(uid.clone()));
        out.effects.push(Effect::StatusChanged { uid: uid.clone() });
        if self.gone.len() == GONE_KEPT {
            self.gone.pop_front();
        }
        let full_name = machine.full_name().clone();
        self.gone.push_back(Gone { uid: uid.clone(), full_name, history: machine.history().clone() });
        // The same UID was asked for again while the old life ended: it begins now.
        if let Some((source, manifest)) = self.sources.get(uid) {
            let manifest = manifest.clone();
            self.create(source, manifest, now);
            touched.insert(uid.clone());
        }
        touched
    }

    /// Let one machine do something, with all it may draw from.
    fn with(
        &mut self,
        uid: &PodUid,
        now: Now,
        out: &mut Out,
        f: impl FnOnce(&mut Machine, &mut Ctx<'_>, &mut Out),
    ) -> bool {
        let heard = self.source_synced(Source::Api);
        let Some(machine) = self.workers.get_mut(uid) else { return false };
        let before = self.current.replace(uid.clone());
        let mut ctx = Ctx {
            now,
            config: &self.config,
            runtime_up: self.health.up && self.pleg.as_of.is_some(),
            no_network: self.health.no_network(),
            runtime: &self.health.name,
            seq: &mut self.sequences.seq,
            last_call: &mut self.sequences.call,
            owners: &mut self.sequences.owners,
            outages: self.health.outages,
            source_not_synced: machine.record().source == Source::Api && !heard,
        };
        f(machine, &mut ctx, out);
        self.current = before;
        true
    }

    /// The list and the health check, when they are due.
    fn schedule_observation(&mut self, now: Now, out: &mut Out) {
        if self.health.begin(now.boot) {
            out.effects.push(Effect::CheckRuntime);
        }
        if self.health.up
            && let Some(seq) = self.pleg.begin(&mut self.sequences.seq, now.boot)
        {
            out.effects.push(Effect::List { seq });
        }
        if let Some(seq) = self.housekeeping.begin(&mut self.sequences.seq, now.boot) {
            out.effects.push(Effect::FindLeftovers { seq });
        }
    }

    fn ask_for_wake(&mut self, now: Now, out: &mut Out) {
        let list = if self.health.up { self.pleg.wake() } else { None };
        let all = [self.wakes.first(), list, self.health.wake(), self.housekeeping.wake()];
        let asks = [self.status_sync.wake(), self.mirrors.wake()];
        let wake = all.into_iter().chain(asks).flatten().min().map(|at| at.max(now.boot));
        if wake.is_some() && wake != self.wakes.asked {
            out.effects.extend(wake.map(Effect::WakeAt));
            self.wakes.asked = wake;
        }
    }

    // --- questions ---

    /// The settings.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// The pods that have records.
    pub fn workers(&self) -> &Workers {
        &self.workers
    }

    /// Every pod as the API would show it.
    pub fn pods(&self) -> Vec<Pod> {
        self.workers.iter().map(|(_, machine)| shown(machine)).collect()
    }

    /// Stories of pods that are gone, oldest first.
    pub fn gone(&self) -> impl Iterator<Item = &Gone> {
        self.gone.iter()
    }

    /// Manifests that can't be used now, with the reason.
    pub fn broken(&self) -> impl Iterator<Item = (&str, &str)> {
        self.sources.broken()
    }

    /// What the node's object says of the runtime, but for its images.
    pub fn runtime_facts(&self) -> &RuntimeFacts {
        self.health.facts()
    }

    /// The runtime answers.
    pub fn runtime_up(&self) -> bool {
        self.health.up
    }

    /// This source has reported.
    pub fn source_ready(&self, source: Source) -> bool {
        self.sources.is_ready(source)
    }
}

impl Wakes {
    fn set(&mut self, uid: &PodUid, at: Option<Time>) {
        if let Some(old) = self.at.remove(uid) {
            self.queue.remove(&(old, uid.clone()));
        }
        if let Some(at) = at {
            self.at.insert(uid.clone(), at);
            self.queue.insert((at, uid.clone()));
        }
    }

    fn first(&self) -> Option<Time> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Pods whose time has come.
    fn due(&mut self, now: Time) -> BTreeSet<PodUid> {
        let due: BTreeSet<PodUid> =
            self.queue.iter().take_while(|(at, _)| *at <= now).map(|(_, uid)| uid.clone()).collect();
        for uid in &due {
            self.set(uid, None);
        }
        self.asked = None;
        due
    }
}

/// A pod with its status.
pub(crate) fn shown(machine: &Machine) -> Pod {
    let record = machine.record();
    let mut pod = Pod::clone(&record.pod);
    pod.status = record.status.clone();
    pod
}

#[cfg(test)]
mod tests;
