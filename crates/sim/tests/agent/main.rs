//! The shipped agent, whole, over a runtime in memory that loses events, hangs, fails, lies and goes away. Times are virtual
//! except where the journal is real.

mod accidents;
mod calls;
mod events;
mod journal;
mod lies;
mod stuck;

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_sim::rig::Rig;

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

/// What a condition of a pod says, if the pod has it.
async fn condition(rig: &Rig, uid: &str, type_: &str) -> Option<String> {
    let pods = rig.shown().await.pods;
    let status = pods.into_iter().find(|pod| pod.metadata.uid.as_deref() == Some(uid))?.status?;
    let found = status.conditions?.into_iter().find(|c| c.type_ == type_ && c.status == "True")?;
    Some(found.message.unwrap_or_default())
}
