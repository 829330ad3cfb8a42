//! In-place resize of pods: other resources for containers that run.
//!
//! ```text
//!  desired (spec) ── admission: Deferred, Infeasible ──▶ allocated (record) ── actuation ──▶ actuated (cgroups)
//! ```
//!
//! The record's pod has the allocated resources; everything that is made for the pod is made from them. What a running instance has
//! meanwhile is remembered per container ([`actuated`]). Reasons and messages are those of the Go kubelet 1.36 (`allocation`,
//! `kuberuntime`). Resources of the pod as a whole (`spec.resources`) cannot be resized.

mod actuation;
mod memory_check;
mod message;

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ResourceRequirements;

use crate::model::{
    Container, Name, Pod, PodRecord, PodResources, PodSeen, PodSpec, PodStatus, ResizeRefusal, RunState,
};
use crate::qos::{self, Amounts};
use crate::quantity::{Amount, Quantities};

pub(crate) use actuation::{Actuation, PodCgroupValues, requires_restart};
pub(crate) use memory_check::{LoweredMemory, check_memory};
pub(crate) use message::resize_message;

/// The updated pod with its allocated resources, and the desired ones if they differ.
pub(crate) fn split(has: &Pod, wanted: Arc<Pod>) -> (Arc<Pod>, Option<PodResources>) {
    let (allocated, desired) = (resources_of(has), resources_of(&wanted));
    let is_allocated = |(name, own)| allocated.containers.get(name).is_none_or(|given| given == own);
    if allocated.pod == desired.pod && desired.containers.iter().all(is_allocated) {
        return (wanted, None);
    }
    (with_resources(&wanted, &allocated), Some(desired))
}

/// The resources of a pod and its containers.
pub(crate) fn resources_of(pod: &Pod) -> PodResources {
    let Some(spec) = &pod.spec else { return PodResources::default() };
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let each = containers.map(|c| (c.name.as_str().into(), c.resources.clone().unwrap_or_default()));
    PodResources { pod: spec.resources.clone(), containers: each.collect() }
}

/// The pod with these resources. Containers that did not exist keep their own.
pub(crate) fn with_resources(pod: &Pod, resources: &PodResources) -> Arc<Pod> {
    let mut pod = pod.clone();
    if let Some(spec) = &mut pod.spec {
        spec.resources.clone_from(&resources.pod);
        for_each(spec, |c| {
            let given = resources.containers.get(c.name.as_str());
            if let Some(given) = given.filter(|given| **given != c.resources.clone().unwrap_or_default()) {
                c.resources = Some(given.clone());
            }
        });
    }
    Arc::new(pod)
}

/// Refuses what can never be done.
pub(crate) fn check_feasible(allocated: &Pod, desired: &Pod) -> Result<(), ResizeRefusal> {
    let infeasible = |message: &str| Err(ResizeRefusal { infeasible: true, message: message.to_owned() });
    let resources = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.resources.clone());
    if resources(allocated) != resources(desired) {
        return infeasible("InPlacePodLevelResourcesVerticalScaling is disabled");
    }
    if others(allocated) != others(desired) {
        return infeasible("only cpu and memory resources are mutable");
    }
    if qos::computed_qos_class(allocated) != qos::computed_qos_class(desired) {
        return infeasible("Pod QOS Class may not change as a result of resizing");
    }
    Ok(())
}

/// It requests more than is allocated. Resizes that do not are tried first.
pub(crate) fn is_increase(allocated: &Pod, desired: &Pod) -> bool {
    let (before, after) = (qos::pod_requests(allocated), qos::pod_requests(desired));
    ["cpu", "memory"].iter().any(|name| amount(&after, name) > amount(&before, name))
}

/// The resources of an instance of a container.
pub(crate) fn actuated(record: &PodRecord, container: &Container, attempt: u32) -> ResourceRequirements {
    let memory = record.containers.get(container.name.as_str());
    let own = memory.and_then(|m| m.actuated.as_ref()).filter(|own| own.attempt == attempt);
    own.map(|own| own.resources.clone()).or_else(|| container.resources.clone()).unwrap_or_default()
}

/// The pod with the resources that its running containers have.
pub(crate) fn actuated_pod<'a>(pod: &'a Pod, record: &PodRecord, seen: &PodSeen) -> Cow<'a, Pod> {
    match record.resize.in_progress {
        None => Cow::Borrowed(pod),
        Some(_) => Cow::Owned(changed(pod, record, seen, |_, actuated| actuated)),
    }
}

/// The pod with the larger of the allocated and the actuated resources. Its cgroup must not be smaller while a resize is in progress.
pub(crate) fn largest_pod(record: &PodRecord, seen: &PodSeen) -> Arc<Pod> {
    if record.resize.in_progress.is_none() {
        return Arc::clone(&record.pod);
    }
    let pod = changed(&record.pod, record, seen, |allocated, actuated| ResourceRequirements {
        requests: larger(allocated.requests.clone(), actuated.requests, false),
        limits: larger(allocated.limits.clone(), actuated.limits, true),
        claims: allocated.claims.clone(),
    });
    Arc::new(pod)
}

/// `none_is_most`: what is not in both lists is unlimited.
fn larger(a: Option<Quantities>, b: Option<Quantities>, none_is_most: bool) -> Option<Quantities> {
    let (mut a, mut b) = (a.unwrap_or_default(), b.unwrap_or_default());
    if none_is_most {
        a.retain(|name, _| b.contains_key(name));
        b.retain(|name, _| a.contains_key(name));
    }
    for (name, other) in b {
        let of = |q: &_| Amount::try_from(q).unwrap_or(Amount::ZERO);
        let own = a.entry(name).or_insert_with(|| other.clone());
        if of(&other) > of(own) {
            *own = other;
        }
    }
    Some(a).filter(|all| !all.is_empty())
}

/// Changes the resources of running containers, by their allocated and actuated ones. The QoS class stays: it names the cgroup.
fn changed(
    pod: &Pod,
    record: &PodRecord,
    seen: &PodSeen,
    change: impl Fn(&ResourceRequirements, ResourceRequirements) -> ResourceRequirements,
) -> Pod {
    let class = qos::qos_class(pod);
    let mut pod = pod.clone();
    pod.status.get_or_insert_with(PodStatus::default).qos_class = Some(class.into());
    if let Some(spec) = &mut pod.spec {
        for_each(spec, |c| {
            let Some(instance) = running(seen, &c.name) else { return };
            let actuated = actuated(record, c, instance);
            let changed = change(&c.resources.clone().unwrap_or_default(), actuated);
            c.resources = Some(changed).filter(|r| *r != ResourceRequirements::default());
        });
    }
    pod
}

/// The restart count of the running instance of a container.
fn running(seen: &PodSeen, name: &str) -> Option<u32> {
    seen.newest(name).filter(|c| c.state == RunState::Running).map(|c| c.attempt)
}

fn for_each(spec: &mut PodSpec, mut change: impl FnMut(&mut Container)) {
    spec.init_containers.iter_mut().flatten().chain(&mut spec.containers).for_each(&mut change);
}

/// Resources that cannot be resized, by container.
fn others(pod: &Pod) -> Vec<(Name, Amounts, Amounts)> {
    let rest = |mut amounts: Amounts| {
        amounts.retain(|name, _| !matches!(name.as_str(), "cpu" | "memory"));
        amounts
    };
    let spec = pod.spec.iter();
    let containers = spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    containers
        .map(|c| (c.name.as_str().into(), rest(qos::container_requests(c)), rest(qos::container_limits(c))))
        .collect()
}

fn amount(amounts: &Amounts, name: &str) -> Amount {
    amounts.get(name).copied().unwrap_or(Amount::ZERO)
}

#[cfg(test)]
mod tests;
