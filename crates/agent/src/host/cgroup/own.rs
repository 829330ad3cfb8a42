//! The pods whose cgroups this process has created or removed: other agents may have pods below the same cgroup.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A creation that outlives its call, of ours or of the runtime, may make the cgroup of a removed pod again within this time.
const KEPT: Duration = Duration::from_secs(600);

/// When this process last worked on the cgroup of a pod, by UID.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnCgroups(Arc<Mutex<BTreeMap<String, Instant>>>);

impl OwnCgroups {
    /// The cgroup of the pod is created or removed.
    pub(super) fn add(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned(), Instant::now());
    }

    /// Of all pods that have cgroups, those of this process.
    pub(super) fn among(&self, existing: BTreeSet<String>) -> BTreeSet<String> {
        let mut own = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        own.retain(|uid, worked_on| existing.contains(uid) || worked_on.elapsed() < KEPT);
        existing.into_iter().filter(|uid| own.contains_key(uid)).collect()
    }
}
