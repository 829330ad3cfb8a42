//! A pod's cgroup that somebody removed: it is made again, and what ran outside of it meanwhile does not stay there.

use std::collections::{BTreeMap, BTreeSet};

use podwright_core::model::{Answer, Call, ContainerId, Event, HostCall, PodRecord, PodUid, SandboxId};

use super::Checks;
use crate::world::World;

/// What is known of cgroups that went.
#[derive(Clone, Debug, Default)]
pub(super) struct Cgroups {
    /// Whose went, in which agent's life.
    gone: BTreeMap<PodUid, u32>,
    /// Sandboxes that were there when core heard that the cgroup of their pod had to be made.
    outside_pod_cgroup: BTreeSet<SandboxId>,
    /// Containers that ran then, and which agent heard it.
    outside: BTreeMap<ContainerId, u32>,
}

impl Checks {
    pub(crate) fn cgroup_goes(&mut self, uid: PodUid, epoch: u32) {
        self.cgroups.gone.insert(uid, epoch);
    }
}

impl World {
    /// Core hears that a cgroup had to be made. Call before the call itself is forgotten.
    pub(super) fn note_cgroup(&mut self, event: &Event) {
        let Event::Done { id, result: Ok(Answer::Cgroup { made: true }) } = event else { return };
        let Some((uid, Call::Host(HostCall::MakeCgroup))) = self.checks.calls.get(id) else { return };
        let ready = self.runtime.sandboxes_of(uid).filter(|(_, s)| s.ready).map(|(id, _)| id.clone());
        self.checks.cgroups.outside_pod_cgroup.extend(ready);
        self.checks.cgroups.outside.extend(self.runtime.alive(uid).map(|(id, _)| (id.clone(), self.epoch)));
        self.checks.cgroups.gone.remove(uid);
    }

    /// This sandbox, and what is in it, runs outside of its pod's cgroup: reason enough to end it.
    pub(super) fn is_uprooted(&self, sandbox: &SandboxId) -> bool {
        self.checks.cgroups.outside_pod_cgroup.contains(sandbox)
    }

    /// At rest a pod runs in its cgroup, unless that went under an agent that had no reason to look since.
    pub(super) fn runs_in_its_cgroup(&self, record: &PodRecord) -> Result<(), String> {
        let uid = &record.uid;
        let there = self.host.get(uid).is_some_and(|host| host.cgroup);
        let unseen = self.checks.cgroups.gone.get(uid) == Some(&self.epoch);
        if !there && !unseen {
            return Err(format!("{uid} runs and has no cgroup"));
        }
        // An agent that dies takes what it heard along, unless it wrote it down.
        let written = |id: &ContainerId| record.containers.values().any(|m| m.voided.as_ref() == Some(id));
        let known = |id: &ContainerId| {
            let heard = self.checks.cgroups.outside.get(id);
            heard.is_some_and(|heard| *heard == self.epoch || written(id))
        };
        match self.runtime.alive(uid).find(|(id, _)| known(id)) {
            Some((id, _)) => Err(format!("{uid} {id} runs outside of its cgroup")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use podwright_core::model::Source;

    use super::*;
    use crate::faults::Faults;
    use crate::manifest::{Part, PodPlan};

    #[test]
    fn what_ran_in_a_cgroup_that_went_runs_in_the_new_one_once_an_agent_looked() {
        let mut world = World::new(1, Faults::default());
        world.restart_after = Some(Duration::from_millis(300));
        world.boot();
        world.put(Source::File, PodPlan { grace: 1, ..PodPlan::new("p", "u", vec![Part::new("app", 0)]) }.manifest());
        assert!(world.settle(Duration::from_secs(300)), "{:?}", world.violation);
        let uid = PodUid::from("u");
        let before = world.runtime.alive(&uid).map(|(id, _)| id.clone()).next();
        world.host.change(&uid, |host| host.cgroup = false);
        assert!(world.settled().is_err_and(|why| why.contains("no cgroup")), "the checker sees it");
        world.checks.cgroup_goes(uid.clone(), world.epoch);
        assert!(world.settle(Duration::from_secs(300)), "nobody had a reason to look: {:?}", world.violation);
        world.crash_after(Duration::ZERO);
        assert!(world.run_for(Duration::from_secs(1)), "{:?}", world.violation);
        assert!(world.settle(Duration::from_secs(300)), "{:?}", world.violation);
        assert!(world.host.get(&uid).is_some_and(|host| host.cgroup));
        let after = world.runtime.alive(&uid).map(|(id, _)| id.clone()).next();
        assert!(after.is_some() && after != before, "it was brought inside");
    }
}
