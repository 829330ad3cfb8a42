//! The readings for eviction: the signals of the node, at the moment of the request, and the usage of pods.
//!
//! Each file system is read under its own key of the pool with a short limit: one that hangs is missing, and delays the others for
//! that time only.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use podwright_core::model::{
    ContainerUsage, DiskAmount, DiskLayout, NodeReading, PodReading, PodUid, PodUsage, Signal, SignalReading,
    SignalReadings, Time,
};
use podwright_linux::beneath::TreeUsage;
use podwright_linux::cgroup::{Bound, CgroupPath, MemoryUsage, UsageDetail};
use podwright_linux::clock::boot_time;

use super::file_systems::statfs;
use super::procfs;
use super::sample::{ContainerSample, FsSample, HostSample, PodSample, Sample};
use super::sampler::Sampler;
use super::summary::working_set;
use crate::host::{PodCgroups, Pool, PoolKey};

/// The owner of the pool's threads that may hang.
const DISK_OWNER: &str = "disks for eviction";
/// The owner of those that may not.
const MEMORY_OWNER: &str = "memory for eviction";
/// A local file system answers within microseconds.
const STATFS_LIMIT: Duration = Duration::from_secs(1);
/// A few files of two cgroups.
const MEMORY_LIMIT: Duration = Duration::from_secs(1);
/// The runtime's file systems do not change; a runtime that starts later than the agent reports them later.
const MOUNTS_AGE_MAX: Duration = Duration::from_secs(60);
/// For measuring the files of all pods.
const SIZES_LIMIT: Duration = Duration::from_secs(10);

impl Sampler {
    /// Reads the node for eviction. What cannot be read is left out.
    pub async fn read_node(&self, pods: PodReading) -> NodeReading {
        // Signals come last: they are as new as the decision.
        let pods = self.read_pods(pods).await;
        let (mut signals, disks) = self.read_signals().await;
        let layout = self.known_layout(disks.layout());
        for (available, inodes, disk) in [
            (Signal::NodeFsAvailable, Signal::NodeFsInodesFree, disks.node),
            (Signal::ImageFsAvailable, Signal::ImageFsInodesFree, disks.images),
            (Signal::ContainerFsAvailable, Signal::ContainerFsInodesFree, disks.layers),
        ] {
            let Some(Disk { fs, at, .. }) = disk else { continue };
            signals.insert(available, reading(fs.available, fs.capacity, at));
            // btrfs and others have no fixed number of inodes.
            if fs.inodes > 0 {
                signals.insert(inodes, reading(fs.inodes_free, fs.inodes, at));
            }
        }
        NodeReading { signals, layout, pods }
    }

    /// The last known layout if it cannot be read now: a file system that does not answer for a moment is still another one.
    fn known_layout(&self, read: Option<DiskLayout>) -> Option<DiskLayout> {
        let mut last = self.last_layout.lock().unwrap_or_else(PoisonError::into_inner);
        *last = read.or(*last);
        *last
    }

    async fn read_signals(&self) -> (SignalReadings, Disks) {
        let (pool, cgroups) = (&self.config().pool, self.config().cgroups.clone());
        let key = PoolKey::new(MEMORY_OWNER, "memory of the node");
        let memory = pool.run(key, MEMORY_LIMIT, move || memory_signals(&cgroups));
        let disks = async {
            let mounts = self.runtime_mounts(MOUNTS_AGE_MAX).await;
            let has_layers = mounts.layers.is_some();
            let (node, images, layers) = tokio::join!(
                disk(pool, Some(self.config().paths.root_dir.clone())),
                disk(pool, mounts.images),
                disk(pool, mounts.layers)
            );
            Disks { node, images, layers: if has_layers { layers } else { images } }
        };
        let (memory, disks) = tokio::join!(memory, disks);
        (memory.unwrap_or_default(), disks)
    }

    async fn read_pods(&self, pods: PodReading) -> Option<BTreeMap<PodUid, PodUsage>> {
        let sample = match pods {
            PodReading::None => return None,
            PodReading::Memory => self.fresh_sample(UsageDetail::CpuAndMemory).await,
            PodReading::All => self.sample(UsageDetail::All).await,
            PodReading::Fresh => {
                self.remeasure(SIZES_LIMIT).await;
                self.fresh_sample(UsageDetail::All).await
            }
        };
        match sample {
            Ok(sample) => Some(usages(&sample)),
            Err(error) => {
                tracing::warn!(%error, "reading the usage of pods for eviction failed");
                None
            }
        }
    }
}

/// A file system and its device.
#[derive(Clone, Copy, Debug)]
struct Disk {
    fs: FsSample,
    device: u64,
    at: Time,
}

/// The file systems of the node; those that could not be read are `None`.
#[derive(Clone, Copy, Debug, Default)]
struct Disks {
    node: Option<Disk>,
    images: Option<Disk>,
    /// Of writable layers; that of images if the runtime reports no other.
    layers: Option<Disk>,
}

impl Disks {
    /// Kubernetes: `HasDedicatedImageFs` and `IsContainerFsSeparateFromImageFs`. `None`: a file system could not be read.
    fn layout(&self) -> Option<DiskLayout> {
        let (node, images) = (self.node?, self.images?);
        if images.device == node.device {
            return Some(DiskLayout::Shared);
        }
        let split = self.layers?.device == node.device;
        Some(if split { DiskLayout::SplitLayers } else { DiskLayout::SeparateImages })
    }
}

async fn disk(pool: &Pool, path: Option<PathBuf>) -> Option<Disk> {
    let path = path?;
    let key = PoolKey::new(DISK_OWNER, format!("eviction: file system of {}", path.display()));
    let read = |path: &Path| -> std::io::Result<Disk> {
        Ok(Disk { fs: statfs(path)?, device: path.metadata()?.dev(), at: boot_time() })
    };
    let at = path.clone();
    match pool.run(key, STATFS_LIMIT, move || read(&at)).await {
        Ok(Ok(disk)) => Some(disk),
        Ok(Err(error)) => {
            tracing::warn!(path = %path.display(), %error, "statfs for eviction failed");
            None
        }
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "statfs for eviction failed");
            None
        }
    }
}

/// Memory of the node and of the cgroup of all pods, and process ids. Blocks.
fn memory_signals(cgroups: &PodCgroups) -> SignalReadings {
    let usage = |path: &CgroupPath| Some(cgroups.tree()?.usage(path, UsageDetail::CpuAndMemory)?.memory);
    let pods = cgroups.class_paths().ok().and_then(|paths| usage(paths.first()?));
    host_signals(&procfs::read_host(), usage(&CgroupPath::root()), pods, boot_time())
}

fn host_signals(host: &HostSample, root: Option<MemoryUsage>, pods: Option<MemoryUsage>, at: Time) -> SignalReadings {
    let mut signals = SignalReadings::new();
    if let Some((total, used)) = host.memory_total.zip(root.and_then(|memory| working_set(&memory))) {
        signals.insert(Signal::MemoryAvailable, reading(total.saturating_sub(used), total, at));
    }
    if let Some(memory) = pods
        && let Some(Bound::At(limit)) = memory.limit
        && let Some(used) = working_set(&memory)
    {
        signals.insert(Signal::AllocatableMemoryAvailable, reading(limit.saturating_sub(used), limit, at));
    }
    if let Some((most, tasks)) = host.max_pid.zip(host.tasks) {
        signals.insert(Signal::PidAvailable, reading(most.saturating_sub(tasks), most, at));
    }
    signals
}

fn reading(available: u64, capacity: u64, at: Time) -> SignalReading {
    let amount = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    SignalReading { available: amount(available), capacity: amount(capacity), at }
}

fn usages(sample: &Arc<Sample>) -> BTreeMap<PodUid, PodUsage> {
    sample.pods.iter().map(|pod| (PodUid::from(pod.uid.as_str()), pod_usage(pod))).collect()
}

fn pod_usage(pod: &PodSample) -> PodUsage {
    let cgroup = pod.cgroup.as_ref().map(|cgroup| &cgroup.usage);
    let containers: Vec<ContainerUsage> = pod.containers.iter().map(|c| container_usage(c, pod)).collect();
    let mut usage = PodUsage {
        memory: cgroup.and_then(|usage| working_set(&usage.memory)),
        processes: cgroup.and_then(|usage| usage.pids.current),
        containers,
        ..PodUsage::default()
    };
    if let Some(disk) = &pod.disk {
        let volumes = disk.volumes.iter().filter(|volume| volume.ephemeral);
        let volumes = volumes.map(|volume| DiskAmount { bytes: volume.used, inodes: volume.inodes_used });
        usage.volumes = volumes.fold(DiskAmount::default(), DiskAmount::plus);
        let parts = usage.containers.iter().flat_map(|c| [c.rootfs, c.logs]).flatten();
        let all = parts.chain([usage.volumes, amount(&disk.own)]).fold(DiskAmount::default(), DiskAmount::plus);
        usage.ephemeral_storage = Some(all.bytes);
    }
    usage
}

fn container_usage(container: &ContainerSample, pod: &PodSample) -> ContainerUsage {
    let rootfs = container
        .rootfs
        .and_then(|layer| Some(DiskAmount { bytes: layer.used?, inodes: layer.inodes_used.unwrap_or(0) }));
    ContainerUsage {
        name: container.name.clone(),
        memory: container.cgroup.as_ref().and_then(|cgroup| working_set(&cgroup.usage.memory)),
        rootfs,
        logs: pod.disk.as_ref().and_then(|disk| disk.logs.get(&container.name)).map(amount),
    }
}

fn amount(usage: &TreeUsage) -> DiskAmount {
    DiskAmount { bytes: usage.bytes, inodes: usage.inodes }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::super::disk_usage::VolumeUsage;
    use super::super::sample::{PodDisk, UsedFs};
    use super::*;

    const FS: FsSample =
        FsSample { at: Timestamp::UNIX_EPOCH, available: 1, capacity: 2, used: 1, inodes: 0, inodes_free: 0 };

    #[test]
    fn the_layout_follows_from_the_devices() {
        let on = |device: u64| Some(Disk { fs: FS, device, at: Time::ZERO });
        let table = [
            (on(1), on(1), on(1), Some(DiskLayout::Shared)),
            (on(1), on(1), None, Some(DiskLayout::Shared)),
            (on(1), on(2), on(2), Some(DiskLayout::SeparateImages)),
            (on(1), on(2), on(1), Some(DiskLayout::SplitLayers)),
            (on(1), on(1), on(2), Some(DiskLayout::Shared)),
            // What cannot be read may be on any disk.
            (on(1), on(2), None, None),
            (on(1), None, None, None),
            (None, on(2), on(2), None),
        ];
        for (node, images, layers, expected) in table {
            assert_eq!(Disks { node, images, layers }.layout(), expected, "{node:?} {images:?} {layers:?}");
        }
    }

    #[tokio::test]
    async fn a_file_system_that_cannot_be_read_is_missing() {
        let pool = Pool::default();
        assert!(disk(&pool, Some("/".into())).await.is_some_and(|disk| disk.fs.capacity > 0));
        assert!(disk(&pool, Some("/no/such/directory".into())).await.is_none() && disk(&pool, None).await.is_none());
        let signals = host_signals(&procfs::read_host(), None, None, Time::ZERO);
        assert!(signals.contains_key(&Signal::PidAvailable) && !signals.contains_key(&Signal::MemoryAvailable));
    }

    #[test]
    fn the_usage_of_a_pod_is_the_sum_of_its_parts() {
        let tree = |bytes, inodes| TreeUsage { bytes, inodes, complete: true };
        let rootfs = UsedFs { at: Timestamp::UNIX_EPOCH, used: Some(1000), inodes_used: Some(3), fs: None };
        let container = ContainerSample {
            name: "c".into(),
            id: "id".into(),
            image: String::new(),
            created: Timestamp::UNIX_EPOCH,
            cgroup: None,
            rootfs: Some(rootfs),
        };
        let volume = |name: &str, ephemeral, used| VolumeUsage {
            name: name.into(),
            claim: None,
            ephemeral,
            at: Timestamp::UNIX_EPOCH,
            used,
            inodes_used: 1,
            last_complete: None,
            fs: FS,
        };
        let disk = PodDisk {
            at: Timestamp::UNIX_EPOCH,
            volumes: vec![volume("disk", true, 10), volume("memory", false, 5000)],
            logs: BTreeMap::from([("c".to_owned(), tree(200, 1))]),
            own: tree(4, 1),
            complete: true,
        };
        let pod = PodSample {
            uid: "u".into(),
            name: "p".into(),
            namespace: "ns".into(),
            sandbox_id: "sb".into(),
            started: Timestamp::UNIX_EPOCH,
            cgroup: None,
            sandbox: None,
            network: None,
            containers: vec![container],
            disk: Some(disk),
        };
        let usage = pod_usage(&pod);
        assert_eq!((usage.ephemeral_storage, usage.memory), (Some(1214), None));
        assert_eq!(usage.volumes, DiskAmount { bytes: 10, inodes: 1 });
        assert_eq!(usage.containers[0].rootfs, Some(DiskAmount { bytes: 1000, inodes: 3 }));
        assert_eq!(usage.containers[0].logs, Some(DiskAmount { bytes: 200, inodes: 1 }));
        assert_eq!(pod_usage(&PodSample { disk: None, ..pod }).ephemeral_storage, None, "not measured yet");
    }
}
