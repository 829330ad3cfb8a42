//! The cgroups of pods and of their classes of service: `kubepods`, `kubepods/burstable`, `kubepods/besteffort`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use podwright_core::model::Pod;
use podwright_core::qos;
use podwright_linux::cgroup::{Bound, CgroupError, CgroupPath, CgroupTree, CpuQuota, Limits};
use podwright_linux::hugepages;

use super::{Host, HostConfig, HostError, NodeAllocatable, chain, paths};

impl Host {
    /// Makes the pod's cgroup, its parents included, with its limits. True if it was missing.
    pub async fn make_cgroup(&self, pod: &Arc<Pod>, limit: Duration) -> Result<bool, HostError> {
        let Some(tree) = self.cgroups.clone() else { return Ok(false) };
        let (pod, burstable) = (pod.clone(), self.burstable.clone());
        self.run(CLASSES_KEY, limit, MAKE_FAILED, move |config| {
            let root = &config.paths.cgroup_root;
            make_classes(&tree, config).map_err(|e| failed(&e))?;
            let path = cgroup_path(&qos::pod_cgroup_name(root, &pod)).map_err(|e| failed(&e))?;
            let limits = limits(config, &qos::pod_cgroup(&pod, config.pod_pids_limit));
            let missing = !tree.exists(&path);
            tree.create(&path, &limits).map_err(|e| failed(&e))?;
            burstable
                .changed(&tree, config, |pods| pods.insert(paths::uid(&pod).into(), pod.clone()))
                .map_err(|e| failed(&e))?;
            Ok(missing)
        })
        .await
    }

    /// Holds all pods together to what the node has for them: at every start, since reservations may have changed.
    pub async fn enforce_node_allocatable(&self, limit: Duration) -> Result<(), HostError> {
        let Some(tree) = self.cgroups.clone() else { return Ok(()) };
        self.run(CLASSES_KEY, limit, "", move |config| {
            let all = cgroup_path(&qos::qos_cgroup_name(&config.paths.cgroup_root, qos::GUARANTEED));
            all.and_then(|all| tree.create(&all, &node_allocatable(config))).map_err(|e| nameless(&e))
        })
        .await
    }

    /// Kills what is left in the pod's cgroup and removes it, whichever class it is in.
    pub async fn remove_cgroup(&self, uid: &str, limit: Duration) -> Result<(), HostError> {
        let Some(tree) = self.cgroups.clone() else { return Ok(()) };
        let name = format!("pod{uid}");
        let key = format!("cgroup {uid}");
        // The thread itself ends a little before its caller gives it up.
        let deadline = Instant::now() + limit.mul_f32(0.9);
        let (burstable, uid) = (self.burstable.clone(), uid.to_owned());
        self.run(&key, limit, "", move |config| {
            for class in classes(&config.paths.cgroup_root).map_err(|e| nameless(&e))? {
                let path = class.join(&name).map_err(|e| nameless(&e))?;
                let left = || deadline.saturating_duration_since(Instant::now());
                tree.kill_all(&path, left()).and_then(|()| tree.remove(&path, left())).map_err(|e| nameless(&e))?;
            }
            burstable.changed(&tree, config, |pods| pods.remove(&uid)).map_err(|e| nameless(&e))
        })
        .await
    }
}

/// The pods that have cgroups, for the weight of the burstable class: all that its pods ask for together, or best-effort pods
/// would get as much as they. Every pod's cgroup is made again after a restart of the agent, so this needs no record.
#[derive(Clone, Debug, Default)]
pub(super) struct Burstable(Arc<Mutex<BTreeMap<String, Arc<Pod>>>>);

impl Burstable {
    /// Under the lock until it is written: the last weight written is that of the last change.
    fn changed<T>(
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
        tree.apply(&path, &Limits { cpu_shares: Some(shares), ..Limits::default() })
    }
}

/// The pods that have cgroups.
pub(super) fn pods(tree: &CgroupTree, config: &HostConfig) -> Result<BTreeSet<String>, CgroupError> {
    let mut uids = BTreeSet::new();
    for class in classes(&config.paths.cgroup_root)? {
        uids.extend(tree.children(&class)?.iter().filter_map(|name| uid_of(name)).map(str::to_owned));
    }
    Ok(uids)
}

/// `pod<uid>` → the UID.
fn uid_of(name: &str) -> Option<&str> {
    name.strip_prefix("pod").filter(|uid| !uid.is_empty())
}

fn classes(root: &str) -> Result<Vec<CgroupPath>, CgroupError> {
    [qos::GUARANTEED, qos::BURSTABLE, qos::BEST_EFFORT]
        .iter()
        .map(|c| cgroup_path(&qos::qos_cgroup_name(root, c)))
        .collect()
}

fn cgroup_path(names: &[String]) -> Result<CgroupPath, CgroupError> {
    names.iter().try_fold(CgroupPath::root(), |path, name| path.join(name))
}

/// Makes the groups of the classes that are missing. Their weights are set only then: the burstable one changes later.
fn make_classes(tree: &CgroupTree, config: &HostConfig) -> Result<(), CgroupError> {
    let least = || Limits { cpu_shares: Some(SHARES_MIN), ..Limits::default() };
    for (class, limits) in classes(&config.paths.cgroup_root)?.iter().zip([node_allocatable(config), least(), least()])
    {
        if !tree.exists(class) {
            tree.create(class, &limits)?;
        }
    }
    Ok(())
}

/// The limits of the cgroup above all pods (Go kubelet: `getCgroupConfig`).
fn node_allocatable(config: &HostConfig) -> Limits {
    let NodeAllocatable { cpu_millis, memory, pids } = config.node_allocatable;
    let bound = |n: i64| Some(Bound::At(u64::try_from(n).unwrap_or(0)));
    Limits {
        cpu_shares: Some(qos::milli_cpu_to_shares(cpu_millis)),
        memory: bound(memory),
        pids: bound(pids),
        ..Limits::default()
    }
}

fn limits(config: &HostConfig, wanted: &qos::CgroupLimits) -> Limits {
    let bound = |n: Option<i64>| n.and_then(|n| u64::try_from(n).ok()).map_or(Bound::Max, Bound::At);
    let period = config.cpu_cfs_period;
    // Core counts in its own period; the share of the clock is what must stay the same.
    let quota = wanted.cpu_quota_us.filter(|_| config.cpu_cfs_quota).map(|quota| {
        let scaled = i128::from(quota) * i128::try_from(period.as_micros()).unwrap_or(0)
            / i128::from(wanted.cpu_period_us.max(1));
        i64::try_from(scaled).unwrap_or(i64::MAX).max(QUOTA_US_MIN)
    });
    Limits {
        cpu_shares: Some(wanted.cpu_shares),
        cpu_quota: Some(CpuQuota { quota: bound(quota), period }),
        memory: Some(bound(wanted.memory_limit)),
        pids: Some(bound(wanted.pids_limit)),
        huge_pages: huge_page_limits(&wanted.hugepages, &config.huge_page_sizes).into_iter().collect(),
    }
}

/// Every page size the kernel has is limited, to nothing unless some is asked for (Go kubelet: `toResources`).
pub(crate) fn huge_page_limits(wanted: &BTreeMap<i64, i64>, sizes: &[u64]) -> Vec<(String, u64)> {
    let limit = |size: u64| i64::try_from(size).ok().and_then(|size| wanted.get(&size)).copied().unwrap_or_default();
    sizes.iter().map(|size| (hugepages::spelled(*size), u64::try_from(limit(*size)).unwrap_or(0))).collect()
}

fn failed(e: &CgroupError) -> HostError {
    HostError::new(MAKE_FAILED, chain(e))
}

fn nameless(e: &CgroupError) -> HostError {
    HostError::new("", chain(e))
}

/// The Go kubelet's event reason when a pod's cgroup can't be made.
const MAKE_FAILED: &str = "FailedCreatePodContainer";
/// All classes share their parents; making a group takes no time worth a key of its own.
const CLASSES_KEY: &str = "cgroups";
/// The kernel's smallest weight: best effort gets what nobody else wants.
const SHARES_MIN: u64 = 2;
/// The kernel's smallest quota.
const QUOTA_US_MIN: i64 = 1000;
