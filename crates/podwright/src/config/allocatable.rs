//! The capacity of the host, and the part of it that pods may use.

use std::collections::BTreeMap;

use podwright_agent::host::NodeAllocatable;
use podwright_core::eviction::ThresholdValue;
use podwright_core::model::Signal;
use podwright_core::quantity::Amount;
use podwright_linux::hugepages::HugePages;

use super::diagnostics::Diagnostics;
use super::inputs::{ConfigInputs, text};
use super::{Capacity, facts};

impl Capacity {
    /// Memory in huge pages is not available as normal memory (Go kubelet: `MachineInfo`).
    pub(super) fn memory_without_huge_pages(&self) -> i64 {
        self.huge_pages.values().fold(self.memory, |left, bytes| left.saturating_sub(*bytes)).max(0)
    }
}

pub(super) fn capacity(inputs: &ConfigInputs<'_>) -> Capacity {
    let facts = &inputs.facts;
    let cpu_millis = i64::try_from(facts.cpus).unwrap_or(i64::MAX / 1000) * 1000;
    let huge_pages = facts.huge_pages.iter().map(|pages| (resource(pages.size), bytes(*pages))).collect();
    Capacity { cpu_millis, memory: facts.memory, ephemeral: facts.disk, pids: facts.pids, huge_pages }
}

/// `enforceNodeAllocatable` names pods: their cgroup has limits.
pub(super) fn is_enforced(inputs: &ConfigInputs<'_>) -> bool {
    let given = &inputs.file.enforce_node_allocatable;
    let named = given.as_ref().is_none_or(|levels| levels.iter().any(|level| level == "pods"));
    named && inputs.file.cgroups_per_qos.unwrap_or(true)
}

/// The limits of the cgroup of all pods: what is not reserved, or the whole capacity if `enforceNodeAllocatable` does not name `pods`
/// (Go kubelet: `enforceNodeAllocatableCgroups`).
pub(super) fn enforced(
    inputs: &ConfigInputs<'_>,
    unreserved: &Capacity,
    diagnostics: &mut Diagnostics,
) -> NodeAllocatable {
    const FIELD: &str = "enforceNodeAllocatable";
    let per_qos = inputs.file.cgroups_per_qos.unwrap_or(true);
    let given = &inputs.file.enforce_node_allocatable;
    for level in given.iter().flatten() {
        match level.as_str() {
            "pods" if per_qos => {}
            "pods" => diagnostics.error(FIELD, "pods requires cgroupsPerQOS: true"),
            "none" | "" => {}
            "system-reserved" | "kube-reserved" | "system-reserved-compressible" | "kube-reserved-compressible" => {
                diagnostics.warning(FIELD, format!("{level} is not supported yet and has no effect"));
            }
            other => diagnostics.error(FIELD, format!("{other:?} must be pods or none")),
        }
    }
    let capacity = capacity(inputs);
    let Capacity { cpu_millis, memory, pids, .. } = if is_enforced(inputs) { unreserved } else { &capacity };
    NodeAllocatable { cpu_millis: *cpu_millis, memory: *memory, pids: *pids }
}

/// The capacity without what is reserved for the system and the agent.
pub(super) fn allocatable(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) -> Capacity {
    let reserved = reserved(inputs, diagnostics);
    let capacity = capacity(inputs);
    let mut left = |resource: &str, capacity: i64, reserved: i64| {
        if reserved > capacity {
            let error = format!("more {resource} is reserved than this host has");
            diagnostics.error("systemReserved, kubeReserved", error);
        }
        capacity.saturating_sub(reserved).max(0)
    };
    Capacity {
        cpu_millis: left("cpu", capacity.cpu_millis, reserved.cpu_millis),
        memory: left("memory", capacity.memory, reserved.memory),
        ephemeral: left("ephemeral-storage", capacity.ephemeral, reserved.ephemeral),
        pids: left("pid", capacity.pids, reserved.pids),
        huge_pages: capacity.huge_pages,
    }
}

/// What pods may request: what is left without the thresholds of hard eviction, which keep pods from using the node up (Go
/// kubelet: `GetNodeAllocatableReservation`). The cgroup of all pods is not limited by them.
pub(super) fn without_eviction_thresholds(
    inputs: &ConfigInputs<'_>,
    left: &Capacity,
    hard: &BTreeMap<Signal, ThresholdValue>,
    diagnostics: &mut Diagnostics,
) -> Capacity {
    let capacity = capacity(inputs);
    let kept = |signal: Signal, capacity: i64| hard.get(&signal).map_or(0, |value| value.of(capacity).value());
    let memory = kept(Signal::MemoryAvailable, capacity.memory);
    let ephemeral = kept(Signal::NodeFsAvailable, capacity.ephemeral);
    for (resource, left, kept) in [("memory", left.memory, memory), ("ephemeral-storage", left.ephemeral, ephemeral)] {
        // With nothing left, the reservations were refused already.
        if kept > left && left > 0 {
            let error = format!("more {resource} is kept free than systemReserved and kubeReserved leave");
            diagnostics.error("evictionHard", error);
        }
    }
    Capacity {
        memory: left.memory.saturating_sub(memory).max(0),
        ephemeral: left.ephemeral.saturating_sub(ephemeral).max(0),
        ..left.clone()
    }
}

/// The sum of `systemReserved` and `kubeReserved`.
fn reserved(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) -> Capacity {
    let file = &inputs.file;
    let mut sum = Capacity::default();
    for (field, map) in [("systemReserved", &file.system_reserved), ("kubeReserved", &file.kube_reserved)] {
        for (resource, text) in map.iter().flatten() {
            let field = format!("{field}.{resource}");
            let amount = match text.parse::<Amount>() {
                Ok(amount) if !amount.is_negative() => amount,
                Ok(_) => {
                    diagnostics.error(&field, "must not be negative");
                    continue;
                }
                Err(error) => {
                    diagnostics.error(&field, error);
                    continue;
                }
            };
            match resource.as_str() {
                "cpu" => sum.cpu_millis = sum.cpu_millis.saturating_add(amount.milli_value()),
                "memory" => sum.memory = sum.memory.saturating_add(amount.value()),
                "ephemeral-storage" => sum.ephemeral = sum.ephemeral.saturating_add(amount.value()),
                "pid" => sum.pids = sum.pids.saturating_add(amount.value()),
                _ => diagnostics.error(&field, "this resource cannot be reserved"),
            }
        }
    }
    // An explicit list of CPUs replaces the reserved amounts of CPU.
    if let Some(list) = text(&file.reserved_system_cpus) {
        match facts::cpu_count(list) {
            Some(count) => sum.cpu_millis = i64::try_from(count).unwrap_or(i64::MAX / 1000).saturating_mul(1000),
            None => diagnostics.error("reservedSystemCPUs", format!("{list:?} is not a CPU list such as 0-1,4")),
        }
    }
    sum
}

/// The resource name, such as `hugepages-2Mi`, in the largest unit that divides the size.
fn resource(size: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];
    let unit = UNITS.iter().find(|(_, unit)| size.is_multiple_of(*unit));
    unit.map_or_else(|| format!("hugepages-{size}"), |(name, unit)| format!("hugepages-{}{name}", size / unit))
}

fn bytes(pages: HugePages) -> i64 {
    i64::try_from(pages.size.saturating_mul(pages.count)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_have_the_resource_names_of_kubernetes() {
        let names = [64 << 10, 2 << 20, 1 << 30].map(resource);
        assert_eq!(names, ["hugepages-64Ki", "hugepages-2Mi", "hugepages-1Gi"]);
    }
}
