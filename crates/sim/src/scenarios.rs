//! Directed scenarios: one trouble each, from the beginning to the rest after it.

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use jiff::SignedDuration;
    use k8s_openapi::api::core::v1::Pod;
    use podwright_core::model::{Manifest, PodUid, Source};

    use crate::behaviour::{Behaviour, Term};
    use crate::faults::Faults;
    use crate::manifest::{Part, PodPlan};
    use crate::world::World;

    const REST: Duration = Duration::from_secs(900);

    fn world(seed: u64, faults: Faults) -> World {
        let mut world = World::new(seed, faults);
        world.restart_after = Some(Duration::from_millis(300));
        world.boot();
        world
    }

    fn plan(name: &str, uid: &str) -> PodPlan {
        PodPlan { grace: 2, ..PodPlan::new(name, uid, vec![Part::new("app", 0)]) }
    }

    fn rest(world: &mut World) {
        let rested = world.settle(REST);
        assert!(rested, "{:?}", world.violation);
    }

    fn running(world: &World, uid: &str) -> usize {
        world.runtime.alive(&PodUid::from(uid)).count()
    }

    #[test]
    fn a_manifest_edited_200_times_runs_its_last_content_and_never_two_at_once() {
        let mut world = world(1, Faults::default());
        for n in 0..200 {
            world.put(Source::File, plan("p", &format!("u{n}")).manifest());
            let pause = world.rng.millis(0, 3000);
            assert!(world.run_for(pause), "{:?}", world.violation);
        }
        rest(&mut world);
        assert_eq!(running(&world, "u199"), 1);
    }

    #[test]
    fn a_manifest_edited_20_times_under_one_uid_begins_anew_each_time() {
        let mut world = world(2, Faults::default());
        for grace in 1..=20 {
            world.put(Source::File, PodPlan { grace, ..plan("p", "fixed") }.manifest());
            let pause = world.rng.millis(0, 8000);
            assert!(world.run_for(pause), "{:?}", world.violation);
        }
        rest(&mut world);
        assert_eq!(running(&world, "fixed"), 1);
        let record = world.journal.get(&PodUid::from("fixed")).expect("it has a record");
        let grace = record.pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
        assert_eq!(grace, Some(20));
    }

    /// How long each pod took from the SET to its process.
    fn start_times(stuck: bool) -> (BTreeMap<PodUid, Duration>, World) {
        let mut world = world(3, Faults::default());
        // What a pull takes is the registry's matter.
        world.runtime.images.insert("app:1".into());
        world.run_for(Duration::from_secs(5));
        world.checks.stuck_pod = stuck.then(|| PodUid::from("u0"));
        let began = world.clock.now;
        for n in 0..110 {
            world.put(Source::File, plan(&format!("p{n}"), &format!("u{n}")).manifest());
        }
        assert!(world.run_for(Duration::from_secs(600)), "{:?}", world.violation);
        let starts = world.checks.marks.starts.iter().map(|(at, uid, _)| (uid.clone(), *at - began)).collect();
        (starts, world)
    }

    #[test]
    fn one_of_110_pods_that_hangs_for_ten_minutes_costs_nobody_else() {
        let (alone, _) = start_times(false);
        let (beside, mut world) = start_times(true);
        assert_eq!((alone.len(), beside.len()), (110, 109));
        assert!(world.node.as_ref().is_some_and(|n| n.runtime_up()), "the node stays up");
        let mean = |times: &BTreeMap<PodUid, Duration>| {
            let others = times.iter().filter(|(uid, _)| uid.as_str() != "u0").map(|(_, t)| t.as_secs_f64());
            others.sum::<f64>() / 109.0
        };
        let ratio = mean(&beside) / mean(&alone);
        assert!(
            (0.9..1.1).contains(&ratio),
            "others took {ratio} of their time: {} for {}",
            mean(&beside),
            mean(&alone)
        );
        world.checks.stuck_pod = None;
        world.calm_down();
        rest(&mut world);
        assert_eq!(running(&world, "u0"), 1);
    }

    #[test]
    fn calls_that_succeed_after_their_deadline_leave_one_of_everything() {
        for seed in 0..40 {
            let faults = Faults { call_hangs: 500, ..Faults::default() };
            let mut world = world(seed, faults);
            world.put(Source::File, plan("p", "u").manifest());
            assert!(world.run_for(Duration::from_secs(200)), "seed {seed}: {:?}", world.violation);
            world.calm_down();
            rest(&mut world);
            assert_eq!(running(&world, "u"), 1, "seed {seed}");
        }
    }

    #[test]
    fn a_full_disk_holds_no_kill_back_and_what_it_owes_is_written_later() {
        let mut world = world(5, Faults::default());
        world.behaviours = vec![Behaviour { term: Term::Ignores, ..Behaviour::default() }];
        world.put(Source::File, plan("p", "u").manifest());
        rest(&mut world);
        world.journal.broken = true;
        world.remove(Source::File, "/manifests/p.yaml");
        assert!(world.run_for(Duration::from_secs(10)), "{:?}", world.violation);
        assert_eq!(running(&world, "u"), 0, "the kill did not wait for the disk");
        assert!(world.journal.owes());
        world.calm_down();
        rest(&mut world);
        assert_eq!(world.journal.uids().count(), 0);
    }

    #[test]
    fn a_clock_that_jumps_a_day_either_way_moves_no_deadline() {
        for day in [-86_400, 86_400] {
            let mut world = world(6, Faults::default());
            world.behaviours = vec![Behaviour { term: Term::Ignores, ..Behaviour::default() }];
            world.put(Source::File, PodPlan { grace: 10, ..plan("p", "u") }.manifest());
            rest(&mut world);
            world.remove(Source::File, "/manifests/p.yaml");
            assert!(world.run_for(Duration::from_secs(3)), "{:?}", world.violation);
            world.clock.jump(SignedDuration::from_secs(day));
            assert!(world.run_for(Duration::from_secs(5)), "{:?}", world.violation);
            assert_eq!(running(&world, "u"), 1, "its ten seconds are not over");
            assert!(world.run_for(Duration::from_secs(5)), "{:?}", world.violation);
            assert_eq!(running(&world, "u"), 0, "they are now");
            rest(&mut world);
        }
    }

    #[test]
    fn a_panic_in_one_pods_machine_costs_that_pod() {
        let mut world = world(7, Faults::default());
        world.catch_panics = true;
        world.put(Source::File, plan("good", "u1").manifest());
        rest(&mut world);
        // No source delivers a pod without a spec: core panics on it, as on any bug.
        let mut bad: Pod = (*plan("bad", "u2").manifest().pod).clone();
        bad.spec = None;
        world.put(Source::File, Manifest { pod: bad.into(), origin: "/manifests/bad.yaml".into() });
        world.put(Source::File, plan("later", "u3").manifest());
        assert!(world.run_for(Duration::from_secs(60)), "{:?}", world.violation);
        assert_eq!((running(&world, "u1"), running(&world, "u3")), (1, 1), "the others go on");
        let waits =
            world.node.as_ref().and_then(|n| n.workers().get(&PodUid::from("u2"))).map(|m| m.waits(world.clock.read()));
        assert!(waits.is_some_and(|w| w.iter().any(|w| w.reason == "Quarantined")), "the pod says why it stands still");
        world.remove(Source::File, "/manifests/good.yaml");
        assert!(world.run_for(Duration::from_secs(60)), "{:?}", world.violation);
        assert_eq!(running(&world, "u1"), 0, "and can be ended");
    }
}
