//! The cgroups of pods and of QoS classes: `kubepods`, `kubepods/burstable`, `kubepods/besteffort`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use podwright_core::model::Pod;
use podwright_core::qos;
use podwright_linux::cgroup::{Bound, CgroupError, CgroupPath, CgroupResources, CgroupTree, CpuQuota};

use super::io::HostIo;
use super::{HostConfig, HostError, NodeAllocatable};
use crate::pod_spec::{huge_page_limits, pod_uid};

/// The cgroups of pods and QoS classes.
#[derive(Clone, Debug)]
pub struct PodCgroups {
    io: HostIo,
    /// `None`: pods have no cgroups (`cgroupsPerQOS: false`).
    tree: Option<Arc<CgroupTree>>,
    burstable: BurstablePods,
}

impl PodCgroups {
    pub(super) fn new(io: HostIo, tree: Option<CgroupTree>) -> Self {
        Self { io, tree: tree.map(Arc::new), burstable: BurstablePods::default() }
    }

    /// Sets the limits of all pods combined. Called at every start, because reservations may have changed.
    pub async fn enforce_node_allocatable(&self, limit: Duration) -> Result<(), HostError> {
        let Some(tree) = self.tree.clone() else { return Ok(()) };
        let done = self.io.run(QOS_KEY, limit, move |config| {
            let kubepods = cgroup_path(&qos::qos_cgroup_name(&config.paths.cgroup_root, qos::GUARANTEED))?;
            Ok(tree.create(&kubepods, &node_allocatable(config))?)
        });
        done.await.map_err(HostError::EnforceNodeAllocatable)
    }

    /// Creates the pod's cgroup and its parents, with limits. True if it was missing.
    pub(crate) async fn create(&self, pod: &Arc<Pod>, limit: Duration) -> Result<bool, HostError> {
        let Some(tree) = self.tree.clone() else { return Ok(false) };
        let (pod, burstable) = (pod.clone(), self.burstable.clone());
        let done = self.io.run(QOS_KEY, limit, move |config| {
            create_qos_cgroups(&tree, config)?;
            let path = cgroup_path(&qos::pod_cgroup_name(&config.paths.cgroup_root, &pod))?;
            let limits = limits(config, &qos::pod_cgroup(&pod, config.pod_pids_limit));
            let missing = !tree.exists(&path);
            tree.create(&path, &limits)?;
            burstable.update(&tree, config, |pods| pods.insert(pod_uid(&pod).into(), pod.clone()))?;
            Ok(missing)
        });
        done.await.map_err(HostError::CreateCgroup)
    }

    /// Kills the processes in the pod's cgroup and removes it, in whichever QoS class it is.
    pub(crate) async fn remove(&self, uid: &str, limit: Duration) -> Result<(), HostError> {
        let Some(tree) = self.tree.clone() else { return Ok(()) };
        let name = format!("pod{uid}");
        let key = format!("cgroup {uid}");
        // The thread ends before its caller abandons it.
        let deadline = Instant::now() + limit.mul_f32(0.9);
        let (burstable, uid) = (self.burstable.clone(), uid.to_owned());
        let done = self.io.run(key, limit, move |config| {
            let remaining = || deadline.saturating_duration_since(Instant::now());
            for class in qos_cgroups(&config.paths.cgroup_root)? {
                let path = class.join(&name)?;
                tree.kill_all(&path, remaining())?;
                tree.remove(&path, remaining())?;
            }
            Ok(burstable.update(&tree, config, |pods| pods.remove(&uid))?)
        });
        done.await.map_err(HostError::RemoveCgroup)
    }

    /// The UIDs of the pods that have cgroups. Blocks.
    pub(super) fn list(&self) -> Result<BTreeSet<String>, CgroupError> {
        let mut uids = BTreeSet::new();
        let Some(tree) = &self.tree else { return Ok(uids) };
        for class in qos_cgroups(&self.io.config.paths.cgroup_root)? {
            uids.extend(tree.children(&class)?.iter().filter_map(|name| uid_of(name)).map(str::to_owned));
        }
        Ok(uids)
    }
}

/// The pods that have cgroups, for the weight of the burstable class: the sum of its pods' requests. With a constant weight,
/// best-effort pods would get as much CPU as burstable ones. Not persisted: after a restart of the agent every pod's cgroup
/// is created again.
#[derive(Clone, Debug, Default)]
pub(super) struct BurstablePods(Arc<Mutex<BTreeMap<String, Arc<Pod>>>>);

impl BurstablePods {
    /// Holds the lock until the weight is written, so that the last weight written belongs to the last change.
    fn update<T>(
        &self,
        tree: &CgroupTree,
        config: &HostConfig,
        change: impl FnOnce(&mut BTreeMap<String, Arc<Pod>>) -> T,
    ) -> Result<(), CgroupError> {
        let mut pods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut pods);
        let shares = qos::burstable_shares(pods.values().map(|pod| &**pod));
        let path = cgroup_path(&qos::qos_cgroup_name(&config.paths.cgroup_root, qos::BURSTABLE))?;
        if !tree.exists(&path) {
            return Ok(());
        }
        tree.apply(&path, &CgroupResources { cpu_shares: Some(shares), ..CgroupResources::default() })
    }
}

/// `pod<uid>` → the UID.
fn uid_of(name: &str) -> Option<&str> {
    name.strip_prefix("pod").filter(|uid| !uid.is_empty())
}

fn qos_cgroups(root: &str) -> Result<Vec<CgroupPath>, CgroupError> {
    [qos::GUARANTEED, qos::BURSTABLE, qos::BEST_EFFORT]
        .iter()
        .map(|c| cgroup_path(&qos::qos_cgroup_name(root, c)))
        .collect()
}

fn cgroup_path(names: &[String]) -> Result<CgroupPath, CgroupError> {
    names.iter().try_fold(CgroupPath::root(), |path, name| path.join(name))
}

/// Creates the missing cgroups of QoS classes. Weights are set only on creation: that of the burstable class changes later.
fn create_qos_cgroups(tree: &CgroupTree, config: &HostConfig) -> Result<(), CgroupError> {
    let smallest = || CgroupResources { cpu_shares: Some(SHARES_MIN), ..CgroupResources::default() };
    for (class, limits) in
        qos_cgroups(&config.paths.cgroup_root)?.iter().zip([node_allocatable(config), smallest(), smallest()])
    {
        if !tree.exists(class) {
            tree.create(class, &limits)?;
        }
    }
    Ok(())
}

/// The limits of the cgroup `kubepods`, above all pods (Go kubelet: `getCgroupConfig`).
fn node_allocatable(config: &HostConfig) -> CgroupResources {
    let NodeAllocatable { cpu_millis, memory, pids } = config.node_allocatable;
    let bound = |n: i64| Some(Bound::At(u64::try_from(n).unwrap_or(0)));
    CgroupResources {
        cpu_shares: Some(qos::milli_cpu_to_shares(cpu_millis)),
        memory: bound(memory),
        pids: bound(pids),
        ..CgroupResources::default()
    }
}

fn limits(config: &HostConfig, pod: &qos::CgroupLimits) -> CgroupResources {
    let bound = |n: Option<i64>| n.and_then(|n| u64::try_from(n).ok()).map_or(Bound::Max, Bound::At);
    let period = config.cpu_cfs_period;
    // Core computes the quota for its own period; scaled so that the share of CPU time stays the same.
    let quota = pod.cpu_quota_us.filter(|_| config.cpu_cfs_quota).map(|quota| {
        let scaled =
            i128::from(quota) * i128::try_from(period.as_micros()).unwrap_or(0) / i128::from(pod.cpu_period_us.max(1));
        i64::try_from(scaled).unwrap_or(i64::MAX).max(QUOTA_US_MIN)
    });
    CgroupResources {
        cpu_shares: Some(pod.cpu_shares),
        cpu_quota: Some(CpuQuota { quota: bound(quota), period }),
        memory: Some(bound(pod.memory_limit)),
        pids: Some(bound(pod.pids_limit)),
        huge_pages: huge_page_limits(&pod.hugepages, &config.huge_page_sizes).into_iter().collect(),
    }
}

/// The pool's key for creating cgroups. Pods share it because they share parents, and creating a cgroup is fast.
const QOS_KEY: &str = "cgroups";
/// The kernel's smallest weight: best-effort pods get the CPU time that is left.
const SHARES_MIN: u64 = 2;
/// The kernel's smallest quota, in microseconds.
const QUOTA_US_MIN: i64 = 1000;
