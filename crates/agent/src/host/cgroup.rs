//! The cgroups of pods and of QoS classes: `kubepods`, `kubepods/burstable`, `kubepods/besteffort`.
//!
//! With the systemd driver they are slices: systemd creates and limits them first, then the same is written to their files, because
//! systemd covers neither every controller nor every limit.

mod own;
mod resize;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use podwright_core::model::Pod;
use podwright_core::qos::{self, CgroupDriver};
use podwright_linux::cgroup::{Bound, CgroupError, CgroupPath, CgroupResources, CgroupTree, CgroupVersion, CpuQuota};

use super::io::{HostIo, pod_key};
use super::pod_slices::PodSlices;
use super::slice_properties::round_quota;
use super::{HostCause, HostConfig, HostError, NodeAllocatable, SystemdManager};
use crate::pod_spec::{huge_page_limits, pod_uid};

pub(crate) use resize::CgroupChange;

use own::OwnCgroups;

/// The cgroups of pods and QoS classes.
#[derive(Clone, Debug)]
pub struct PodCgroups {
    io: HostIo,
    /// `None`: pods have no cgroups (`cgroupsPerQOS: false`).
    tree: Option<Arc<CgroupTree>>,
    /// `None`: the cgroupfs driver.
    slices: Option<PodSlices>,
    burstable: BurstablePods,
    own: OwnCgroups,
}

impl PodCgroups {
    pub(super) fn new(io: HostIo, tree: Option<CgroupTree>) -> Self {
        let (burstable, own) = (BurstablePods::default(), OwnCgroups::default());
        Self { io, tree: tree.map(Arc::new), slices: None, burstable, own }
    }

    pub(super) fn with_systemd(self, systemd: Arc<SystemdManager>) -> Self {
        let version = self.tree.as_ref().map_or(CgroupVersion::V2, |tree| tree.version());
        Self { slices: Some(PodSlices::new(systemd, version)), ..self }
    }

    fn names(&self) -> CgroupNames {
        let driver = if self.slices.is_some() { CgroupDriver::Systemd } else { CgroupDriver::Cgroupfs };
        CgroupNames { driver, root: self.io.config.paths.cgroup_root.clone() }
    }

    /// Sets the limits of all pods combined. Called at every start, because reservations may have changed.
    pub async fn enforce_node_allocatable(&self, limit: Duration) -> Result<(), HostError> {
        let Some(tree) = self.tree.clone() else { return Ok(()) };
        let deadline = Instant::now() + limit;
        let done = async {
            let names = self.names();
            if let Some(slices) = &self.slices {
                slices
                    .create_kubepods(
                        &qos::qos_cgroup_name(&names.root, qos::GUARANTEED),
                        &node_allocatable(&self.io.config),
                        tree.cpus(),
                        deadline,
                    )
                    .await?;
            }
            let enforce =
                move |config: &HostConfig| Ok(tree.create(&names.class(qos::GUARANTEED)?, &node_allocatable(config))?);
            self.io.run(QOS_KEY, deadline.saturating_duration_since(Instant::now()), enforce).await
        };
        done.await.map_err(HostError::EnforceNodeAllocatable)
    }

    /// Creates the pod's cgroup and its parents, with limits. True if it was missing.
    pub(crate) async fn create(&self, pod: &Arc<Pod>, limit: Duration) -> Result<bool, HostError> {
        let Some(tree) = self.tree.clone() else { return Ok(false) };
        self.create_in(tree, pod, limit).await.map_err(HostError::CreateCgroup)
    }

    /// Creates the pod's cgroup again if it is gone: others can remove it while nothing runs in it, and the runtime would make one
    /// without the limits of the pod.
    pub(super) async fn restore(&self, pod: &Arc<Pod>, limit: Duration) -> Result<(), HostError> {
        let Some(tree) = self.tree.clone() else { return Ok(()) };
        let deadline = Instant::now() + limit;
        let (names, of) = (self.names(), pod.clone());
        let exists = move |_: &HostConfig| Ok(names.exist(&tree, &names.pod(&of)?));
        if self.io.run(pod_key(pod_uid(pod)), limit, exists).await.map_err(HostError::CreateCgroup)? {
            return Ok(());
        }
        tracing::warn!(uid = pod_uid(pod), "the cgroup of a pod was removed by others and is created again");
        self.create(pod, deadline.saturating_duration_since(Instant::now())).await.map(drop)
    }

    async fn create_in(&self, tree: Arc<CgroupTree>, pod: &Arc<Pod>, limit: Duration) -> Result<bool, HostCause> {
        let deadline = Instant::now() + limit;
        let remaining = move || deadline.saturating_duration_since(Instant::now());
        let mut slice_missing = false;
        self.own.add(pod_uid(pod));
        if let Some(slices) = &self.slices {
            slice_missing = self.create_slices(slices, &tree, pod, deadline).await?;
        }
        let (pod, burstable, names) = (pod.clone(), self.burstable.clone(), self.names());
        let created = move |config: &HostConfig| {
            create_qos_cgroups(&tree, config, &names)?;
            let path = names.pod(&pod)?;
            let limits = names.limits(config, &pod);
            let missing = !names.exist(&tree, &path);
            tree.create(&path, &limits)?;
            burstable.update(&tree, &names, |pods| pods.insert(pod_uid(&pod).into(), pod.clone()))?;
            Ok(missing)
        };
        let missing = self.io.run(QOS_KEY, remaining(), created).await?;
        self.weigh_burstable(deadline).await?;
        Ok(missing || slice_missing)
    }

    /// Starts the slices, which succeeds for those that systemd knows: a directory may exist without its slice. Sets the limits of
    /// those that were missing and of the pod's. True if the pod's was missing.
    async fn create_slices(
        &self,
        slices: &PodSlices,
        tree: &Arc<CgroupTree>,
        pod: &Arc<Pod>,
        deadline: Instant,
    ) -> Result<bool, HostCause> {
        let names = self.names();
        let mut wanted: Vec<(Vec<String>, CgroupResources)> = Vec::new();
        for (class, limits) in class_limits(&self.io.config) {
            wanted.push((qos::qos_cgroup_name(&names.root, class), limits));
        }
        wanted.push((qos::pod_cgroup_name(&names.root, pod), names.limits(&self.io.config, pod)));
        let paths = wanted.iter().map(|(name, _)| names.path(name)).collect::<Result<Vec<_>, _>>()?;
        let tree = tree.clone();
        let exist = move |_: &HostConfig| Ok(paths.iter().map(|path| tree.exists_in_one(path)).collect::<Vec<_>>());
        let exist = self.io.run(QOS_KEY, deadline.saturating_duration_since(Instant::now()), exist).await?;
        for ((name, limits), exists) in wanted.iter().zip(&exist) {
            slices.start(name, deadline).await?;
            if !exists {
                slices.set(name, limits, deadline).await?;
            }
        }
        let (name, limits) = wanted.last().expect("the pod's own was added");
        slices.set(name, limits, deadline).await?;
        Ok(!exist.last().copied().unwrap_or(false))
    }

    /// systemd writes the weights of its slices again, so it has to know that of the burstable class too. A slice that does not
    /// exist has no weight, and setting it would load one.
    async fn weigh_burstable(&self, deadline: Instant) -> Result<(), HostCause> {
        let (Some(slices), Some(tree)) = (&self.slices, self.tree.clone()) else { return Ok(()) };
        let names = self.names();
        let (class, path) = (qos::qos_cgroup_name(&names.root, qos::BURSTABLE), names.class(qos::BURSTABLE)?);
        let exists = move |_: &HostConfig| Ok(tree.exists_in_one(&path));
        if !self.io.run(QOS_KEY, deadline.saturating_duration_since(Instant::now()), exists).await? {
            return Ok(());
        }
        Ok(slices.weigh(&class, || self.burstable.shares(), deadline).await?)
    }

    /// Kills the processes in the pod's cgroup and removes it, in whichever QoS class it is.
    pub(crate) async fn remove(&self, uid: &str, limit: Duration) -> Result<(), HostError> {
        let Some(tree) = self.tree.clone() else { return Ok(()) };
        self.remove_from(tree, uid, limit).await.map_err(HostError::RemoveCgroup)
    }

    async fn remove_from(&self, tree: Arc<CgroupTree>, uid: &str, limit: Duration) -> Result<(), HostCause> {
        let key = format!("cgroup {uid}");
        self.own.add(uid);
        // The thread ends before its caller abandons it.
        let deadline = Instant::now() + limit.mul_f32(0.9);
        let remaining = move || deadline.saturating_duration_since(Instant::now());
        let names = self.names();
        let mut stopped = Ok(());
        if let Some(slices) = &self.slices {
            let (tree, pods) = (tree.clone(), names.any_class(uid)?);
            let kill = move |_: &HostConfig| Ok(pods.iter().try_for_each(|path| tree.kill_all(path, remaining()))?);
            self.io.run(key.clone(), limit, kill).await?;
            for class in CLASSES {
                // Half of the time is left for the directories.
                let half = Instant::now() + remaining() / 2;
                stopped = stopped.and(slices.stop(&names.pod_in(class, uid), half).await);
            }
        }
        let (burstable, uid) = (self.burstable.clone(), uid.to_owned());
        let removed = move |_: &HostConfig| {
            for path in names.any_class(&uid)? {
                tree.kill_all(&path, remaining())?;
                tree.remove(&path, remaining())?;
            }
            Ok(burstable.update(&tree, &names, |pods| pods.remove(&uid))?)
        };
        self.io.run(key, limit, removed).await?;
        // The directories are removed even if systemd fails (runc: `Destroy`); the error lets the caller try again.
        stopped?;
        self.weigh_burstable(deadline).await
    }

    /// The hierarchies; `None`: pods have no cgroups.
    pub(crate) fn tree(&self) -> Option<&CgroupTree> {
        self.tree.as_deref()
    }

    /// The cgroup of a pod.
    pub(crate) fn pod_path(&self, pod: &Pod) -> Result<CgroupPath, CgroupError> {
        self.names().pod(pod)
    }

    /// `kubepods`, then the cgroups of the other QoS classes.
    pub(crate) fn class_paths(&self) -> Result<Vec<CgroupPath>, CgroupError> {
        let names = self.names();
        CLASSES.iter().map(|class| names.class(class)).collect()
    }

    /// The UIDs of the pods that have cgroups, of this process and not of another agent. Blocks.
    pub(super) fn list_own(&self) -> Result<BTreeSet<String>, CgroupError> {
        let mut uids = BTreeSet::new();
        let Some(tree) = &self.tree else { return Ok(uids) };
        let names = self.names();
        for class in CLASSES {
            let name = qos::qos_cgroup_name(&names.root, class);
            let children = tree.children(&names.path(&name)?)?;
            uids.extend(children.iter().filter_map(|child| names.driver.pod_uid(&name, child)));
        }
        Ok(self.own.among(uids))
    }
}

/// The cgroups of pods as the driver names them.
#[derive(Clone, Debug)]
struct CgroupNames {
    driver: CgroupDriver,
    /// `cgroupRoot`.
    root: String,
}

impl CgroupNames {
    fn path(&self, name: &[String]) -> Result<CgroupPath, CgroupError> {
        let directories = self.driver.directories(name);
        directories.iter().try_fold(CgroupPath::root(), |path, directory| path.join(directory))
    }

    fn class(&self, class: &str) -> Result<CgroupPath, CgroupError> {
        self.path(&qos::qos_cgroup_name(&self.root, class))
    }

    fn pod(&self, pod: &Pod) -> Result<CgroupPath, CgroupError> {
        self.path(&qos::pod_cgroup_name(&self.root, pod))
    }

    fn pod_in(&self, class: &str, uid: &str) -> Vec<String> {
        let mut name = qos::qos_cgroup_name(&self.root, class);
        name.push(format!("pod{uid}"));
        name
    }

    /// The cgroups that a pod of this UID may have.
    fn any_class(&self, uid: &str) -> Result<Vec<CgroupPath>, CgroupError> {
        CLASSES.iter().map(|class| self.path(&self.pod_in(class, uid))).collect()
    }

    /// On v1 systemd removes empty cgroups of a slice in hierarchies that it needs no controller of, so a slice exists if it is in
    /// one.
    fn exist(&self, tree: &CgroupTree, path: &CgroupPath) -> bool {
        match self.driver {
            CgroupDriver::Cgroupfs => tree.exists(path),
            CgroupDriver::Systemd => tree.exists_in_one(path),
        }
    }

    fn limits(&self, config: &HostConfig, pod: &Pod) -> CgroupResources {
        let limits = limits(config, &qos::pod_cgroup(pod, config.pod_pids_limit));
        match self.driver {
            CgroupDriver::Cgroupfs => limits,
            CgroupDriver::Systemd => round_quota(&limits),
        }
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
        names: &CgroupNames,
        change: impl FnOnce(&mut BTreeMap<String, Arc<Pod>>) -> T,
    ) -> Result<(), CgroupError> {
        let mut pods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut pods);
        let shares = qos::burstable_shares(pods.values().map(|pod| &**pod));
        let path = names.class(qos::BURSTABLE)?;
        if !tree.exists(&path) {
            return Ok(());
        }
        tree.apply(&path, &CgroupResources { cpu_shares: Some(shares), ..CgroupResources::default() })
    }

    fn shares(&self) -> u64 {
        let pods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        qos::burstable_shares(pods.values().map(|pod| &**pod))
    }
}

/// Creates the missing cgroups of QoS classes. Weights are set only on creation: that of the burstable class changes later.
fn create_qos_cgroups(tree: &CgroupTree, config: &HostConfig, names: &CgroupNames) -> Result<(), CgroupError> {
    for (class, limits) in class_limits(config) {
        let path = names.class(class)?;
        match names.driver {
            // The slice has its limits already.
            CgroupDriver::Systemd => tree.create(&path, &CgroupResources::default())?,
            CgroupDriver::Cgroupfs if !tree.exists(&path) => tree.create(&path, &limits)?,
            CgroupDriver::Cgroupfs => {}
        }
    }
    Ok(())
}

/// The QoS classes and the limits that their cgroups are created with.
fn class_limits(config: &HostConfig) -> [(&'static str, CgroupResources); 3] {
    let smallest = || CgroupResources { cpu_shares: Some(SHARES_MIN), ..CgroupResources::default() };
    let [guaranteed, burstable, best_effort] = CLASSES;
    [(guaranteed, node_allocatable(config)), (burstable, smallest()), (best_effort, smallest())]
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
    let quota = pod.cpu_quota_us.filter(|_| config.cpu_cfs_quota);
    let quota = quota.map(|quota| scaled_quota(config, quota, pod.cpu_period_us));
    CgroupResources {
        cpu_shares: Some(pod.cpu_shares),
        cpu_quota: Some(CpuQuota { quota: bound(quota), period }),
        memory: Some(bound(pod.memory_limit)),
        pids: Some(bound(pod.pids_limit)),
        huge_pages: huge_page_limits(&pod.hugepages, &config.huge_page_sizes).into_iter().collect(),
    }
}

/// Core computes the quota for its own period; scaled so that the share of CPU time stays the same.
fn scaled_quota(config: &HostConfig, quota_us: i64, period_us: u64) -> i64 {
    let period = i128::try_from(config.cpu_cfs_period.as_micros()).unwrap_or(0);
    let scaled = i128::from(quota_us) * period / i128::from(period_us.max(1));
    i64::try_from(scaled).unwrap_or(i64::MAX).max(QUOTA_US_MIN)
}

/// Parents before children: the cgroup of guaranteed pods is that of all pods.
const CLASSES: [&str; 3] = [qos::GUARANTEED, qos::BURSTABLE, qos::BEST_EFFORT];
/// The pool's key for creating cgroups. Pods share it because they share parents, and creating a cgroup is fast.
const QOS_KEY: &str = "cgroups";
/// The kernel's smallest weight: best-effort pods get the CPU time that is left.
const SHARES_MIN: u64 = 2;
/// The period of the quotas of core, in microseconds.
const CORE_PERIOD_US: u64 = 100_000;
/// The kernel's smallest quota, in microseconds.
const QUOTA_US_MIN: i64 = 1000;
