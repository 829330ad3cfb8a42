//! Resources of pods that core does not know: found by UID, and removed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use podwright_core::model::PodUid;

use super::{Host, HostError, logs};
use crate::pod_spec::is_plain_name;

/// Processes that do not end in this time keep their cgroup; the rest is removed all the same.
const CGROUP_LIMIT: Duration = Duration::from_secs(30);

impl Host {
    /// The pods that have cgroups, directories or logs on the node.
    pub(crate) async fn list_leftovers(&self, limit: Duration) -> Result<BTreeSet<PodUid>, HostError> {
        let cgroups = self.cgroups.clone();
        let listed = self.io.run("leftovers", limit, move |config| {
            let mut uids: BTreeSet<String> = logs::list_dir(&config.paths.pods_dir())?.into_iter().collect();
            let log_dirs = logs::list_dir(&config.paths.pod_logs_dir)?;
            uids.extend(log_dirs.iter().filter_map(|name| logs::uid_of(name)).map(str::to_owned));
            uids.extend(cgroups.list()?);
            Ok(uids.into_iter().filter(|uid| is_plain_name(uid)).map(PodUid::from).collect())
        });
        listed.await.map_err(HostError::ListLeftovers)
    }

    /// Removes everything of a pod. Tries every part and returns the first failure.
    pub(crate) async fn remove_leftovers(&self, uid: &str, limit: Duration) -> Result<(), HostError> {
        let deadline = Instant::now() + limit;
        let remaining = || deadline.saturating_duration_since(Instant::now());
        // Processes first: their open files keep mounts busy and logs growing.
        let cgroup = self.cgroups.remove(uid, remaining().min(CGROUP_LIMIT)).await;
        let volumes = self.volumes.remove(uid, remaining()).await;
        // Fails, without harm, while something is still mounted there.
        let dirs = self.dirs.remove(uid, remaining()).await;
        let logs = self.logs.remove_by_uid(uid, remaining()).await;
        cgroup.and(volumes).and(dirs).and(logs)
    }
}
