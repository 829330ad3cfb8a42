//! Directed scenarios with an API server: deletions at every step, outages, restarts without it.

use std::time::Duration;

use podwright_core::model::{PodUid, Source};

use super::phase;
use crate::behaviour::{Behaviour, Hook, Term};
use crate::faults::Faults;
use crate::manifest::{Part, PodPlan};
use crate::world::World;

const REST: Duration = Duration::from_secs(900);
/// What the world's own latencies may add, the last patch and the delete included.
const SLACK: Duration = Duration::from_millis(500);

fn world(seed: u64, faults: Faults) -> World {
    let mut world = World::new(seed, faults);
    world.restart_after = Some(Duration::from_millis(300));
    world.join();
    world.boot();
    assert!(world.run_for(Duration::from_secs(3)), "{:?}", world.violation);
    world
}

fn plan(uid: &str) -> PodPlan {
    PodPlan { source: Source::Api, grace: 5, ..PodPlan::new(uid, uid, vec![Part::new("app", 0)]) }
}

fn rest(world: &mut World) {
    assert!(world.settle(REST), "{:?}", world.violation);
}

fn running(world: &World, uid: &str) -> usize {
    world.runtime.alive(&PodUid::from(uid)).count()
}

#[test]
fn a_deletion_at_any_step_ends_it_and_the_object_goes_within_grace_and_two_seconds() {
    let stubborn = Behaviour { term: Term::Ignores, pre_stop: Hook::Hangs, ..Behaviour::default() };
    let slow_hook = Behaviour { post_start: Hook::Hangs, ..stubborn.clone() };
    let hangs = Faults { pull_hangs: 1000, ..Faults::default() };
    let part = |post_start: bool, pre_stop: bool| Part { post_start, pre_stop, ..Part::new("app", 0) };
    let cases = [
        ("it ignores TERM", Faults::default(), stubborn.clone(), part(false, true)),
        ("its pull hangs", hangs, stubborn, part(false, false)),
        ("its postStart hook hangs", Faults::default(), slow_hook, part(true, true)),
    ];
    for (what, faults, behaviour, part) in cases {
        for seed in 0..30 {
            let mut world = world(seed, faults.clone());
            world.behaviours = vec![behaviour.clone()];
            world.create_pod(&PodPlan { apps: vec![part.clone()], volumes: 1, ..plan("u") });
            let pause = world.rng.millis(0, 4000);
            assert!(world.run_for(pause), "{what}, seed {seed}: {:?}", world.violation);
            let uid = PodUid::from("u");
            world.delete_pod(&uid, None);
            let deleted = world.clock.now;
            assert!(world.run_for(Duration::from_secs(20)), "{what}, seed {seed}: {:?}", world.violation);
            let gone = world.checks.marks.deleted.get(&uid).copied();
            let took = gone.map(|at| at - deleted);
            let bound = Duration::from_secs(7) + SLACK;
            assert!(took.is_some_and(|took| took <= bound), "{what}, seed {seed}: {took:?}");
            rest(&mut world);
        }
    }
}

#[test]
fn while_the_api_server_is_away_pods_run_on_and_nothing_is_lost() {
    let mut world = world(3, Faults::default());
    world.create_pod(&plan("u"));
    world.put(Source::File, PodPlan::new("s", "s1", vec![Part::new("app", 0)]).manifest());
    rest(&mut world);
    assert_eq!((world.keeper.pods().count(), world.keeper.mirrors().count()), (1, 1));
    world.keeper.away = true;
    let starts = world.checks.marks.starts.len();
    world.crash_after(Duration::from_secs(1));
    assert!(world.run_for(Duration::from_secs(120)), "{:?}", world.violation);
    assert_eq!(world.checks.marks.starts.len(), starts, "an agent that can't request touches nothing");
    world.put(Source::File, PodPlan::new("s", "s2", vec![Part::new("app", 0)]).manifest());
    world.put(Source::File, PodPlan::new("t", "t1", vec![Part::new("app", 0)]).manifest());
    assert!(world.run_for(Duration::from_secs(60)), "{:?}", world.violation);
    assert_eq!((running(&world, "s1"), running(&world, "s2"), running(&world, "t1")), (0, 1, 1), "static pods go on");
    world.keeper_up();
    rest(&mut world);
    assert_eq!((world.keeper.pods().count(), world.keeper.mirrors().count()), (1, 2));
}

#[test]
fn an_exit_without_the_api_server_is_told_when_it_is_back() {
    let mut world = world(4, Faults::default());
    world.create_pod(&PodPlan { policy: "Never", ..plan("u") });
    rest(&mut world);
    world.keeper.away = true;
    world.crash_after(Duration::ZERO);
    assert!(world.run_for(Duration::from_secs(5)), "{:?}", world.violation);
    let id = world.runtime.alive(&PodUid::from("u")).next().map(|(id, _)| id.clone()).expect("it runs");
    world.exit(&id, 3, true);
    assert!(world.run_for(Duration::from_secs(30)), "{:?}", world.violation);
    assert_eq!(world.keeper.get(&PodUid::from("u")).and_then(|pod| phase(pod)), Some("Running"));
    world.keeper_up();
    rest(&mut world);
    assert_eq!(world.keeper.get(&PodUid::from("u")).and_then(|pod| phase(pod)), Some("Failed"));
}

#[test]
fn deleted_and_killed_fifty_times_every_end_is_true() {
    for seed in 0..50 {
        let faults = Faults { crash: 30, api_lost: 100, watch_late: 200, ..Faults::default() };
        let mut world = world(seed, faults);
        world.create_pod(&PodPlan { policy: "Never", ..plan("u") });
        let pause = world.rng.millis(0, 5000);
        assert!(world.run_for(pause), "seed {seed}: {:?}", world.violation);
        world.delete_pod(&PodUid::from("u"), None);
        assert!(world.run_for(Duration::from_secs(60)), "seed {seed}: {:?}", world.violation);
        world.calm_down();
        rest(&mut world);
        assert_eq!(world.keeper.objects.len(), 0, "seed {seed}");
    }
}
