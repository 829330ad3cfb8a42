//! Images nobody uses go when the disk gets full, or when they are old: every five minutes, as the kubelet does it.
//!
//! What may go is decided by [`podwright_core::gc::unused_images`]; here it is found out what there is, who uses it and how
//! full the disk is, and what was decided is done. What may never go: an image of a container, dead ones included, one that
//! the runtime pins, and the one sandboxes are made of.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use podwright_core::gc::{DiskUse, ImagePlan, ImagePolicy, ImageSeen, unused_images};
use podwright_core::model::{FullName, KubeEvent, Time};
use podwright_cri::{CriError, ImageService, RuntimeService, v1};

use crate::host::{Pool, PoolError};

/// Kubernetes: `ImageGCPeriod`.
pub const PERIOD: Duration = Duration::from_secs(300);
/// For the file system to tell how full it is.
const DISK_LIMIT: Duration = Duration::from_secs(10);

/// Why a round failed.
#[derive(Debug, thiserror::Error)]
pub enum ImageGcError {
    /// The runtime did not tell what is needed.
    #[error("{0}")]
    Runtime(#[from] CriError),
    /// The disk did not.
    #[error("look at the disk of the images, {}: {why}", path.display())]
    Disk {
        /// Where it is mounted.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The runtime names no file system.
    #[error("the runtime does not say where images are kept")]
    Nowhere,
}

/// How full a file system is, by its mount point.
pub type Measure = Arc<dyn Fn(PathBuf) -> podwright_cri::BoxFuture<'static, Result<DiskUse, String>> + Send + Sync>;

/// What removes images.
pub struct ImageGc {
    runtime: Arc<dyn RuntimeService>,
    images: Arc<dyn ImageService>,
    measure: Measure,
    policy: ImagePolicy,
    limit: Duration,
    /// When each image was first seen and last used, since the agent started.
    known: BTreeMap<String, (Time, Time)>,
    failures: u32,
}

/// What came of one round.
#[derive(Debug, Default, PartialEq)]
pub struct Round {
    /// Images that went.
    pub removed: Vec<String>,
    /// Images that should have gone, and why they did not.
    pub failed: Vec<(String, String)>,
    /// Bytes that were needed.
    pub wanted: u64,
    /// Bytes that were freed.
    pub freed: u64,
}

impl ImageGc {
    /// On this runtime, by this policy; `limit` is for each call.
    pub fn new(
        runtime: Arc<dyn RuntimeService>,
        images: Arc<dyn ImageService>,
        measure: Measure,
        policy: ImagePolicy,
        limit: Duration,
    ) -> Self {
        Self { runtime, images, measure, policy, limit, known: BTreeMap::new(), failures: 0 }
    }

    /// Kubernetes: a threshold of 100 percent turns it off, unless age counts.
    pub fn is_off(&self) -> bool {
        self.policy.high_percent >= 100 && self.policy.max_age.is_none()
    }

    /// Look, and remove what may go.
    pub async fn round(&mut self, now: Time) -> Result<Round, ImageGcError> {
        let seen = self.look(now).await?;
        let disk = self.disk().await?;
        let ImagePlan { remove, wanted, .. } = unused_images(&seen, disk, &self.policy, now);
        let mut round = Round { wanted, ..Round::default() };
        for id in remove {
            let image = v1::ImageSpec { image: id.clone(), ..Default::default() };
            match self.images.remove_image(image, self.limit).await {
                Ok(()) => {
                    round.freed += seen.iter().find(|image| image.id == id).map_or(0, |image| image.size);
                    self.known.remove(&id);
                    round.removed.push(id);
                }
                Err(error) => round.failed.push((id, error.to_string())),
            }
        }
        Ok(round)
    }

    /// What there is and who uses it. Containers are listed last: what they use then is not overlooked.
    async fn look(&mut self, now: Time) -> Result<Vec<ImageSeen>, ImageGcError> {
        let images = self.images.list_images(None, self.limit).await?;
        let status = self.runtime.status(true, self.limit).await?;
        let sandbox_image = sandbox_image(&status.info);
        let containers = self.runtime.list_containers(None, self.limit).await?;
        let used: BTreeSet<&str> = containers
            .iter()
            .flat_map(|c| [c.image_ref.as_str(), c.image.as_ref().map_or("", |image| image.image.as_str())])
            .collect();
        self.known.retain(|id, _| images.iter().any(|image| image.id == *id));
        let mut seen = vec![];
        for image in &images {
            let names: Vec<&str> = names(image).collect();
            let in_use = names.iter().any(|name| used.contains(name));
            let (first_seen, last_used) = self.known.entry(image.id.clone()).or_insert((now, now));
            if in_use {
                *last_used = now;
            }
            seen.push(ImageSeen {
                id: image.id.clone(),
                size: image.size,
                first_seen: *first_seen,
                last_used: *last_used,
                in_use,
                pinned: image.pinned || is_sandbox_image(&names, sandbox_image.as_deref()),
            });
        }
        Ok(seen)
    }

    async fn disk(&self) -> Result<DiskUse, ImageGcError> {
        let info = self.images.image_fs_info(self.limit).await?;
        let first = info.image_filesystems.into_iter().find_map(|fs| fs.fs_id);
        let path = PathBuf::from(first.ok_or(ImageGcError::Nowhere)?.mountpoint);
        (self.measure)(path.clone()).await.map_err(|why| ImageGcError::Disk { path, why })
    }

    /// What people are to be told of a round, in the kubelet's words. The first failure may be a runtime that just starts.
    pub fn verdict(&mut self, round: &Result<Round, ImageGcError>, node: &str) -> Option<KubeEvent> {
        let failed = round.as_ref().map_or(true, |round| !round.failed.is_empty());
        self.failures = if failed { self.failures + 1 } else { 0 };
        let (reason, message) = match round {
            Err(error) if self.failures > 1 => ("ImageGCFailed", error.to_string()),
            Ok(round) if round.freed < round.wanted => {
                let (wanted, freed) = (round.wanted, round.freed);
                let why = round.failed.first().map(|(id, why)| format!("; {id}: {why}")).unwrap_or_default();
                ("FreeDiskSpaceFailed", format!("wanted to free {wanted} bytes of images, freed {freed}{why}"))
            }
            Ok(round) if !round.failed.is_empty() && self.failures > 1 => {
                let (id, why) = &round.failed[0];
                ("ImageGCFailed", format!("remove image {id}: {why}"))
            }
            _ => return None,
        };
        // About the node: no pod, no namespace.
        let pod = FullName { namespace: "".into(), name: node.into() };
        Some(KubeEvent { uid: "".into(), pod, container: None, warning: true, reason, message })
    }
}

/// Remove images every [`PERIOD`] until the agent ends; `tell` gets what people should know.
pub async fn run(mut gc: ImageGc, node: String, now: impl Fn() -> Time, tell: impl Fn(KubeEvent)) {
    if gc.is_off() {
        return;
    }
    // What the first round sees may be old enough to go soon after: a full disk does not wait for the whole period.
    let mut wait = gc.policy.min_age.clamp(Duration::from_secs(1), PERIOD);
    loop {
        let round = gc.round(now()).await;
        match &round {
            Ok(Round { removed, failed, wanted, freed })
                if !removed.is_empty() || !failed.is_empty() || *wanted > 0 =>
            {
                tracing::info!(removed = removed.len(), failed = failed.len(), wanted, freed, "images were collected");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "images could not be collected"),
        }
        gc.verdict(&round, &node).into_iter().for_each(&tell);
        tokio::time::sleep(wait).await;
        wait = PERIOD;
    }
}

/// Asks the file system itself, on a thread that may hang.
pub fn measure(pool: Pool) -> Measure {
    Arc::new(move |path| {
        let pool = pool.clone();
        Box::pin(async move {
            let key = format!("images {}", path.display());
            let asked = pool.run(&key, DISK_LIMIT, move || statvfs(&path)).await;
            asked.map_err(|error: PoolError| error.to_string())?.map_err(|error| error.to_string())
        })
    })
}

fn statvfs(path: &Path) -> rustix::io::Result<DiskUse> {
    let stat = rustix::fs::statvfs(path)?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Ok(DiskUse { capacity: bytes(stat.f_blocks), available: bytes(stat.f_bavail) })
}

fn names(image: &v1::Image) -> impl Iterator<Item = &str> {
    [image.id.as_str()].into_iter().chain(image.repo_tags.iter().chain(&image.repo_digests).map(String::as_str))
}

/// The image sandboxes are made of, where the runtime tells: containerd does, in its verbose status.
fn sandbox_image(info: &BTreeMap<String, String>) -> Option<String> {
    let config: serde_json::Value = serde_json::from_str(info.get("config")?).ok()?;
    config["sandboxImage"].as_str().filter(|name| !name.is_empty()).map(str::to_owned)
}

/// By the name the runtime gave; else by the name it has everywhere.
fn is_sandbox_image(names: &[&str], sandbox_image: Option<&str>) -> bool {
    match sandbox_image {
        Some(sandbox_image) => names.contains(&sandbox_image),
        None => names.iter().any(|name| name.contains("/pause:") || name.contains("/pause@")),
    }
}

#[cfg(test)]
mod tests;
