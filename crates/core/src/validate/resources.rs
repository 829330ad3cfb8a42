//! Requests and limits: names, quantities, and requests not above limits.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{FieldErrors, names, quoted};
use crate::model::Pod;
use crate::qos::{Amounts, containers_limits, containers_requests, is_pod_level_resource};
use crate::quantity::Amount;

pub(super) fn check(given: &ResourceRequirements, at: &str, known: fn(&str) -> bool, errors: &mut FieldErrors) {
    let limits = quantities(given.limits.as_ref(), &format!("{at}.limits"), known, errors);
    let requests = quantities(given.requests.as_ref(), &format!("{at}.requests"), known, errors);
    for (name, request) in &requests {
        let here = format!("{at}.requests[{name}]");
        match limits.get(name) {
            Some(limit) if request > limit => {
                errors.add(here, format!("{request} must not be more than the limit, {limit}"));
            }
            Some(limit) if request != limit && !may_overcommit(name) => {
                errors.add(here, format!("{request} must equal the limit, {limit}: {name} can't be overcommitted"));
            }
            None if !may_overcommit(name) => {
                errors.add(format!("{at}.limits[{name}]"), "must be given and equal the request");
            }
            _ => {}
        }
    }
    let mut all = limits.keys().chain(requests.keys());
    if all.clone().any(|name| name.starts_with(HUGEPAGES)) && !all.any(|name| matches!(name.as_str(), "cpu" | "memory"))
    {
        errors.add(at, "huge pages also need a request or limit of cpu or memory");
    }
}

/// Pod-level resources; they must be sufficient for the containers.
pub(super) fn check_pod_level(spec: &PodSpec, errors: &mut FieldErrors) {
    if let Some(overhead) = &spec.overhead {
        quantities(Some(overhead), "spec.overhead", is_container_resource, errors);
    }
    let Some(whole) = &spec.resources else { return };
    if whole.claims.is_some() {
        errors.add("spec.resources.claims", "must not be given for a whole pod");
    }
    let before = errors.errors.len();
    check(whole, "spec.resources", is_pod_level_resource, errors);
    if errors.errors.len() > before {
        return;
    }
    let pod = Pod { spec: Some(spec.clone()), ..Pod::default() };
    let parsed = |list: Option<&BTreeMap<String, Quantity>>| crate::qos::amounts(list);
    let sum = containers_requests(&pod);
    for (name, request) in parsed(whole.requests.as_ref()) {
        if let Some(sum) = sum.get(&name).filter(|sum| **sum > request) {
            let here = format!("spec.resources.requests[{name}]");
            errors.add(here, format!("{request} must not be less than what the containers ask for together, {sum}"));
        }
    }
    let limits = parsed(whole.limits.as_ref());
    let every = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    for own in every.filter_map(|container| container.resources.as_ref()).map(|r| parsed(r.limits.as_ref())) {
        for (name, limit) in own {
            if let Some(most) = limits.get(&name).filter(|most| limit > **most) {
                let here = format!("spec.resources.limits[{name}]");
                errors.add(here, format!("{most} must not be less than the limit of a container, {limit}"));
            }
        }
    }
    // Huge pages cannot be overcommitted, so the sum of the limits must fit.
    for (name, sum) in containers_limits(&pod).into_iter().filter(|(name, _)| name.starts_with(HUGEPAGES)) {
        if let Some(most) = limits.get(&name).filter(|most| sum > **most) {
            let here = format!("spec.resources.limits[{name}]");
            errors.add(here, format!("{most} must not be less than the containers' limits together, {sum}"));
        }
    }
}

fn quantities(
    list: Option<&BTreeMap<String, Quantity>>,
    at: &str,
    known: fn(&str) -> bool,
    errors: &mut FieldErrors,
) -> Amounts {
    let mut amounts = Amounts::new();
    for (name, quantity) in list.into_iter().flatten() {
        let here = format!("{at}[{name}]");
        if !known(name) {
            errors.add(
                format!("{at}[{}]", quoted(name)),
                "is not known here: use cpu, memory, ephemeral-storage, hugepages-SIZE, or a name with a domain as in example.com/gpu",
            );
            continue;
        }
        match Amount::try_from(quantity) {
            Err(error) => errors.add(here, error.to_string()),
            Ok(amount) if amount.is_negative() => errors.add(here, format!("{amount} must not be negative")),
            Ok(amount) if !may_overcommit(name) && !name.starts_with(HUGEPAGES) && !amount.is_whole() => {
                errors.add(here, format!("{amount} must be a whole number"));
            }
            Ok(amount) => {
                page_multiple(name, amount, &here, errors);
                amounts.insert(name.clone(), amount);
            }
        }
    }
    amounts
}

fn page_multiple(name: &str, amount: Amount, at: &str, errors: &mut FieldErrors) {
    let Some(size) = name.strip_prefix(HUGEPAGES) else { return };
    match size.parse::<Amount>().map(Amount::value) {
        Ok(size) if size > 0 && amount.value() % size == 0 => {}
        Ok(size) if size > 0 => errors.add(at, format!("{amount} must be a multiple of the page size")),
        _ => errors.add(at, format!("{} must be a page size, such as 2Mi", quoted(size))),
    }
}

/// Resources of containers: the known ones, and any with a domain.
pub(super) fn is_container_resource(name: &str) -> bool {
    if name.contains('/') {
        return names::is_qualified(name) && !name.starts_with("requests.");
    }
    matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with(HUGEPAGES)
}

/// Native resources may be overcommitted, except huge pages.
fn may_overcommit(name: &str) -> bool {
    (!name.contains('/') || name.contains("kubernetes.io/")) && !name.starts_with(HUGEPAGES)
}

const HUGEPAGES: &str = "hugepages-";
