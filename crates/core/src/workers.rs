//! The pods together: whose turn it is, who is known, and the questions the rest of the agent asks.
//!
//! Static pods of one full name never run side by side: an edited manifest has a new UID and waits, first come first served,
//! until the old one is finished. It is woken by that finish, not by a timer.

use std::collections::BTreeMap;

use crate::actions::Waiting;
use crate::model::{Cause, FullName, PodUid};
use crate::mutate::{self, Mutant};
use crate::pod::{Machine, State};

/// Every pod that has a record.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Workers {
    machines: BTreeMap<PodUid, Machine>,
    /// First sight orders the pods of one name.
    #[serde(with = "crate::record::pairs")]
    order: BTreeMap<FullName, Vec<PodUid>>,
    /// The desired pods were compared with the known ones at least once.
    synced: bool,
}

impl Workers {
    pub(crate) fn insert(&mut self, uid: PodUid, machine: Machine) {
        self.order.entry(machine.full_name().clone()).or_default().push(uid.clone());
        self.machines.insert(uid, machine);
    }

    pub(crate) fn remove(&mut self, uid: &PodUid) -> Option<Machine> {
        let machine = self.machines.remove(uid)?;
        let name = machine.full_name();
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

    /// One pod.
    pub fn get(&self, uid: &PodUid) -> Option<&Machine> {
        self.machines.get(uid)
    }

    /// All pods.
    pub fn iter(&self) -> impl Iterator<Item = (&PodUid, &Machine)> {
        self.machines.iter()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.machines.len()
    }

    /// None at all.
    pub fn is_empty(&self) -> bool {
        self.machines.is_empty()
    }

    /// All pods of one name, first seen first.
    pub fn of_name(&self, name: &FullName) -> &[PodUid] {
        self.order.get(name).map_or(&[], Vec::as_slice)
    }

    /// Why it isn't this pod's turn: another of its name came first, has had its turn, or is an orphan, and isn't finished.
    pub(crate) fn predecessor(&self, uid: &PodUid) -> Option<Waiting> {
        let machine = self.machines.get(uid)?;
        if !machine.is_static() || mutate::made(Mutant::NoStaticOrder) {
            return None;
        }
        let queue = self.order.get(machine.full_name())?;
        let mine = queue.iter().position(|u| u == uid)?;
        let blocks = |(i, other): (usize, &PodUid)| {
            let Some(m) = self.machines.get(other) else { return false };
            let orphan = m.record().ending.as_ref().is_some_and(|e| e.cause == Cause::Orphan);
            // First sight is on the wall clock, which jumps: who runs, then who had its turn, comes first whatever it says.
            let before = m.claim() > machine.claim() || (m.claim() == machine.claim() && i < mine);
            other != uid && m.state() < State::Finished && (orphan || (before && m.is_static()))
        };
        let first = queue.iter().enumerate().find(|(i, u)| blocks((*i, u)))?.1;
        Some(waiting_for(first))
    }

    /// A pod of its name runs, or is ending after only the runtime knew it.
    pub(crate) fn running_namesake(&self, uid: &PodUid) -> Option<Waiting> {
        let machine = self.machines.get(uid).filter(|m| m.is_static())?;
        let ends = |m: &Machine| {
            let orphan = m.record().ending.as_ref().is_some_and(|e| e.cause == Cause::Orphan);
            m.state() < State::Finished && (orphan || (m.is_static() && !m.seen().is_stopped()))
        };
        let named = self.of_name(machine.full_name()).iter();
        named.filter(|other| *other != uid).find(|other| self.machines.get(*other).is_some_and(ends)).map(waiting_for)
    }
}

fn waiting_for(first: &PodUid) -> Waiting {
    Waiting {
        reason: "WaitingForPredecessor".into(),
        message: format!("waiting for the end of the pod of the same name with UID {first}"),
    }
}

/// The questions, with the answers for pods nobody knows.
impl Workers {
    fn state(&self, uid: &PodUid) -> Option<State> {
        self.machines.get(uid).map(Machine::state)
    }

    /// Terminated, and known to be.
    pub fn is_known_terminated(&self, uid: &PodUid) -> bool {
        self.state(uid).is_some_and(|s| s >= State::Terminated)
    }

    /// Its containers may still run.
    pub fn could_have_running_containers(&self, uid: &PodUid) -> bool {
        self.state(uid).map_or(!self.synced, |s| s < State::Terminated)
    }

    /// All its clean-up is done.
    pub fn should_be_finished(&self, uid: &PodUid) -> bool {
        self.state(uid).map_or(self.synced, |s| s == State::Finished)
    }

    /// Its end was asked for.
    pub fn is_termination_requested(&self, uid: &PodUid) -> bool {
        self.state(uid).is_some_and(|s| s >= State::Terminating)
    }

    /// Its containers are to end or have ended.
    pub fn should_containers_be_terminating(&self, uid: &PodUid) -> bool {
        self.state(uid).map_or(self.synced, |s| s >= State::Terminating)
    }

    /// Nothing of it needs the runtime any more.
    pub fn should_runtime_be_removed(&self, uid: &PodUid) -> bool {
        self.state(uid).map_or(self.synced, |s| s >= State::Terminated)
    }

    /// Its dead containers, directories and logs are to go.
    pub fn should_content_be_removed(&self, uid: &PodUid) -> bool {
        self.machines.get(uid).map_or(self.synced, Machine::content_should_go)
    }

    /// A static pod of this name is ending, so its mirror stays.
    pub fn is_static_terminating(&self, name: &FullName) -> bool {
        let mut pods = self.of_name(name).iter().filter_map(|uid| self.machines.get(uid));
        pods.any(|m| m.is_static() && (State::Terminating..State::Finished).contains(&m.state()))
    }
}
