//! One sample of the node: raw values with the time they were read.

use std::collections::BTreeMap;

use jiff::Timestamp;
use podwright_linux::beneath::TreeUsage;
use podwright_linux::cgroup::CgroupUsage;

use super::disk_usage::VolumeUsage;

/// Everything that one round of sampling found.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) at: Timestamp,
    pub(crate) host: HostSample,
    /// The root cgroup.
    pub(crate) root: CgroupSample,
    /// `kubepods` and the cgroups of the QoS classes below it; missing ones are left out.
    pub(crate) classes: Vec<CgroupSample>,
    /// The cgroup of the agent itself, if it has one of its own.
    pub(crate) agent: Option<CgroupSample>,
    pub(crate) pods: Vec<PodSample>,
}

impl Sample {
    /// The CPU usage of the node and of all containers is known.
    pub(crate) fn has_rates(&self) -> bool {
        let containers =
            self.pods.iter().flat_map(|pod| &pod.containers).filter_map(|container| container.cgroup.as_ref());
        containers.chain([&self.root]).all(|cgroup| cgroup.nano_cores.is_some())
    }
}

/// One cgroup.
#[derive(Clone, Debug)]
pub(crate) struct CgroupSample {
    /// `/kubepods/burstable/pod…`
    pub(crate) path: String,
    pub(crate) at: Timestamp,
    pub(crate) usage: CgroupUsage,
    /// Billionths of a core, from the last two samples; `None`: this is the first.
    pub(crate) nano_cores: Option<u64>,
}

/// The node outside of cgroups. Values that cannot be read are `None`.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostSample {
    pub(crate) boot_time: Option<Timestamp>,
    /// Bytes.
    pub(crate) memory_total: Option<u64>,
    pub(crate) swap_total: Option<u64>,
    pub(crate) swap_free: Option<u64>,
    /// The most processes and threads that the kernel allows.
    pub(crate) max_pid: Option<u64>,
    /// Processes and threads at this moment.
    pub(crate) tasks: Option<u64>,
    pub(crate) network: Vec<InterfaceSample>,
    /// The file system of the root directory.
    pub(crate) node_fs: Option<FsSample>,
    /// The runtime's image file system.
    pub(crate) image_fs: Option<UsedFs>,
    /// The file system of writable layers, if the runtime reports one.
    pub(crate) container_fs: Option<UsedFs>,
    /// The image of sandboxes, if the runtime reports it.
    pub(crate) sandbox_image: Option<String>,
    /// Local file systems by device, for cAdvisor's metrics.
    pub(crate) disks: BTreeMap<String, DiskSample>,
    /// Names of block devices by number: `vda1`.
    pub(crate) devices: BTreeMap<(u32, u32), String>,
}

/// A file system at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FsSample {
    pub(crate) at: Timestamp,
    /// Bytes.
    pub(crate) available: u64,
    pub(crate) capacity: u64,
    /// Bytes in use by anything.
    pub(crate) used: u64,
    pub(crate) inodes: u64,
    pub(crate) inodes_free: u64,
}

/// What one user of a file system occupies on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UsedFs {
    pub(crate) at: Timestamp,
    pub(crate) used: Option<u64>,
    pub(crate) inodes_used: Option<u64>,
    /// `None`: statfs failed or hangs.
    pub(crate) fs: Option<FsSample>,
}

/// A local block device with a file system.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DiskSample {
    pub(crate) fs: Option<FsSample>,
    /// The counters of /proc/diskstats in the kernel's order: reads, merged, sectors, ms, writes, merged, sectors, ms, I/Os in
    /// progress, ms of I/O, weighted ms.
    pub(crate) counters: Option<[u64; 11]>,
}

/// The counters of a network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InterfaceSample {
    pub(crate) name: String,
    pub(crate) rx_bytes: u64,
    pub(crate) rx_packets: u64,
    pub(crate) rx_errors: u64,
    pub(crate) rx_dropped: u64,
    pub(crate) tx_bytes: u64,
    pub(crate) tx_packets: u64,
    pub(crate) tx_errors: u64,
    pub(crate) tx_dropped: u64,
}

/// A pod with a ready sandbox.
#[derive(Clone, Debug)]
pub(crate) struct PodSample {
    pub(crate) uid: String,
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) sandbox_id: String,
    /// When the sandbox was created.
    pub(crate) started: Timestamp,
    pub(crate) cgroup: Option<CgroupSample>,
    /// The cgroup of the sandbox's own process.
    pub(crate) sandbox: Option<CgroupSample>,
    /// `None`: the pod has the host's network, or it is not known.
    pub(crate) network: Option<Vec<InterfaceSample>>,
    /// Running ones.
    pub(crate) containers: Vec<ContainerSample>,
    /// Sizes of files; `None`: not measured yet.
    pub(crate) disk: Option<PodDisk>,
}

/// A running container.
#[derive(Clone, Debug)]
pub(crate) struct ContainerSample {
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) image: String,
    pub(crate) created: Timestamp,
    /// `None`: its cgroup was not found.
    pub(crate) cgroup: Option<CgroupSample>,
    /// The writable layer.
    pub(crate) rootfs: Option<UsedFs>,
}

/// The sizes of a pod's files outside of its containers.
#[derive(Clone, Debug)]
pub(crate) struct PodDisk {
    pub(crate) at: Timestamp,
    pub(crate) volumes: Vec<VolumeUsage>,
    /// The log files of each container.
    pub(crate) logs: BTreeMap<String, TreeUsage>,
    /// The pod's `etc-hosts` and the files directly in its log directory.
    pub(crate) own: TreeUsage,
    /// False: something that counts towards ephemeral storage could not be measured completely.
    pub(crate) complete: bool,
}
