//! What may go: dead containers, empty sandboxes, images nobody uses.
//!
//! Plans only: they say what to remove, and are made anew from the next look. Nothing goes that may have a process, and no dead
//! container before its exit is journaled, because after that the journal is all that remembers it.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use crate::model::{ContainerId, Name, PodSeen, RunState, SandboxId, Time};

/// What to remove of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcPlan {
    /// Containers, in the order they were seen.
    pub remove_containers: Vec<(Name, ContainerId)>,
    /// Sandboxes: empty, or taking the last containers of their pod along.
    pub remove_sandboxes: Vec<SandboxId>,
}

impl GcPlan {
    /// There is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.remove_containers.is_empty() && self.remove_sandboxes.is_empty()
    }
}

/// What of a pod's dead containers and sandboxes may go.
///
/// The newest dead instance of each container stays (`keep_newest`) for its logs and its last state, until the pod's content
/// should go. An instance that never started is no dead one: the newest may be about to start, older ones can go.
pub fn dead_containers(
    seen: &PodSeen,
    record_known_exits: impl Fn(&ContainerId) -> bool,
    content_should_go: bool,
    keep_newest: bool,
) -> GcPlan {
    let mut plan = GcPlan::default();
    let mut any_seen: BTreeSet<&Name> = BTreeSet::new();
    let mut dead_seen: BTreeSet<&Name> = BTreeSet::new();
    for container in &seen.containers {
        let newest = any_seen.insert(&container.name);
        let goes = match container.state {
            RunState::Running | RunState::Unknown => false,
            RunState::Created => content_should_go || !newest,
            RunState::Exited => {
                let newest_dead = dead_seen.insert(&container.name);
                (content_should_go || !keep_newest || !newest_dead) && record_known_exits(&container.id)
            }
        };
        if goes {
            plan.remove_containers.push((container.name.clone(), container.id.clone()));
        }
    }
    for (index, sandbox) in seen.sandboxes.iter().enumerate() {
        let mut inside = seen.containers.iter().filter(|container| container.sandbox == sandbox.id);
        // At the end of the pod a sandbox takes its containers along: one call instead of one for each.
        let free = inside.all(|c| content_should_go && plan.remove_containers.iter().any(|(_, id)| *id == c.id));
        if !sandbox.ready && free && (content_should_go || index > 0) {
            plan.remove_sandboxes.push(sandbox.id.clone());
        }
    }
    plan.remove_containers.retain(|(_, id)| {
        let sandbox = seen.container(id).map(|container| &container.sandbox);
        sandbox.is_none_or(|sandbox| !plan.remove_sandboxes.contains(sandbox))
    });
    plan
}

/// An image on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSeen {
    /// Its id.
    pub id: String,
    /// Its size in bytes.
    pub size: u64,
    /// When it was first seen here.
    pub first_seen: Time,
    /// When a container last used it; first seen, if none did.
    pub last_used: Time,
    /// A container uses it, running or dead.
    pub in_use: bool,
    /// The runtime says it must stay.
    pub pinned: bool,
}

/// The file system images are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUse {
    /// Bytes in all.
    pub capacity: u64,
    /// Bytes free.
    pub available: u64,
}

/// When images go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImagePolicy {
    /// From this use of the disk on (`imageGCHighThresholdPercent`).
    pub high_percent: u8,
    /// Down to this use (`imageGCLowThresholdPercent`).
    pub low_percent: u8,
    /// None younger than this (`imageMinimumGCAge`).
    pub min_age: Duration,
    /// Whatever the use of the disk, what was unused for this long (`imageMaximumGCAge`).
    pub max_age: Option<Duration>,
}

impl Default for ImagePolicy {
    /// Kubernetes: the defaults of KubeletConfiguration.
    fn default() -> Self {
        Self { high_percent: 85, low_percent: 80, min_age: Duration::from_secs(120), max_age: None }
    }
}

/// What to remove of the images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImagePlan {
    /// Ids, the longest unused first.
    pub remove: Vec<String>,
    /// Bytes that must be freed to get down to the low threshold.
    pub wanted: u64,
    /// Bytes these images take. Less than wanted: the rest of the disk is used by something else.
    pub freed: u64,
}

/// What images may go now.
pub fn unused_images(images: &[ImageSeen], disk: DiskUse, policy: &ImagePolicy, now: Time) -> ImagePlan {
    let mut plan = ImagePlan { wanted: bytes_to_free(disk, policy), ..ImagePlan::default() };
    let mut idle: Vec<&ImageSeen> = images.iter().filter(|image| !image.in_use && !image.pinned).collect();
    idle.sort_by_key(|image| (image.last_used, image.first_seen, Reverse(image.size), &image.id));
    for image in idle {
        let too_old = policy.max_age.is_some_and(|age| now.saturating_sub(image.last_used) > age);
        let too_young = now.saturating_sub(image.first_seen) < policy.min_age;
        if too_old || (!too_young && plan.freed < plan.wanted) {
            plan.remove.push(image.id.clone());
            plan.freed = plan.freed.saturating_add(image.size);
        }
    }
    plan
}

fn bytes_to_free(disk: DiskUse, policy: &ImagePolicy) -> u64 {
    let capacity = u128::from(disk.capacity);
    let used = u128::from(disk.capacity.saturating_sub(disk.available));
    // A file system that says nothing of its size can't be too full.
    if capacity == 0 || used * 100 < capacity * u128::from(policy.high_percent) {
        return 0;
    }
    let target = capacity * u128::from(policy.low_percent) / 100;
    u64::try_from(used.saturating_sub(target)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
