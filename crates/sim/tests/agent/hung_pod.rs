//! One pod of many whose calls hang, and its effect on the others.

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_cri::labels::POD_UID;
use podwright_cri::v1;
use podwright_sim::agent_harness::{AgentHarness, Reaction, Rule, simple};
use tokio::time::{Instant, sleep};

use crate::{check, condition, millis, secs};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stuck {
    No,
    Running,
    Starting,
    Stopping,
}

/// 50 pods are removed and 50 are added while 59 others run and one hangs. Returns how long each start and stop took.
async fn churn(stuck: Stuck) -> (Vec<Duration>, Vec<Duration>) {
    let mut harness = AgentHarness::new(7);
    harness.runtime.latency(millis(50));
    let old: Vec<_> = (0..109).map(|n| simple(&format!("p{n}"), 0)).collect();
    harness.add(old).await;
    if matches!(stuck, Stuck::Running | Stuck::Stopping) {
        harness.add(vec![simple("stuck", 0)]).await;
    }
    harness.until_all("Running", secs(60)).await;
    sleep(secs(100)).await;
    let hang = Rule::all(Reaction::HangsUntil(Instant::now() + secs(600))).for_pod("stuck");
    let began = Instant::now();
    match stuck {
        Stuck::No => {}
        Stuck::Running => {
            harness.runtime.rule(hang);
            let of_stuck = |c: &v1::Container| c.labels.get(POD_UID).is_some_and(|uid| uid == "stuck");
            let id = harness.runtime.containers().into_iter().find(of_stuck).expect("a running container").id;
            harness.runtime.crash(&id, 1);
        }
        Stuck::Starting => {
            harness.runtime.rule(hang);
            harness.add(vec![simple("stuck", 0)]).await;
        }
        Stuck::Stopping => {
            harness.runtime.rule(hang.calls(&["StopPodSandbox"]));
            harness.remove(&["stuck"]).await;
        }
    }
    sleep(secs(20)).await;
    let gone: Vec<String> = (0..50).map(|n| format!("p{n}")).collect();
    let gone: Vec<&str> = gone.iter().map(String::as_str).collect();
    let added: Vec<String> = (200..250).map(|n| format!("p{n}")).collect();
    harness.remove(&gone).await;
    let mut stops = latencies(&harness, &gone, "").await;
    harness.add(added.iter().map(|uid| simple(uid, 0)).collect()).await;
    let added: Vec<&str> = added.iter().map(String::as_str).collect();
    let mut starts = latencies(&harness, &added, "Running").await;
    assert!(harness.shown().await.runtime_up, "the node stays up");
    if stuck != Stuck::No {
        sleep((began + secs(30)).saturating_duration_since(Instant::now())).await;
        // If only one call hangs and observations do not, `explain` shows it; an event follows at its deadline.
        let waits = harness.handle().explain("stuck".into()).await.expect("the event loop runs")[0].waits.clone();
        assert!(!waits.is_empty(), "{stuck:?}: explain shows nothing");
        let why = condition(&harness, "stuck", "podwright.dev/Stuck").await;
        assert!(why.is_some_and(|why| !why.is_empty()), "{stuck:?}: no condition in its status");
        assert!(stuck == Stuck::Stopping || !harness.warnings("stuck").is_empty(), "{stuck:?}: no event");
        let others = (0..250).flat_map(|n| harness.warnings(&format!("p{n}"))).count();
        assert_eq!(others, 0, "{stuck:?}");
        sleep(secs(700)).await;
        if stuck == Stuck::Stopping {
            harness
                .until("the hung pod is gone", secs(30), async |harness| harness.phase("stuck").await.is_empty())
                .await;
        } else {
            harness
                .until("the hung pod runs", secs(30), async |harness| harness.phase("stuck").await == "Running")
                .await;
            assert_eq!(
                condition(&harness, "stuck", "podwright.dev/Stuck").await,
                None,
                "{stuck:?}: the condition is gone"
            );
        }
    }
    check(&harness, 7);
    starts.sort();
    stops.sort();
    (starts, stops)
}

async fn latencies(harness: &AgentHarness, uids: &[&str], phase: &str) -> Vec<Duration> {
    let began = Instant::now();
    let mut took = BTreeMap::new();
    while took.len() < uids.len() {
        assert!(began.elapsed() < secs(120), "only {} of {}", took.len(), uids.len());
        let mut phases: BTreeMap<String, String> = BTreeMap::new();
        for pod in harness.shown().await.pods {
            phases.insert(pod.metadata.uid.unwrap_or_default(), pod.status.and_then(|s| s.phase).unwrap_or_default());
        }
        let reached = uids.iter().filter(|uid| phases.get(**uid).map_or("", String::as_str) == phase);
        for uid in reached {
            took.entry(*uid).or_insert_with(|| began.elapsed());
        }
        sleep(millis(10)).await;
    }
    took.into_values().collect()
}

#[tokio::test(start_paused = true)]
async fn one_pod_of_110_whose_calls_hang_for_ten_minutes_does_not_slow_the_others() {
    let (starts, stops) = churn(Stuck::No).await;
    for stuck in [Stuck::Running, Stuck::Starting, Stuck::Stopping] {
        let (stuck_starts, stuck_stops) = churn(stuck).await;
        for (what, calm, with) in [("start", &starts, &stuck_starts), ("stop", &stops, &stuck_stops)] {
            for at in [calm.len() / 2, calm.len() - 1] {
                let (calm, with) = (calm[at].as_secs_f64(), with[at].as_secs_f64());
                println!("{stuck:?} {what} {at}: {calm:.3} s without, {with:.3} s with a hung pod");
                assert!(with <= calm * 1.1, "{stuck:?}: {what} took {with} s instead of {calm} s");
            }
        }
    }
}
