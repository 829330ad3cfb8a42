//! Checks after another process removed a pod's cgroup: core creates it again, and containers that run outside of it are
//! restarted inside.

use std::collections::{BTreeMap, BTreeSet};

use podwright_core::model::{Answer, Call, ContainerId, Event, HostCall, PodRecord, PodUid, SandboxId};

use super::{Checks, Truth};

/// The cgroups that were removed.
#[derive(Clone, Debug, Default)]
pub(super) struct Cgroups {
    /// The pods that lost theirs, and the epoch in which they did.
    removed: BTreeMap<PodUid, u32>,
    /// Sandboxes that were ready when core got the answer that their pod's cgroup had to be created.
    sandboxes: BTreeSet<SandboxId>,
    /// Containers that ran then, and the epoch of that answer.
    containers: BTreeMap<ContainerId, u32>,
}

impl Checks {
    pub(crate) fn cgroup_removed(&mut self, uid: PodUid, epoch: u32) {
        self.cgroups.removed.insert(uid, epoch);
    }
}

/// Core gets the answer that a cgroup had to be created. To be called while `checks.calls` still has the call.
pub(super) fn note_cgroup(checks: &mut Checks, truth: &Truth<'_>, event: &Event) {
    let Event::Done { id, result: Ok(Answer::Cgroup { made: true }) } = event else { return };
    let Some((uid, Call::Host(HostCall::MakeCgroup))) = checks.calls.get(id) else { return };
    let ready = truth.runtime.sandboxes_of(uid).filter(|(_, s)| s.ready).map(|(id, _)| id.clone());
    checks.cgroups.sandboxes.extend(ready);
    checks.cgroups.containers.extend(truth.runtime.alive(uid).map(|(id, _)| (id.clone(), truth.epoch)));
    checks.cgroups.removed.remove(uid);
}

/// This sandbox runs outside of its pod's cgroup: a reason to stop it.
pub(super) fn is_outside_cgroup(checks: &Checks, sandbox: &SandboxId) -> bool {
    checks.cgroups.sandboxes.contains(sandbox)
}

/// At rest a pod runs in its cgroup, unless the cgroup was removed and the agent had no reason to check since.
pub(super) fn runs_in_its_cgroup(checks: &Checks, truth: &Truth<'_>, record: &PodRecord) -> Result<(), String> {
    let uid = &record.uid;
    let exists = truth.host.get(uid).is_some_and(|host| host.cgroup);
    let unnoticed = checks.cgroups.removed.get(uid) == Some(&truth.epoch);
    if !exists && !unnoticed {
        return Err(format!("{uid} runs and has no cgroup"));
    }
    // What a dead agent knew is lost, unless it is in the record.
    let recorded = |id: &ContainerId| record.containers.values().any(|m| m.voided.as_ref() == Some(id));
    let known = |id: &ContainerId| {
        let answered = checks.cgroups.containers.get(id);
        answered.is_some_and(|epoch| *epoch == truth.epoch || recorded(id))
    };
    match truth.runtime.alive(uid).find(|(id, _)| known(id)) {
        Some((id, _)) => Err(format!("{uid} {id} runs outside of its cgroup")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use podwright_core::model::Source;

    use super::*;
    use crate::faults::Faults;
    use crate::manifest::{ContainerPlan, PodPlan};
    use crate::world::World;

    #[test]
    fn containers_outside_a_removed_cgroup_are_restarted_inside_once_an_agent_notices() {
        let mut world = World::new(1, Faults::default());
        world.agent.restart_after = Some(Duration::from_millis(300));
        world.boot();
        world.put_manifest(
            Source::File,
            PodPlan { grace: 1, ..PodPlan::new("p", "u", vec![ContainerPlan::new("app", 0)]) }.manifest(),
        );
        assert!(world.settle(Duration::from_secs(300)), "{:?}", world.violation());
        let uid = PodUid::from("u");
        let before = world.runtime.alive(&uid).map(|(id, _)| id.clone()).next();
        world.host.change(&uid, |host| host.cgroup = false);
        assert!(world.settled().is_err_and(|why| why.contains("no cgroup")), "the checker notices it");
        world.checks.cgroup_removed(uid.clone(), world.env.epoch());
        assert!(world.settle(Duration::from_secs(300)), "the agent has no reason to check: {:?}", world.violation());
        world.env.crash_after(Duration::ZERO);
        assert!(world.run_for(Duration::from_secs(1)), "{:?}", world.violation());
        assert!(world.settle(Duration::from_secs(300)), "{:?}", world.violation());
        assert!(world.host.get(&uid).is_some_and(|host| host.cgroup));
        let after = world.runtime.alive(&uid).map(|(id, _)| id.clone()).next();
        assert!(after.is_some() && after != before, "it was restarted inside");
    }
}
