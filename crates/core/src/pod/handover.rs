//! The first look at the object of a pod: another agent may have run the pod, and reported it, meanwhile.

use jiff::Timestamp;

use super::Machine;
use super::facts::ObjectStatus;
use super::record_update::{adopt_verdicts, id_in};
use crate::model::{Name, PodListed, PodStatus, is_terminal};
use crate::status::is_our_condition;

/// The object has this status. A pod that the journal does not have continues from it; one that the journal has, only if
/// another agent has reported a change since.
pub(crate) fn meet_object(machine: &mut Machine, status: Option<&PodStatus>) {
    let facts = &mut machine.facts;
    let before = std::mem::replace(&mut facts.object_status, ObjectStatus::Done);
    if before == ObjectStatus::Done || facts.record.termination().is_some() {
        return;
    }
    let Some(theirs) = status.filter(|status| status.container_statuses.is_some()) else { return };
    // The record may have changed since the start of the agent: an observation may have come first.
    if matches!(before, ObjectStatus::Restored(ours) if facts.record.status.is_some() && ours >= last_change(theirs)) {
        return;
    }
    let lists = [&theirs.init_container_statuses, &theirs.container_statuses];
    for container in lists.into_iter().flatten().flatten() {
        let known = facts.record.containers.contains_key(container.name.as_str());
        let Some(id) = id_in(container).filter(|_| known) else { continue };
        facts.record.edit_container(&Name::from(container.name.as_str()), |memory| {
            if let Some((_, ready)) = memory.ready.as_mut().filter(|(known, _)| known.as_str() == id) {
                *ready = container.ready;
            }
        });
    }
    facts.record.set(|r| &mut r.status, Some(theirs.clone()));
    adopt_verdicts(facts);
    machine.progress.probing.forget_readiness();
}

/// The status is that of the instance that runs, and not of one before it.
pub(crate) fn is_status_of(status: &PodStatus, listed: &PodListed) -> bool {
    let containers = [&status.init_container_statuses, &status.container_statuses].into_iter().flatten().flatten();
    let runs = |id: &str| listed.containers.keys().any(|known| known.as_str() == id);
    !is_terminal(status.phase.as_deref()) && containers.filter_map(id_in).any(runs)
}

/// When a condition that only agents write last changed.
pub(super) fn last_change(status: &PodStatus) -> Option<Timestamp> {
    let ours = status.conditions.iter().flatten().filter(|condition| is_our_condition(&condition.type_));
    ours.filter_map(|condition| condition.last_transition_time.as_ref().map(|time| time.0)).max()
}
