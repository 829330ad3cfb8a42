//! A runtime that answers garbage, or says yes and does nothing.

use podwright_sim::rig::{Fate, Garbage, Rig, Rule, simple};
use tokio::time::sleep;

use crate::{check, secs};

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
            let panics = rig.handle().state().events();
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
