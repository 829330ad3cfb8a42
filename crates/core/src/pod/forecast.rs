//! What this agent would do to a pod that it finds running, without a record of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Machine, record_update};
use crate::NodeConfig;
use crate::actions::{self, Inputs};
use crate::model::{Name, Now, Pod, PodSeen, PodUid, Seq, Source};

/// The first plan for a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// Containers that would be stopped, with the reason.
    pub stops: Vec<(Name, String)>,
    /// All of it would be stopped, and it would not start again.
    pub ends: bool,
}

/// The first plan for a pod that has this in the runtime.
pub fn forecast(pod: &Arc<Pod>, source: Source, seen: PodSeen, now: Now) -> Forecast {
    let uid = PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default());
    let mut machine = Machine::new(uid, source, Arc::clone(pod), None, now);
    let runs = !seen.is_stopped();
    machine.facts.observed.observed(Seq::default().draw(), Ok(seen), now.boot);
    record_update::update_record(&mut machine.facts, now);
    let plan = actions::pod_actions(&Inputs {
        pod,
        seen: &machine.facts.observed.seen,
        record: &machine.facts.record,
        probes: &BTreeMap::new(),
        restart_now: &BTreeSet::new(),
        now,
        backoff_max: NodeConfig::default().backoff_max,
        hash: crate::hash::container_hash,
    });
    let mut stops: Vec<_> = plan.kill.into_iter().map(|kill| (kill.name, kill.message)).collect();
    stops.sort();
    Forecast { stops, ends: plan.kill_pod && runs }
}
