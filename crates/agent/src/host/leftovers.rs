//! What is left of pods on this machine, and its removal when nobody knows the pod any more.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use podwright_core::model::PodUid;

use super::{Host, HostError, cgroup, chain, logs, paths};

impl Host {
    /// The pods that have cgroups, directories or logs here.
    pub async fn leftovers(&self, limit: Duration) -> Result<BTreeSet<PodUid>, HostError> {
        let cgroups = self.cgroups.clone();
        self.run("leftovers", limit, "", move |config| {
            let mut uids: BTreeSet<String> = logs::entries(&config.paths.pods_dir())?.into_iter().collect();
            let of_logs = logs::entries(&config.paths.pod_logs_dir)?;
            uids.extend(of_logs.iter().filter_map(|name| logs::uid_of(name)).map(str::to_owned));
            if let Some(tree) = cgroups {
                uids.extend(cgroup::pods(&tree, config).map_err(|e| HostError::new("", chain(&e)))?);
            }
            Ok(uids.into_iter().filter(|uid| paths::is_plain(uid)).map(PodUid::from).collect())
        })
        .await
    }

    /// Removes what is left of a pod. Every part is tried; the first failure is told.
    pub async fn sweep(&self, uid: &str, limit: Duration) -> Result<(), HostError> {
        let deadline = Instant::now() + limit;
        let left = || deadline.saturating_duration_since(Instant::now());
        // Processes first: what they have open keeps mounts busy and files growing.
        let cgroup = self.remove_cgroup(uid, left() / 2).await;
        let volumes = self.remove_volumes(uid, left()).await;
        // Only when nothing is mounted there any more can the directories go; the attempt itself is safe.
        let dirs = self.remove_dirs(uid, left()).await;
        let logs = self.remove_logs_of(uid, left()).await;
        cgroup.and(volumes).and(dirs).and(logs)
    }
}
