//! Reads the cgroups of the node and of its pods, on one thread of the pool.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use jiff::Timestamp;
use podwright_core::model::Pod;
use podwright_linux::cgroup::{CgroupPath, CgroupTree, CgroupVersion, UsageDetail};

use super::cpu_rates::CpuRates;
use super::procfs;
use super::sample::{CgroupSample, HostSample, PodSample};
use crate::host::PodCgroups;
use crate::pod_spec::{container_cgroup_names, is_host_network};

/// Identifiers in the labels of cAdvisor's `machine_*` metrics.
#[derive(Clone, Debug, Default)]
pub struct MachineIds {
    /// `/proc/sys/kernel/random/boot_id`
    pub boot_id: String,
    /// `/etc/machine-id`
    pub machine_id: String,
    /// The system's UUID from DMI.
    pub system_uuid: String,
}

/// The cgroups that one round reads.
pub(super) struct CgroupRound {
    pub(super) cgroups: PodCgroups,
    pub(super) detail: UsageDetail,
    /// With their objects; `None`: the agent does not know the pod.
    pub(super) pods: Vec<(PodSample, Option<Arc<Pod>>)>,
}

/// The result of a round.
pub(super) struct CgroupRead {
    pub(super) root: CgroupSample,
    pub(super) classes: Vec<CgroupSample>,
    pub(super) agent: Option<CgroupSample>,
    pub(super) host: HostSample,
    pub(super) pods: Vec<PodSample>,
}

impl CgroupRound {
    /// Reads everything. Blocks for about 10 µs per file.
    pub(super) fn read(self, rates: &mut CpuRates) -> CgroupRead {
        let Self { cgroups, detail, pods } = self;
        let host = procfs::read_host();
        let tree = cgroups.tree();
        let mut reader = Reader { tree, detail, rates };
        let root = reader.read(&CgroupPath::root()).unwrap_or_else(|| CgroupSample {
            path: "/".into(),
            at: Timestamp::now(),
            usage: Default::default(),
            nano_cores: None,
        });
        let classes = cgroups.class_paths().unwrap_or_default();
        let classes = classes.iter().filter_map(|path| reader.read(path)).collect();
        let own = tree.and_then(|tree| procfs::own_cgroup(tree.version() == CgroupVersion::V2));
        let agent = own.and_then(|path| reader.read(&CgroupPath::parse(&path).ok()?));
        let mut read = Vec::with_capacity(pods.len());
        for (mut pod, object) in pods {
            if let Some(object) = object {
                reader.read_pod(&mut pod, &object, cgroups.pod_path(&object).ok());
            }
            read.push(pod);
        }
        reader.rates.end_round();
        CgroupRead { root, classes, agent, host, pods: read }
    }
}

struct Reader<'a> {
    tree: Option<&'a CgroupTree>,
    detail: UsageDetail,
    rates: &'a mut CpuRates,
}

impl Reader<'_> {
    fn read(&mut self, path: &CgroupPath) -> Option<CgroupSample> {
        let usage = self.tree?.usage(path, self.detail)?;
        let mut sample = CgroupSample { path: path.to_string(), at: Timestamp::now(), usage, nano_cores: None };
        self.rates.apply(&mut sample, Instant::now());
        Some(sample)
    }

    fn read_pod(&mut self, pod: &mut PodSample, object: &Pod, path: Option<CgroupPath>) {
        let Some(path) = path else { return };
        pod.cgroup = self.read(&path);
        pod.sandbox = self.read_child(&path, &pod.sandbox_id);
        for container in &mut pod.containers {
            container.cgroup = self.read_child(&path, &container.id);
        }
        if self.detail == UsageDetail::All && !is_host_network(object) {
            let own = [pod.sandbox.as_ref()].into_iter().chain(pod.containers.iter().map(|c| c.cgroup.as_ref()));
            let pid = own.flatten().find_map(|cgroup| cgroup.usage.pids.processes.first().copied());
            pod.network = pid.and_then(procfs::network_of);
        }
    }

    /// The cgroup of a container, as the runtimes name it.
    fn read_child(&mut self, pod: &CgroupPath, id: &str) -> Option<CgroupSample> {
        container_cgroup_names(id).iter().find_map(|name| self.read(&pod.join(name).ok()?))
    }
}

/// The time of a cgroup's directory.
pub(super) fn timestamp(time: SystemTime) -> Option<Timestamp> {
    Timestamp::try_from(time).ok()
}
