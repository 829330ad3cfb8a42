//! The shipped agent, whole, over a runtime in memory that loses events, hangs, fails, lies and goes away. Times are virtual
//! except where the journal is real.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use podwright_core::model::Manifest;
use podwright_cri::labels::{POD_UID, RESTART_COUNT};
use podwright_cri::v1;
use podwright_sim::rig::{Dice, EventFaults, Fate, Garbage, Program, Rig, Rule, pod, simple};
use serde_json::json;
use tokio::time::{Instant, sleep};

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// What people see of every pod: phase, and of each container its restarts, its state and its exit code.
async fn summary(rig: &Rig) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for pod in rig.shown().await.pods {
        let status = pod.status.unwrap_or_default();
        let mut text = status.phase.unwrap_or_default();
        for c in status.init_container_statuses.iter().chain(&status.container_statuses).flatten() {
            let state = c.state.clone().unwrap_or_default();
            let how = match (state.running, state.terminated, state.waiting) {
                (Some(_), ..) => "running".to_owned(),
                (_, Some(t), _) => format!("terminated {} {}", t.exit_code, t.reason.unwrap_or_default()),
                (.., w) => format!("waiting {}", w.and_then(|w| w.reason).unwrap_or_default()),
            };
            text += &format!(", {} ×{} {how} ready={}", c.name, c.restart_count, c.ready);
        }
        all.insert(pod.metadata.uid.unwrap_or_default(), text);
    }
    all
}

fn check(rig: &Rig, seed: u64) {
    assert_eq!(rig.runtime.violations(), Vec::<String>::new(), "seed {seed}");
}

/// Pods of every kind whose end does not depend on when something is noticed.
fn mixed(rig: &Rig) -> Vec<Manifest> {
    let ok = rig.runtime.program(Program { exits: Some((secs(3), 0)), ..Program::default() }).to_string();
    let bad = rig.runtime.program(Program { exits: Some((secs(2), 7)), ..Program::default() }).to_string();
    let c = |name: &str, program: &str| json!({"name": name, "image": "app:1", "command": [program]});
    let init = json!([c("i1", &ok), c("i2", &ok)]);
    let mut sidecar = c("side", "0");
    sidecar["restartPolicy"] = json!("Always");
    vec![
        simple("runs", 0),
        simple("crashed", 0),
        pod("job", json!({"restartPolicy": "Never", "containers": [c("a", &ok), c("b", &ok)]})),
        pod("failed", json!({"restartPolicy": "Never", "containers": [c("a", &bad), c("b", &ok)]})),
        pod("inits", json!({"initContainers": init, "containers": [c("a", "0")]})),
        pod("sidecar", json!({"restartPolicy": "Never", "initContainers": [sidecar], "containers": [c("a", &ok)]})),
        simple("leaves", 0),
    ]
}

/// One life of those pods: a crash, a removal, an end. What people see then.
async fn one_life(seed: u64, faults: EventFaults) -> BTreeMap<String, String> {
    let mut rig = Rig::new(seed);
    rig.runtime.event_faults(faults);
    let pods = mixed(&rig);
    rig.add(pods).await;
    sleep(secs(300)).await;
    let of_crashed = |c: &v1::Container| c.labels.get(POD_UID).is_some_and(|uid| uid == "crashed");
    let victim = rig.runtime.containers().into_iter().find(of_crashed).expect("it runs");
    rig.runtime.crash(&victim.id, 9);
    rig.remove(&["leaves"]).await;
    sleep(secs(300)).await;
    check(&rig, seed);
    let seen = summary(&rig).await;
    rig.remove(&["runs", "crashed", "job", "failed", "inits", "sidecar"]).await;
    rig.until_empty(secs(300)).await;
    check(&rig, seed);
    seen
}

#[tokio::test(start_paused = true)]
async fn lost_doubled_late_and_reordered_events_change_nothing_in_the_end() {
    let calm = one_life(0, EventFaults::default()).await;
    assert_eq!(calm.len(), 6, "{calm:?}");
    assert_eq!(calm["crashed"], "Running, app ×1 running ready=true");
    assert!(calm["failed"].starts_with("Failed, a ×0 terminated 7 Error"), "{calm:?}");
    for seed in 1..=30 {
        let faults = EventFaults { lost: 300, doubled: 300, late: 300, late_max: secs(20), absent: seed % 10 == 0 };
        assert_eq!(one_life(seed, faults).await, calm, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_done_late_is_found_within_five_seconds_and_nothing_is_made_twice() {
    for call in ["RunPodSandbox", "CreateContainer", "StartContainer"] {
        for late in [1, 100, 200, 400, 700] {
            let mut rig = Rig::new(late);
            rig.runtime.rule(Rule::all(Fate::Late(secs(late))).calls(&[call]).of("p").times(1));
            rig.add(vec![simple("p", 0)]).await;
            let took = rig.until_all("Running", secs(1000)).await;
            // A call nobody hears of is given up after twice its time, and made anew under another name.
            let given_up = secs(if call == "RunPodSandbox" { 480 } else { 240 }) + secs(15);
            assert!(took <= (secs(late) + secs(5)).min(given_up), "{call} late by {late} s: {took:?}");
            sleep(secs(900)).await;
            check(&rig, late);
            assert_eq!((rig.runtime.sandboxes().len(), rig.runtime.running().len()), (1, 1), "{call} {late}");
            rig.remove(&["p"]).await;
            rig.until_empty(secs(60)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn calls_whose_answer_is_lost_or_that_are_never_done_cost_their_limit_and_no_more() {
    for call in ["RunPodSandbox", "CreateContainer", "StartContainer"] {
        let limit = secs(if call == "RunPodSandbox" { 240 } else { 120 });
        for (fate, bound) in [(Fate::AnswerLost, limit + secs(5)), (Fate::Never, limit * 2 + secs(15))] {
            let mut rig = Rig::new(1);
            rig.runtime.rule(Rule::all(fate.clone()).calls(&[call]).of("p").times(1));
            rig.add(vec![simple("p", 0)]).await;
            let took = rig.until_all("Running", secs(1000)).await;
            assert!(took <= bound, "{call} {fate:?}: {took:?}");
            check(&rig, 1);
            assert_eq!((rig.runtime.sandboxes().len(), rig.runtime.running().len()), (1, 1), "{call} {fate:?}");
            rig.remove(&["p"]).await;
            // A call that may bring something up yet is waited for, also at the end.
            rig.until_empty(limit + secs(10)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn after_ten_minutes_of_failing_hanging_and_late_calls_everything_runs_and_nothing_is_double() {
    for seed in 1..=12 {
        let mut rig = Rig::new(seed);
        rig.runtime.dice(Dice { fails: 100, late: 100, late_max: secs(300), answer_lost: 40, never: 20 });
        rig.runtime.event_faults(EventFaults { lost: 300, doubled: 200, late: 200, late_max: secs(5), absent: false });
        let pods: Vec<_> = (0..8).map(|n| simple(&format!("p{n}"), 0)).collect();
        rig.add(pods).await;
        sleep(secs(600)).await;
        rig.runtime.heal();
        // What hung in the last moment has its own time yet: twice the longest limit, and the pauses between.
        rig.until_all("Running", secs(900)).await;
        sleep(secs(900)).await;
        check(&rig, seed);
        assert_eq!((rig.runtime.sandboxes().len(), rig.runtime.running().len()), (8, 8), "seed {seed}");
        rig.remove(&["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"]).await;
        rig.until_empty(secs(120)).await;
        check(&rig, seed);
    }
}

/// What the one pod is at when its calls begin to hang.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stuck {
    No,
    Running,
    Starting,
    Stopping,
}

/// 50 pods go, 50 others come, beside 59 that stay and one that is stuck. How long each of both takes.
async fn churn(stuck: Stuck) -> (Vec<Duration>, Vec<Duration>) {
    let mut rig = Rig::new(7);
    rig.runtime.latency(millis(50));
    let old: Vec<_> = (0..109).map(|n| simple(&format!("p{n}"), 0)).collect();
    rig.add(old).await;
    if matches!(stuck, Stuck::Running | Stuck::Stopping) {
        rig.add(vec![simple("stuck", 0)]).await;
    }
    rig.until_all("Running", secs(60)).await;
    sleep(secs(100)).await;
    let hang = Rule::all(Fate::HangsUntil(Instant::now() + secs(600))).of("stuck");
    let began = Instant::now();
    match stuck {
        Stuck::No => {}
        Stuck::Running => {
            rig.runtime.rule(hang);
            let of_stuck = |c: &v1::Container| c.labels.get(POD_UID).is_some_and(|uid| uid == "stuck");
            let id = rig.runtime.containers().into_iter().find(of_stuck).expect("it runs").id;
            rig.runtime.crash(&id, 1);
        }
        Stuck::Starting => {
            rig.runtime.rule(hang);
            rig.add(vec![simple("stuck", 0)]).await;
        }
        Stuck::Stopping => {
            rig.runtime.rule(hang.calls(&["StopPodSandbox"]));
            rig.remove(&["stuck"]).await;
        }
    }
    sleep(secs(20)).await;
    let gone: Vec<String> = (0..50).map(|n| format!("p{n}")).collect();
    let gone: Vec<&str> = gone.iter().map(String::as_str).collect();
    let came: Vec<String> = (200..250).map(|n| format!("p{n}")).collect();
    rig.remove(&gone).await;
    let mut stops = latencies(&rig, &gone, "").await;
    rig.add(came.iter().map(|uid| simple(uid, 0)).collect()).await;
    let came: Vec<&str> = came.iter().map(String::as_str).collect();
    let mut starts = latencies(&rig, &came, "Running").await;
    assert!(rig.shown().await.runtime_up, "one pod is not the node");
    if stuck != Stuck::No {
        sleep((began + secs(30)).saturating_duration_since(Instant::now())).await;
        // Where only one call hangs and looks do not, it is in what the pod waits for; an event follows its deadline.
        let waits = rig.handle().explain("stuck".into()).await.expect("the loop lives")[0].waits.clone();
        assert!(!waits.is_empty(), "{stuck:?}: nobody can see it");
        assert!(stuck == Stuck::Stopping || !rig.warnings("stuck").is_empty(), "{stuck:?}: nobody is told");
        let others = (0..250).flat_map(|n| rig.warnings(&format!("p{n}"))).count();
        assert_eq!(others, 0, "{stuck:?}");
        sleep(secs(700)).await;
        if stuck == Stuck::Stopping {
            rig.until("the stuck one is gone", secs(30), async |rig| rig.phase("stuck").await.is_empty()).await;
        } else {
            rig.until("the stuck one runs", secs(30), async |rig| rig.phase("stuck").await == "Running").await;
        }
    }
    check(&rig, 7);
    starts.sort();
    stops.sort();
    (starts, stops)
}

async fn latencies(rig: &Rig, uids: &[&str], phase: &str) -> Vec<Duration> {
    let began = Instant::now();
    let mut took = BTreeMap::new();
    while took.len() < uids.len() {
        assert!(began.elapsed() < secs(120), "only {} of {}", took.len(), uids.len());
        let mut phases: BTreeMap<String, String> = BTreeMap::new();
        for pod in rig.shown().await.pods {
            phases.insert(pod.metadata.uid.unwrap_or_default(), pod.status.and_then(|s| s.phase).unwrap_or_default());
        }
        let there = uids.iter().filter(|uid| phases.get(**uid).map_or("", String::as_str) == phase);
        for uid in there {
            took.entry(*uid).or_insert_with(|| began.elapsed());
        }
        sleep(millis(10)).await;
    }
    took.into_values().collect()
}

#[tokio::test(start_paused = true)]
async fn one_pod_of_110_whose_calls_hang_for_ten_minutes_costs_nobody_else_anything() {
    let (starts, stops) = churn(Stuck::No).await;
    for stuck in [Stuck::Running, Stuck::Starting, Stuck::Stopping] {
        let (stuck_starts, stuck_stops) = churn(stuck).await;
        for (what, calm, with) in [("start", &starts, &stuck_starts), ("stop", &stops, &stuck_stops)] {
            for at in [calm.len() / 2, calm.len() - 1] {
                let (calm, with) = (calm[at].as_secs_f64(), with[at].as_secs_f64());
                println!("{stuck:?} {what} {at}: {calm:.3} s alone, {with:.3} s beside it");
                assert!(with <= calm * 1.1, "{stuck:?}: {what} took {with} s instead of {calm} s");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_fails_twenty_times_is_asked_for_calmly_told_of_and_over_when_the_runtime_heals() {
    let mut rig = Rig::new(3);
    rig.add(vec![simple("p", 0), simple("other", 0)]).await;
    rig.until_all("Running", secs(10)).await;
    let fails = || Rule::all(Fate::Fails("shim does not answer".into())).of("p");
    rig.runtime.rule(fails().calls(&["StopContainer"]).times(20));
    rig.runtime.rule(fails().calls(&["StopPodSandbox"]));
    let began = Instant::now();
    rig.remove(&["p"]).await;
    let told = rig.until("told of", secs(40), async |rig| !rig.warnings("p").is_empty()).await;
    assert!(told <= secs(5), "{told:?}");
    let waits = rig.handle().explain("p".into()).await.expect("the loop lives")[0].waits.clone();
    assert!(waits.iter().any(|wait| wait.reason == "FailedKillPod"), "{waits:?}");
    let stops = |rig: &Rig| -> Vec<Instant> {
        rig.runtime.asked().iter().filter(|a| a.call == "StopContainer").map(|a| a.at).collect()
    };
    rig.until("asked twenty times", secs(600), async |rig| stops(rig).len() >= 20).await;
    let asked = stops(&rig);
    assert!(asked.windows(2).all(|two| two[1] - two[0] >= secs(10)), "{asked:?}");
    assert_eq!(rig.phase("other").await, "Running");
    assert_eq!(rig.warnings("other").len(), 0);
    rig.runtime.heal();
    // Nobody tells that it is well again: the next try finds out.
    let all = |rig: &Rig| rig.runtime.count("StopContainer") + rig.runtime.count("StopPodSandbox");
    let before = all(&rig);
    rig.until("asked again", secs(16), async |rig| all(rig) > before).await;
    let gone = rig.until("gone", secs(30), async |rig| rig.phase("p").await.is_empty()).await;
    assert!(gone <= secs(1), "{gone:?} after the runtime took the stop, {:?} in all", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_failed_is_not_waited_for_when_the_runtime_was_restarted() {
    let mut rig = Rig::new(3);
    rig.add(vec![simple("p", 0)]).await;
    rig.until_all("Running", secs(10)).await;
    let calls = ["StopContainer", "StopPodSandbox"];
    rig.runtime.rule(Rule::all(Fate::Fails("shim does not answer".into())).calls(&calls));
    rig.remove(&["p"]).await;
    sleep(secs(100)).await;
    rig.runtime.down();
    sleep(secs(2)).await;
    rig.runtime.heal();
    rig.runtime.up();
    // The health check comes up to 5 s later; then it is a matter of calls.
    let gone = rig.until("gone", secs(60), async |rig| rig.phase("p").await.is_empty()).await;
    assert!(gone <= secs(7), "{gone:?}");
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_not_available_for_one_pod_only_is_asked_calmly_and_the_node_stays_up() {
    for call in ["RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "RemovePodSandbox"] {
        let mut rig = Rig::new(4);
        rig.runtime.rule(Rule::all(Fate::Unavailable).of("p").calls(&[call]));
        rig.add(vec![simple("p", 0), simple("other", 0)]).await;
        sleep(secs(60)).await;
        assert_eq!(rig.phase("other").await, "Running");
        rig.remove(&["p"]).await;
        sleep(secs(240)).await;
        let asked = rig.runtime.count(call);
        assert!(asked <= 50, "{asked} × {call} in 5 minutes");
        let mut up = 0;
        for _ in 0..200 {
            sleep(millis(50)).await;
            up += usize::from(rig.shown().await.runtime_up);
        }
        assert!(up >= 190, "{call}: up {up} of 200 times");
        rig.add(vec![simple("late", 0)]).await;
        let runs = async |rig: &Rig| rig.phase("late").await == "Running";
        let took = rig.until("another starts", secs(10), runs).await;
        assert!(took <= secs(1), "{call}: {took:?}");
        rig.runtime.heal();
        rig.until("the pod is gone", secs(300), async |rig| rig.phase("p").await.is_empty()).await;
        check(&rig, 4);
    }
}

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
async fn a_runtime_that_answers_garbage_loses_nothing_and_the_pods_run_when_it_comes_to_its_senses() {
    let calls = [
        "Version",
        "Status",
        "RunPodSandbox",
        "PodSandboxStatus",
        "ListPodSandbox",
        "CreateContainer",
        "StartContainer",
        "StopContainer",
        "StopPodSandbox",
        "RemoveContainer",
        "ListContainers",
        "ContainerStatus",
        "ImageStatus",
    ];
    for kind in [Garbage::Malformed, Garbage::Missing, Garbage::Absurd, Garbage::Huge] {
        for call in calls {
            let mut rig = Rig::new(17);
            rig.add(vec![simple("steady", 0), simple("leaves", 0)]).await;
            rig.until_all("Running", secs(10)).await;
            let steady: Vec<_> = rig.runtime.running();
            rig.runtime.rule(Rule::all(Fate::Garbage(kind)).calls(&[call]));
            rig.add(vec![simple("new", 0)]).await;
            rig.remove(&["leaves"]).await;
            sleep(secs(100)).await;
            rig.runtime.heal();
            let what = format!("{call} {kind:?}");
            let runs = async |rig: &Rig| rig.phase("new").await == "Running" && rig.runtime.running().len() == 2;
            rig.until(&what, secs(900), runs).await;
            let gone = async |rig: &Rig| rig.phase("leaves").await.is_empty();
            rig.until(&what, secs(300), gone).await;
            check(&rig, 17);
            let panics = rig.handle().views().events();
            let panics = panics.iter().filter(|kept| kept.event.reason == "Quarantined").count();
            assert_eq!(panics, 0, "{what}");
            let kept = rig.runtime.running().iter().filter(|live| steady.contains(live)).count();
            assert_eq!(kept, 1, "{what}: what ran was restarted");
            rig.remove(&["steady", "new"]).await;
            rig.until_empty(secs(900)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_says_yes_and_does_nothing_is_not_stormed() {
    let calls = [
        "RunPodSandbox",
        "CreateContainer",
        "StartContainer",
        "StopContainer",
        "StopPodSandbox",
        "RemoveContainer",
        "RemovePodSandbox",
    ];
    let mut storms = vec![];
    for call in calls {
        let mut rig = Rig::new(18);
        rig.runtime.rule(Rule::all(Fate::Ignored).calls(&[call]).of("p").times(2_000));
        rig.add(vec![simple("p", 0), simple("other", 0)]).await;
        sleep(secs(60)).await;
        rig.remove(&["p"]).await;
        sleep(secs(240)).await;
        let asked = rig.runtime.count(call);
        println!("{asked} × {call}, said to be done and not done, in 5 minutes");
        if asked > 100 {
            storms.push(format!("{asked} × {call} in 5 minutes"));
        }
        assert_eq!(rig.phase("other").await, "Running");
        rig.runtime.heal();
        rig.until("gone", secs(300), async |rig| rig.phase("p").await.is_empty()).await;
        check(&rig, 18);
    }
    assert_eq!(storms, Vec::<String>::new());
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

// --- with the real journal, on running time ---

/// A file system of one megabyte that goes with the test.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let options = std::ffi::CString::new("size=1m,mode=0700").expect("no zero in it");
        rustix::mount::mount("podwright-test", dir.path(), "tmpfs", rustix::mount::MountFlags::empty(), &*options)
            .expect("a tmpfs can be mounted: this test needs root");
        Self(dir)
    }

    fn fill(&self) {
        let mut size = 1 << 20;
        let mut n = 0;
        while size >= 1 {
            n += 1;
            let file = self.0.path().join(format!("filler-{n}"));
            if std::fs::write(&file, vec![0; size]).is_err() {
                let _ = std::fs::remove_file(&file);
                size /= 2;
            }
        }
    }

    fn free(&self) {
        for entry in std::fs::read_dir(self.0.path()).expect("listed").flatten() {
            if entry.file_name().to_string_lossy().starts_with("filler-") {
                std::fs::remove_file(entry.path()).expect("removed");
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[tokio::test]
async fn a_full_disk_under_the_journal_is_told_of_holds_nothing_back_and_is_made_up_for() {
    let disk = SmallDisk::mount();
    let root = disk.0.path().join("root");
    let mut rig = Rig::with(29, Some(&root));
    rig.add(vec![simple("early", 0)]).await;
    rig.until_all("Running", secs(10)).await;
    assert_eq!(rig.handle().views().journal_error(), None);
    disk.fill();
    // Enough of them for more than the last block has room for.
    rig.add((0..5).map(|n| simple(&format!("on-full{n}"), 0)).chain([simple("leaves", 0)]).collect()).await;
    rig.until_all("Running", secs(10)).await;
    rig.remove(&["leaves"]).await;
    rig.until("an end on a full disk", secs(10), async |rig| rig.phase("leaves").await.is_empty()).await;
    let error = rig.handle().views().journal_error().expect("it is told of");
    assert!(error.contains("No space left"), "{error}");
    disk.free();
    // Nothing new happens to any pod: what is owed is written all the same.
    let well = async |rig: &Rig| rig.handle().views().journal_error().is_none();
    rig.until("the journal is whole again", secs(10), well).await;
    let running = rig.runtime.running();
    rig.kill().await;
    rig.revive().await;
    let shown = async |rig: &Rig| rig.phase("on-full4").await == "Running" && rig.phase("early").await == "Running";
    rig.until("remembered", secs(10), shown).await;
    sleep(millis(500)).await;
    assert_eq!(rig.runtime.running(), running, "nothing was restarted");
    assert_eq!(rig.runtime.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn a_journal_directory_that_vanishes_stops_nobody() {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().join("root");
    let mut rig = Rig::with(31, Some(&root));
    rig.add(vec![simple("early", 0)]).await;
    rig.until_all("Running", secs(10)).await;
    std::fs::remove_dir_all(&root).expect("removed");
    rig.add(vec![simple("late", 0)]).await;
    rig.until_all("Running", secs(10)).await;
    rig.remove(&["early", "late"]).await;
    rig.until_empty(secs(10)).await;
}

#[tokio::test]
async fn an_agent_killed_at_any_moment_goes_on_from_its_journal_and_restarts_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut rig = Rig::with(37, Some(&dir.path().join("root")));
    rig.runtime.latency(millis(2));
    let once = rig.runtime.program(Program { exits: Some((millis(30), 3)), ..Program::default() });
    let mut rng = podwright_sim::rng::Rng::new(37);
    let mut ended = BTreeMap::new();
    for round in 0..12 {
        let job = json!({"restartPolicy": "Never", "containers": [{"name": "app", "image": "app:1",
            "command": [once.to_string()]}]});
        rig.add(vec![simple(&format!("p{round}"), 0), pod(&format!("job{round}"), job)]).await;
        if round >= 4 {
            rig.remove(&[&format!("p{}", round - 4)]).await;
        }
        sleep(rng.millis(0, 80)).await;
        for (uid, seen) in summary(&rig).await {
            if uid.starts_with("job") && seen.starts_with("Failed") {
                ended.insert(uid, seen);
            }
        }
        rig.kill().await;
        rig.revive().await;
    }
    let all = async |rig: &Rig| {
        let seen = summary(rig).await;
        let ended = seen.iter().filter(|(uid, _)| uid.starts_with("job")).all(|(_, text)| text.starts_with("Failed"));
        let runs = seen.iter().filter(|(uid, _)| uid.starts_with('p')).all(|(_, text)| text.starts_with("Running"));
        seen.len() == 16 && ended && runs
    };
    rig.until("all as it should be", secs(20), all).await;
    let seen = summary(&rig).await;
    for (uid, text) in &ended {
        assert_eq!(seen.get(uid), Some(text), "what has ended stays as it was");
    }
    for n in 0..12 {
        assert_eq!(seen[&format!("job{n}")], "Failed, app ×0 terminated 3 Error ready=false");
    }
    for n in 8..12 {
        assert_eq!(seen[&format!("p{n}")], "Running, app ×0 running ready=true", "p{n}");
    }
    assert_eq!(rig.runtime.violations(), Vec::<String>::new());
    let starts = rig.runtime.containers().iter().filter(|c| c.annotations[RESTART_COUNT] != "0").count();
    assert_eq!(starts, 0, "nothing was restarted");
}
