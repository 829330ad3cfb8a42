//! CPU and memory of the node, its pods and containers at this moment, for `top`.

use std::time::Duration;

use jiff::Timestamp;

use super::sample::{CgroupSample, Sample};
use super::summary::working_set;

/// What the node uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceUsage {
    /// When it was measured.
    pub at: Timestamp,
    /// The time over which the CPU usage was averaged.
    pub window: Duration,
    /// All processes of the host; `None`: not known.
    pub node: Option<CpuAndMemory>,
    /// Pods with a ready sandbox; a pod with an unknown value is left out.
    pub pods: Vec<PodResourceUsage>,
}

/// What a pod uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodResourceUsage {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// Running containers by name.
    pub containers: Vec<(String, CpuAndMemory)>,
}

/// CPU and memory of one cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuAndMemory {
    /// Billionths of a core.
    pub cpu_nano_cores: u64,
    /// The working set, in bytes.
    pub memory: u64,
}

impl ResourceUsage {
    pub(super) fn of(sample: &Sample, window: Duration) -> Self {
        let pods = sample.pods.iter().filter_map(|pod| {
            let usage = |cgroup: &Option<CgroupSample>| cgroup.as_ref().and_then(cpu_and_memory);
            let containers = pod.containers.iter().map(|c| Some((c.name.clone(), usage(&c.cgroup)?)));
            let containers: Vec<_> = containers.collect::<Option<_>>()?;
            (!containers.is_empty()).then(|| PodResourceUsage {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                containers,
            })
        });
        Self { at: sample.at, window, node: cpu_and_memory(&sample.root), pods: pods.collect() }
    }
}

fn cpu_and_memory(cgroup: &CgroupSample) -> Option<CpuAndMemory> {
    Some(CpuAndMemory { cpu_nano_cores: cgroup.nano_cores?, memory: working_set(&cgroup.usage.memory)? })
}
