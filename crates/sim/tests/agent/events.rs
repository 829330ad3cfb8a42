//! Events of the runtime that are lost, come twice, late or out of order.

use std::collections::BTreeMap;

use podwright_core::model::Manifest;
use podwright_cri::labels::POD_UID;
use podwright_cri::v1;
use podwright_sim::agent_harness::{AgentHarness, EventFaults, Program, pod, simple};
use serde_json::json;
use tokio::time::sleep;

use crate::{check, secs, summary};

/// Pods whose final status does not depend on when events arrive.
fn mixed(harness: &AgentHarness) -> Vec<Manifest> {
    let ok = harness.runtime.program(Program { exits_after: Some((secs(3), 0)), ..Program::default() }).to_string();
    let bad = harness.runtime.program(Program { exits_after: Some((secs(2), 7)), ..Program::default() }).to_string();
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

/// Runs those pods with a crash and a removal. Returns their statuses.
async fn run_mixed(seed: u64, faults: EventFaults) -> BTreeMap<String, String> {
    let mut harness = AgentHarness::new(seed);
    harness.runtime.event_faults(faults);
    let pods = mixed(&harness);
    harness.add(pods).await;
    sleep(secs(300)).await;
    let of_crashed = |c: &v1::Container| c.labels.get(POD_UID).is_some_and(|uid| uid == "crashed");
    let victim = harness.runtime.containers().into_iter().find(of_crashed).expect("a running container");
    harness.runtime.crash(&victim.id, 9);
    harness.remove(&["leaves"]).await;
    sleep(secs(300)).await;
    check(&harness, seed);
    let seen = summary(&harness).await;
    harness.remove(&["runs", "crashed", "job", "failed", "inits", "sidecar"]).await;
    harness.until_empty(secs(300)).await;
    check(&harness, seed);
    seen
}

#[tokio::test(start_paused = true)]
async fn lost_repeated_late_and_reordered_events_do_not_change_the_final_statuses() {
    let calm = run_mixed(0, EventFaults::default()).await;
    assert_eq!(calm.len(), 6, "{calm:?}");
    assert_eq!(calm["crashed"], "Running, app ×1 running ready=true");
    assert!(calm["failed"].starts_with("Failed, a ×0 terminated 7 Error"), "{calm:?}");
    for seed in 1..=30 {
        let faults = EventFaults { lost: 300, doubled: 300, late: 300, late_max: secs(20), absent: seed % 10 == 0 };
        assert_eq!(run_mixed(seed, faults).await, calm, "seed {seed}");
    }
}
