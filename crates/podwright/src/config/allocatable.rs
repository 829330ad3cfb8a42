//! What the machine has, and what of it pods may use.

use podwright_agent::host::NodeAllocatable;
use podwright_core::quantity::Amount;
use podwright_linux::hugepages::HugePages;

use super::reader::{Reader, text};
use super::{Capacity, facts};

impl Capacity {
    /// Memory in huge pages can't be had as plain memory (Go kubelet: `MachineInfo`).
    pub(super) fn memory_beside_huge_pages(&self) -> i64 {
        self.huge_pages.values().fold(self.memory, |left, bytes| left.saturating_sub(*bytes)).max(0)
    }
}

impl Reader<'_> {
    pub(super) fn capacity(&self) -> Capacity {
        let cpu_millis = i64::try_from(self.facts.cpus).unwrap_or(i64::MAX / 1000) * 1000;
        let huge_pages = self.facts.huge_pages.iter().map(|pages| (resource(pages.size), bytes(*pages))).collect();
        Capacity {
            cpu_millis,
            memory: self.facts.memory,
            ephemeral: self.facts.disk,
            pids: self.facts.pids,
            huge_pages,
        }
    }

    /// What all pods together are held to: what is not reserved, or all there is (Go kubelet: `enforceNodeAllocatableCgroups`).
    pub(super) fn node_allocatable(&mut self, room: &Capacity) -> NodeAllocatable {
        let per_qos = self.file.cgroups_per_qos.unwrap_or(true);
        let given = self.file.enforce_node_allocatable.clone();
        let mut enforced = given.is_none() && per_qos;
        for level in given.iter().flatten() {
            match level.as_str() {
                "pods" if per_qos => enforced = true,
                "pods" => self.errors.push("enforceNodeAllocatable: pods needs cgroupsPerQOS: true".into()),
                "none" | "" => {}
                "system-reserved" | "kube-reserved" | "system-reserved-compressible" | "kube-reserved-compressible" => {
                    self.warnings
                        .push(format!("enforceNodeAllocatable: {level} is not supported yet, it does nothing"));
                }
                other => self.errors.push(format!("enforceNodeAllocatable: {other:?} must be pods or none")),
            }
        }
        let all = self.capacity();
        let Capacity { cpu_millis, memory, pids, .. } = if enforced { room } else { &all };
        NodeAllocatable { cpu_millis: *cpu_millis, memory: *memory, pids: *pids }
    }

    /// What is left of it for pods.
    pub(super) fn room(&mut self) -> Capacity {
        let (cpu, memory, ephemeral, pids) = self.reserved();
        let all = self.capacity();
        Capacity {
            cpu_millis: self.left("cpu", all.cpu_millis, cpu),
            memory: self.left("memory", all.memory, memory),
            ephemeral: self.left("ephemeral-storage", all.ephemeral, ephemeral),
            pids: self.left("pid", all.pids, pids),
            huge_pages: all.huge_pages,
        }
    }

    /// What is kept back for the system and the agent: CPU in thousandths, memory and storage in bytes, processes.
    fn reserved(&mut self) -> (i64, i64, i64, i64) {
        let (mut cpu, mut memory, mut ephemeral, mut pids) = (0i64, 0i64, 0i64, 0i64);
        for (field, map) in [("systemReserved", &self.file.system_reserved), ("kubeReserved", &self.file.kube_reserved)]
        {
            for (resource, text) in map.iter().flatten() {
                let amount = match text.parse::<Amount>() {
                    Ok(amount) if !amount.is_negative() => amount,
                    Ok(_) => {
                        self.errors.push(format!("{field}.{resource}: must not be negative"));
                        continue;
                    }
                    Err(error) => {
                        self.errors.push(format!("{field}.{resource}: {error}"));
                        continue;
                    }
                };
                match resource.as_str() {
                    "cpu" => cpu = cpu.saturating_add(amount.milli_value()),
                    "memory" => memory = memory.saturating_add(amount.value()),
                    "ephemeral-storage" => ephemeral = ephemeral.saturating_add(amount.value()),
                    "pid" => pids = pids.saturating_add(amount.value()),
                    _ => self.errors.push(format!("{field}.{resource}: can't be reserved")),
                }
            }
        }
        // Processors that are named take the place of those that are counted.
        if let Some(list) = text(&self.file.reserved_system_cpus) {
            match facts::cpu_count(list) {
                Some(count) => cpu = i64::try_from(count).unwrap_or(i64::MAX / 1000).saturating_mul(1000),
                None => self.errors.push(format!("reservedSystemCPUs: {list:?} is no list like 0-1,4")),
            }
        }
        (cpu, memory, ephemeral, pids)
    }

    fn left(&mut self, resource: &str, capacity: i64, reserved: i64) -> i64 {
        if reserved > capacity {
            self.errors.push(format!("systemReserved, kubeReserved: more {resource} than this machine has"));
        }
        capacity.saturating_sub(reserved).max(0)
    }
}

/// `hugepages-2Mi`: the largest unit that divides the size.
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
    fn huge_pages_are_named_as_kubernetes_names_them() {
        let names = [64 << 10, 2 << 20, 1 << 30].map(resource);
        assert_eq!(names, ["hugepages-64Ki", "hugepages-2Mi", "hugepages-1Gi"]);
    }
}
