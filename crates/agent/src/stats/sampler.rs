//! Takes samples on request: one at a time, and one for all requests of a few seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use jiff::Timestamp;
use podwright_core::model::{DiskLayout, Pod, PodUid};
use podwright_cri::labels::Owner;
use podwright_cri::{CriError, ImageService, RuntimeService, v1};
use podwright_linux::cgroup::UsageDetail;

use super::cgroups::{CgroupRead, CgroupRound, MachineIds};
use super::cpu_rates::CpuRates;
use super::disk_usage::DiskUsage;
use super::file_systems::{self, OWNER, RuntimeMounts};
use super::sample::{ContainerSample, FsSample, PodSample, Sample, UsedFs};
use super::{cadvisor_metrics, resource_metrics, summary, volume_metrics};
use crate::feed::PodFeed;
use crate::host::{HostPaths, PodCgroups, Pool, PoolError, PoolKey};
use crate::images_gc;

mod usage;

/// The parts that a [`Sampler`] reads from.
pub struct SamplerConfig {
    /// The name of the Node object.
    pub node: String,
    /// Labels of `machine_*` metrics.
    pub machine: MachineIds,
    /// Lists of sandboxes and containers, sizes of writable layers.
    pub runtime: Arc<dyn RuntimeService>,
    /// The image file system.
    pub images: Arc<dyn ImageService>,
    /// The pods of the agent.
    pub feed: Arc<PodFeed>,
    /// The root directory.
    pub paths: HostPaths,
    /// Where cgroups are.
    pub cgroups: PodCgroups,
    /// `volumeStatsAggPeriod`; `None`: sizes of volumes and logs are not measured.
    pub volume_period: Option<Duration>,
    /// For blocking reads.
    pub pool: Pool,
}

/// Why there is no sample.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SampleError {
    /// Pods and containers cannot be listed.
    #[error("failed to list pod stats: {0}")]
    Runtime(#[from] CriError),
    /// No thread was free, or the kernel does not answer.
    #[error("failed to read cgroups: {0}")]
    Cgroups(#[from] PoolError),
    /// The response could not be encoded.
    #[error("failed to encode stats: {0}")]
    Encode(String),
}

/// Takes and caches samples.
pub struct Sampler {
    config: SamplerConfig,
    disk: Arc<DiskUsage>,
    started: Timestamp,
    /// Held while a sample is taken, so that concurrent requests share it.
    last: tokio::sync::Mutex<LastSamples>,
    rates: Arc<Mutex<CpuRates>>,
    runtime_sizes: Mutex<RuntimeSizes>,
    runtime_mounts: Mutex<RuntimeMounts>,
    /// `None`: never known.
    pub(super) last_layout: Mutex<Option<DiskLayout>>,
}

#[derive(Default)]
struct LastSamples {
    cpu_and_memory: Option<(Instant, Arc<Sample>)>,
    all: Option<(Instant, Arc<Sample>)>,
    /// Between the last two samples of [`Sampler::usage`].
    window: Duration,
}

impl LastSamples {
    fn newest(&self) -> Option<(Instant, Arc<Sample>)> {
        self.cpu_and_memory.iter().chain(&self.all).max_by_key(|(at, _)| *at).cloned()
    }
}

/// What the runtime reported last about sizes; kept when a later call fails.
#[derive(Clone, Debug, Default)]
struct RuntimeSizes {
    /// Writable layers by container id.
    layers: BTreeMap<String, LayerSize>,
    images: Option<LayerSize>,
    containers: Option<LayerSize>,
    sandbox_image: Option<String>,
}

#[derive(Clone, Debug)]
struct LayerSize {
    at: Timestamp,
    mountpoint: PathBuf,
    bytes: Option<u64>,
    inodes: Option<u64>,
}

impl Sampler {
    /// Does not sample yet.
    pub fn new(config: SamplerConfig) -> Self {
        let (feed, paths) = (Arc::clone(&config.feed), config.paths.clone());
        let disk = DiskUsage::new(feed, paths, config.pool.clone(), config.volume_period);
        Self {
            config,
            disk: Arc::new(disk),
            started: Timestamp::now(),
            last: tokio::sync::Mutex::default(),
            rates: Arc::default(),
            runtime_sizes: Mutex::default(),
            runtime_mounts: Mutex::default(),
            last_layout: Mutex::default(),
        }
    }

    /// Measures volumes and logs while there are requests; runs forever.
    pub async fn measure_disks(self: Arc<Self>) {
        Arc::clone(&self.disk).watch().await;
    }

    /// The metrics of volumes with a claim, for `/metrics`.
    pub fn volume_metrics(&self) -> String {
        volume_metrics::text(&self.disk.last_volumes())
    }

    /// The body of `/stats/summary`.
    pub async fn summary(&self, only_cpu_and_memory: bool) -> Result<Bytes, SampleError> {
        let detail = if only_cpu_and_memory { UsageDetail::CpuAndMemory } else { UsageDetail::All };
        let sample = self.sample(detail).await?;
        let summary = summary::of(&sample, &self.config.node, self.started, detail);
        serde_json::to_vec(&summary).map(Bytes::from).map_err(|error| SampleError::Encode(error.to_string()))
    }

    /// The body of `/metrics/resource`. A failure is a metric of its own.
    pub async fn resource_metrics(&self) -> String {
        match self.sample(UsageDetail::CpuAndMemory).await {
            Ok(sample) => resource_metrics::text(Some(&sample)),
            Err(error) => {
                tracing::warn!(%error, "sampling for resource metrics failed");
                resource_metrics::text(None)
            }
        }
    }

    /// The body of `/metrics/cadvisor`. A failure is a metric of its own.
    pub async fn cadvisor_metrics(&self) -> String {
        match self.sample(UsageDetail::All).await {
            Ok(sample) => cadvisor_metrics::text(Some(&sample), &self.config.machine),
            Err(error) => {
                tracing::warn!(%error, "sampling for cadvisor metrics failed");
                cadvisor_metrics::text(None, &self.config.machine)
            }
        }
    }

    /// A sample at most [`AGE_MAX`] old.
    pub(crate) async fn sample(&self, detail: UsageDetail) -> Result<Arc<Sample>, SampleError> {
        let mut last = self.last.lock().await;
        let young = |entry: &Option<(Instant, Arc<Sample>)>| {
            entry.as_ref().filter(|(at, _)| at.elapsed() < AGE_MAX).map(|(_, sample)| Arc::clone(sample))
        };
        let cached = match detail {
            UsageDetail::CpuAndMemory => young(&last.all).or_else(|| young(&last.cpu_and_memory)),
            UsageDetail::All => young(&last.all),
        };
        if let Some(sample) = cached {
            return Ok(sample);
        }
        self.take_into(&mut last, detail).await
    }

    /// A sample that is taken now.
    pub(super) async fn fresh_sample(&self, detail: UsageDetail) -> Result<Arc<Sample>, SampleError> {
        let mut last = self.last.lock().await;
        self.take_into(&mut last, detail).await
    }

    async fn take_into(&self, last: &mut LastSamples, detail: UsageDetail) -> Result<Arc<Sample>, SampleError> {
        let sample = Arc::new(self.take(detail).await?);
        let entry = Some((Instant::now(), Arc::clone(&sample)));
        match detail {
            UsageDetail::CpuAndMemory => last.cpu_and_memory = entry,
            UsageDetail::All => *last = LastSamples { cpu_and_memory: None, all: entry, window: last.window },
        }
        Ok(sample)
    }

    /// Measures the files of all pods now; waits at most `limit` for it.
    pub(super) async fn remeasure(&self, limit: Duration) {
        self.disk.remeasure(limit).await;
    }

    pub(super) fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// Where the runtime has images and writable layers; the last answer if it is younger than `age_max` or the runtime does not
    /// answer.
    pub(super) async fn runtime_mounts(&self, age_max: Duration) -> RuntimeMounts {
        let last = self.runtime_mounts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_known = last.images.is_some() && last.read.is_some_and(|read| read.elapsed() < age_max);
        if is_known {
            return last;
        }
        let Ok(info) = self.config.images.image_fs_info(MOUNTS_LIMIT).await else { return last };
        let first =
            |all: &[v1::FilesystemUsage]| all.iter().find_map(|fs| Some(PathBuf::from(&fs.fs_id.as_ref()?.mountpoint)));
        let (images, layers) = (first(&info.image_filesystems), first(&info.container_filesystems));
        let mounts = RuntimeMounts { read: Some(Instant::now()), images, layers };
        *self.runtime_mounts.lock().unwrap_or_else(PoisonError::into_inner) = mounts.clone();
        mounts
    }

    async fn take(&self, detail: UsageDetail) -> Result<Sample, SampleError> {
        let all = detail == UsageDetail::All;
        let sizes = async {
            if all {
                self.refresh_sizes().await;
            }
        };
        let (listed, ()) = tokio::join!(self.list(), sizes);
        let pods = listed?;
        let uids: BTreeSet<PodUid> = pods.iter().map(|(pod, _)| PodUid::from(pod.uid.as_str())).collect();
        let round = CgroupRound { cgroups: self.config.cgroups.clone(), detail, pods };
        let rates = Arc::clone(&self.rates);
        let work = move || round.read(&mut rates.lock().unwrap_or_else(PoisonError::into_inner));
        let key = PoolKey::new(OWNER, "cgroups");
        let read = self.config.pool.run(key, CGROUP_LIMIT, work);
        let (read, mut disks) = if all {
            let (read, disks) = tokio::join!(read, self.disk.request(&uids));
            (read?, disks)
        } else {
            (read.await?, BTreeMap::new())
        };
        let CgroupRead { root, classes, agent, host, pods } = read;
        let mut sample = Sample { at: Timestamp::now(), host, root, classes, agent, pods };
        if all {
            self.add_file_systems(&mut sample).await;
            for pod in &mut sample.pods {
                pod.disk = disks.remove(&PodUid::from(pod.uid.as_str()));
            }
        }
        Ok(sample)
    }

    /// The pods with a ready sandbox, and their running containers.
    async fn list(&self) -> Result<Vec<(PodSample, Option<Arc<Pod>>)>, CriError> {
        let ready = v1::PodSandboxStateValue { state: v1::PodSandboxState::SandboxReady.into() };
        let ready = v1::PodSandboxFilter { state: Some(ready), ..Default::default() };
        let running = v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning.into() };
        let running = v1::ContainerFilter { state: Some(running), ..Default::default() };
        let runtime = &self.config.runtime;
        let (sandboxes, containers) = tokio::join!(
            runtime.list_pod_sandbox(Some(ready), CRI_LIMIT),
            runtime.list_containers(Some(running), CRI_LIMIT)
        );
        let views = self.config.feed.list().1;
        let objects: BTreeMap<PodUid, Arc<Pod>> =
            views.iter().map(|view| (view.uid(), Arc::clone(&view.object))).collect();
        let pods = pods_of(&sandboxes?, &containers?);
        let with_object = |pod: PodSample| {
            let object = objects.get(pod.uid.as_str()).cloned();
            (pod, object)
        };
        Ok(pods.into_iter().map(with_object).collect())
    }

    /// Reads sizes from the runtime; a failed call keeps the old ones.
    async fn refresh_sizes(&self) {
        let runtime = &self.config.runtime;
        let (layers, images, status) = tokio::join!(
            runtime.list_container_stats(None, CRI_LIMIT),
            self.config.images.image_fs_info(CRI_LIMIT),
            runtime.status(true, CRI_LIMIT)
        );
        let mut sizes = self.runtime_sizes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(status) = status {
            sizes.sandbox_image = images_gc::sandbox_image(&status.info);
        }
        match layers {
            Ok(stats) => {
                let layer =
                    |stats: v1::ContainerStats| Some((stats.attributes?.id, LayerSize::of(&stats.writable_layer?)?));
                sizes.layers = stats.into_iter().filter_map(layer).collect();
            }
            Err(error) => tracing::debug!(%error, "the runtime reports no sizes of writable layers"),
        }
        match images {
            Ok(info) => {
                sizes.images = info.image_filesystems.first().and_then(LayerSize::of);
                sizes.containers = info.container_filesystems.first().and_then(LayerSize::of);
            }
            Err(error) => tracing::debug!(%error, "the runtime reports no image file system"),
        }
    }

    async fn add_file_systems(&self, sample: &mut Sample) {
        let sizes = self.runtime_sizes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let root_dir = self.config.paths.root_dir.clone();
        let mounts = sizes.layers.values().chain(&sizes.images).chain(&sizes.containers);
        let paths = mounts.map(|size| size.mountpoint.clone()).chain([root_dir.clone()]).collect();
        let (found, disks) =
            tokio::join!(file_systems::read_all(&self.config.pool, paths), file_systems::disks(&self.config.pool));
        sample.host.disks = disks;
        sample.host.sandbox_image = sizes.sandbox_image.clone();
        sample.host.node_fs = found.get(&root_dir).copied();
        let used = |size: &LayerSize| size.on(found.get(&size.mountpoint).copied());
        sample.host.image_fs = sizes.images.as_ref().map(used);
        sample.host.container_fs = sizes.containers.as_ref().map(used);
        for container in sample.pods.iter_mut().flat_map(|pod| &mut pod.containers) {
            container.rootfs = sizes.layers.get(&container.id).map(used);
        }
    }
}

impl LayerSize {
    fn of(usage: &v1::FilesystemUsage) -> Option<Self> {
        Some(Self {
            at: Timestamp::from_nanosecond(usage.timestamp.into()).ok()?,
            mountpoint: PathBuf::from(&usage.fs_id.as_ref()?.mountpoint),
            bytes: usage.used_bytes.as_ref().map(|bytes| bytes.value),
            inodes: usage.inodes_used.as_ref().map(|inodes| inodes.value),
        })
    }

    fn on(&self, fs: Option<FsSample>) -> UsedFs {
        UsedFs { at: self.at, used: self.bytes, inodes_used: self.inodes, fs }
    }
}

/// The newest ready sandbox of each pod with its running containers. Objects without the labels of a kubelet are left out.
fn pods_of(sandboxes: &[v1::PodSandbox], containers: &[v1::Container]) -> Vec<PodSample> {
    let mut newest: BTreeMap<&str, &v1::PodSandbox> = BTreeMap::new();
    for sandbox in sandboxes {
        let Some(owner) = Owner::of(&sandbox.labels) else { continue };
        let known = newest.entry(owner.uid).or_insert(sandbox);
        if known.created_at < sandbox.created_at {
            *known = sandbox;
        }
    }
    let time = |nanos: i64| Timestamp::from_nanosecond(nanos.into()).unwrap_or(Timestamp::UNIX_EPOCH);
    let container = |container: &v1::Container| {
        let image = container.image.as_ref().map(|image| match image.user_specified_image.as_str() {
            "" => image.image.clone(),
            given => given.to_owned(),
        });
        Some(ContainerSample {
            name: Owner::of(&container.labels)?.container?.to_owned(),
            id: container.id.clone(),
            image: image.unwrap_or_default(),
            created: time(container.created_at),
            cgroup: None,
            rootfs: None,
        })
    };
    let pod = |(uid, sandbox): (&str, &v1::PodSandbox)| {
        let owner = Owner::of(&sandbox.labels)?;
        let own = containers.iter().filter(|c| c.pod_sandbox_id == sandbox.id);
        Some(PodSample {
            uid: uid.to_owned(),
            name: owner.name.to_owned(),
            namespace: owner.namespace.to_owned(),
            sandbox_id: sandbox.id.clone(),
            started: time(sandbox.created_at),
            cgroup: None,
            sandbox: None,
            network: None,
            containers: own.filter_map(container).collect(),
            disk: None,
        })
    };
    newest.into_iter().filter_map(pod).collect()
}

/// As old as a sample may be; cAdvisor's housekeeping interval.
const AGE_MAX: Duration = Duration::from_secs(10);
/// For each call to the runtime. Together with [`CGROUP_LIMIT`] shorter than the time for a response.
const CRI_LIMIT: Duration = Duration::from_secs(5);
/// For the file systems of the runtime: eviction does not wait longer for them.
const MOUNTS_LIMIT: Duration = Duration::from_secs(1);
/// For all cgroup files.
const CGROUP_LIMIT: Duration = Duration::from_secs(3);
