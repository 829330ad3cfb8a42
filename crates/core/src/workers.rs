//! All pods: their order, and the queries of the rest of the agent (the kubelet's `podWorkers`).
//!
//! Static pods of one full name never run at the same time: an edited manifest has a new UID and waits, in order of arrival, until
//! the old pod is finished. The finish wakes it, not a timer.

use std::collections::BTreeMap;

use crate::actions::Waiting;
use crate::model::{Cause, FullName, PodUid};
use crate::mutate::{self, Mutant};
use crate::pod::{Machine, PodFacts, State};

/// Every pod that has a record.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Workers {
    machines: BTreeMap<PodUid, Machine>,
    /// Pods of one name in order of their first observation.
    #[serde(with = "crate::model::pairs")]
    order: BTreeMap<FullName, Vec<PodUid>>,
    /// The desired pods have been compared with the known ones at least once.
    synced: bool,
}

impl Workers {
    pub(crate) fn insert(&mut self, uid: PodUid, machine: Machine) {
        self.order.entry(machine.facts().full_name().clone()).or_default().push(uid.clone());
        self.machines.insert(uid, machine);
    }

    pub(crate) fn remove(&mut self, uid: &PodUid) -> Option<Machine> {
        let machine = self.machines.remove(uid)?;
        let name = machine.facts().full_name();
        if let Some(queue) = self.order.get_mut(name) {
            queue.retain(|u| u != uid);
            if queue.is_empty() {
                self.order.remove(name);
            }
        }
        Some(machine)
    }

    pub(crate) fn get_mut(&mut self, uid: &PodUid) -> Option<&mut Machine> {
        self.machines.get_mut(uid)
    }

    pub(crate) fn mark_synced(&mut self) {
        self.synced = true;
    }

    /// One pod's machine.
    pub fn machine(&self, uid: &PodUid) -> Option<&Machine> {
        self.machines.get(uid)
    }

    /// The facts of one pod.
    pub fn get(&self, uid: &PodUid) -> Option<&PodFacts> {
        self.machines.get(uid).map(Machine::facts)
    }

    /// The facts of all pods.
    pub fn iter(&self) -> impl Iterator<Item = (&PodUid, &PodFacts)> {
        self.machines.iter().map(|(uid, machine)| (uid, machine.facts()))
    }

    /// Number of pods.
    pub fn len(&self) -> usize {
        self.machines.len()
    }

    /// No pods.
    pub fn is_empty(&self) -> bool {
        self.machines.is_empty()
    }

    /// All pods of one name, the oldest first.
    pub fn of_name(&self, name: &FullName) -> &[PodUid] {
        self.order.get(name).map_or(&[], Vec::as_slice)
    }

    /// Why this pod has to wait: another pod of its name came first, was started before, or is an orphan, and is not finished.
    pub(crate) fn predecessor(&self, uid: &PodUid) -> Option<Waiting> {
        let pod = self.get(uid)?;
        if !pod.is_static() || mutate::is_active(Mutant::NoStaticOrder) {
            return None;
        }
        let queue = self.order.get(pod.full_name())?;
        let mine = queue.iter().position(|u| u == uid)?;
        let blocks = |(i, other): (usize, &PodUid)| {
            let Some(m) = self.get(other) else { return false };
            let orphan = m.record().termination().is_some_and(|e| e.cause == Cause::Orphan);
            // The first observation is a wall-clock time, which may jump: a running pod, then one that was started, comes first.
            let before = m.claim() > pod.claim() || (m.claim() == pod.claim() && i < mine);
            other != uid && m.state() < State::Finished && (orphan || (before && m.is_static()))
        };
        let first = queue.iter().enumerate().find(|(i, u)| blocks((*i, u)))?.1;
        Some(waiting_for(first))
    }

    /// Another pod of its name runs, or an orphan of its name is terminating.
    pub(crate) fn running_namesake(&self, uid: &PodUid) -> Option<Waiting> {
        let pod = self.get(uid).filter(|m| m.is_static())?;
        let ends = |m: &PodFacts| {
            let orphan = m.record().termination().is_some_and(|e| e.cause == Cause::Orphan);
            m.state() < State::Finished && (orphan || (m.is_static() && !m.seen().is_stopped()))
        };
        let named = self.of_name(pod.full_name()).iter();
        named.filter(|other| *other != uid).find(|other| self.get(other).is_some_and(ends)).map(waiting_for)
    }
}

fn waiting_for(first: &PodUid) -> Waiting {
    Waiting {
        reason: "WaitingForPredecessor".into(),
        message: format!("waiting for the end of the pod of the same name with UID {first}"),
    }
}

impl Workers {
    /// A static pod of this name is terminating, so its mirror stays.
    pub(crate) fn is_static_terminating(&self, name: &FullName) -> bool {
        let mut pods = self.of_name(name).iter().filter_map(|uid| self.get(uid));
        pods.any(|m| m.is_static() && (State::Terminating..State::Finished).contains(&m.state()))
    }
}
