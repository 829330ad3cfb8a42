//! In-place resize: other limits for the cgroup of a pod that runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use podwright_core::model::{ContainerId, MemoryUse, Name, Pod};
use podwright_core::qos;
use podwright_linux::cgroup::{Bound, CgroupPath, CgroupResources, CgroupTree, CpuQuota, UsageDetail};

use super::{CORE_PERIOD_US, HostCause, HostConfig, HostError, PodCgroups, QOS_KEY, round_quota, scaled_quota};
use crate::pod_spec::{container_cgroup_names, pod_uid};

/// Limits to set; `None` leaves a limit as it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct CgroupChange {
    /// CPU weight, in shares of cgroup v1.
    pub(crate) cpu_shares: Option<u64>,
    /// CPU time per period of core.
    pub(crate) cpu_quota_us: Option<i64>,
    /// Bytes of memory.
    pub(crate) memory: Option<i64>,
}

impl PodCgroups {
    /// Sets limits of the pod's cgroup, which exists.
    pub(crate) async fn resize(&self, pod: &Arc<Pod>, change: &CgroupChange, limit: Duration) -> Result<(), HostError> {
        let Some(tree) = self.tree.clone() else { return Ok(()) };
        self.resize_in(tree, pod, change, limit).await.map_err(HostError::ResizeCgroup)
    }

    async fn resize_in(
        &self,
        tree: Arc<CgroupTree>,
        pod: &Arc<Pod>,
        change: &CgroupChange,
        limit: Duration,
    ) -> Result<(), HostCause> {
        let deadline = Instant::now() + limit;
        let mut limits = resources(&self.io.config, change);
        let names = self.names();
        if let Some(slices) = &self.slices {
            limits = round_quota(&limits);
            slices.set(&qos::pod_cgroup_name(&names.root, pod), &limits, deadline).await?;
        }
        let (pod, burstable) = (Arc::clone(pod), self.burstable.clone());
        let apply = move |_: &HostConfig| {
            tree.apply(&names.pod(&pod)?, &limits)?;
            Ok(burstable.update(&tree, &names, |pods| pods.insert(pod_uid(&pod).into(), pod.clone()))?)
        };
        self.io.run(QOS_KEY, deadline.saturating_duration_since(Instant::now()), apply).await?;
        self.weigh_burstable(deadline).await
    }

    /// The memory that is charged to the cgroups of the pod and of containers.
    pub(crate) async fn memory_use(
        &self,
        pod: &Arc<Pod>,
        containers: BTreeMap<Name, ContainerId>,
        limit: Duration,
    ) -> Result<MemoryUse, HostError> {
        let Some(tree) = self.tree.clone() else { return Ok(MemoryUse::default()) };
        let (names, pod) = (self.names(), Arc::clone(pod));
        let read = move |_: &HostConfig| {
            let path = names.pod(&pod)?;
            let used = |path: &CgroupPath| tree.usage(path, UsageDetail::CpuAndMemory)?.memory.usage;
            let of_container = |id: &ContainerId| {
                container_cgroup_names(id.as_str()).iter().find_map(|name| used(&path.join(name).ok()?))
            };
            let containers = containers.iter().filter_map(|(name, id)| Some((name.clone(), of_container(id)?)));
            Ok(MemoryUse { pod: used(&path), containers: containers.collect() })
        };
        self.io.run(QOS_KEY, limit, read).await.map_err(HostError::ResizeCgroup)
    }
}

fn resources(config: &HostConfig, change: &CgroupChange) -> CgroupResources {
    let bound = |n: i64| Bound::At(u64::try_from(n).unwrap_or(0));
    let quota = change.cpu_quota_us.filter(|_| config.cpu_cfs_quota);
    CgroupResources {
        cpu_shares: change.cpu_shares,
        cpu_quota: quota.map(|quota| CpuQuota {
            quota: bound(scaled_quota(config, quota, CORE_PERIOD_US)),
            period: config.cpu_cfs_period,
        }),
        memory: change.memory.map(bound),
        ..CgroupResources::default()
    }
}
