//! Calls that fail, hang, are done late, or whose answers are lost.

use podwright_sim::rig::{Dice, EventFaults, Fate, Rig, Rule, simple};
use tokio::time::{Instant, sleep};

use crate::{check, condition, millis, secs};

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
    let why = condition(&rig, "p", "podwright.dev/Stuck").await;
    assert_eq!(why.as_deref(), Some("it can't be ended: StopContainer: shim does not answer"));
    assert_eq!(condition(&rig, "other", "podwright.dev/Stuck").await, None);
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
