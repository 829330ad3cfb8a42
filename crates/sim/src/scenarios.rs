//! Directed scenarios: one kind of fault each, until everything has settled after it.

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use jiff::SignedDuration;
    use k8s_openapi::api::core::v1::Pod;
    use podwright_core::model::{Manifest, PodUid, Source};

    use crate::container_script::{ContainerScript, OnTerm};
    use crate::faults::Faults;
    use crate::manifest::{ContainerPlan, PodPlan};
    use crate::world::World;

    const SETTLE_WITHIN: Duration = Duration::from_secs(900);

    fn world(seed: u64, faults: Faults) -> World {
        let mut world = World::new(seed, faults);
        world.agent.restart_after = Some(Duration::from_millis(300));
        world.boot();
        world
    }

    fn plan(name: &str, uid: &str) -> PodPlan {
        PodPlan { grace: 2, ..PodPlan::new(name, uid, vec![ContainerPlan::new("app", 0)]) }
    }

    fn settle(world: &mut World) {
        assert!(world.settle(SETTLE_WITHIN), "{:?}", world.violation());
    }

    fn running(world: &World, uid: &str) -> usize {
        world.runtime.alive(&PodUid::from(uid)).count()
    }

    #[test]
    fn a_manifest_edited_200_times_runs_its_last_content_and_never_two_pods_at_once() {
        let mut world = world(1, Faults::default());
        for n in 0..200 {
            world.put_manifest(Source::File, plan("p", &format!("u{n}")).manifest());
            let pause = world.env.rng.millis(0, 3000);
            assert!(world.run_for(pause), "{:?}", world.violation());
        }
        settle(&mut world);
        assert_eq!(running(&world, "u199"), 1);
    }

    #[test]
    fn a_manifest_edited_20_times_under_one_uid_starts_from_scratch_each_time() {
        let mut world = world(2, Faults::default());
        for grace in 1..=20 {
            world.put_manifest(Source::File, PodPlan { grace, ..plan("p", "fixed") }.manifest());
            let pause = world.env.rng.millis(0, 8000);
            assert!(world.run_for(pause), "{:?}", world.violation());
        }
        settle(&mut world);
        assert_eq!(running(&world, "fixed"), 1);
        let record = world.agent.journal.get(&PodUid::from("fixed")).expect("a record");
        let grace = record.pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
        assert_eq!(grace, Some(20));
    }

    /// How long each pod took from its manifest to its process.
    fn start_times(hung: bool) -> (BTreeMap<PodUid, Duration>, World) {
        let mut world = world(3, Faults::default());
        // Pull times would hide the difference.
        world.runtime.images.insert("app:1".into());
        world.run_for(Duration::from_secs(5));
        world.env.faults.hung_pod = hung.then(|| PodUid::from("u0"));
        let began = world.env.clock.now;
        for n in 0..110 {
            world.put_manifest(Source::File, plan(&format!("p{n}"), &format!("u{n}")).manifest());
        }
        assert!(world.run_for(Duration::from_secs(600)), "{:?}", world.violation());
        let starts = world.checks.history.starts.iter().map(|(at, uid, _)| (uid.clone(), *at - began)).collect();
        (starts, world)
    }

    #[test]
    fn one_of_110_pods_that_hangs_for_ten_minutes_does_not_slow_the_others() {
        let (alone, _) = start_times(false);
        let (with_hung, mut world) = start_times(true);
        assert_eq!((alone.len(), with_hung.len()), (110, 109));
        assert!(world.agent.node().is_some_and(|n| n.runtime_up()), "the node stays up");
        let mean = |times: &BTreeMap<PodUid, Duration>| {
            let others = times.iter().filter(|(uid, _)| uid.as_str() != "u0").map(|(_, t)| t.as_secs_f64());
            others.sum::<f64>() / 109.0
        };
        let ratio = mean(&with_hung) / mean(&alone);
        assert!(
            (0.9..1.1).contains(&ratio),
            "others took {ratio} of their time: {} instead of {}",
            mean(&with_hung),
            mean(&alone)
        );
        world.env.faults.hung_pod = None;
        world.calm_down();
        settle(&mut world);
        assert_eq!(running(&world, "u0"), 1);
    }

    #[test]
    fn calls_that_succeed_after_their_deadline_leave_no_duplicates() {
        for seed in 0..40 {
            let faults = Faults { call_hangs: 500, ..Faults::default() };
            let mut world = world(seed, faults);
            world.put_manifest(Source::File, plan("p", "u").manifest());
            assert!(world.run_for(Duration::from_secs(200)), "seed {seed}: {:?}", world.violation());
            world.calm_down();
            settle(&mut world);
            assert_eq!(running(&world, "u"), 1, "seed {seed}");
        }
    }

    #[test]
    fn a_full_disk_delays_no_kill_and_records_are_written_later() {
        let mut world = world(5, Faults::default());
        world.runtime.scripts = vec![ContainerScript { on_term: OnTerm::Ignores, ..ContainerScript::default() }];
        world.put_manifest(Source::File, plan("p", "u").manifest());
        settle(&mut world);
        world.agent.journal.disk_full = true;
        world.remove_manifest(Source::File, "/manifests/p.yaml");
        assert!(world.run_for(Duration::from_secs(10)), "{:?}", world.violation());
        assert_eq!(running(&world, "u"), 0, "the kill did not wait for the disk");
        assert!(world.agent.journal.has_unwritten());
        world.calm_down();
        settle(&mut world);
        assert_eq!(world.agent.journal.uids().count(), 0);
    }

    #[test]
    fn a_clock_that_jumps_a_day_either_way_moves_no_deadline() {
        for day in [-86_400, 86_400] {
            let mut world = world(6, Faults::default());
            world.runtime.scripts = vec![ContainerScript { on_term: OnTerm::Ignores, ..ContainerScript::default() }];
            world.put_manifest(Source::File, PodPlan { grace: 10, ..plan("p", "u") }.manifest());
            settle(&mut world);
            world.remove_manifest(Source::File, "/manifests/p.yaml");
            assert!(world.run_for(Duration::from_secs(3)), "{:?}", world.violation());
            world.env.clock.jump(SignedDuration::from_secs(day));
            assert!(world.run_for(Duration::from_secs(5)), "{:?}", world.violation());
            assert_eq!(running(&world, "u"), 1, "its grace period is not over");
            assert!(world.run_for(Duration::from_secs(5)), "{:?}", world.violation());
            assert_eq!(running(&world, "u"), 0, "its grace period is over");
            settle(&mut world);
        }
    }

    #[test]
    fn a_panic_in_one_pods_machine_quarantines_only_that_pod() {
        let mut world = world(7, Faults::default());
        world.agent.catch_panics = true;
        world.put_manifest(Source::File, plan("good", "u1").manifest());
        settle(&mut world);
        // No source delivers a pod without a spec: core panics, as on any bug.
        let mut bad: Pod = (*plan("bad", "u2").manifest().pod).clone();
        bad.spec = None;
        world.put_manifest(Source::File, Manifest { pod: bad.into(), origin: "/manifests/bad.yaml".into() });
        world.put_manifest(Source::File, plan("later", "u3").manifest());
        assert!(world.run_for(Duration::from_secs(60)), "{:?}", world.violation());
        assert_eq!((running(&world, "u1"), running(&world, "u3")), (1, 1), "the other pods run");
        let waits = world
            .agent
            .node()
            .and_then(|n| n.workers().machine(&PodUid::from("u2")))
            .map(|m| m.waits(world.env.clock.read()));
        assert!(
            waits.is_some_and(|w| w.iter().any(|w| w.reason == "Quarantined")),
            "the pod shows why it makes no progress"
        );
        world.remove_manifest(Source::File, "/manifests/good.yaml");
        assert!(world.run_for(Duration::from_secs(60)), "{:?}", world.violation());
        assert_eq!(running(&world, "u1"), 0, "and can be stopped");
    }
}
