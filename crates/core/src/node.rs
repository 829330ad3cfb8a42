//! The whole agent as a function: routes each event to the pods it concerns, and collects records and effects.

mod admission;
mod guard;
mod housekeeping;
mod object_stores;
mod orphans;
mod pod_events;
mod pods;
mod removed;
mod routing;
mod runtime;
mod wakes;

use std::collections::BTreeSet;

use crate::NodeConfig;
use crate::model::{Effect, Event, Now, Out, Pod, PodRecord, PodUid, Record, Source};
use crate::node_status::RuntimeFacts;
use crate::pod::{Machine, PodFacts, State};
use crate::workers::Workers;

use admission::Admission;
pub use guard::Caught;
use housekeeping::Housekeeping;
use object_stores::ObjectStores;
use pods::Pods;
pub use removed::Gone;
use removed::RemovedPods;
use wakes::Wakes;

/// Everything the agent knows.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Node {
    pods: Pods,
    admission: Admission,
    stores: ObjectStores,
    wakes: Wakes,
    housekeeping: Housekeeping,
    removed: RemovedPods,
    /// Pods that an event concerned and that have not been stepped yet. After an event it is empty, except after a panic.
    touched: BTreeSet<PodUid>,
}

impl Node {
    /// A node with the pods of the journal.
    pub fn new(config: NodeConfig, mut records: Vec<PodRecord>) -> Self {
        let mut node = Self {
            pods: Pods::new(config),
            admission: Admission::default(),
            stores: ObjectStores::default(),
            wakes: Wakes::default(),
            housekeeping: Housekeeping::default(),
            removed: RemovedPods::default(),
            touched: BTreeSet::new(),
        };
        records.sort_by(|a, b| (a.first_seen, &a.uid).cmp(&(b.first_seen, &b.uid)));
        for record in records {
            node.admission.restore(&record);
            node.pods.workers.insert(record.uid.clone(), Machine::from_record(record));
        }
        node
    }

    /// Handles one event, and panics if a pod's machine does. The first event is [`Event::Wake`].
    pub fn handle(&mut self, event: Event, now: Now, out: &mut Out) {
        self.handle_event(event, now, out);
        if let Some(caught) = self.pods.caught.pop() {
            panic!("{}", caught.why);
        }
    }

    fn handle_event(&mut self, event: Event, now: Now, out: &mut Out) {
        let touched = self.route(event, now, out);
        self.touched.extend(touched);
        self.settle_and_schedule(now, out);
    }

    /// Follows a panic that was caught outside of a pod's machine: the pod that was being handled is quarantined.
    /// [`Node::settle_and_schedule`] does the rest of the event.
    fn quarantine_current(&mut self, why: &str, now: Now, out: &mut Out) -> Option<PodUid> {
        let uid = self.pods.take_current()?;
        self.pods.quarantine(&uid, why, now, out);
        Some(uid)
    }

    /// The second half of every event, also after a panic: steps the touched pods, and schedules the next observations and the
    /// next wake.
    fn settle_and_schedule(&mut self, now: Now, out: &mut Out) {
        self.settle(now, out);
        self.stores.sync_mirrors(&self.pods, now, out);
        self.schedule_observation(now, out);
        self.schedule_wake(now, out);
    }

    /// Steps the touched pods until none is left.
    fn settle(&mut self, now: Now, out: &mut Out) {
        self.admission.try_admit_waiting(&self.touched, &mut self.pods, now, out);
        while let Some(uid) = self.touched.pop_first() {
            self.pods.set_current(Some(uid.clone()));
            let freed = self.settle_one(uid, now, out);
            self.pods.set_current(None);
            if freed {
                self.touched.extend(self.pods.held());
                self.admission.try_admit_waiting(&self.touched, &mut self.pods, now, out);
            }
        }
    }

    /// True if it freed resources that held pods may use.
    fn settle_one(&mut self, uid: PodUid, now: Now, out: &mut Out) -> bool {
        if !self.pods.workers.get(&uid).is_some_and(PodFacts::is_quarantined) {
            self.admission.try_admit(&uid, &mut self.pods, now, out);
        }
        let before = self.pods.workers.get(&uid).map(PodFacts::state);
        self.pods.with(&uid, now, out, |machine, ctx, out| machine.step(ctx, out));
        let Some(machine) = self.pods.workers.machine(&uid) else { return false };
        let pod = machine.facts();
        let after = pod.state();
        let freed = after >= State::Terminated && self.admission.release(&uid);
        if before != Some(after) && after == State::Finished {
            self.touched.extend(self.pods.workers.of_name(pod.full_name()).iter().cloned());
            self.housekeeping.request();
        }
        let is_static = pod.is_static();
        if is_static {
            self.stores.mirror_is_dirty(pod.full_name());
        }
        if machine.is_gone() {
            let waiting = self.forget(&uid, now, out);
            self.touched.extend(waiting);
        } else {
            let wake = machine.wake(now);
            self.wakes.set(&uid, wake);
            if !is_static {
                self.stores.report(&uid, &self.pods, now, out);
            }
        }
        freed
    }

    /// Removes a pod and its record; returns the pods that may continue now.
    fn forget(&mut self, uid: &PodUid, now: Now, out: &mut Out) -> BTreeSet<PodUid> {
        let Some(mut machine) = self.pods.remove(uid) else { return BTreeSet::new() };
        machine.release_waiters(out);
        let mut touched: BTreeSet<PodUid> =
            self.pods.workers.of_name(machine.facts().full_name()).iter().cloned().collect();
        self.admission.release(uid);
        self.wakes.set(uid, None);
        self.stores.forget(uid);
        out.records.retain(|r| !matches!(r, Record::Put(p) if p.uid == *uid));
        out.records.push(Record::Forget(uid.clone()));
        out.effects.push(Effect::PodRemoved { uid: uid.clone() });
        self.removed.add(uid, machine.facts());
        // A source requested the same UID again while the old instance terminated: the new one starts now.
        if let Some((source, manifest)) = self.pods.sources.get(uid) {
            let manifest = manifest.clone();
            self.pods.create(source, manifest, now);
            touched.insert(uid.clone());
        }
        touched
    }

    /// Requests the relist, the health check and the search for leftovers when they are due.
    fn schedule_observation(&mut self, now: Now, out: &mut Out) {
        let seq = &mut self.pods.sequences.seq;
        self.pods.runtime.schedule(seq, now.boot, &mut out.effects);
        if let Some(seq) = self.housekeeping.begin(seq, now.boot) {
            out.effects.push(Effect::FindLeftovers { seq });
        }
    }

    fn schedule_wake(&mut self, now: Now, out: &mut Out) {
        let others =
            [self.pods.runtime.wake(), self.admission.wake(), self.housekeeping.wake(), self.stores.wake()].into_iter();
        out.effects.extend(self.wakes.schedule(others.flatten().min(), now.boot).map(Effect::WakeAt));
    }
}

/// Queries.
impl Node {
    /// The settings.
    pub fn config(&self) -> &NodeConfig {
        &self.pods.config
    }

    /// The pods that have records.
    pub fn workers(&self) -> &Workers {
        &self.pods.workers
    }

    /// Every pod with its status, as the API would show it.
    pub fn pods(&self) -> Vec<Pod> {
        self.pods.workers.iter().map(|(_, machine)| shown(machine)).collect()
    }

    /// Histories of removed pods, oldest first.
    pub fn gone(&self) -> impl Iterator<Item = &Gone> {
        self.removed.iter()
    }

    /// Manifests that cannot be used now, with the reason.
    pub fn broken(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pods.sources.broken()
    }

    /// What the Node object shows of the runtime, without images.
    pub fn runtime_facts(&self) -> &RuntimeFacts {
        self.pods.runtime.facts()
    }

    /// The runtime answers.
    pub fn runtime_up(&self) -> bool {
        self.pods.runtime.is_up()
    }

    /// This source has reported.
    pub fn source_ready(&self, source: Source) -> bool {
        self.pods.sources.is_ready(source)
    }

    /// The pod of this UID; the UID of a mirror pod stands for its static pod.
    pub fn translate(&self, uid: &PodUid) -> Option<PodUid> {
        self.stores.translate(uid, &self.pods.workers)
    }
}

/// A pod with its status.
pub(crate) fn shown(pod: &PodFacts) -> Pod {
    let record = pod.record();
    let mut shown = Pod::clone(&record.pod);
    shown.status = record.status.clone();
    shown
}

#[cfg(test)]
mod tests;
