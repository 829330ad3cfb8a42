//! A runtime that goes away, a clock that jumps, a bug, a volume that hangs; and a node that has nothing to do.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use podwright_agent::event_loop::Clock;
use podwright_cri::labels::{POD_UID, RESTART_COUNT};
use podwright_sim::rig::{EventFaults, Fate, Program, Rig, Rule, pod, simple};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{check, secs};

#[tokio::test(start_paused = true)]
async fn a_runtime_that_goes_away_for_minutes_costs_no_restart_and_no_storm() {
    for absent in [false, true] {
        let mut rig = Rig::new(5);
        rig.runtime.event_faults(EventFaults { absent, ..EventFaults::default() });
        rig.add((0..20).map(|n| simple(&format!("p{n}"), 0)).collect()).await;
        rig.until_all("Running", secs(30)).await;
        let before = rig.runtime.running();
        let asked = rig.runtime.asked().len();
        rig.runtime.down();
        sleep(secs(300)).await;
        let storm = rig.runtime.asked().len() - asked;
        assert!(storm <= 150, "{storm} calls on a runtime that is away for 5 minutes");
        assert!(!rig.shown().await.runtime_up);
        rig.runtime.up();
        sleep(secs(30)).await;
        assert!(rig.shown().await.runtime_up);
        assert_eq!(rig.runtime.running(), before, "nothing was restarted");
        rig.until_all("Running", secs(1)).await;
        check(&rig, 5);
    }
}

#[tokio::test(start_paused = true)]
async fn a_day_forward_or_back_on_the_wall_clock_restarts_nothing_and_moves_no_deadline() {
    for days in [1_i64, -1] {
        let mut rig = Rig::new(11);
        let deaf = rig.runtime.program(Program { exits: None, obeys: None });
        let crashes = rig.runtime.program(Program { exits: Some((secs(5), 1)), ..Program::default() });
        let short = json!({"terminationGracePeriodSeconds": 20, "containers": [{"name": "app", "image": "app:1",
            "command": [deaf.to_string()]}]});
        rig.add(vec![simple("a", 0), simple("b", 0), pod("deaf", short), simple("loops", crashes)]).await;
        rig.until("they run", secs(10), async |rig| rig.runtime.running().len() == 4).await;
        sleep(secs(120)).await;
        let steady: Vec<_> = rig.runtime.running().into_iter().collect();
        let began = Instant::now();
        rig.remove(&["deaf"]).await;
        sleep(secs(5)).await;
        rig.clock.jump(jiff::SignedDuration::from_hours(24 * days));
        let kill = |rig: &Rig| rig.runtime.containers().iter().all(|c| c.labels[POD_UID] != "deaf");
        rig.until("the deaf one is killed", secs(60), async |rig| kill(rig)).await;
        let took = began.elapsed();
        assert!(took >= secs(19) && took <= secs(23), "a grace of 20 s took {took:?} with a jump of {days} days");
        sleep(secs(700)).await;
        let now: BTreeMap<_, _> = rig.runtime.running().into_iter().collect();
        let kept = steady.iter().filter(|(id, started)| now.get(id) == Some(started)).count();
        assert!(kept >= 2, "a and b run on: {kept}");
        assert_eq!((rig.phase("a").await, rig.phase("b").await), ("Running".into(), "Running".into()));
        // A crash loop neither races nor stands still: within 11 minutes, at 5 minutes' back-off, two to five more.
        let restarts = |rig: &Rig| {
            let all = rig.runtime.containers();
            let of = all.iter().filter(|c| c.labels[POD_UID] == "loops");
            of.filter_map(|c| c.annotations[RESTART_COUNT].parse::<u32>().ok()).max().unwrap_or(0)
        };
        let n = restarts(&rig);
        assert!((4..=10).contains(&n), "{n} restarts with a jump of {days} days");
        check(&rig, 11);
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_one_pods_machine_puts_that_pod_in_quarantine_and_no_other() {
    let mut rig = Rig::new(13);
    rig.add(vec![simple("before", 0), simple("zulu", 0)]).await;
    rig.until_all("Running", secs(10)).await;
    // No source lets a pod without a spec through; if one did, core would meet its own assertion.
    let mut broken = simple("broken", 0);
    let mut no_spec = (*broken.pod).clone();
    no_spec.spec = None;
    broken.pod = no_spec.into();
    rig.add(vec![simple("alpha", 0), broken, simple("omega", 0)]).await;
    let running = async |rig: &Rig| rig.phase("alpha").await == "Running" && rig.phase("omega").await == "Running";
    let took = rig.until("the others of the same turn run", secs(100), running).await;
    assert!(took <= secs(1), "{took:?}");
    let quarantined = rig.warnings("broken").iter().any(|kept| kept.event.reason == "Quarantined");
    assert!(quarantined, "{:?}", rig.warnings("broken"));
    for uid in ["before", "zulu", "alpha", "omega"] {
        assert_eq!(rig.warnings(uid).len(), 0, "{uid}");
    }
    // Life goes on: exits are seen, pods end, the list runs.
    let id = rig.runtime.running()[0].0.clone();
    rig.runtime.crash(&id, 1);
    rig.until("restarted", secs(30), async |rig| rig.runtime.running().len() == 4).await;
    rig.remove(&["before", "zulu", "alpha", "omega"]).await;
    let ended = async |rig: &Rig| rig.runtime.sandboxes().is_empty();
    rig.until("the others end", secs(60), ended).await;
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_says_it_is_well_and_shows_nothing_is_noticed() {
    let mut rig = Rig::new(17);
    rig.add(vec![simple("a", 0)]).await;
    rig.until_all("Running", secs(10)).await;
    let unseen = |rig: &Rig| rig.clock.now().boot - rig.handle().state().last_observation().expect("it has begun").boot;
    sleep(secs(600)).await;
    assert!(unseen(&rig) <= secs(120), "{:?} on a quiet day", unseen(&rig));
    let looks = ["ListPodSandbox", "ListContainers", "PodSandboxStatus", "ContainerStatus"];
    rig.runtime.rule(Rule::all(Fate::HangsUntil(Instant::now() + secs(600))).calls(&looks));
    sleep(secs(400)).await;
    assert!(rig.shown().await.runtime_up, "it says so");
    assert!(unseen(&rig) > secs(180), "{:?}", unseen(&rig));
    sleep(secs(600)).await;
    assert!(unseen(&rig) <= secs(120), "{:?} after it", unseen(&rig));
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_hangs_holds_its_own_pod_and_no_other() {
    let mut rig = Rig::new(19);
    let hung = json!({"volumes": [{"name": "v", "emptyDir": {}}], "containers": [{"name": "app", "image": "app:1"}]});
    rig.host.hang("hung", "v", Instant::now() + secs(600));
    rig.add(vec![pod("hung", hung), simple("a", 0), simple("b", 0)]).await;
    let runs = async |rig: &Rig| rig.phase("a").await == "Running" && rig.phase("b").await == "Running";
    let took = rig.until("the others run", secs(10), runs).await;
    assert!(took <= secs(1), "{took:?}");
    assert_eq!(rig.phase("hung").await, "Pending");
    sleep(secs(130)).await;
    assert!(rig.warnings("hung").iter().any(|kept| kept.event.reason == "FailedMount"));
    rig.until_all("Running", secs(700)).await;
    rig.remove(&["hung", "a", "b"]).await;
    rig.until_empty(secs(200)).await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_node_of_110_pods_does_next_to_nothing() {
    let mut rig = Rig::new(23);
    rig.add((0..110).map(|n| simple(&format!("p{n}"), 0)).collect()).await;
    rig.until_all("Running", secs(60)).await;
    sleep(secs(120)).await;
    let (before, asked) = (rig.counts().sum(), rig.runtime.asked().len());
    sleep(secs(600)).await;
    let effects = rig.counts().sum() - before;
    let calls = rig.runtime.asked().len() - asked;
    let counts = rig.counts();
    println!("10 idle minutes: {effects} effects, {calls} runtime calls; since the start {counts:?}");
    assert_eq!(counts.looks.load(Ordering::Relaxed) as usize / 110 / 100, 0, "{counts:?}");
    assert!(effects <= 50, "{effects} effects in 10 idle minutes");
    assert!(calls <= 80, "{calls} runtime calls in 10 idle minutes");
}
