//! Pulls images from registries into the store.
//!
//! ```text
//! resolve ─▶ index? choose the platform ─▶ manifest ─▶ configuration ─▶ layers, several at once ─▶ image becomes visible
//!                                                                        └ each unpacked when it and those below are there
//! ```
//!
//! Equal pulls (reference and credentials) share one run; it ends when the last caller goes away. Equal blobs of different pulls
//! are transferred once. Whatever fails, the store shows the image as it was before.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::{BoxFuture, FutureExt, Shared, WeakShared};
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::mpsc;

use crate::chain::ChainId;
use crate::content::ContentError;
use crate::digest::Digest;
use crate::disk::DiskError;
use crate::flights::Flights;
use crate::images::{ImageRecord, LayerRecord};
use crate::layers::LayerError;
use crate::leases::ContentLease;
use crate::manifest::{Descriptor, ImageConfiguration, ImageManifest, ImageManifestError, ManifestDocument};
use crate::progress::{ProgressSnapshot, PullProgress, SharedProgress};
use crate::reference::{ImageReference, Version};
use crate::registry::{RegistryClient, RegistryCredentials, RegistryError, RegistryOptions, RepositorySession};
use crate::store::{ImageStore, ImageStoreError, NewImage, layer_records};
use crate::unpack::UnpackError;

/// Pulls images; one per store.
#[derive(Debug)]
pub struct Puller {
    store: Arc<ImageStore>,
    registry: Arc<RegistryClient>,
    runs: Mutex<BTreeMap<PullKey, Run>>,
    flights: Arc<PullFlights>,
}

#[derive(Debug, Default)]
struct PullFlights {
    blobs: Flights,
    layers: Flights,
}

type PullKey = (ImageReference, Digest);
type PullResult = Result<ImageRecord, Arc<PullError>>;
type SharedPull = Shared<BoxFuture<'static, PullResult>>;

#[derive(Debug)]
struct Run {
    pull: WeakShared<BoxFuture<'static, PullResult>>,
    progress: SharedProgress,
}

/// Why an image was not pulled.
#[derive(Debug, thiserror::Error)]
#[error("pull image {image}")]
pub struct PullError {
    /// The normalised reference.
    pub image: ImageReference,
    /// What went wrong.
    #[source]
    pub problem: PullProblem,
}

/// What went wrong in a pull.
#[derive(Debug, thiserror::Error)]
pub enum PullProblem {
    /// The registry did not deliver.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A document of the image can't be used.
    #[error(transparent)]
    Manifest(#[from] ImageManifestError),
    /// Content could not be stored.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// A layer could not be unpacked.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// The store failed otherwise.
    #[error(transparent)]
    Store(#[from] ImageStoreError),
    /// A blocking thread panicked; the log has its message.
    #[error("{0} panicked")]
    Panicked(&'static str),
}

/// What a failed pull means to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullErrorKind {
    /// The registry has no such image.
    NotFound,
    /// The registry wants other credentials.
    Unauthorized,
    /// The registry can't be reached or fails; a later pull may succeed.
    Unavailable,
    /// The disk of this node is full.
    NoSpace,
    /// The image can't be used on this node, now or later.
    Invalid,
    /// This node failed otherwise.
    Internal,
}

impl PullError {
    /// What it means to the caller.
    pub fn kind(&self) -> PullErrorKind {
        match &self.problem {
            PullProblem::Registry(RegistryError::Content(error)) | PullProblem::Content(error) => content_kind(error),
            PullProblem::Registry(error) => match error.status().map(|status| status.as_u16()) {
                Some(404) => PullErrorKind::NotFound,
                Some(401 | 403) => PullErrorKind::Unauthorized,
                _ if matches!(error, RegistryError::Hosts { .. } | RegistryError::Tls { .. }) => {
                    PullErrorKind::Internal
                }
                _ => PullErrorKind::Unavailable,
            },
            PullProblem::Manifest(_) => PullErrorKind::Invalid,
            PullProblem::Layer(LayerError::Unpack(UnpackError::Disk { .. })) => PullErrorKind::NoSpace,
            PullProblem::Layer(LayerError::Unpack(UnpackError::Create { .. })) => PullErrorKind::Internal,
            PullProblem::Layer(LayerError::Unpack(_)) => PullErrorKind::Invalid,
            PullProblem::Layer(LayerError::Content(error)) => content_kind(error),
            PullProblem::Layer(_) | PullProblem::Store(_) | PullProblem::Panicked(_) => PullErrorKind::Internal,
        }
    }
}

fn content_kind(error: &ContentError) -> PullErrorKind {
    match error {
        ContentError::Disk(DiskError::NoSpace { .. }) => PullErrorKind::NoSpace,
        ContentError::Disk(_) | ContentError::File(_) | ContentError::Missing(_) => PullErrorKind::Internal,
        ContentError::Digest { .. } | ContentError::Size { .. } | ContentError::TooLarge { .. } => {
            PullErrorKind::Unavailable
        }
    }
}

impl Puller {
    /// A puller for this store. Reads the system's certificates.
    pub fn new(store: Arc<ImageStore>, options: RegistryOptions) -> Result<Self, RegistryError> {
        let registry = Arc::new(RegistryClient::new(options)?);
        Ok(Self { store, registry, runs: Mutex::default(), flights: Arc::default() })
    }

    /// Pulls an image, or joins a pull of it that is under way. Dropping the future abandons the pull unless others wait for it;
    /// callers give it a time limit that way.
    pub async fn pull(&self, image: &ImageReference, credentials: RegistryCredentials) -> PullResult {
        self.join(image, credentials).await
    }

    /// How far the pulls of this image are: the one that is furthest. `None` if there is none under way.
    pub fn progress(&self, image: &ImageReference) -> Option<ProgressSnapshot> {
        let progress = self.observe(image);
        progress.iter().map(|progress| progress.snapshot()).max_by_key(ProgressSnapshot::total)
    }

    /// The progress of every pull of this image that is under way, to follow it.
    pub fn observe(&self, image: &ImageReference) -> Vec<Arc<PullProgress>> {
        let runs = self.runs.lock().expect("no panic under this lock");
        let of_image = runs.iter().filter(|((reference, _), run)| reference == image && run.pull.upgrade().is_some());
        of_image.map(|(_, run)| Arc::clone(&run.progress)).collect()
    }

    fn join(&self, image: &ImageReference, credentials: RegistryCredentials) -> SharedPull {
        let key = (image.clone(), credentials.fingerprint());
        let mut runs = self.runs.lock().expect("no panic under this lock");
        runs.retain(|_, run| run.pull.upgrade().is_some());
        // A finished run whose result is still being read belongs to the past: a new caller wants the registry's present answer.
        let running = runs.get(&key).and_then(|run| run.pull.upgrade()).filter(|pull| pull.peek().is_none());
        if let Some(running) = running {
            return running;
        }
        let progress = SharedProgress::default();
        let pull = PullRun {
            image: image.clone(),
            store: Arc::clone(&self.store),
            registry: Arc::clone(&self.registry),
            flights: Arc::clone(&self.flights),
            progress: Arc::clone(&progress),
            cancelled: CancelOnDrop::default(),
        };
        let pull = pull.run(credentials).boxed().shared();
        if let Some(weak) = pull.downgrade() {
            runs.insert(key, Run { pull: weak, progress });
        }
        pull
    }
}

/// One pull under way.
struct PullRun {
    image: ImageReference,
    store: Arc<ImageStore>,
    registry: Arc<RegistryClient>,
    flights: Arc<PullFlights>,
    progress: SharedProgress,
    cancelled: CancelOnDrop,
}

/// Ends blocking work whose pull was dropped.
#[derive(Default)]
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl PullRun {
    async fn run(self, credentials: RegistryCredentials) -> PullResult {
        let result = self.pull(credentials).await;
        if result.is_ok() {
            let store = Arc::clone(&self.store);
            // Off the path of the pod that waits: layers that are lost in a power failure are unpacked again.
            podwright_tasks::spawn("image-sync", async move {
                if let Ok(Err(error)) = tokio::task::spawn_blocking(move || store.sync()).await {
                    tracing::warn!(%error, "layers are not synced");
                }
            });
        }
        result.map_err(|problem| Arc::new(PullError { image: self.image.clone(), problem }))
    }

    async fn pull(&self, credentials: RegistryCredentials) -> Result<ImageRecord, PullProblem> {
        let (registry, image) = (Arc::clone(&self.registry), self.image.clone());
        let session = blocking("registry configuration", move || registry.session(&image, credentials)).await??;
        let mut lease = self.store.lease();
        let (target, manifest_digest, manifest) = self.resolve(&session, &mut lease).await?;
        let configuration = self.configuration(&session, &manifest, &mut lease).await?;
        let layers = layer_records(&manifest, &configuration);
        for layer in &layers {
            lease.hold_blob(layer.blob);
        }
        for chain in chain_of(&layers) {
            lease.hold_layer(chain);
        }
        self.progress.begin(&manifest.layers);
        self.layers(&session, &manifest, &layers).await?;
        let mut names = BTreeMap::from([(self.image.with_digest(target), target)]);
        names.insert(self.image.clone(), target);
        let store = Arc::clone(&self.store);
        let new = NewImage { names, manifest: manifest_digest, id: manifest.config.digest, layers };
        let added = blocking("image list", move || store.add(new)).await?;
        drop(lease);
        Ok(added?)
    }

    /// The digest under the reference, and the manifest for this platform.
    async fn resolve(
        &self,
        session: &RepositorySession,
        lease: &mut ContentLease,
    ) -> Result<(Digest, Digest, ImageManifest), PullProblem> {
        let limits = self.store.limits();
        let mut version = match self.image.version() {
            Version::Tag(tag) => (tag.clone(), None),
            Version::Digest(digest) => (digest.to_string(), Some(*digest)),
        };
        let mut target = None;
        for _ in 0..=limits.index_depth {
            let fetched = session.manifest(&version.0, version.1, limits.manifest_bytes).await?;
            let document = ManifestDocument::parse(&fetched.bytes, &fetched.media_type, limits)?;
            let digest = fetched.digest;
            lease.hold_blob(digest);
            let store = Arc::clone(&self.store);
            blocking("content store", move || store.content().write(&fetched.bytes)).await??;
            let target = *target.get_or_insert(digest);
            match document {
                ManifestDocument::Manifest(manifest) => return Ok((target, digest, manifest)),
                ManifestDocument::Index(index) => {
                    let chosen = index.choose(self.store.platform())?.digest;
                    version = (chosen.to_string(), Some(chosen));
                }
            }
        }
        Err(ImageManifestError::Depth(limits.index_depth).into())
    }

    async fn configuration(
        &self,
        session: &RepositorySession,
        manifest: &ImageManifest,
        lease: &mut ContentLease,
    ) -> Result<ImageConfiguration, PullProblem> {
        lease.hold_blob(manifest.config.digest);
        self.fetch(session, &manifest.config, &|_| {}).await?;
        let (store, digest) = (Arc::clone(&self.store), manifest.config.digest);
        let read = move || store.content().read(digest, store.limits().config_bytes);
        let bytes = match blocking("content store", read.clone()).await? {
            // Damaged on disk: once more from the registry.
            Err(ContentError::Digest { .. }) => {
                self.forget(digest).await?;
                self.fetch(session, &manifest.config, &|_| {}).await?;
                blocking("content store", read).await??
            }
            other => other?,
        };
        let configuration = ImageConfiguration::parse(&bytes, self.store.limits())?;
        configuration.check(manifest, self.store.platform())?;
        Ok(configuration)
    }

    /// Transfers several layers at once, and unpacks each as soon as it and those below are there.
    async fn layers(
        &self,
        session: &RepositorySession,
        manifest: &ImageManifest,
        layers: &[LayerRecord],
    ) -> Result<(), PullProblem> {
        // One message per layer, so that transfers never wait for it.
        let (arrived, mut arrivals) = mpsc::channel(layers.len().max(1));
        let chain = chain_of(layers);
        let transfers = async {
            let transfer = |index: usize| {
                let (arrived, descriptor, chain) = (arrived.clone(), &manifest.layers[index], chain[index]);
                async move {
                    if !self.store.is_unpacked(chain) {
                        let progress = |bytes| self.progress.received(index, bytes);
                        self.fetch(session, descriptor, &progress).await?;
                    }
                    let _ = arrived.send(index).await;
                    Ok::<_, PullProblem>(())
                }
            };
            let parallel = self.registry.options().parallel_layers.max(1);
            let all = stream::iter(0..layers.len()).map(transfer).buffer_unordered(parallel);
            all.try_collect::<()>().await
        };
        let unpacking = async {
            let mut here = vec![false; layers.len()];
            let mut next = 0;
            while next < layers.len() {
                let Some(index) = arrivals.recv().await else { return Ok(()) };
                here[index] = true;
                while next < layers.len() && here[next] {
                    self.unpack(session, &manifest.layers[next], &layers[..=next], chain[next]).await?;
                    self.progress.unpacked(next);
                    next += 1;
                }
            }
            Ok(())
        };
        tokio::try_join!(transfers, unpacking).map(|_| ())
    }

    async fn unpack(
        &self,
        session: &RepositorySession,
        descriptor: &Descriptor,
        layers: &[LayerRecord],
        chain: ChainId,
    ) -> Result<(), PullProblem> {
        let _one = self.flights.layers.lock(chain.digest()).await;
        if self.store.is_unpacked(chain) {
            return Ok(());
        }
        match self.try_unpack(layers).await? {
            // Damaged on disk since it was verified, or gone: once more from the registry.
            Err(
                LayerError::Unpack(UnpackError::BlobDigest { layer, .. })
                | LayerError::Content(ContentError::Missing(layer)),
            ) => {
                tracing::warn!(image = %self.image, digest = %layer, "stored layer is damaged, pulling it again");
                self.forget(layer).await?;
                self.fetch(session, descriptor, &|_| {}).await?;
                Ok(self.try_unpack(layers).await??)
            }
            other => Ok(other?),
        }
    }

    async fn try_unpack(&self, layers: &[LayerRecord]) -> Result<Result<(), LayerError>, PullProblem> {
        let (store, layers) = (Arc::clone(&self.store), layers.to_vec());
        let cancelled = Arc::clone(&self.cancelled.0);
        blocking("unpacking", move || store.unpack(&layers, &cancelled)).await
    }

    /// Gets a blob into the store, unless it is there.
    async fn fetch(
        &self,
        session: &RepositorySession,
        descriptor: &Descriptor,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), PullProblem> {
        let _one = self.flights.blobs.lock(descriptor.digest).await;
        let (store, digest) = (Arc::clone(&self.store), descriptor.digest);
        match blocking("content store", move || store.content().size(digest)).await? {
            Some(size) if size == descriptor.size => progress(size),
            _ => session.blob(&self.store, descriptor, progress).await?,
        }
        Ok(())
    }

    async fn forget(&self, digest: Digest) -> Result<(), PullProblem> {
        let store = Arc::clone(&self.store);
        Ok(blocking("content store", move || store.content().remove(digest)).await??)
    }
}

fn chain_of(layers: &[LayerRecord]) -> Vec<ChainId> {
    ChainId::of_layers(&layers.iter().map(|layer| layer.diff_id).collect::<Vec<_>>())
}

/// Disk work, off the asynchronous workers.
async fn blocking<T: Send + 'static>(
    what: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, PullProblem> {
    tokio::task::spawn_blocking(work).await.map_err(|_| PullProblem::Panicked(what))
}

#[cfg(test)]
mod tests;
