//! The whole agent over a runtime in memory that loses events, hangs, fails, gives false answers and goes down. Time is virtual
//! except in tests with a journal.

mod accidents;
mod calls;
mod corrupt_answers;
mod events;
mod hung_pod;
mod journal;

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_sim::agent_harness::AgentHarness;

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Phase of every pod, and restarts, state and exit code of each container.
async fn summary(harness: &AgentHarness) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for pod in harness.shown().await.pods {
        let status = pod.status.unwrap_or_default();
        let mut text = status.phase.unwrap_or_default();
        for c in status.init_container_statuses.iter().chain(&status.container_statuses).flatten() {
            let state = c.state.clone().unwrap_or_default();
            let state = match (state.running, state.terminated, state.waiting) {
                (Some(_), ..) => "running".to_owned(),
                (_, Some(t), _) => format!("terminated {} {}", t.exit_code, t.reason.unwrap_or_default()),
                (.., w) => format!("waiting {}", w.and_then(|w| w.reason).unwrap_or_default()),
            };
            text += &format!(", {} ×{} {state} ready={}", c.name, c.restart_count, c.ready);
        }
        all.insert(pod.metadata.uid.unwrap_or_default(), text);
    }
    all
}

fn check(harness: &AgentHarness, seed: u64) {
    assert_eq!(harness.runtime.violations(), Vec::<String>::new(), "seed {seed}");
}

/// The message of a pod's condition, if its status is True.
async fn condition(harness: &AgentHarness, uid: &str, type_: &str) -> Option<String> {
    let pods = harness.shown().await.pods;
    let status = pods.into_iter().find(|pod| pod.metadata.uid.as_deref() == Some(uid))?.status?;
    let found = status.conditions?.into_iter().find(|c| c.type_ == type_ && c.status == "True")?;
    Some(found.message.unwrap_or_default())
}
