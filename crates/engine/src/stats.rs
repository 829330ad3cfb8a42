//! What containers and pods use: CPU, memory, swap, processes, pressure, network and the writable layer.
//!
//! Counters are read when they are asked for. What needs two moments or takes long, CPU per second and the size of writable layers,
//! comes from a collector that measures every 10 s. Nothing that is unknown is reported as zero.

mod collector;
mod messages;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use podwright_cri::{Code, CriError, v1};
use podwright_linux::beneath::TreeUsage;
use podwright_linux::cgroup::{CgroupPath, CgroupTree, UsageDetail};
use podwright_net::{InterfaceCounters, interface_counters};
use podwright_tasks::{Pool, PoolKey, error_chain};

use crate::images::now_ns;
use crate::metrics::{LayerFileSystem, MetricSample};
use collector::Measurements;

/// A container whose usage is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MeasuredContainer {
    /// The container id.
    pub id: String,
    /// Its own cgroup.
    pub cgroup: CgroupPath,
    /// Its writable layer.
    pub upper: PathBuf,
}

/// A pod whose usage is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MeasuredPod {
    /// The cgroup of the pod, above those of its containers. `None`: it has none.
    pub cgroup: Option<CgroupPath>,
    /// Its pinned network namespace. `None`: it uses that of the host, whose traffic is not its own.
    pub netns: Option<PathBuf>,
}

/// The usage of containers and pods.
#[derive(Debug)]
pub(crate) struct EngineStats {
    cgroups: CgroupTree,
    pool: Pool,
    /// On the file system of the writable layers.
    root_dir: PathBuf,
    measurements: Measurements,
}

impl EngineStats {
    /// Reads files and walks directories in `pool`. The writable layers are below `root_dir`.
    pub(crate) fn new(cgroups: CgroupTree, pool: Pool, root_dir: PathBuf) -> Arc<Self> {
        Arc::new(Self { cgroups, pool, root_dir, measurements: Measurements::default() })
    }

    /// Measures all containers every 10 s, for ever.
    pub(crate) async fn collect(self: Arc<Self>, containers: impl Fn() -> Vec<MeasuredContainer> + Send + 'static) {
        loop {
            self.collect_once(containers()).await;
            tokio::time::sleep(COLLECT_PERIOD).await;
        }
    }

    /// One round of the collector.
    async fn collect_once(self: &Arc<Self>, containers: Vec<MeasuredContainer>) {
        let (stats, measured) = (Arc::clone(self), containers.clone());
        let read = move || {
            for container in &measured {
                let usage = stats.cgroups.usage(&container.cgroup, UsageDetail::CpuAndMemory);
                let cpu_ns = usage.and_then(|usage| usage.cpu.usage_ns);
                stats.measurements.add_cpu(&container.id, cpu_ns, Instant::now());
            }
        };
        if let Err(error) = self.pool.run("cgroup-stats", READ_TIMEOUT, read).await {
            tracing::debug!(error = error_chain(&error), "cgroups of containers are not read");
        }
        self.measurements.retain(|id| containers.iter().any(|container| container.id == id));
        let round_ends = Instant::now() + WALKS_PER_ROUND;
        for container in self.measurements.due(&containers, Instant::now()) {
            if Instant::now() >= round_ends {
                break;
            }
            self.walk(container).await;
        }
    }

    /// Measures a writable layer. A tree that hangs or is huge delays the others for [`WALK_TIMEOUT`] only.
    async fn walk(&self, container: &MeasuredContainer) {
        let (begun, upper) = (Instant::now(), container.upper.clone());
        let key = PoolKey::new(container.id.as_str(), "writable-layer");
        let walk = move || podwright_linux::beneath::tree_usage(&upper, u64::MAX, Instant::now() + WALK_TIMEOUT);
        // The walk ends on its own; the second limit is for a file system that hangs.
        let walked = self.pool.run(key, 2 * WALK_TIMEOUT, walk).await;
        let usage = match walked {
            Ok(Ok(usage)) => Some(usage),
            Ok(Err(error)) => {
                tracing::debug!(
                    container_id = container.id,
                    error = error_chain(&error),
                    "writable layer is not measured"
                );
                None
            }
            Err(error) => {
                tracing::debug!(
                    container_id = container.id,
                    error = error_chain(&error),
                    "writable layer is not measured"
                );
                None
            }
        };
        self.measurements.add_walk(&container.id, usage, begun, Instant::now());
    }

    /// The usage of a container. `attributes` come from its record.
    pub(crate) async fn container(
        self: &Arc<Self>,
        attributes: v1::ContainerAttributes,
        container: &MeasuredContainer,
        limit: Duration,
    ) -> Result<v1::ContainerStats, CriError> {
        let (stats, cgroup) = (Arc::clone(self), container.cgroup.clone());
        let key = PoolKey::new("container-stats", container.id.as_str());
        let read = move || (stats.cgroups.usage(&cgroup, UsageDetail::All), now_ns());
        let (usage, at) = self.pool.run(key, limit, read).await.map_err(|error| late("ContainerStats", &error))?;
        let measured = self.measurements.of(&container.id);
        let mut shown = v1::ContainerStats { attributes: Some(attributes), ..Default::default() };
        // A container that does not run has no cgroup, but its writable layer.
        if let Some(usage) = usage {
            shown.cpu = Some(messages::cpu(&usage.cpu, measured.nano_cores, at));
            shown.memory = Some(messages::memory(&usage.memory, at));
            shown.swap = messages::swap(&usage.memory, at);
            shown.io = messages::io(&usage.io, at);
        }
        shown.writable_layer = measured.layer.map(|(usage, at)| messages::file_system(&self.root_dir, usage, at));
        Ok(shown)
    }

    /// The usage of a pod, with that of its containers.
    pub(crate) async fn pod(
        self: &Arc<Self>,
        attributes: v1::PodSandboxAttributes,
        pod: &MeasuredPod,
        containers: Vec<v1::ContainerStats>,
        limit: Duration,
    ) -> Result<v1::PodSandboxStats, CriError> {
        let (stats, pod, id) = (Arc::clone(self), pod.clone(), attributes.id.clone());
        let sandbox = id.clone();
        let key = PoolKey::new("pod-stats", id.as_str());
        let read = move || {
            let usage = pod.cgroup.and_then(|cgroup| stats.cgroups.usage(&cgroup, UsageDetail::All));
            (usage, stats.interfaces(&sandbox, pod.netns.as_deref()), now_ns())
        };
        let read = self.pool.run(key, limit, read).await;
        let (usage, counters, at) = read.map_err(|error| late("PodSandboxStats", &error))?;
        let mut linux = v1::LinuxPodSandboxStats::default();
        if let Some(usage) = usage {
            let cpu_ns = usage.cpu.usage_ns;
            let nano_cores = self.measurements.add_cpu(&pod_key(&id), cpu_ns, Instant::now());
            // Between the collector's rounds the sum of the containers is the better number.
            let nano_cores = nano_cores.or_else(|| messages::sum_of_nano_cores(&containers));
            linux.cpu = Some(messages::cpu(&usage.cpu, nano_cores, at));
            linux.memory = Some(messages::memory(&usage.memory, at));
            linux.io = messages::io(&usage.io, at);
            linux.process = messages::processes(&usage.pids, at);
        }
        linux.network = counters.map(|counters| messages::network(&counters, at));
        linux.containers = containers;
        Ok(v1::PodSandboxStats { attributes: Some(attributes), linux: Some(linux) })
    }

    /// The interfaces of a pod; `None`: it has none of its own, or they can not be read. Blocks.
    pub(crate) fn interfaces(&self, sandbox_id: &str, netns: Option<&Path>) -> Option<Vec<InterfaceCounters>> {
        match interface_counters(netns?) {
            Ok(counters) => Some(counters),
            Err(error) => {
                tracing::debug!(sandbox_id, error = error_chain(&error), "network of a pod is not read");
                None
            }
        }
    }

    /// What metrics are made from; `None`: the container does not run. Blocks.
    pub(crate) fn sample(
        &self,
        container: &MeasuredContainer,
        started_at_ns: i64,
        file_system: Option<LayerFileSystem>,
    ) -> Option<MetricSample> {
        let usage = self.cgroups.usage(&container.cgroup, UsageDetail::All)?;
        let named = |number: &(u32, u32)| Some((*number, block_device(*number)?));
        let device_names = usage.io.devices.keys().filter_map(named).collect();
        let layer = self.measurements.of(&container.id).layer;
        Some(MetricSample { usage, started_at_ns, at_ns: now_ns(), layer, file_system, device_names })
    }

    /// The file system of the writable layers; `None`: it does not answer. Blocks.
    pub(crate) fn layer_file_system(&self) -> Option<LayerFileSystem> {
        let (stat, disk) = (rustix::fs::stat(&self.root_dir).ok()?, rustix::fs::statvfs(&self.root_dir).ok()?);
        let number = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        Some(LayerFileSystem {
            device: block_device(number).unwrap_or_default(),
            size: disk.f_blocks.saturating_mul(disk.f_frsize),
            inodes: disk.f_files,
            inodes_free: disk.f_ffree,
        })
    }

    /// Runs blocking work for one call.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        call: &'static str,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CriError> {
        self.pool.run(call, limit, work).await.map_err(|error| late(call, &error))
    }

    /// What all writable layers use, as measured last.
    pub(crate) fn writable_usage(&self) -> TreeUsage {
        self.measurements.total()
    }
}

/// Ids of containers and sandboxes could be equal.
fn pod_key(id: &str) -> String {
    format!("pod/{id}")
}

/// The file of a block device by its number, such as `/dev/sda`; `None`: it is no block device of this host.
fn block_device((major, minor): (u32, u32)) -> Option<String> {
    let properties = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/uevent")).ok()?;
    let name = properties.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
    Some(format!("/dev/{name}"))
}

fn late(call: &'static str, error: &podwright_tasks::PoolError) -> CriError {
    let code = if error.in_doubt() { Code::DeadlineExceeded } else { Code::ResourceExhausted };
    CriError::new(code, call, error_chain(error))
}

/// As long as the kubelet's housekeeping interval.
const COLLECT_PERIOD: Duration = Duration::from_secs(10);
/// For the cgroups of all containers.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// One writable layer; what was counted until then is a lower bound.
const WALK_TIMEOUT: Duration = Duration::from_secs(2);
/// All writable layers of one round; the rest is first in the next one.
const WALKS_PER_ROUND: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
