//! Total requests and limits of a pod (`PodRequests`, `PodLimits`).
//!
//! App containers and sidecars run at the same time, so they add up. An init container runs with the sidecars before it, so
//! the pod needs at least that much. Pod-level values, if set, replace the sum; the overhead is added.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::model::{Container, Pod, is_sidecar};
use crate::quantity::Amount;

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Amount>;

/// Parses a resource list; invalid quantities are left out.
pub fn amounts(list: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    list.into_iter().flatten().filter_map(|(name, q)| Some((name.clone(), Amount::try_from(q).ok()?))).collect()
}

/// Requests of one container.
pub fn container_requests(container: &Container) -> Amounts {
    amounts(container.resources.as_ref().and_then(|r| r.requests.as_ref()))
}

/// Requests of the pod, overhead included.
pub fn pod_requests(pod: &Pod) -> Amounts {
    let mut total = sum(pod, container_requests, |_| {});
    replace_pod_level(&mut total, pod_level_requests(pod));
    if let Some(spec) = &pod.spec {
        add(&mut total, &amounts(spec.overhead.as_ref()));
    }
    total
}

/// Limits of the pod; the overhead raises only existing limits.
pub fn pod_limits(pod: &Pod) -> Amounts {
    pod_limits_with(pod, |_| {})
}

/// As [`pod_limits`]; `each` gets the effective limits of every container as they are added.
pub(super) fn pod_limits_with(pod: &Pod, each: impl FnMut(&Amounts)) -> Amounts {
    let mut total = sum(pod, container_limits, each);
    replace_pod_level(&mut total, pod_level_limits(pod));
    if let Some(spec) = &pod.spec {
        for (name, extra) in amounts(spec.overhead.as_ref()) {
            if let Some(limit) = total.get_mut(&name).filter(|l| !l.is_zero()) {
                *limit = limit.plus(extra);
            }
        }
    }
    total
}

/// The sum of the containers' requests alone.
pub(crate) fn containers_requests(pod: &Pod) -> Amounts {
    sum(pod, container_requests, |_| {})
}

/// The sum of the containers' limits alone.
pub(crate) fn containers_limits(pod: &Pod) -> Amounts {
    sum(pod, container_limits, |_| {})
}

pub(crate) fn container_limits(container: &Container) -> Amounts {
    amounts(container.resources.as_ref().and_then(|r| r.limits.as_ref()))
}

pub(super) fn pod_level_requests(pod: &Pod) -> Amounts {
    supported(pod.spec.as_ref().and_then(|s| s.resources.as_ref()).and_then(|r| r.requests.as_ref()))
}

pub(super) fn pod_level_limits(pod: &Pod) -> Amounts {
    supported(pod.spec.as_ref().and_then(|s| s.resources.as_ref()).and_then(|r| r.limits.as_ref()))
}

/// Supported in pod-level resources.
pub(crate) fn is_pod_level_resource(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with(HUGEPAGES)
}

fn supported(list: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    let mut list = amounts(list);
    list.retain(|name, _| is_pod_level_resource(name));
    list
}

fn replace_pod_level(total: &mut Amounts, pod_level: Amounts) {
    total.extend(pod_level);
}

fn sum(pod: &Pod, of: impl Fn(&Container) -> Amounts, mut each: impl FnMut(&Amounts)) -> Amounts {
    let mut total = Amounts::new();
    let Some(spec) = &pod.spec else { return total };
    for container in &spec.containers {
        let own = of(container);
        each(&own);
        add(&mut total, &own);
    }
    let mut sidecars = Amounts::new();
    let mut peak = Amounts::new();
    for container in spec.init_containers.iter().flatten() {
        let own = of(container);
        let concurrent = if is_sidecar(container) {
            add(&mut total, &own);
            add(&mut sidecars, &own);
            sidecars.clone()
        } else {
            let mut both = own;
            add(&mut both, &sidecars);
            both
        };
        each(&concurrent);
        raise(&mut peak, &concurrent);
    }
    raise(&mut total, &peak);
    total
}

fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let entry = to.entry(name.clone()).or_insert(Amount::ZERO);
        *entry = entry.plus(*amount);
    }
}

fn raise(to: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let entry = to.entry(name.clone()).or_insert(*amount);
        *entry = (*entry).max(*amount);
    }
}

/// The prefix of huge page resources; the page size follows.
pub(crate) const HUGEPAGES: &str = "hugepages-";

/// A name with a domain that is not Kubernetes' own (Go: `IsExtendedResourceName`).
pub(crate) fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}
