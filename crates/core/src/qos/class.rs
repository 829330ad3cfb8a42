//! QoS class (`ComputePodQOS`).

use std::collections::BTreeMap;

use super::resources::{Amounts, amounts, container_limits, container_requests};
use crate::model::Pod;

/// Every container has CPU and memory limits and equal requests.
pub const GUARANTEED: &str = "Guaranteed";
/// Some request or limit is set.
pub const BURSTABLE: &str = "Burstable";
/// No request or limit is set.
pub const BEST_EFFORT: &str = "BestEffort";

/// The class in the pod's status, which never changes once set, else the computed one.
pub fn qos_class(pod: &Pod) -> &'static str {
    let given = pod.status.as_ref().and_then(|s| s.qos_class.as_deref()).unwrap_or_default();
    match [GUARANTEED, BURSTABLE, BEST_EFFORT].into_iter().find(|class| *class == given) {
        Some(class) => class,
        None => computed_qos_class(pod),
    }
}

/// The class by the resources of the spec.
pub(crate) fn computed_qos_class(pod: &Pod) -> &'static str {
    let Some(spec) = &pod.spec else { return BEST_EFFORT };
    let mut requests = Amounts::new();
    let mut limits = Amounts::new();
    let mut guaranteed = true;
    if let Some(whole) = &spec.resources {
        // Pod-level resources decide alone, also if they are empty.
        add_positive(&mut requests, amounts(whole.requests.as_ref()));
        let given = amounts(whole.limits.as_ref());
        if !given.is_empty() {
            guaranteed = add_positive(&mut limits, given) == 2;
        }
    } else {
        for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
            add_positive(&mut requests, container_requests(container));
            guaranteed &= add_positive(&mut limits, container_limits(container)) == 2;
        }
    }
    match (requests.is_empty() && limits.is_empty(), guaranteed && requests == limits) {
        (true, _) => BEST_EFFORT,
        (false, true) => GUARANTEED,
        (false, false) => BURSTABLE,
    }
}

/// Adds positive CPU and memory values; returns how many of the two were positive.
fn add_positive(to: &mut Amounts, more: BTreeMap<String, crate::quantity::Amount>) -> usize {
    let mut found = 0;
    for (name, amount) in more {
        if matches!(name.as_str(), "cpu" | "memory") && amount.is_positive() {
            found += 1;
            let sum = to.get(&name).map_or(amount, |had| had.plus(amount));
            to.insert(name, sum);
        }
    }
    found
}
