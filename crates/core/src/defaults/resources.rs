//! Requests defaulted from limits, and quantities in the API server's canonical form.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::model::Pod;
use crate::qos::{Amounts, containers_limits, containers_requests, is_pod_level_resource};
use crate::quantity::Amount;

type List = BTreeMap<String, Quantity>;

/// A limit without a request sets the request.
pub(super) fn default_requests(pod: &mut Pod) {
    let Some(spec) = &mut pod.spec else { return };
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        if let Some(resources) = &mut container.resources {
            for (name, limit) in resources.limits.iter().flatten() {
                let requests = resources.requests.get_or_insert_default();
                requests.entry(name.clone()).or_insert_with(|| limit.clone());
            }
        }
    }
    // After the containers, because their requests are summed up.
    default_pod_level(pod);
}

fn default_pod_level(pod: &mut Pod) {
    let requests_sum = containers_requests(pod);
    let limits_sum = containers_limits(pod);
    let Some(whole) = pod.spec.as_mut().and_then(|spec| spec.resources.as_mut()) else { return };
    let is_set = |list: &Option<List>| list.as_ref().is_some_and(|list| !list.is_empty());
    if !is_set(&whole.limits) && !is_set(&whole.requests) {
        return;
    }
    // Huge pages cannot be overcommitted: the containers' limits are the pod's limit.
    for (name, amount) in pod_level(&limits_sum).filter(|(name, _)| name.starts_with("hugepages-")) {
        if whole.requests.as_ref().is_none_or(|requests| !requests.contains_key(name)) {
            whole.limits.get_or_insert_default().entry(name.clone()).or_insert_with(|| Quantity(amount.to_string()));
        }
    }
    if !is_set(&whole.limits) {
        return;
    }
    let mut requests = whole.requests.take().unwrap_or_default();
    for (name, amount) in pod_level(&requests_sum).filter(|(name, _)| !name.starts_with("hugepages-")) {
        requests.entry(name.clone()).or_insert_with(|| Quantity(amount.to_string()));
    }
    for (name, limit) in whole.limits.iter().flatten().filter(|(name, _)| is_pod_level_resource(name)) {
        requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
    whole.requests = Some(requests).filter(|requests| !requests.is_empty());
}

fn pod_level(amounts: &Amounts) -> impl Iterator<Item = (&String, &Amount)> {
    amounts.iter().filter(|(name, _)| is_pod_level_resource(name))
}

pub(super) fn canonical_requirements(resources: &mut ResourceRequirements) {
    canonical(resources.limits.as_mut());
    canonical(resources.requests.as_mut());
}

/// Rounds up to thousandths and writes the canonical form; an invalid quantity is left for validation.
pub(super) fn canonical(list: Option<&mut List>) {
    for quantity in list.into_iter().flat_map(BTreeMap::values_mut) {
        if let Ok(amount) = Amount::try_from(&*quantity) {
            quantity.0 = amount.round_to_milli().to_string();
        }
    }
}

/// Writes one quantity in its canonical form.
pub(super) fn canonical_one(quantity: &mut Quantity) {
    if let Ok(amount) = Amount::try_from(&*quantity) {
        quantity.0 = amount.to_string();
    }
}
