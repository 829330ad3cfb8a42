//! One pod of many that hangs, and what it costs the others.

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_cri::labels::POD_UID;
use podwright_cri::v1;
use podwright_sim::rig::{Fate, Rig, Rule, simple};
use tokio::time::{Instant, sleep};

use crate::{check, condition, millis, secs};

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
        let why = condition(&rig, "stuck", "podwright.dev/Stuck").await;
        assert!(why.is_some_and(|why| !why.is_empty()), "{stuck:?}: its status says nothing");
        assert!(stuck == Stuck::Stopping || !rig.warnings("stuck").is_empty(), "{stuck:?}: nobody is told");
        let others = (0..250).flat_map(|n| rig.warnings(&format!("p{n}"))).count();
        assert_eq!(others, 0, "{stuck:?}");
        sleep(secs(700)).await;
        if stuck == Stuck::Stopping {
            rig.until("the stuck one is gone", secs(30), async |rig| rig.phase("stuck").await.is_empty()).await;
        } else {
            rig.until("the stuck one runs", secs(30), async |rig| rig.phase("stuck").await == "Running").await;
            assert_eq!(condition(&rig, "stuck", "podwright.dev/Stuck").await, None, "{stuck:?}: it is over");
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
