//! Events of the runtime that are lost, come twice, late or in another order.

use std::collections::BTreeMap;

use podwright_core::model::Manifest;
use podwright_cri::labels::POD_UID;
use podwright_cri::v1;
use podwright_sim::rig::{EventFaults, Program, Rig, pod, simple};
use serde_json::json;
use tokio::time::sleep;

use crate::{check, secs, summary};

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
