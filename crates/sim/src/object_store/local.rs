//! The store behind the local API: a part of the agent process, so it is not reachable while the agent is dead. Its objects have
//! no resource versions. Of statuses only a terminal phase is written to disk; all others are lost with the process.

use std::sync::Arc;

use podwright_core::model::{Pod, PodStatus, Source, full_name, is_terminal};

use super::ObjectStore;
use crate::env::{Env, trace};

impl ObjectStore {
    pub(crate) fn is_local(&self) -> bool {
        self.source == Source::Local
    }

    /// Written to disk, then shown.
    pub(super) fn write(&mut self, pod: Pod) -> Arc<Pod> {
        let pod = Arc::new(pod);
        self.disk.insert(full_name(&pod), Arc::clone(&pod));
        self.objects.insert(full_name(&pod), Arc::clone(&pod));
        pod
    }

    /// The agent died: a new process reads what was written.
    pub(crate) fn agent_dies(&mut self) {
        if self.is_local() {
            self.objects.clone_from(&self.disk);
        }
    }

    /// Core's status replaces the one before. Only the requester is answered: nothing watches.
    pub(super) fn replace_status(&mut self, env: &Env, pod: &Pod, status: &PodStatus) -> Arc<Pod> {
        let before = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        let new = Pod { status: Some(status.clone()), ..pod.clone() };
        trace!(env, "   store: {} is {:?}", full_name(pod), status.phase);
        if is_terminal(status.phase.as_deref()) && !is_terminal(before) {
            return self.write(new);
        }
        let new = Arc::new(new);
        self.objects.insert(full_name(pod), Arc::clone(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use podwright_core::model::PodUid;

    use super::*;
    use crate::faults::Faults;
    use crate::manifest::{ContainerPlan, PodPlan};
    use crate::world::World;

    fn world(seed: u64, faults: Faults) -> World {
        let mut world = World::new(seed, faults);
        world.agent.restart_after = Some(Duration::from_millis(300));
        world.enable_local_api();
        world.boot();
        assert!(world.run_for(Duration::from_secs(3)), "{:?}", world.violation());
        world
    }

    fn submit(world: &mut World, uid: &str) {
        let part = ContainerPlan::new("app", 0);
        world.store.create_pod(
            &mut world.env,
            &PodPlan { source: Source::Local, grace: 2, ..PodPlan::new(uid, uid, vec![part]) },
        );
    }

    #[test]
    fn the_object_of_a_deleted_pod_is_removed_though_answers_are_late_or_lost() {
        let late = Faults { watch_late: 500, api_answer_lost: 200, api_fails: 200, ..Faults::default() };
        for seed in 0..60 {
            let mut world = world(seed, late.clone());
            submit(&mut world, "u");
            let pause = world.env.rng.millis(0, 6000);
            assert!(world.run_for(pause), "seed {seed}: {:?}", world.violation());
            world.store.delete_pod(&mut world.env, &PodUid::from("u"), None);
            assert!(world.run_for(Duration::from_secs(30)), "seed {seed}: {:?}", world.violation());
            world.calm_down();
            assert!(world.settle(Duration::from_secs(300)), "seed {seed}: {:?}", world.violation());
            assert!(world.store.objects.is_empty(), "seed {seed}: its object is not removed");
        }
    }

    #[test]
    fn a_pod_that_succeeded_does_not_run_again_after_a_restart_of_the_agent() {
        let mut world = world(1, Faults::default());
        let runs = vec![crate::container_script::Run::Exits { after: Duration::from_secs(1), code: 0 }];
        world.runtime.scripts = vec![crate::container_script::ContainerScript { runs, ..Default::default() }];
        let plan = PodPlan {
            source: Source::Local,
            policy: "Never",
            ..PodPlan::new("u", "u", vec![ContainerPlan::new("app", 0)])
        };
        world.store.create_pod(&mut world.env, &plan);
        assert!(world.settle(Duration::from_secs(300)), "{:?}", world.violation());
        world.env.crash_after(Duration::ZERO);
        assert!(world.run_for(Duration::from_secs(60)), "{:?}", world.violation());
        let object = world.store.get(&PodUid::from("u")).expect("it is not deleted");
        assert_eq!(super::super::phase(object), Some("Succeeded"));
        assert_eq!(world.checks.history.starts.len(), 1);
    }
}
