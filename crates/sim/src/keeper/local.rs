//! The store behind the local API, as a keeper: a part of the agent, so nobody reaches it while the agent is dead. Its objects
//! have no versions. Of statuses only the end of a pod is on disk: all others are lost with the agent.

use std::sync::Arc;

use podwright_core::model::{Pod, PodStatus, Source, full_name, is_terminal};

use super::Keeper;
use crate::world::{World, trace};

impl Keeper {
    pub(crate) fn is_local(&self) -> bool {
        self.source == Source::Local
    }

    /// On disk, then shown.
    pub(super) fn write(&mut self, pod: Pod) -> Arc<Pod> {
        let pod = Arc::new(pod);
        self.disk.insert(full_name(&pod), Arc::clone(&pod));
        self.objects.insert(full_name(&pod), Arc::clone(&pod));
        pod
    }

    /// The agent died: what a new one reads is what was written.
    pub(crate) fn agent_dies(&mut self) {
        if self.is_local() {
            self.objects.clone_from(&self.disk);
        }
    }
}

impl World {
    /// Pods can be submitted to this world's node.
    pub fn open_store(&mut self) {
        self.keeper.source = Source::Local;
        self.config.sources.insert(Source::Local);
        self.sources.entry(Source::Local).or_default();
    }

    /// A status of core's takes the place of the one before. Whoever asked is told; nobody else has to be.
    pub(super) fn take_status(&mut self, pod: &Pod, status: &PodStatus) -> Arc<Pod> {
        let before = pod.status.clone().unwrap_or_default();
        self.check_patched(pod, &before, status);
        let new = Pod { status: Some(status.clone()), ..pod.clone() };
        trace!(self, "   store: {} is {:?}", full_name(pod), status.phase);
        let ends = is_terminal(status.phase.as_deref()) && !is_terminal(before.phase.as_deref());
        if ends {
            return self.keeper.write(new);
        }
        let new = Arc::new(new);
        self.keeper.objects.insert(full_name(pod), Arc::clone(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use podwright_core::model::PodUid;

    use super::*;
    use crate::faults::Faults;
    use crate::manifest::{Part, PodPlan};

    fn world(seed: u64, faults: Faults) -> World {
        let mut world = World::new(seed, faults);
        world.restart_after = Some(Duration::from_millis(300));
        world.open_store();
        world.boot();
        assert!(world.run_for(Duration::from_secs(3)), "{:?}", world.violation);
        world
    }

    fn submit(world: &mut World, uid: &str) {
        let part = Part::new("app", 0);
        world.create_pod(&PodPlan { source: Source::Local, grace: 2, ..PodPlan::new(uid, uid, vec![part]) });
    }

    #[test]
    fn a_submitted_pod_runs_and_when_deleted_its_object_goes_whatever_answers_are_late_or_lost() {
        let late = Faults { watch_late: 500, api_lost: 200, api_fails: 200, ..Faults::default() };
        for seed in 0..60 {
            let mut world = world(seed, late.clone());
            submit(&mut world, "u");
            let pause = world.rng.millis(0, 6000);
            assert!(world.run_for(pause), "seed {seed}: {:?}", world.violation);
            world.delete_pod(&PodUid::from("u"), None);
            assert!(world.run_for(Duration::from_secs(30)), "seed {seed}: {:?}", world.violation);
            world.calm_down();
            assert!(world.settle(Duration::from_secs(300)), "seed {seed}: {:?}", world.violation);
            assert!(world.keeper.objects.is_empty(), "seed {seed}: its object is still there");
        }
    }

    #[test]
    fn a_pod_that_ended_does_not_run_again_when_the_agent_comes_back() {
        let mut world = world(1, Faults::default());
        let runs = vec![crate::behaviour::Run::Exits { after: Duration::from_secs(1), code: 0 }];
        world.behaviours = vec![crate::behaviour::Behaviour { runs, ..Default::default() }];
        let plan =
            PodPlan { source: Source::Local, policy: "Never", ..PodPlan::new("u", "u", vec![Part::new("app", 0)]) };
        world.create_pod(&plan);
        assert!(world.settle(Duration::from_secs(300)), "{:?}", world.violation);
        world.crash_after(Duration::ZERO);
        assert!(world.run_for(Duration::from_secs(60)), "{:?}", world.violation);
        let object = world.keeper.get(&PodUid::from("u")).expect("nobody deleted it");
        assert_eq!(super::super::phase(object), Some("Succeeded"));
        assert_eq!(world.checks.marks.starts.len(), 1);
    }
}
