//! Image garbage collection: removes unused images when the disk is full or when they are old, every five minutes as in the
//! Go kubelet.
//!
//! [`podwright_core::gc::unused_images`] decides which images to remove; this module collects the images, their use and the disk
//! usage, and removes them. Never removed: images of containers (also exited ones), images that the runtime pins, and the
//! sandbox image.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use podwright_core::gc::{DiskUse, ImagePlan, ImagePolicy, ImageSeen, all_unused_images, unused_images};
use podwright_core::model::{FullName, KubeEvent, Time};
use podwright_cri::{CriError, ImageService, RuntimeService, v1};

use crate::feed::{PodFeed, PodView};
use crate::host::{Pool, PoolError};
use crate::perform::canonical_image_name;

/// Kubernetes: `ImageGCPeriod`.
pub const PERIOD: Duration = Duration::from_secs(300);
/// For one statvfs.
const DISK_LIMIT: Duration = Duration::from_secs(10);

/// A failed collection.
#[derive(Debug, thiserror::Error)]
pub enum ImageGcError {
    /// A call to the runtime failed.
    #[error("{0}")]
    Runtime(#[from] CriError),
    /// The disk usage is unknown.
    #[error("read the disk usage of {}: {source}", path.display())]
    Disk {
        /// The mount point.
        path: PathBuf,
        /// The error.
        source: MeasureError,
    },
    /// The runtime reports no image file system.
    #[error("the runtime reports no image file system")]
    NoImageFs,
}

/// A failed measurement of a file system.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// No thread was free, or the call hangs.
    #[error("{0}")]
    Pool(#[from] PoolError),
    /// statvfs failed.
    #[error("{0}")]
    Statvfs(#[from] rustix::io::Errno),
}

/// Reads the usage of the file system at a mount point.
pub(crate) type Measure =
    Arc<dyn Fn(PathBuf) -> podwright_cri::BoxFuture<'static, Result<DiskUse, MeasureError>> + Send + Sync>;

/// The image garbage collector.
pub struct ImageGc {
    runtime: Arc<dyn RuntimeService>,
    images: Arc<dyn ImageService>,
    measure: Measure,
    policy: ImagePolicy,
    limit: Duration,
    /// When each image was first seen and last used since the agent started.
    known: BTreeMap<String, (Time, Time)>,
    /// Images of the first list: they are older than the agent.
    initial: Option<BTreeSet<String>>,
    /// Pods whose images are kept, also before their containers exist.
    pods: Option<Arc<PodFeed>>,
    failures: u32,
}

/// The garbage collector, shared by the periodic collection and eviction.
pub type SharedImageGc = Arc<tokio::sync::Mutex<ImageGc>>;

/// The result of one collection.
#[derive(Debug, Default, PartialEq)]
pub struct Collection {
    /// The ids of removed images.
    pub removed: Vec<String>,
    /// The ids of images that could not be removed, with the error.
    pub failed: Vec<(String, String)>,
    /// Bytes to free.
    pub wanted: u64,
    /// Bytes freed.
    pub freed: u64,
}

impl ImageGc {
    /// `limit` applies to each call to the runtime.
    pub fn new(
        runtime: Arc<dyn RuntimeService>,
        images: Arc<dyn ImageService>,
        measure: Measure,
        policy: ImagePolicy,
        limit: Duration,
    ) -> Self {
        Self { runtime, images, measure, policy, limit, known: BTreeMap::new(), initial: None, pods: None, failures: 0 }
    }

    /// The images of these pods are never removed: a pod that starts may have found its image a moment ago.
    pub fn with_pods(self, pods: Arc<PodFeed>) -> Self {
        Self { pods: Some(pods), ..self }
    }

    /// Collects once.
    pub async fn collect(&mut self, now: Time) -> Result<Collection, ImageGcError> {
        let seen = self.list_images(now).await?;
        let disk = self.disk().await?;
        let ImagePlan { remove, wanted, .. } = unused_images(&seen, disk, &self.policy, now);
        Ok(self.remove(remove, &seen, wanted).await)
    }

    /// Removes every unused image, because disk space is short (Go kubelet: `DeleteUnusedImages`). Images that are younger than the
    /// minimum age stay, unless they are older than the agent.
    pub async fn reclaim(&mut self, now: Time) -> Result<Collection, ImageGcError> {
        let mut seen = self.list_images(now).await?;
        for image in &mut seen {
            if self.initial.as_ref().is_some_and(|initial| initial.contains(&image.id)) {
                image.first_seen = Time::ZERO;
            }
        }
        let remove = all_unused_images(&seen, &self.policy, now);
        Ok(self.remove(remove, &seen, 0).await)
    }

    async fn remove(&mut self, remove: Vec<String>, seen: &[ImageSeen], wanted: u64) -> Collection {
        let mut collection = Collection { wanted, ..Collection::default() };
        for id in remove {
            let image = v1::ImageSpec { image: id.clone(), ..Default::default() };
            match self.images.remove_image(image, self.limit).await {
                Ok(()) => {
                    collection.freed += seen.iter().find(|image| image.id == id).map_or(0, |image| image.size);
                    self.known.remove(&id);
                    collection.removed.push(id);
                }
                Err(error) => collection.failed.push((id, error.to_string())),
            }
        }
        collection
    }

    /// The images and their use. Containers are listed last, so that an image of a new container counts as used.
    async fn list_images(&mut self, now: Time) -> Result<Vec<ImageSeen>, ImageGcError> {
        let images = self.images.list_images(None, self.limit).await?;
        let status = self.runtime.status(true, self.limit).await?;
        let sandbox_image = sandbox_image(&status.info);
        let containers = self.runtime.list_containers(None, self.limit).await?;
        // Pods are read after containers: what starts meanwhile is in one of them.
        let of_pods = self.pods.as_ref().map(|pods| images_of_pods(&pods.list().1)).unwrap_or_default();
        let used: BTreeSet<&str> = containers
            .iter()
            .flat_map(|c| [c.image_ref.as_str(), c.image.as_ref().map_or("", |image| image.image.as_str())])
            .chain(of_pods.iter().map(String::as_str))
            .collect();
        self.initial.get_or_insert_with(|| images.iter().map(|image| image.id.clone()).collect());
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
        let path = PathBuf::from(first.ok_or(ImageGcError::NoImageFs)?.mountpoint);
        (self.measure)(path.clone()).await.map_err(|source| ImageGcError::Disk { path, source })
    }

    /// The event to report, with the Go kubelet's reasons. The first failure is not reported: the runtime may be starting.
    pub(crate) fn event_for(&mut self, collection: &Result<Collection, ImageGcError>, node: &str) -> Option<KubeEvent> {
        let failed = collection.as_ref().map_or(true, |collection| !collection.failed.is_empty());
        self.failures = if failed { self.failures + 1 } else { 0 };
        let (reason, message) = match collection {
            Err(error) if self.failures > 1 => ("ImageGCFailed", error.to_string()),
            Ok(collection) if collection.freed < collection.wanted => {
                let (wanted, freed) = (collection.wanted, collection.freed);
                let why = collection.failed.first().map(|(id, why)| format!("; {id}: {why}")).unwrap_or_default();
                ("FreeDiskSpaceFailed", format!("wanted to free {wanted} bytes of images, freed {freed}{why}"))
            }
            Ok(collection) if !collection.failed.is_empty() && self.failures > 1 => {
                let (id, why) = &collection.failed[0];
                ("ImageGCFailed", format!("remove image {id}: {why}"))
            }
            _ => return None,
        };
        // The event is about the node: no pod, no namespace.
        let pod = FullName { namespace: "".into(), name: node.into() };
        Some(KubeEvent { uid: None, pod, container: None, warning: true, reason, message, annotations: vec![] })
    }
}

/// Collects every [`PERIOD`], forever; `report` gets the events.
pub async fn run(gc: SharedImageGc, node: String, now: impl Fn() -> Time, report: impl Fn(KubeEvent)) {
    // Images of the first collection may reach the minimum age soon after: with a full disk, the second collection must not be late.
    let mut wait = gc.lock().await.policy.min_age.clamp(Duration::from_secs(1), PERIOD);
    loop {
        let mut gc = gc.lock().await;
        let collection = gc.collect(now()).await;
        match &collection {
            Ok(Collection { removed, failed, wanted, freed })
                if !removed.is_empty() || !failed.is_empty() || *wanted > 0 =>
            {
                tracing::info!(
                    removed = removed.len(),
                    failed = failed.len(),
                    wanted_bytes = wanted,
                    freed_bytes = freed,
                    "images collected"
                );
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "image collection failed"),
        }
        gc.event_for(&collection, &node).into_iter().for_each(&report);
        drop(gc);
        tokio::time::sleep(wait).await;
        wait = PERIOD;
    }
}

/// Reads the usage with statvfs, on a thread of the pool because it may hang.
pub fn measure(pool: Pool) -> Measure {
    Arc::new(move |path| {
        let pool = pool.clone();
        Box::pin(async move {
            let key = format!("images {}", path.display());
            Ok(pool.run(key, DISK_LIMIT, move || statvfs(&path)).await??)
        })
    })
}

fn statvfs(path: &Path) -> rustix::io::Result<DiskUse> {
    let stat = rustix::fs::statvfs(path)?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Ok(DiskUse { capacity: bytes(stat.f_blocks), available: bytes(stat.f_bavail) })
}

/// The names, as given and as runtimes report them, of the images in the specs of pods that have not ended.
fn images_of_pods(views: &[Arc<PodView>]) -> BTreeSet<String> {
    let specs = views.iter().filter(|view| !view.has_ended()).filter_map(|view| view.object.spec.as_ref());
    let given = specs.flat_map(|spec| {
        let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten()).map(|c| &c.image);
        let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| &c.image);
        let volumes = spec.volumes.iter().flatten().filter_map(|volume| Some(&volume.image.as_ref()?.reference));
        containers.chain(ephemeral).chain(volumes).flatten()
    });
    given.flat_map(|image| [image.clone()].into_iter().chain(canonical_image_name(image))).collect()
}

fn names(image: &v1::Image) -> impl Iterator<Item = &str> {
    [image.id.as_str()].into_iter().chain(image.repo_tags.iter().chain(&image.repo_digests).map(String::as_str))
}

/// The sandbox image from the runtime's verbose status; containerd reports it.
pub(crate) fn sandbox_image(info: &BTreeMap<String, String>) -> Option<String> {
    let config: serde_json::Value = serde_json::from_str(info.get("config")?).ok()?;
    config["sandboxImage"].as_str().filter(|name| !name.is_empty()).map(str::to_owned)
}

/// By the name that the runtime reports, else by the usual name.
fn is_sandbox_image(names: &[&str], sandbox_image: Option<&str>) -> bool {
    match sandbox_image {
        Some(sandbox_image) => names.contains(&sandbox_image),
        None => names.iter().any(|name| name.contains("/pause:") || name.contains("/pause@")),
    }
}

#[cfg(test)]
mod tests;
