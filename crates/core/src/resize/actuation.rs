//! The order in which a resize is applied (Go kubelet: `computePodResizeAction`, `doPodResizeAction`).
//!
//! Memory first, then CPU. For each: limits of the pod's cgroup that grow, containers that shrink, containers that grow, limits of the
//! pod's cgroup that shrink. So the cgroup of the pod is never smaller than those of its containers.

use std::cmp::Ordering;

use k8s_openapi::api::core::v1::ResourceRequirements;

use super::{LoweredMemory, actuated};
use crate::model::{
    Call, Container, ContainerId, HostCall, Pod, PodRecord, PodSeen, RunState, RuntimeCall, is_sidecar,
};
use crate::qos::{self, Amounts};

/// The limits of a pod's cgroup that a resize changes; `None` is unlimited.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct PodCgroupValues {
    pub(crate) cpu_shares: u64,
    pub(crate) cpu_quota_us: Option<i64>,
    pub(crate) memory: Option<i64>,
}

impl PodCgroupValues {
    pub(crate) fn of(pod: &Pod) -> Self {
        let limits = qos::pod_cgroup(pod, None);
        Self { cpu_shares: limits.cpu_shares, cpu_quota_us: limits.cpu_quota_us, memory: limits.memory_limit }
    }

    /// After [`HostCall::ResizeCgroup`] with these values.
    pub(crate) fn changed(&self, cpu_shares: Option<u64>, cpu_quota_us: Option<i64>, memory: Option<i64>) -> Self {
        Self {
            cpu_shares: cpu_shares.unwrap_or(self.cpu_shares),
            cpu_quota_us: cpu_quota_us.or(self.cpu_quota_us),
            memory: memory.or(self.memory),
        }
    }
}

/// A resize in progress, as far as it got.
#[derive(Debug)]
pub(crate) struct Actuation<'a> {
    /// With the allocated resources.
    pod: &'a Pod,
    /// As last set.
    cgroup: &'a PodCgroupValues,
    /// Running containers that are updated.
    running: Vec<Instance<'a>>,
    /// A running container has to be restarted first.
    pub(crate) restarts: bool,
}

#[derive(Debug)]
struct Instance<'a> {
    container: &'a Container,
    id: &'a ContainerId,
    actuated: ResourceRequirements,
}

#[derive(Clone, Copy)]
enum Resource {
    Memory,
    Cpu,
}

impl<'a> Actuation<'a> {
    pub(crate) fn new(record: &'a PodRecord, seen: &'a PodSeen, cgroup: &'a PodCgroupValues) -> Self {
        let mut actuation = Self { pod: &record.pod, cgroup, running: vec![], restarts: false };
        let spec = record.pod.spec.iter();
        for container in spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers)) {
            let Some(instance) = seen.newest(&container.name).filter(|c| c.state == RunState::Running) else {
                continue;
            };
            if requires_restart(record, container, instance.attempt) {
                actuation.restarts = true;
                continue;
            }
            let actuated = actuated(record, container, instance.attempt);
            actuation.running.push(Instance { container, id: &instance.id, actuated });
        }
        actuation
    }

    /// The limits of the pod's cgroup that grow.
    pub(crate) fn raise(&self) -> Option<HostCall> {
        let wanted = self.wanted();
        let (cgroup, most) = (self.cgroup, i64::MAX);
        let grows = |wanted: Option<i64>, has: Option<i64>| wanted.filter(|w| *w > has.unwrap_or(most));
        let memory = grows(wanted.memory, cgroup.memory);
        let cpu_quota_us = grows(wanted.cpu_quota_us, cgroup.cpu_quota_us);
        let cpu_shares = Some(wanted.cpu_shares).filter(|shares| *shares > cgroup.cpu_shares);
        let any = memory.is_some() || cpu_quota_us.is_some() || cpu_shares.is_some();
        any.then_some(HostCall::ResizeCgroup { cpu_shares, cpu_quota_us, memory })
    }

    /// The next call after [`Self::raise`]; `None`: everything is applied.
    pub(crate) fn next(&self) -> Option<Call> {
        let wanted = self.wanted();
        let shrinks = |wanted: Option<i64>, has: Option<i64>| wanted.filter(|w| *w < has.unwrap_or(i64::MAX));
        let cgroup =
            |cpu_shares, cpu_quota_us, memory| Call::Host(HostCall::ResizeCgroup { cpu_shares, cpu_quota_us, memory });
        if let Some(update) = self.update(Resource::Memory) {
            return Some(update);
        }
        if let Some(memory) = shrinks(wanted.memory, self.cgroup.memory) {
            return Some(cgroup(None, None, Some(memory)));
        }
        if let Some(update) = self.update(Resource::Cpu) {
            return Some(update);
        }
        let shares = Some(wanted.cpu_shares).filter(|shares| *shares < self.cgroup.cpu_shares);
        let quota = shrinks(wanted.cpu_quota_us, self.cgroup.cpu_quota_us);
        (shares.is_some() || quota.is_some()).then(|| cgroup(shares, quota, None))
    }

    /// Memory limits that [`Self::next`] will lower.
    pub(crate) fn lowered_memory(&self) -> LoweredMemory {
        let wanted = self.wanted();
        let pod = wanted.memory.filter(|w| *w < self.cgroup.memory.unwrap_or(i64::MAX));
        let containers = self.running.iter().filter_map(|instance| {
            let (has, wanted) = self.numbers(instance);
            let lowered = wanted.memory_limit < has.memory_limit;
            lowered.then(|| (instance.container.name.as_str().into(), (instance.id.clone(), wanted.memory_limit)))
        });
        LoweredMemory { pod, containers: containers.collect() }
    }

    /// A limit that is not given any more stays as it is.
    fn wanted(&self) -> PodCgroupValues {
        let wanted = PodCgroupValues::of(self.pod);
        PodCgroupValues {
            memory: wanted.memory.or(self.cgroup.memory),
            cpu_quota_us: wanted.cpu_quota_us.or(self.cgroup.cpu_quota_us),
            ..wanted
        }
    }

    /// The first container to update: one that shrinks, else one that grows.
    fn update(&self, resource: Resource) -> Option<Call> {
        let with = |order: Ordering| self.running.iter().find(|i| self.order(i, resource) == order);
        let instance = with(Ordering::Less).or_else(|| with(Ordering::Greater))?;
        let allocated = instance.container.resources.clone().unwrap_or_default();
        let name = match resource {
            Resource::Memory => "memory",
            Resource::Cpu => "cpu",
        };
        let mut resources = instance.actuated.clone();
        for (to, from) in [(&mut resources.requests, allocated.requests), (&mut resources.limits, allocated.limits)] {
            match from.and_then(|mut from| from.remove(name)) {
                Some(value) => drop(to.get_or_insert_default().insert(name.to_owned(), value)),
                None => drop(to.as_mut().and_then(|to| to.remove(name))),
            }
            to.take_if(|to| to.is_empty());
        }
        Some(Call::Runtime(RuntimeCall::UpdateContainer {
            name: instance.container.name.as_str().into(),
            id: instance.id.clone(),
            resources: Box::new(resources),
        }))
    }

    /// By the limit, or by the request if the limit stays.
    fn order(&self, instance: &Instance<'_>, resource: Resource) -> Ordering {
        let (has, wanted) = self.numbers(instance);
        match resource {
            Resource::Memory => {
                wanted.memory_limit.cmp(&has.memory_limit).then(wanted.memory_request.cmp(&has.memory_request))
            }
            Resource::Cpu => wanted.cpu_limit.cmp(&has.cpu_limit).then(wanted.cpu_request.cmp(&has.cpu_request)),
        }
    }

    /// Actuated and allocated.
    fn numbers(&self, instance: &Instance<'_>) -> (ResourceNumbers, ResourceNumbers) {
        let allocated = instance.container.resources.clone().unwrap_or_default();
        (ResourceNumbers::of(self.pod, &instance.actuated), ResourceNumbers::of(self.pod, &allocated))
    }
}

/// CPU in thousandths of a core, memory in bytes. No limit is the largest number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ResourceNumbers {
    memory_limit: i64,
    memory_request: i64,
    cpu_limit: i64,
    cpu_request: i64,
}

impl ResourceNumbers {
    /// A limit of the whole pod holds for containers without one.
    fn of(pod: &Pod, resources: &ResourceRequirements) -> Self {
        let (requests, limits) = (qos::amounts(resources.requests.as_ref()), qos::amounts(resources.limits.as_ref()));
        let whole = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref()).and_then(|r| r.limits.as_ref());
        let whole = qos::amounts(whole);
        let millis = |amounts: &Amounts| amounts.get("cpu").map_or(0, |amount| amount.milli_value());
        let bytes = |amounts: &Amounts| amounts.get("memory").map_or(0, |amount| amount.value());
        let limit = |own: i64, whole: i64| [own, whole].into_iter().find(|n| *n > 0).unwrap_or(i64::MAX);
        Self {
            memory_limit: limit(bytes(&limits), bytes(&whole)),
            memory_request: bytes(&requests),
            cpu_limit: limit(millis(&limits), millis(&whole)),
            cpu_request: millis(&requests),
        }
    }
}

/// The instance has other resources than are allocated, and its `resizePolicy` wants a restart for that. An init container that ends
/// is never restarted for it.
pub(crate) fn requires_restart(record: &PodRecord, container: &Container, attempt: u32) -> bool {
    let policy = |name: &str| {
        let mut policies = container.resize_policy.iter().flatten();
        policies.any(|policy| policy.resource_name == name && policy.restart_policy == "RestartContainer")
    };
    let (cpu, memory) = (policy("cpu"), policy("memory"));
    if !cpu && !memory {
        return false;
    }
    let inits = record.pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    if inits.filter(|init| !is_sidecar(init)).any(|init| init.name == container.name) {
        return false;
    }
    let has = ResourceNumbers::of(&record.pod, &actuated(record, container, attempt));
    let wanted = ResourceNumbers::of(&record.pod, &container.resources.clone().unwrap_or_default());
    let cpu_differs = (has.cpu_limit, has.cpu_request) != (wanted.cpu_limit, wanted.cpu_request);
    let memory_differs = (has.memory_limit, has.memory_request) != (wanted.memory_limit, wanted.memory_request);
    (cpu && cpu_differs) || (memory && memory_differs)
}
