//! Garbage collection of dead containers, empty sandboxes and unused images.
//!
//! Plans only; each observation gives a new plan. Nothing is removed that may have a process, and no dead container before its
//! exit is journaled, because afterwards only the journal has it.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use crate::model::{ContainerId, Name, PodSeen, RunState, SandboxId, Time};

/// Containers and sandboxes to remove from one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GcPlan {
    /// Containers, in the order of the observation.
    pub remove_containers: Vec<(Name, ContainerId)>,
    /// Sandboxes: empty, or removed together with their last containers.
    pub remove_sandboxes: Vec<SandboxId>,
}

/// The dead containers and sandboxes of a pod that may be removed.
///
/// The newest dead instance of each container stays (`keep_newest`) for its logs and its last state, until the pod's content
/// should be removed. A created instance that never started does not count as dead: the newest may be about to start, older ones
/// are removed.
pub(crate) fn dead_containers(
    seen: &PodSeen,
    exit_is_journaled: impl Fn(&ContainerId) -> bool,
    remove_all: bool,
    keep_newest: bool,
) -> GcPlan {
    let mut plan = GcPlan::default();
    let mut any_seen: BTreeSet<&Name> = BTreeSet::new();
    let mut dead_seen: BTreeSet<&Name> = BTreeSet::new();
    for container in &seen.containers {
        let newest = any_seen.insert(&container.name);
        let remove = match container.state {
            RunState::Running | RunState::Unknown => false,
            RunState::Created => remove_all || !newest,
            RunState::Exited => {
                let newest_dead = dead_seen.insert(&container.name);
                (remove_all || !keep_newest || !newest_dead) && exit_is_journaled(&container.id)
            }
        };
        if remove {
            plan.remove_containers.push((container.name.clone(), container.id.clone()));
        }
    }
    for (index, sandbox) in seen.sandboxes.iter().enumerate() {
        let mut inside = seen.containers.iter().filter(|container| container.sandbox == sandbox.id);
        // When the pod is cleaned up, removing a sandbox removes its containers: one call instead of one for each.
        let free = inside.all(|c| remove_all && plan.remove_containers.iter().any(|(_, id)| *id == c.id));
        if !sandbox.ready && free && (remove_all || index > 0) {
            plan.remove_sandboxes.push(sandbox.id.clone());
        }
    }
    plan.remove_containers.retain(|(_, id)| {
        let sandbox = seen.container(id).map(|container| &container.sandbox);
        sandbox.is_none_or(|sandbox| !plan.remove_sandboxes.contains(sandbox))
    });
    plan
}

/// An image in the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSeen {
    /// Image id of the runtime.
    pub id: String,
    /// In bytes.
    pub size: u64,
    /// When it was first listed.
    pub first_seen: Time,
    /// When a container last used it; equal to `first_seen` if none did.
    pub last_used: Time,
    /// A container uses it, running or dead.
    pub in_use: bool,
    /// Pinned by the runtime: never removed.
    pub pinned: bool,
}

/// The image file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUse {
    /// Total bytes.
    pub capacity: u64,
    /// Free bytes.
    pub available: u64,
}

/// Thresholds of image garbage collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImagePolicy {
    /// Starts at this usage of the disk (`imageGCHighThresholdPercent`).
    pub high_percent: u8,
    /// Frees down to this usage (`imageGCLowThresholdPercent`).
    pub low_percent: u8,
    /// Younger images stay (`imageMinimumGCAge`).
    pub min_age: Duration,
    /// Images unused for this long are removed regardless of the disk usage (`imageMaximumGCAge`).
    pub max_age: Option<Duration>,
}

impl Default for ImagePolicy {
    /// Kubernetes: the defaults of KubeletConfiguration.
    fn default() -> Self {
        Self { high_percent: 85, low_percent: 80, min_age: Duration::from_secs(120), max_age: None }
    }
}

impl ImagePolicy {
    /// Kubernetes: a high threshold of 100 percent disables the periodic collection, unless there is a maximum age.
    pub fn is_off(&self) -> bool {
        self.high_percent >= 100 && self.max_age.is_none()
    }
}

/// Images to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImagePlan {
    /// Ids, least recently used first.
    pub remove: Vec<String>,
    /// Bytes that must be freed to get down to the low threshold.
    pub wanted: u64,
    /// Bytes of these images. If less than `wanted`, something else uses the rest of the disk.
    pub freed: u64,
}

/// The images that may be removed now.
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

/// All images that may be removed when disk space is short, the least recently used first.
pub fn all_unused_images(images: &[ImageSeen], policy: &ImagePolicy, now: Time) -> Vec<String> {
    let full = DiskUse { capacity: u64::MAX, available: 0 };
    unused_images(images, full, &ImagePolicy { high_percent: 0, low_percent: 0, ..*policy }, now).remove
}

fn bytes_to_free(disk: DiskUse, policy: &ImagePolicy) -> u64 {
    let capacity = u128::from(disk.capacity);
    let used = u128::from(disk.capacity.saturating_sub(disk.available));
    // A file system without a reported size is never too full.
    if capacity == 0 || used * 100 < capacity * u128::from(policy.high_percent) {
        return 0;
    }
    let target = capacity * u128::from(policy.low_percent) / 100;
    u64::try_from(used.saturating_sub(target)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
