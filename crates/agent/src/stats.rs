//! Resource usage of the node, its pods and containers: one sampler behind `/stats/summary`, `/metrics/resource`, `/metrics/cadvisor`,
//! `top`, and eviction.
//!
//! ```text
//!  request ─▶ Sampler (one at a time, at most 10 s old) ─▶ Sample ─▶ summary, resource_metrics, cadvisor_metrics (pure)
//!               ├─ runtime: sandboxes, containers, writable layers
//!               ├─ cgroup files and /proc, on one thread of the pool
//!               └─ DiskUsage: sizes of volumes and logs, measured by its own task
//! ```
//! Nothing is sampled without a request. A value that is not known is left out, never reported as zero: metrics-server drops a pod
//! with a container that seems to use nothing.

mod cadvisor_metrics;
mod cgroups;
mod cpu_rates;
mod disk_usage;
mod exposition;
mod file_systems;
mod node_reading;
mod procfs;
mod resource_metrics;
mod resource_usage;
mod sample;
mod sampler;
mod summary;
#[cfg(test)]
mod tests;
mod volume_metrics;

pub use cgroups::MachineIds;
pub use resource_usage::{CpuAndMemory, PodResourceUsage, ResourceUsage};
pub use sampler::{SampleError, Sampler, SamplerConfig};
