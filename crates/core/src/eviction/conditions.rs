//! The pressure conditions of the node, and which pods are admitted under them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::{NodePressure, Pod, Source, Time};
use crate::preemption::is_critical;
use crate::qos::{BEST_EFFORT, qos_class};

/// Kubernetes: `v1.TaintNodeMemoryPressure`.
const MEMORY_TAINT: &str = "node.kubernetes.io/memory-pressure";

/// When each condition was last observed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PressureConditions {
    last: BTreeMap<NodePressure, Time>,
    /// Those that hold.
    held: BTreeSet<NodePressure>,
}

impl PressureConditions {
    /// A condition holds until it was not observed for `period` (`evictionPressureTransitionPeriod`). True if one changed.
    pub(crate) fn update(&mut self, observed: impl Iterator<Item = NodePressure>, period: Duration, now: Time) -> bool {
        self.last.extend(observed.map(|pressure| (pressure, now)));
        let is_recent = |at: Time| now == at || now.saturating_sub(at) < period;
        let held = self.last.iter().filter(|(_, at)| is_recent(**at)).map(|(pressure, _)| *pressure).collect();
        let changed = self.held != held;
        self.held = held;
        changed
    }

    /// Those that hold.
    pub(crate) fn held(&self) -> &BTreeSet<NodePressure> {
        &self.held
    }
}

/// Why the pod may not start under these conditions; `None`: it may (Go kubelet: the eviction manager's `Admit`).
pub(crate) fn refusal(pod: &Pod, source: Source, pressures: &BTreeSet<NodePressure>) -> Option<String> {
    if pressures.is_empty() || is_critical(pod, source) {
        return None;
    }
    let only_memory = pressures.iter().all(|pressure| *pressure == NodePressure::Memory);
    if only_memory && (qos_class(pod) != BEST_EFFORT || tolerates_memory_pressure(pod)) {
        return None;
    }
    let names: Vec<&str> = pressures.iter().map(|pressure| pressure.condition()).collect();
    Some(format!("The node had condition: [{}]. ", names.join(" ")))
}

/// Kubernetes: `TolerationsTolerateTaint`, for the taint of memory pressure with the effect NoSchedule.
fn tolerates_memory_pressure(pod: &Pod) -> bool {
    let mut tolerations = pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
    tolerations.any(|toleration| {
        let effect = toleration.effect.as_deref().unwrap_or_default();
        let key = toleration.key.as_deref().unwrap_or_default();
        let value = toleration.value.as_deref().unwrap_or_default();
        let operator = toleration.operator.as_deref().unwrap_or("Equal");
        (effect.is_empty() || effect == "NoSchedule")
            && (key == MEMORY_TAINT || (key.is_empty() && operator == "Exists"))
            && (operator == "Exists" || (operator == "Equal" && value.is_empty()))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn seconds(n: u64) -> Time {
        Duration::from_secs(n)
    }

    #[test]
    fn a_condition_holds_for_the_transition_period() {
        let mut conditions = PressureConditions::default();
        let period = seconds(300);
        fn observed(all: &[NodePressure]) -> impl Iterator<Item = NodePressure> {
            all.iter().copied()
        }
        assert!(!conditions.update(observed(&[]), period, seconds(1)));
        assert!(conditions.update(observed(&[NodePressure::Disk]), period, seconds(10)));
        assert!(!conditions.update(observed(&[NodePressure::Disk]), period, seconds(20)));
        assert!(!conditions.update(observed(&[]), period, seconds(319)));
        assert_eq!(conditions.held(), &BTreeSet::from([NodePressure::Disk]));
        assert!(conditions.update(observed(&[]), period, seconds(320)));
        assert!(conditions.held().is_empty());
        assert!(conditions.update(observed(&[NodePressure::Pid]), Duration::ZERO, seconds(330)));
        assert!(conditions.update(observed(&[]), Duration::ZERO, seconds(340)), "without a period it ends at once");
    }

    #[test]
    fn pods_are_admitted_under_pressure_as_by_the_go_kubelet() {
        let plain = json!({"containers": [{"name": "c"}]});
        let burstable = json!({"containers": [{"name": "c", "resources": {"requests": {"memory": "1Mi"}}}]});
        let with = |spec: &Value, key: &str, value: Value| {
            let mut spec = spec.clone();
            spec[key] = value;
            spec
        };
        let tolerating = |key: &str, operator: &str, effect: &str| {
            with(&plain, "tolerations", json!([{"key": key, "operator": operator, "effect": effect}]))
        };
        let (memory, disk) = (vec![NodePressure::Memory], vec![NodePressure::Disk]);
        let both = vec![NodePressure::Memory, NodePressure::Disk];
        let memory_message = "The node had condition: [MemoryPressure]. ";
        let disk_message = "The node had condition: [DiskPressure]. ";
        let table = [
            (&plain, vec![], None),
            (&plain, memory.clone(), Some(memory_message)),
            (&plain, disk.clone(), Some(disk_message)),
            (&plain, both.clone(), Some("The node had condition: [MemoryPressure DiskPressure]. ")),
            (&plain, vec![NodePressure::Pid], Some("The node had condition: [PIDPressure]. ")),
            (&burstable, memory.clone(), None),
            (&burstable, disk.clone(), Some(disk_message)),
            (&burstable, both, Some("The node had condition: [MemoryPressure DiskPressure]. ")),
            (&tolerating(MEMORY_TAINT, "Exists", "NoSchedule"), memory.clone(), None),
            (&tolerating(MEMORY_TAINT, "Exists", ""), memory.clone(), None),
            (&tolerating(MEMORY_TAINT, "Equal", "NoSchedule"), memory.clone(), None),
            (&tolerating("", "Exists", ""), memory.clone(), None),
            (&tolerating(MEMORY_TAINT, "Exists", "NoExecute"), memory.clone(), Some(memory_message)),
            (&tolerating("", "Equal", ""), memory.clone(), Some(memory_message)),
            (&tolerating("node.kubernetes.io/disk-pressure", "Exists", ""), disk.clone(), Some(disk_message)),
            (&with(&plain, "priority", json!(2_000_000_000)), disk.clone(), None),
            (&with(&plain, "priority", json!(1_999_999_999)), disk, Some(disk_message)),
        ];
        for (spec, pressures, expected) in table {
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
            let pressures = pressures.into_iter().collect();
            assert_eq!(refusal(&pod, Source::Api, &pressures).as_deref(), expected, "{spec} {pressures:?}");
            assert_eq!(refusal(&pod, Source::File, &pressures), None, "static pods are critical");
        }
    }
}
