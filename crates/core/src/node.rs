//! The whole agent as a function: routes each event to the pods it concerns, and collects records and effects.

mod admission;
mod current;
mod eviction;
mod guard;
mod housekeeping;
mod object_stores;
mod orphans;
mod pod_events;
mod pods;
mod quarantine;
mod removed;
mod routing;
mod runtime;
mod shutdown;
mod static_uids;
mod wakes;

use std::collections::BTreeSet;

use crate::NodeConfig;
use crate::model::{Effect, Event, FullName, Now, Out, PodRecord, PodStatus, PodUid, Record, Source};
use crate::node_status::RuntimeFacts;
use crate::pod::{self, Machine, PodFacts, Quarantine, State};
use crate::shutdown::Shutdown;
use crate::workers::Workers;

use admission::Admission;
pub use current::CurrentPodObserver;
use eviction::PodEviction;
pub use guard::Caught;
use housekeeping::Housekeeping;
use object_stores::ObjectStores;
use pods::Pods;
pub use removed::Gone;
use removed::RemovedPods;
use static_uids::WaitingSets;
use wakes::Wakes;

/// Everything the agent knows.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Node {
    pods: Pods,
    admission: Admission,
    stores: ObjectStores,
    wakes: Wakes,
    housekeeping: Housekeeping,
    #[serde(default)]
    eviction: PodEviction,
    removed: RemovedPods,
    #[serde(default)]
    shutdown: Shutdown,
    #[serde(default)]
    waiting_sets: WaitingSets,
    /// Pods that an event concerned and that have not been stepped yet. After an event it is empty, except after a panic.
    touched: BTreeSet<PodUid>,
}

impl Node {
    /// A node with the pods of the journal.
    pub fn new(config: NodeConfig, mut records: Vec<PodRecord>) -> Self {
        let (shutdown, boot_id) = (Shutdown::new(config.shutdown.is_some()), config.boot_id.clone());
        let mut node = Self {
            pods: Pods::new(config),
            admission: Admission::default(),
            stores: ObjectStores::default(),
            wakes: Wakes::default(),
            housekeeping: Housekeeping::default(),
            eviction: PodEviction::default(),
            removed: RemovedPods::default(),
            shutdown,
            waiting_sets: WaitingSets::default(),
            touched: BTreeSet::new(),
        };
        records.sort_by(|a, b| (a.first_seen, &a.uid).cmp(&(b.first_seen, &b.uid)));
        for mut record in records {
            let ended_before_boot = record.termination().is_some_and(|ending| ending.deadline.boot_id != boot_id);
            if ended_before_boot && record.is_suspended() {
                record.resume();
            }
            node.admission.restore(&record);
            node.pods.workers.insert(record.uid.clone(), Machine::from_record(record));
        }
        node
    }

    /// Every change of the pod that is being handled is reported to `observer`.
    pub fn observe_current(&mut self, observer: CurrentPodObserver) {
        self.pods.current.set_observer(observer);
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
        self.pods.quarantine(&uid, Quarantine { why: why.to_owned(), until: None, is_hold: false }, now, out);
        Some(uid)
    }

    /// The second half of every event, also after a panic: steps the touched pods, and schedules the next observations and the
    /// next wake.
    fn settle_and_schedule(&mut self, now: Now, out: &mut Out) {
        self.settle(now, out);
        shutdown::advance(self, now, out);
        self.eviction.advance_reclaim(&mut self.pods, now, out);
        self.stores.sync_mirrors(&self.pods, now, out);
        self.schedule_observation(now, out);
        self.schedule_wake(now, out);
    }

    /// Steps the touched pods until none is left.
    fn settle(&mut self, now: Now, out: &mut Out) {
        self.admission.try_admit_waiting(&self.touched, &mut self.pods, now, out);
        self.touched.extend(self.admission.take_preempted());
        let resized = self.admission.try_new_resizes(&self.touched, &mut self.pods, now, out);
        self.touched.extend(resized);
        while let Some(uid) = self.touched.pop_first() {
            self.pods.set_current(Some(uid.clone()));
            let freed = self.settle_one(uid, now, out);
            self.pods.set_current(None);
            self.touched.extend(self.admission.take_preempted());
            if freed {
                self.touched.extend(self.pods.held());
                self.admission.try_admit_waiting(&self.touched, &mut self.pods, now, out);
                self.touched.extend(self.admission.take_preempted());
                self.touched.extend(self.admission.try_resizes(&mut self.pods, now, out));
            }
        }
    }

    /// True if it freed resources that held pods may use.
    fn settle_one(&mut self, uid: PodUid, now: Now, out: &mut Out) -> bool {
        if let Some(machine) = self.pods.workers.get_mut(&uid) {
            pod::end_due_quarantine(machine, now);
            if self.shutdown.is_idle() {
                pod::resume_after_shutdown(machine, now);
            }
        }
        meet_mirror(&mut self.pods, &self.stores, &uid);
        if !self.pods.workers.get(&uid).is_some_and(PodFacts::is_quarantined) {
            self.admission.try_admit(&uid, &mut self.pods, now, out);
        }
        let before = self.pods.workers.get(&uid).map(PodFacts::state);
        self.pods.with(&uid, now, out, |machine, ctx, out| machine.step(ctx, out));
        let Some(machine) = self.pods.workers.machine(&uid) else { return false };
        let pod = machine.facts();
        if !pod.is_quarantined() {
            self.pods.suspects.release(&uid);
        }
        let after = pod.state();
        let freed = after >= State::Terminated && self.admission.release(&uid);
        if before != Some(after) && after == State::Finished {
            self.eviction.ended(&uid, now.boot);
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
        let Some(machine) = self.pods.remove(uid) else { return BTreeSet::new() };
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
            quarantine::apply(&mut self.pods, uid, now, out);
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
        self.eviction.schedule(&mut self.pods, now.boot, &mut out.effects);
    }

    fn schedule_wake(&mut self, now: Now, out: &mut Out) {
        let eviction = self.eviction.wake(&self.pods);
        let (runtime, housekeeping) = (self.pods.runtime.wake(), self.housekeeping.wake());
        let others = [runtime, self.admission.wake(), housekeeping, self.stores.wake(), eviction];
        let others = others.into_iter().chain([self.shutdown.wake()]);
        out.wake_at = self.wakes.schedule(others.flatten().min(), now.boot).or(out.wake_at);
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

    /// Histories of removed pods, oldest first.
    pub fn gone(&self) -> impl Iterator<Item = &Gone> {
        self.removed.iter()
    }

    /// Manifests that cannot be used now, with the reason.
    pub fn broken(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pods.sources.broken()
    }

    /// What the Node object shows of the runtime, without images, and pressure conditions.
    pub fn runtime_facts(&self) -> RuntimeFacts {
        RuntimeFacts { pressures: self.eviction.pressures().clone(), ..self.pods.runtime.facts().clone() }
    }

    /// The runtime answers.
    pub fn runtime_up(&self) -> bool {
        self.pods.runtime.is_up()
    }

    /// The pod of this UID; the UID of a mirror pod stands for its static pod.
    pub fn translate(&self, uid: &PodUid) -> Option<PodUid> {
        self.stores.translate(uid, &self.pods.workers)
    }
}

/// A static pod that runs continues from the status of its mirror pod, as others do from that of their object. The mirror pod may show
/// an instance before: a pod that a user starts again must not end with that.
fn meet_mirror(pods: &mut Pods, stores: &ObjectStores, uid: &PodUid) {
    let is_new = |pod: &PodFacts| pod.is_static() && !pod.has_met_object();
    let Some(pod) = pods.workers.get(uid).filter(|pod| is_new(pod)) else { return };
    if !pods.sources.is_ready(Source::Api) || pods.runtime.pleg.as_of.is_none() {
        return;
    }
    let listed = pods.runtime.pleg.listing.pods.get(uid).filter(|listed| listed.is_active());
    let mirror = stores.mirror_of(&pod.record().pod);
    let of_instance = |status: &PodStatus| listed.is_some_and(|listed| pod::is_status_of(status, listed));
    let status = mirror.and_then(|mirror| mirror.status.clone()).filter(of_instance);
    if let Some(machine) = pods.workers.get_mut(uid) {
        pod::meet_object(machine, status.as_ref());
    }
}

/// No check of the runtime has ended since the agent was started.
pub fn runtime_pending(node: &Node) -> bool {
    node.pods.runtime.is_pending()
}

/// The name of the static pod whose mirror pod has this UID in the API server.
pub fn static_pod_name<'a>(node: &'a Node, mirror: &PodUid) -> Option<&'a FullName> {
    node.stores.static_pod_name(mirror)
}

#[cfg(test)]
mod tests;
