//! The class of service: whose memory goes first when there is too little.

use std::collections::BTreeMap;

use super::resources::{Amounts, amounts, container_limits, container_requests};
use crate::model::Pod;

/// Every container has limits for CPU and memory, and asks for exactly those.
pub const GUARANTEED: &str = "Guaranteed";
/// Something is asked for or limited.
pub const BURSTABLE: &str = "Burstable";
/// Nothing is asked for.
pub const BEST_EFFORT: &str = "BestEffort";

/// The pod's class: the one in its status, which never changes once given, else computed.
pub fn qos_class(pod: &Pod) -> &'static str {
    let given = pod.status.as_ref().and_then(|s| s.qos_class.as_deref()).unwrap_or_default();
    match [GUARANTEED, BURSTABLE, BEST_EFFORT].into_iter().find(|class| *class == given) {
        Some(class) => class,
        None => compute(pod),
    }
}

fn compute(pod: &Pod) -> &'static str {
    let Some(spec) = &pod.spec else { return BEST_EFFORT };
    let mut requests = Amounts::new();
    let mut limits = Amounts::new();
    let mut guaranteed = true;
    if let Some(whole) = &spec.resources {
        // Values for the whole pod decide alone, also when they are empty.
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

/// Adds CPU and memory where more than nothing is given; says how many of the two were.
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
