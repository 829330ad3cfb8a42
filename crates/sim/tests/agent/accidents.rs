//! A runtime that goes down, a wall clock that jumps, a panic, a volume that hangs; and an idle node.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use podwright_agent::event_loop::Clock;
use podwright_cri::labels::{POD_UID, RESTART_COUNT};
use podwright_sim::agent_harness::{AgentHarness, EventFaults, Program, Reaction, Rule, pod, simple};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{check, secs};

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_down_for_minutes_causes_no_restart_and_few_calls() {
    for absent in [false, true] {
        let mut harness = AgentHarness::new(5);
        harness.runtime.event_faults(EventFaults { absent, ..EventFaults::default() });
        harness.add((0..20).map(|n| simple(&format!("p{n}"), 0)).collect()).await;
        harness.until_all("Running", secs(30)).await;
        let before = harness.runtime.running();
        let before_down = harness.runtime.received_calls().len();
        harness.runtime.down();
        sleep(secs(300)).await;
        let calls = harness.runtime.received_calls().len() - before_down;
        assert!(calls <= 150, "{calls} calls to a runtime that is down for 5 minutes");
        assert!(!harness.shown().await.runtime_up);
        harness.runtime.up();
        sleep(secs(30)).await;
        assert!(harness.shown().await.runtime_up);
        assert_eq!(harness.runtime.running(), before, "nothing was restarted");
        harness.until_all("Running", secs(1)).await;
        check(&harness, 5);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wall_clock_that_jumps_a_day_restarts_nothing_and_moves_no_deadline() {
    for days in [1_i64, -1] {
        let mut harness = AgentHarness::new(11);
        let ignores_term = harness.runtime.program(Program { exits_after: None, exits_on_term: None });
        let crashes = harness.runtime.program(Program { exits_after: Some((secs(5), 1)), ..Program::default() });
        let short = json!({"terminationGracePeriodSeconds": 20, "containers": [{"name": "app", "image": "app:1",
            "command": [ignores_term.to_string()]}]});
        harness.add(vec![simple("a", 0), simple("b", 0), pod("stubborn", short), simple("loops", crashes)]).await;
        harness.until("all run", secs(10), async |harness| harness.runtime.running().len() == 4).await;
        sleep(secs(120)).await;
        let steady: Vec<_> = harness.runtime.running().into_iter().collect();
        let began = Instant::now();
        harness.remove(&["stubborn"]).await;
        sleep(secs(5)).await;
        harness.clock.jump(jiff::SignedDuration::from_hours(24 * days));
        let killed =
            |harness: &AgentHarness| harness.runtime.containers().iter().all(|c| c.labels[POD_UID] != "stubborn");
        harness.until("the stubborn pod is killed", secs(60), async |harness| killed(harness)).await;
        let took = began.elapsed();
        assert!(
            took >= secs(19) && took <= secs(23),
            "a grace period of 20 s took {took:?} with a jump of {days} days"
        );
        sleep(secs(700)).await;
        let now: BTreeMap<_, _> = harness.runtime.running().into_iter().collect();
        let kept = steady.iter().filter(|(id, started)| now.get(id) == Some(started)).count();
        assert!(kept >= 2, "a and b keep running: {kept}");
        assert_eq!((harness.phase("a").await, harness.phase("b").await), ("Running".into(), "Running".into()));
        // A crash loop restarts at its back-off: within 11 minutes, at 5 minutes' back-off, two to five times more.
        let restarts = |harness: &AgentHarness| {
            let all = harness.runtime.containers();
            let of = all.iter().filter(|c| c.labels[POD_UID] == "loops");
            of.filter_map(|c| c.annotations[RESTART_COUNT].parse::<u32>().ok()).max().unwrap_or(0)
        };
        let n = restarts(&harness);
        assert!((4..=10).contains(&n), "{n} restarts with a jump of {days} days");
        check(&harness, 11);
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_one_pods_machine_quarantines_only_that_pod() {
    let mut harness = AgentHarness::new(13);
    harness.add(vec![simple("before", 0), simple("zulu", 0)]).await;
    harness.until_all("Running", secs(10)).await;
    // No source delivers a pod without a spec; core panics on its own assertion.
    let mut broken = simple("broken", 0);
    let mut no_spec = (*broken.pod).clone();
    no_spec.spec = None;
    broken.pod = no_spec.into();
    harness.add(vec![simple("alpha", 0), broken, simple("omega", 0)]).await;
    let running = async |harness: &AgentHarness| {
        harness.phase("alpha").await == "Running" && harness.phase("omega").await == "Running"
    };
    let took = harness.until("the other pods of the same event run", secs(100), running).await;
    assert!(took <= secs(1), "{took:?}");
    let quarantined = harness.warnings("broken").iter().any(|kept| kept.event.reason == "Quarantined");
    assert!(quarantined, "{:?}", harness.warnings("broken"));
    let shown = harness.handle().state().feed().get(&"broken".into()).expect("the pod is in the feed");
    let conditions = shown.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    assert!(conditions.iter().any(|c| c.type_ == "podwright.dev/Quarantined"), "clients see it: {conditions:?}");
    for uid in ["before", "zulu", "alpha", "omega"] {
        assert_eq!(harness.warnings(uid).len(), 0, "{uid}");
    }
    // The agent still works: exits are observed, pods are stopped, the list is taken.
    let id = harness.runtime.running()[0].0.clone();
    harness.runtime.crash(&id, 1);
    harness.until("restarted", secs(30), async |harness| harness.runtime.running().len() == 4).await;
    harness.remove(&["before", "zulu", "alpha", "omega"]).await;
    let ended = async |harness: &AgentHarness| harness.runtime.sandboxes().is_empty();
    harness.until("the others are stopped", secs(60), ended).await;
}

#[tokio::test(start_paused = true)]
async fn a_healthy_runtime_whose_observations_hang_is_noticed() {
    let mut harness = AgentHarness::new(17);
    harness.add(vec![simple("a", 0)]).await;
    harness.until_all("Running", secs(10)).await;
    let since_observation = |harness: &AgentHarness| {
        harness.clock.now().boot - harness.handle().state().last_observation().expect("an observation").boot
    };
    sleep(secs(600)).await;
    assert!(since_observation(&harness) <= secs(120), "{:?} while idle", since_observation(&harness));
    let observations = ["ListPodSandbox", "ListContainers", "PodSandboxStatus", "ContainerStatus"];
    harness.runtime.rule(Rule::all(Reaction::HangsUntil(Instant::now() + secs(600))).calls(&observations));
    sleep(secs(400)).await;
    assert!(harness.shown().await.runtime_up, "the runtime reports that it is ready");
    assert!(since_observation(&harness) > secs(180), "{:?}", since_observation(&harness));
    sleep(secs(600)).await;
    assert!(since_observation(&harness) <= secs(120), "{:?} afterwards", since_observation(&harness));
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_hangs_delays_only_its_own_pod() {
    let mut harness = AgentHarness::new(19);
    let hung = json!({"volumes": [{"name": "v", "emptyDir": {}}], "containers": [{"name": "app", "image": "app:1"}]});
    harness.host.hang("hung", "v", Instant::now() + secs(600));
    harness.add(vec![pod("hung", hung), simple("a", 0), simple("b", 0)]).await;
    let runs =
        async |harness: &AgentHarness| harness.phase("a").await == "Running" && harness.phase("b").await == "Running";
    let took = harness.until("the others run", secs(10), runs).await;
    assert!(took <= secs(1), "{took:?}");
    assert_eq!(harness.phase("hung").await, "Pending");
    sleep(secs(130)).await;
    assert!(harness.warnings("hung").iter().any(|kept| kept.event.reason == "FailedMount"));
    harness.until_all("Running", secs(700)).await;
    harness.remove(&["hung", "a", "b"]).await;
    harness.until_empty(secs(200)).await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_node_of_110_pods_causes_few_effects_and_calls() {
    let mut harness = AgentHarness::new(23);
    harness.add((0..110).map(|n| simple(&format!("p{n}"), 0)).collect()).await;
    harness.until_all("Running", secs(60)).await;
    sleep(secs(120)).await;
    let (before, calls_before) = (harness.counts().sum(), harness.runtime.received_calls().len());
    sleep(secs(600)).await;
    let effects = harness.counts().sum() - before;
    let calls = harness.runtime.received_calls().len() - calls_before;
    let counts = harness.counts();
    println!("10 idle minutes: {effects} effects, {calls} runtime calls; since the start {counts:?}");
    assert_eq!(counts.observations.load(Ordering::Relaxed) as usize / 110 / 100, 0, "{counts:?}");
    assert!(effects <= 50, "{effects} effects in 10 idle minutes");
    assert!(calls <= 80, "{calls} runtime calls in 10 idle minutes");
}
