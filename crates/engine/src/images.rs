//! The images of the engine: the CRI's image service on the image store, and the resolution of images for containers.
//!
//! An image has one id everywhere: `sha256:<digest of its configuration>`. `PullImage` returns it, so that a container is created
//! from what was pulled even if the tag moves meanwhile.

mod credentials;
mod resolve;
mod users;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use podwright_cri::{Code, CriError, CriFuture, ImageService, v1};
use podwright_image::{GcRoots, ImageRecord, ImageReference, ImageStore, PullErrorKind, Puller};
use podwright_linux::beneath::TreeUsage;
use podwright_tasks::{Pool, error_chain};
use tokio::time::{Instant, timeout};

use credentials::credentials;

pub use resolve::{ResolvedImage, resolve_image};
pub use users::{ImageUser, image_users_on_disk};

/// What the containers keep on disk, and which layers they need.
pub trait ContainersOnDisk: Send + Sync + 'static {
    /// The layers and images of all containers. Called under locks of the store: it must not use the store, nor wait.
    fn gc_roots(&self) -> GcRoots;

    /// What the writable layers of all containers use, as measured last.
    fn writable_usage(&self) -> TreeUsage;

    /// The containers, running or not, with their images.
    fn image_users(&self) -> Vec<ImageUser>;
}

/// The CRI's image service.
pub struct EngineImages {
    store: Arc<ImageStore>,
    puller: Arc<Puller>,
    pool: Pool,
    containers: Arc<dyn ContainersOnDisk>,
    /// On the file system of images and containers, for `statfs`.
    root_dir: PathBuf,
}

impl EngineImages {
    /// The images of `store`, which is below `root_dir`. Disk work is done in `pool`.
    pub fn new(
        store: Arc<ImageStore>,
        puller: Arc<Puller>,
        pool: Pool,
        containers: Arc<dyn ContainersOnDisk>,
        root_dir: PathBuf,
    ) -> Self {
        Self { store, puller, pool, containers, root_dir }
    }

    /// The store.
    pub fn store(&self) -> &Arc<ImageStore> {
        &self.store
    }

    /// Pulls into the store; of it one can learn how far pulls are.
    pub fn puller(&self) -> &Arc<Puller> {
        &self.puller
    }

    /// What the containers keep on disk.
    pub fn containers(&self) -> &Arc<dyn ContainersOnDisk> {
        &self.containers
    }

    /// Resolves an image for a new container. See [`resolve_image`].
    pub async fn resolve(&self, reference: &str, limit: Duration) -> Result<ResolvedImage, CriError> {
        let (store, reference) = (Arc::clone(&self.store), reference.to_owned());
        self.blocking("CreateContainer", limit, move || resolve_image(&store, &reference)).await
    }

    /// Deletes what neither images nor containers need. Called after a removal; the engine's sweep does the same every few minutes.
    pub async fn collect_garbage(&self, limit: Duration) -> Result<podwright_image::GcReport, CriError> {
        let (store, containers) = (Arc::clone(&self.store), Arc::clone(&self.containers));
        let collect = move || store.collect_garbage(|| containers.gc_roots());
        self.blocking_by(REMOVAL, "RemoveImage", limit, collect).await
    }

    /// Runs disk work in the pool.
    async fn blocking<T: Send + 'static, E: std::error::Error + Send + 'static>(
        &self,
        call: &'static str,
        limit: Duration,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<T, CriError> {
        self.blocking_by("images", call, limit, work).await
    }

    async fn blocking_by<T: Send + 'static, E: std::error::Error + Send + 'static>(
        &self,
        key: &'static str,
        call: &'static str,
        limit: Duration,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<T, CriError> {
        match self.pool.run(key, limit, move || work().map_err(|error| error_chain(&error))).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(message)) => Err(CriError::new(Code::Other, call, message)),
            Err(error) if error.in_doubt() => Err(CriError::new(Code::DeadlineExceeded, call, error_chain(&error))),
            Err(error) => Err(CriError::new(Code::ResourceExhausted, call, error_chain(&error))),
        }
    }

    fn find(&self, call: &'static str, image: &v1::ImageSpec) -> Result<Option<ImageRecord>, CriError> {
        let found = self.store.find(&image.image);
        found.map_err(|error| CriError::new(Code::InvalidArgument, call, error_chain(&error)))
    }

    /// An image as the CRI shows it. An image whose configuration cannot be read has no user.
    fn shown(store: &ImageStore, image: &ImageRecord) -> v1::Image {
        let user = store.configuration(image).map(|configuration| configuration.config.user).unwrap_or_default();
        let (uid, username) = user_of(&user);
        v1::Image {
            id: image.id.to_string(),
            repo_tags: image.tags().map(ToString::to_string).collect(),
            repo_digests: image.repo_digests().map(ToString::to_string).collect(),
            size: image.size(),
            uid,
            username,
            spec: None,
            pinned: image.pinned,
        }
    }

    async fn pull(&self, request: v1::PullImageRequest) -> Result<String, CriError> {
        const CALL: &str = "PullImage";
        let invalid = |message: String| CriError::new(Code::InvalidArgument, CALL, message);
        let reference: ImageReference =
            request.image.unwrap_or_default().image.parse().map_err(|error| invalid(error_chain(&error)))?;
        let credentials = credentials(request.auth.as_ref(), &reference).map_err(|error| invalid(error.to_string()))?;
        match self.puller.pull(&reference, credentials).await {
            Ok(image) => Ok(image.id.to_string()),
            Err(error) => {
                let code = match error.kind() {
                    PullErrorKind::NotFound => Code::NotFound,
                    PullErrorKind::Invalid => Code::InvalidArgument,
                    PullErrorKind::NoSpace => Code::ResourceExhausted,
                    // `Unavailable` would mean that the engine is.
                    PullErrorKind::Unauthorized | PullErrorKind::Unavailable | PullErrorKind::Internal => Code::Other,
                };
                Err(CriError::new(code, CALL, error_chain(&*error)))
            }
        }
    }

    async fn remove(&self, image: &v1::ImageSpec, limit: Duration) -> Result<(), CriError> {
        const CALL: &str = "RemoveImage";
        let until = Instant::now() + limit;
        let Some(found) = self.find(CALL, image)? else { return Ok(()) };
        let store = Arc::clone(&self.store);
        self.blocking_by(REMOVAL, CALL, limit, move || store.remove_image(found.id)).await?;
        // The caller measures what it has freed.
        self.collect_garbage(until.saturating_duration_since(Instant::now())).await?;
        Ok(())
    }
}

impl ImageService for EngineImages {
    fn list_images(&self, filter: Option<v1::ImageFilter>, limit: Duration) -> CriFuture<'_, Vec<v1::Image>> {
        Box::pin(async move {
            const CALL: &str = "ListImages";
            let wanted = filter.and_then(|filter| filter.image).filter(|image| !image.image.is_empty());
            let images = match wanted {
                Some(image) => self.find(CALL, &image)?.into_iter().collect(),
                None => self.store.images(),
            };
            let store = Arc::clone(&self.store);
            let shown =
                move || Ok::<_, std::convert::Infallible>(images.iter().map(|i| Self::shown(&store, i)).collect());
            self.blocking(CALL, limit, shown).await
        })
    }

    fn image_status(
        &self,
        image: v1::ImageSpec,
        verbose: bool,
        limit: Duration,
    ) -> CriFuture<'_, v1::ImageStatusResponse> {
        Box::pin(async move {
            const CALL: &str = "ImageStatus";
            let Some(found) = self.find(CALL, &image)? else { return Ok(v1::ImageStatusResponse::default()) };
            let store = Arc::clone(&self.store);
            let status = move || {
                let shown = Self::shown(&store, &found);
                let mut info = std::collections::BTreeMap::new();
                if verbose {
                    info.insert("info".to_owned(), verbose_info(&store, &found)?);
                }
                Ok::<_, podwright_image::ContentError>(v1::ImageStatusResponse { image: Some(shown), info })
            };
            self.blocking(CALL, limit, status).await
        })
    }

    fn pull_image(&self, request: v1::PullImageRequest, limit: Duration) -> CriFuture<'_, String> {
        Box::pin(async move {
            let late = |_| Err(CriError::new(Code::DeadlineExceeded, "PullImage", format!("no result in {limit:?}")));
            timeout(limit, self.pull(request)).await.unwrap_or_else(late)
        })
    }

    fn remove_image(&self, image: v1::ImageSpec, limit: Duration) -> CriFuture<'_, ()> {
        Box::pin(async move { self.remove(&image, limit).await })
    }

    fn image_fs_info(&self, limit: Duration) -> CriFuture<'_, v1::ImageFsInfoResponse> {
        Box::pin(async move {
            let store = Arc::clone(&self.store);
            let images = self.blocking("ImageFsInfo", limit, move || store.usage()).await?;
            let containers = self.containers.writable_usage();
            let mountpoint = self.root_dir.to_string_lossy().into_owned();
            let timestamp = now_ns();
            let usage = |bytes: u64, inodes: Option<u64>| v1::FilesystemUsage {
                timestamp,
                fs_id: Some(v1::FilesystemIdentifier { mountpoint: mountpoint.clone() }),
                used_bytes: Some(v1::UInt64Value { value: bytes }),
                inodes_used: inodes.map(|value| v1::UInt64Value { value }),
            };
            Ok(v1::ImageFsInfoResponse {
                // The store does not count inodes.
                image_filesystems: vec![usage(images.blob_bytes + images.layer_bytes, None)],
                container_filesystems: vec![usage(containers.bytes, Some(containers.inodes))],
            })
        })
    }
}

/// The whole configuration, as crictl shows it.
fn verbose_info(store: &ImageStore, image: &ImageRecord) -> Result<String, podwright_image::ContentError> {
    let configuration = store.content().read(image.id, store.limits().config_bytes)?;
    let configuration: serde_json::Value = serde_json::from_slice(&configuration).unwrap_or_default();
    let chain = image.chain().last().map(ToString::to_string);
    Ok(serde_json::json!({ "chainID": chain, "imageSpec": configuration }).to_string())
}

/// A user of an image as number or name (containerd: `getUserFromImage`).
fn user_of(user: &str) -> (Option<v1::Int64Value>, String) {
    let user = user.split(':').next().unwrap_or_default();
    match user.parse() {
        Ok(value) => (Some(v1::Int64Value { value }), String::new()),
        Err(_) => (None, user.to_owned()),
    }
}

/// The key of removals in the pool: they take long, and others do not wait for them.
const REMOVAL: &str = "image removal";

pub(crate) fn now_ns() -> i64 {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
