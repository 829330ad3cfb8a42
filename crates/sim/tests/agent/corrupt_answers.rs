//! A runtime whose answers are corrupt, or that reports success and does nothing.

use podwright_sim::agent_harness::{AgentHarness, Corruption, Reaction, Rule, simple};
use tokio::time::sleep;

use crate::{check, secs};

#[tokio::test(start_paused = true)]
async fn corrupt_answers_lose_nothing_and_pods_run_when_the_runtime_recovers() {
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
    for kind in [Corruption::Malformed, Corruption::MissingFields, Corruption::OutOfRange, Corruption::Oversized] {
        for call in calls {
            let mut harness = AgentHarness::new(17);
            harness.add(vec![simple("steady", 0), simple("leaves", 0)]).await;
            harness.until_all("Running", secs(10)).await;
            let steady: Vec<_> = harness.runtime.running();
            harness.runtime.rule(Rule::all(Reaction::Corrupt(kind)).calls(&[call]));
            harness.add(vec![simple("new", 0)]).await;
            harness.remove(&["leaves"]).await;
            sleep(secs(100)).await;
            harness.runtime.heal();
            let what = format!("{call} {kind:?}");
            let runs = async |harness: &AgentHarness| {
                harness.phase("new").await == "Running" && harness.runtime.running().len() == 2
            };
            harness.until(&what, secs(900), runs).await;
            let gone = async |harness: &AgentHarness| harness.phase("leaves").await.is_empty();
            harness.until(&what, secs(300), gone).await;
            check(&harness, 17);
            let panics = harness.handle().state().events();
            let panics = panics.iter().filter(|kept| kept.event.reason == "Quarantined").count();
            assert_eq!(panics, 0, "{what}");
            let kept = harness.runtime.running().iter().filter(|live| steady.contains(live)).count();
            assert_eq!(kept, 1, "{what}: a running container was restarted");
            harness.remove(&["steady", "new"]).await;
            harness.until_empty(secs(900)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_reports_success_and_does_nothing_gets_few_calls() {
    let calls = [
        "RunPodSandbox",
        "CreateContainer",
        "StartContainer",
        "StopContainer",
        "StopPodSandbox",
        "RemoveContainer",
        "RemovePodSandbox",
    ];
    let mut too_many = vec![];
    for call in calls {
        let mut harness = AgentHarness::new(18);
        harness.runtime.rule(Rule::all(Reaction::Ignored).calls(&[call]).for_pod("p").times(2_000));
        harness.add(vec![simple("p", 0), simple("other", 0)]).await;
        sleep(secs(60)).await;
        harness.remove(&["p"]).await;
        sleep(secs(240)).await;
        let calls = harness.runtime.count(call);
        println!("{calls} × {call} without effect in 5 minutes");
        if calls > 100 {
            too_many.push(format!("{calls} × {call} in 5 minutes"));
        }
        assert_eq!(harness.phase("other").await, "Running");
        harness.runtime.heal();
        harness.until("gone", secs(300), async |harness| harness.phase("p").await.is_empty()).await;
        check(&harness, 18);
    }
    assert_eq!(too_many, Vec::<String>::new());
}
