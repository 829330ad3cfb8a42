//! Calls that fail, hang, take effect late, or whose answers are lost.

use podwright_sim::agent_harness::{AgentHarness, EventFaults, FaultRates, Reaction, Rule, simple};
use tokio::time::{Instant, sleep};

use crate::{check, condition, millis, secs};

#[tokio::test(start_paused = true)]
async fn a_call_that_takes_effect_late_is_noticed_within_five_seconds_and_nothing_is_duplicated() {
    for call in ["RunPodSandbox", "CreateContainer", "StartContainer"] {
        for late in [1, 100, 200, 400, 700] {
            let mut harness = AgentHarness::new(late);
            harness.runtime.rule(Rule::all(Reaction::Late(secs(late))).calls(&[call]).for_pod("p").times(1));
            harness.add(vec![simple("p", 0)]).await;
            let took = harness.until_all("Running", secs(1000)).await;
            // A call without an answer is given up after twice its limit, and repeated under another name.
            let given_up = secs(if call == "RunPodSandbox" { 480 } else { 240 }) + secs(15);
            assert!(took <= (secs(late) + secs(5)).min(given_up), "{call} late by {late} s: {took:?}");
            sleep(secs(900)).await;
            check(&harness, late);
            assert_eq!((harness.runtime.sandboxes().len(), harness.runtime.running().len()), (1, 1), "{call} {late}");
            harness.remove(&["p"]).await;
            harness.until_empty(secs(60)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lost_answers_and_lost_calls_cost_no_more_than_their_limits() {
    for call in ["RunPodSandbox", "CreateContainer", "StartContainer"] {
        let limit = secs(if call == "RunPodSandbox" { 240 } else { 120 });
        for (reaction, bound) in [(Reaction::AnswerLost, limit + secs(5)), (Reaction::Never, limit * 2 + secs(15))] {
            let mut harness = AgentHarness::new(1);
            harness.runtime.rule(Rule::all(reaction.clone()).calls(&[call]).for_pod("p").times(1));
            harness.add(vec![simple("p", 0)]).await;
            let took = harness.until_all("Running", secs(1000)).await;
            assert!(took <= bound, "{call} {reaction:?}: {took:?}");
            check(&harness, 1);
            assert_eq!(
                (harness.runtime.sandboxes().len(), harness.runtime.running().len()),
                (1, 1),
                "{call} {reaction:?}"
            );
            harness.remove(&["p"]).await;
            // A call that may still take effect is waited for, also while the pod terminates.
            harness.until_empty(limit + secs(10)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn after_ten_minutes_of_faulty_calls_everything_runs_and_nothing_is_duplicated() {
    for seed in 1..=12 {
        let mut harness = AgentHarness::new(seed);
        harness.runtime.rates(FaultRates { fails: 100, late: 100, late_max: secs(300), answer_lost: 40, never: 20 });
        harness.runtime.event_faults(EventFaults {
            lost: 300,
            doubled: 200,
            late: 200,
            late_max: secs(5),
            absent: false,
        });
        let pods: Vec<_> = (0..8).map(|n| simple(&format!("p{n}"), 0)).collect();
        harness.add(pods).await;
        sleep(secs(600)).await;
        harness.runtime.heal();
        // A call that hung at the end takes up to twice the longest limit, and the back-offs in between.
        harness.until_all("Running", secs(900)).await;
        sleep(secs(900)).await;
        check(&harness, seed);
        assert_eq!((harness.runtime.sandboxes().len(), harness.runtime.running().len()), (8, 8), "seed {seed}");
        harness.remove(&["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"]).await;
        harness.until_empty(secs(120)).await;
        check(&harness, seed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_stop_is_retried_with_back_off_and_reported_until_the_runtime_recovers() {
    let mut harness = AgentHarness::new(3);
    harness.add(vec![simple("p", 0), simple("other", 0)]).await;
    harness.until_all("Running", secs(10)).await;
    let fails = || Rule::all(Reaction::Fails("shim does not answer".into())).for_pod("p");
    harness.runtime.rule(fails().calls(&["StopContainer"]).times(20));
    harness.runtime.rule(fails().calls(&["StopPodSandbox"]));
    let began = Instant::now();
    harness.remove(&["p"]).await;
    let reported = harness.until("reported", secs(40), async |harness| !harness.warnings("p").is_empty()).await;
    assert!(reported <= secs(5), "{reported:?}");
    let waits = harness.handle().explain("p".into()).await.expect("the event loop runs")[0].waits.clone();
    assert!(waits.iter().any(|wait| wait.reason == "FailedKillPod"), "{waits:?}");
    let why = condition(&harness, "p", "podwright.dev/Stuck").await;
    assert_eq!(why.as_deref(), Some("the pod can't be stopped: StopContainer: shim does not answer"));
    assert_eq!(condition(&harness, "other", "podwright.dev/Stuck").await, None);
    let stops = |harness: &AgentHarness| -> Vec<Instant> {
        harness.runtime.received_calls().iter().filter(|a| a.call == "StopContainer").map(|a| a.at).collect()
    };
    harness.until("twenty stops", secs(600), async |harness| stops(harness).len() >= 20).await;
    let times = stops(&harness);
    assert!(times.windows(2).all(|two| two[1] - two[0] >= secs(10)), "{times:?}");
    assert_eq!(harness.phase("other").await, "Running");
    assert_eq!(harness.warnings("other").len(), 0);
    harness.runtime.heal();
    // Nothing reports the recovery: the next attempt succeeds.
    let all = |harness: &AgentHarness| harness.runtime.count("StopContainer") + harness.runtime.count("StopPodSandbox");
    let before = all(&harness);
    harness.until("another stop", secs(16), async |harness| all(harness) > before).await;
    let gone = harness.until("gone", secs(30), async |harness| harness.phase("p").await.is_empty()).await;
    assert!(gone <= secs(1), "{gone:?} after the runtime accepted the stop, {:?} in total", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_the_runtime_resets_the_back_off_of_a_failing_stop() {
    let mut harness = AgentHarness::new(3);
    harness.add(vec![simple("p", 0)]).await;
    harness.until_all("Running", secs(10)).await;
    let calls = ["StopContainer", "StopPodSandbox"];
    harness.runtime.rule(Rule::all(Reaction::Fails("shim does not answer".into())).calls(&calls));
    harness.remove(&["p"]).await;
    sleep(secs(100)).await;
    harness.runtime.down();
    sleep(secs(2)).await;
    harness.runtime.heal();
    harness.runtime.up();
    // The health check comes up to 5 s later; the calls after it are fast.
    let gone = harness.until("gone", secs(60), async |harness| harness.phase("p").await.is_empty()).await;
    assert!(gone <= secs(7), "{gone:?}");
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_unavailable_for_one_pod_gets_few_calls_and_the_node_stays_up() {
    for call in ["RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "RemovePodSandbox"] {
        let mut harness = AgentHarness::new(4);
        harness.runtime.rule(Rule::all(Reaction::Unavailable).for_pod("p").calls(&[call]));
        harness.add(vec![simple("p", 0), simple("other", 0)]).await;
        sleep(secs(60)).await;
        assert_eq!(harness.phase("other").await, "Running");
        harness.remove(&["p"]).await;
        sleep(secs(240)).await;
        let calls = harness.runtime.count(call);
        assert!(calls <= 50, "{calls} × {call} in 5 minutes");
        let mut up = 0;
        for _ in 0..200 {
            sleep(millis(50)).await;
            up += usize::from(harness.shown().await.runtime_up);
        }
        assert!(up >= 190, "{call}: up {up} of 200 times");
        harness.add(vec![simple("late", 0)]).await;
        let runs = async |harness: &AgentHarness| harness.phase("late").await == "Running";
        let took = harness.until("another pod starts", secs(10), runs).await;
        assert!(took <= secs(1), "{call}: {took:?}");
        harness.runtime.heal();
        harness.until("the pod is gone", secs(300), async |harness| harness.phase("p").await.is_empty()).await;
        check(&harness, 4);
    }
}
