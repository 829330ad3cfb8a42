//! Resources of pods that core does not know: found by UID, and removed.
//!
//! `podLogsDir` and the cgroups may be shared with other agents, whose pods core does not know either. Therefore only a pod that has a
//! directory below `--root-dir` is a leftover. That directory is created before everything else of a pod, and removed last.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use podwright_core::model::PodUid;

use super::{Host, HostError, logs};
use crate::pod_spec::is_plain_name;

/// Processes that do not end in this time keep their cgroup; volumes and logs are removed all the same.
const CGROUP_LIMIT: Duration = Duration::from_secs(30);

impl Host {
    /// The pods of this agent that have something on the node.
    pub(crate) async fn list_leftovers(&self, limit: Duration) -> Result<BTreeSet<PodUid>, HostError> {
        let cgroups = self.cgroups.clone();
        let listed = self.io.run("leftovers", limit, move |config| {
            let mut uids: BTreeSet<String> = logs::list_dir(&config.paths.pods_dir())?.into_iter().collect();
            // A creation that outlived its call may come after the removal of the pod's directory.
            uids.extend(cgroups.list_own()?);
            Ok(uids.into_iter().filter(|uid| is_plain_name(uid)).map(PodUid::from).collect())
        });
        listed.await.map_err(HostError::ListLeftovers)
    }

    /// Removes everything of a pod. Tries every part, except its directory after a failure, and returns the first failure.
    pub(crate) async fn remove_leftovers(&self, uid: &str, limit: Duration) -> Result<(), HostError> {
        let deadline = Instant::now() + limit;
        let remaining = || deadline.saturating_duration_since(Instant::now());
        // Processes first: their open files keep mounts busy and logs growing.
        let cgroup = self.cgroups.remove(uid, remaining().min(CGROUP_LIMIT)).await;
        let volumes = self.volumes.remove(uid, remaining()).await;
        let logs = self.logs.remove_by_uid(uid, remaining()).await;
        cgroup.and(volumes).and(logs)?;
        // Last: without it the rest is not known to be ours.
        self.dirs.remove(uid, remaining()).await
    }
}
