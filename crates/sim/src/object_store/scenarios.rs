//! Directed scenarios with an API server: deletions at every step, outages, restarts without it.

use std::time::Duration;

use podwright_core::model::{PodUid, Source};

use super::phase;
use crate::accidents::Recovery;
use crate::container_script::{ContainerScript, HookScript, OnTerm};
use crate::faults::Faults;
use crate::manifest::{ContainerPlan, PodPlan};
use crate::world::World;

const SETTLE_WITHIN: Duration = Duration::from_secs(900);
/// What the latencies of the simulation may add, with the last patch and the removal of the object.
const SLACK: Duration = Duration::from_millis(500);

fn world(seed: u64, faults: Faults) -> World {
    let mut world = World::new(seed, faults);
    world.agent.restart_after = Some(Duration::from_millis(300));
    world.join_cluster();
    world.boot();
    assert!(world.run_for(Duration::from_secs(3)), "{:?}", world.violation());
    world
}

fn plan(uid: &str) -> PodPlan {
    PodPlan { source: Source::Api, grace: 5, ..PodPlan::new(uid, uid, vec![ContainerPlan::new("app", 0)]) }
}

fn settle(world: &mut World) {
    assert!(world.settle(SETTLE_WITHIN), "{:?}", world.violation());
}

fn running(world: &World, uid: &str) -> usize {
    world.runtime.alive(&PodUid::from(uid)).count()
}

#[test]
fn a_pod_deleted_at_any_step_is_removed_within_its_grace_period_and_two_seconds() {
    let stubborn =
        ContainerScript { on_term: OnTerm::Ignores, pre_stop: HookScript::Hangs, ..ContainerScript::default() };
    let slow_hook = ContainerScript { post_start: HookScript::Hangs, ..stubborn.clone() };
    let hangs = Faults { pull_hangs: 1000, ..Faults::default() };
    let part =
        |post_start: bool, pre_stop: bool| ContainerPlan { post_start, pre_stop, ..ContainerPlan::new("app", 0) };
    let cases = [
        ("it ignores TERM", Faults::default(), stubborn.clone(), part(false, true)),
        ("its pull hangs", hangs, stubborn, part(false, false)),
        ("its postStart hook hangs", Faults::default(), slow_hook, part(true, true)),
    ];
    for (what, faults, script, part) in cases {
        for seed in 0..30 {
            let mut world = world(seed, faults.clone());
            world.runtime.scripts = vec![script.clone()];
            world.store.create_pod(&mut world.env, &PodPlan { apps: vec![part.clone()], volumes: 1, ..plan("u") });
            let pause = world.env.rng.millis(0, 4000);
            assert!(world.run_for(pause), "{what}, seed {seed}: {:?}", world.violation());
            let uid = PodUid::from("u");
            world.store.delete_pod(&mut world.env, &uid, None);
            let deleted = world.env.clock.now;
            assert!(world.run_for(Duration::from_secs(20)), "{what}, seed {seed}: {:?}", world.violation());
            let gone = world.checks.history.deleted.get(&uid).copied();
            let took = gone.map(|at| at - deleted);
            let bound = Duration::from_secs(7) + SLACK;
            assert!(took.is_some_and(|took| took <= bound), "{what}, seed {seed}: {took:?}");
            settle(&mut world);
        }
    }
}

#[test]
fn while_the_api_server_is_down_pods_keep_running_and_nothing_is_lost() {
    let mut world = world(3, Faults::default());
    world.store.create_pod(&mut world.env, &plan("u"));
    world.put_manifest(Source::File, PodPlan::new("s", "s1", vec![ContainerPlan::new("app", 0)]).manifest());
    settle(&mut world);
    assert_eq!((world.store.pods().count(), world.store.mirrors().count()), (1, 1));
    world.store.unreachable = true;
    let starts = world.checks.history.starts.len();
    world.env.crash_after(Duration::from_secs(1));
    assert!(world.run_for(Duration::from_secs(120)), "{:?}", world.violation());
    assert_eq!(world.checks.history.starts.len(), starts, "an agent without its API server starts nothing again");
    world.put_manifest(Source::File, PodPlan::new("s", "s2", vec![ContainerPlan::new("app", 0)]).manifest());
    world.put_manifest(Source::File, PodPlan::new("t", "t1", vec![ContainerPlan::new("app", 0)]).manifest());
    assert!(world.run_for(Duration::from_secs(60)), "{:?}", world.violation());
    assert_eq!(
        (running(&world, "s1"), running(&world, "s2"), running(&world, "t1")),
        (0, 1, 1),
        "static pods are updated"
    );
    Recovery::ApiUp.happen(&mut world);
    settle(&mut world);
    assert_eq!((world.store.pods().count(), world.store.mirrors().count()), (1, 2));
}

#[test]
fn an_exit_while_the_api_server_is_down_is_reported_when_it_is_back() {
    let mut world = world(4, Faults::default());
    world.store.create_pod(&mut world.env, &PodPlan { policy: "Never", ..plan("u") });
    settle(&mut world);
    world.store.unreachable = true;
    world.env.crash_after(Duration::ZERO);
    assert!(world.run_for(Duration::from_secs(5)), "{:?}", world.violation());
    let id = world.runtime.alive(&PodUid::from("u")).next().map(|(id, _)| id.clone()).expect("it runs");
    let (calls, mut cx) = world.call_parts();
    calls.exit(&mut cx, &id, 3, true);
    assert!(world.run_for(Duration::from_secs(30)), "{:?}", world.violation());
    assert_eq!(world.store.get(&PodUid::from("u")).and_then(|pod| phase(pod)), Some("Running"));
    Recovery::ApiUp.happen(&mut world);
    settle(&mut world);
    assert_eq!(world.store.get(&PodUid::from("u")).and_then(|pod| phase(pod)), Some("Failed"));
}

#[test]
fn pods_deleted_while_the_agent_crashes_end_with_true_statuses() {
    for seed in 0..50 {
        let faults = Faults { crash: 30, api_answer_lost: 100, watch_late: 200, ..Faults::default() };
        let mut world = world(seed, faults);
        world.store.create_pod(&mut world.env, &PodPlan { policy: "Never", ..plan("u") });
        let pause = world.env.rng.millis(0, 5000);
        assert!(world.run_for(pause), "seed {seed}: {:?}", world.violation());
        world.store.delete_pod(&mut world.env, &PodUid::from("u"), None);
        assert!(world.run_for(Duration::from_secs(60)), "seed {seed}: {:?}", world.violation());
        world.calm_down();
        settle(&mut world);
        assert_eq!(world.store.objects.len(), 0, "seed {seed}");
    }
}
