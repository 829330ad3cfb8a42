//! Pulls images from registries into the store.
//!
//! ```text
//! resolve ─▶ index? choose the platform ─▶ manifest ─▶ configuration ─▶ layers, several at once ─▶ image becomes visible
//!                                                                        └ each unpacked when it and those below are there
//! ```
//!
//! Equal pulls (reference and credentials) share one run; it ends when the last caller goes away. Equal blobs of different pulls
//! are transferred once. Whatever fails, the store shows the image as it was before.

mod error;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, Shared, WeakShared};
use futures::stream::{self, StreamExt, TryStreamExt};
use podwright_tasks::{Pool, PoolError, PoolKey};
use tokio::sync::mpsc;

use crate::chain::ChainId;
use crate::content::ContentError;
use crate::digest::Digest;
use crate::flights::Flights;
use crate::images::{ImageRecord, LayerRecord};
use crate::layers::LayerError;
use crate::leases::ContentLease;
use crate::manifest::{Descriptor, ImageConfiguration, ImageManifest, ImageManifestError, ManifestDocument};
use crate::progress::{ProgressSnapshot, SharedProgress};
use crate::reference::{ImageReference, Version};
use crate::registry::{RegistryClient, RegistryCredentials, RegistryError, RegistryOptions, RepositorySession};
use crate::store::{GcRoots, ImageStore, NewImage, layer_records};
use crate::unpack::UnpackError;

pub(crate) use error::PullProblem;
pub use error::{PullError, PullErrorKind};

/// Pulls images; one per store.
#[derive(Debug)]
pub struct Puller {
    store: Arc<ImageStore>,
    registry: Arc<RegistryClient>,
    pool: Pool,
    runs: Mutex<BTreeMap<PullKey, Run>>,
    flights: Arc<PullFlights>,
    /// `None`: garbage is not collected after a pull.
    roots: Option<GcRootSource>,
}

/// What containers need, asked when garbage is collected. See [`ImageStore::collect_garbage`].
#[derive(Clone)]
struct GcRootSource(Arc<dyn Fn() -> GcRoots + Send + Sync>);

impl std::fmt::Debug for GcRootSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GcRootSource")
    }
}

#[derive(Debug, Default)]
struct PullFlights {
    /// By hosts and digest: a registry that sends slowly delays its own pulls only.
    blobs: Flights<(String, Digest)>,
    /// By chain and blob: the author of an image writes the chain into its configuration, and what is in the blob is known only when
    /// it is unpacked.
    layers: Flights<(ChainId, Digest)>,
}

type PullKey = (ImageReference, Digest, LayerBlobs);
type PullResult = Result<ImageRecord, Arc<PullError>>;
type SharedPull = Shared<BoxFuture<'static, PullResult>>;

/// Which blobs of layers a pull gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LayerBlobs {
    /// Of layers that are not unpacked.
    Needed,
    /// Of all layers.
    All,
}

#[derive(Debug)]
struct Run {
    pull: WeakShared<BoxFuture<'static, PullResult>>,
    progress: SharedProgress,
}

impl Puller {
    /// A puller for this store, with its disk work and name lookups in `pool`. Reads the system's certificates.
    pub fn new(store: Arc<ImageStore>, options: RegistryOptions, pool: Pool) -> Result<Self, RegistryError> {
        let registry = Arc::new(RegistryClient::new(options, pool.clone())?);
        Ok(Self { store, registry, pool, runs: Mutex::default(), flights: Arc::default(), roots: None })
    }

    /// Collects garbage after a pull for which the disk had too little space: what it has brought is in the way of the next one.
    /// `roots` is called as in [`ImageStore::collect_garbage`].
    pub fn collecting_garbage(self, roots: impl Fn() -> GcRoots + Send + Sync + 'static) -> Self {
        Self { roots: Some(GcRootSource(Arc::new(roots))), ..self }
    }

    /// Pulls an image, or joins a pull of it that is under way. Dropping the future abandons the pull unless others wait for it;
    /// callers give it a time limit that way.
    pub async fn pull(&self, image: &ImageReference, credentials: RegistryCredentials) -> PullResult {
        self.join(image, credentials, LayerBlobs::Needed).await
    }

    /// The same with the blobs of layers that another image has unpacked already, from another blob: only with all of its blobs an
    /// image can be saved.
    pub async fn pull_complete(&self, image: &ImageReference, credentials: RegistryCredentials) -> PullResult {
        self.join(image, credentials, LayerBlobs::All).await
    }

    /// How far the pulls of this image are: the one that is furthest. `None` if there is none under way.
    pub fn progress(&self, image: &ImageReference) -> Option<ProgressSnapshot> {
        let runs = self.runs.lock().expect("no panic under this lock");
        let of_image = runs.iter().filter(|((reference, ..), run)| reference == image && run.pull.upgrade().is_some());
        of_image.map(|(_, run)| run.progress.snapshot()).max_by_key(ProgressSnapshot::total)
    }

    fn join(&self, image: &ImageReference, credentials: RegistryCredentials, blobs: LayerBlobs) -> SharedPull {
        let key = (image.clone(), credentials.fingerprint(), blobs);
        let mut runs = self.runs.lock().expect("no panic under this lock");
        runs.retain(|_, run| run.pull.upgrade().is_some());
        // A finished run whose result is still being read is not joined: a new caller needs the current state of the registry.
        let running = runs.get(&key).and_then(|run| run.pull.upgrade()).filter(|pull| pull.peek().is_none());
        if let Some(running) = running {
            return running;
        }
        let progress = SharedProgress::default();
        let pull = PullRun {
            image: image.clone(),
            blobs,
            store: Arc::clone(&self.store),
            registry: Arc::clone(&self.registry),
            pool: self.pool.clone(),
            flights: Arc::clone(&self.flights),
            roots: self.roots.clone(),
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
    blobs: LayerBlobs,
    store: Arc<ImageStore>,
    registry: Arc<RegistryClient>,
    pool: Pool,
    flights: Arc<PullFlights>,
    roots: Option<GcRootSource>,
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
            let (store, pool) = (Arc::clone(&self.store), self.pool.clone());
            // The pod does not wait for it: layers that are lost in a power failure are unpacked again.
            podwright_tasks::spawn("image-sync", async move {
                match pool.run_to_end("image sync", move || store.sync()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::warn!(%error, "layers are not synced"),
                    Err(error) => tracing::warn!(%error, "layers are not synced"),
                }
            });
        }
        let result = result.map_err(|problem| Arc::new(PullError { image: self.image.clone(), problem }));
        if result.as_ref().is_err_and(|error| error.kind() == PullErrorKind::NoSpace) {
            self.free_space().await;
        }
        result
    }

    /// Deletes what this pull has brought, unless something else uses it. Its leases are dropped.
    async fn free_space(&self) {
        let Some(GcRootSource(roots)) = self.roots.clone() else { return };
        // Work that it has left behind ends instead of filling the disk again.
        self.cancelled.0.store(true, Ordering::Relaxed);
        let store = Arc::clone(&self.store);
        let collected = self.pool.run("image garbage", GC_LIMIT, move || store.collect_garbage(&*roots)).await;
        match collected {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(image = %self.image, %error, "space of a failed pull not freed"),
            Err(error) => tracing::warn!(image = %self.image, %error, "space of a failed pull not freed"),
        }
    }

    async fn pull(&self, credentials: RegistryCredentials) -> Result<ImageRecord, PullProblem> {
        let (registry, image) = (Arc::clone(&self.registry), self.image.clone());
        let session =
            self.blocking("configuration of its registry", move || registry.session(&image, credentials)).await??;
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
        // The lease moves along: a pull that is given up here does not end the thread.
        let added = self.blocking("image list", move || {
            let _lease = lease;
            store.add(new)
        });
        Ok(added.await??)
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
            let digest = fetched.digest;
            lease.hold_blob(digest);
            let store = Arc::clone(&self.store);
            let parse_and_store = move || {
                let document = ManifestDocument::parse(&fetched.bytes, &fetched.media_type, store.limits())?;
                store.content().write(&fetched.bytes)?;
                Ok::<_, PullProblem>(document)
            };
            let document = self.blocking("manifest", parse_and_store).await??;
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
        let read = move || {
            let bytes = store.content().read(digest, store.limits().config_bytes)?;
            Ok::<_, PullProblem>(ImageConfiguration::parse(&bytes, store.limits())?)
        };
        let configuration = match self.blocking("configuration", read.clone()).await? {
            // Damaged on disk: once more from the registry.
            Err(PullProblem::Content(ContentError::Digest { .. })) => {
                self.forget(digest).await?;
                self.fetch(session, &manifest.config, &|_| {}).await?;
                self.blocking("configuration", read).await??
            }
            other => other?,
        };
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
                    if self.blobs == LayerBlobs::All || !self.store.is_unpacked(chain) {
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
        let _one = self.flights.layers.lock((chain, descriptor.digest)).await;
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
        // Unpacking outlives a pull that is dropped: it must not read layers that garbage collection deletes meanwhile.
        let mut lease = store.lease();
        layers.iter().for_each(|layer| lease.hold_blob(layer.blob));
        chain_of(&layers).into_iter().for_each(|chain| lease.hold_layer(chain));
        let unpack = move || {
            let _lease = lease;
            store.unpack(&layers, &cancelled)
        };
        Ok(self.blocking("unpacking", unpack).await?)
    }

    /// Gets a blob into the store, unless it is there.
    async fn fetch(
        &self,
        session: &RepositorySession,
        descriptor: &Descriptor,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), PullProblem> {
        let _one = self.flights.blobs.lock((session.hosts(), descriptor.digest)).await;
        let (store, digest) = (Arc::clone(&self.store), descriptor.digest);
        match self.blocking("content", move || store.content().size(digest)).await? {
            Some(size) if size == descriptor.size => progress(size),
            _ => session.blob(&self.store, descriptor, progress).await?,
        }
        Ok(())
    }

    async fn forget(&self, digest: Digest) -> Result<(), PullProblem> {
        let store = Arc::clone(&self.store);
        Ok(self.blocking("content", move || store.content().remove(digest)).await??)
    }

    /// Disk work, off the asynchronous workers.
    async fn blocking<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PoolError> {
        let owner = self.image.to_string();
        let key = PoolKey::new(owner.clone(), format!("{what} of {owner}"));
        self.pool.run_to_end(key, work).await
    }
}

fn chain_of(layers: &[LayerRecord]) -> Vec<ChainId> {
    ChainId::of_layers(&layers.iter().map(|layer| layer.diff_id).collect::<Vec<_>>())
}

/// Renaming is quick; deleting many small files is not.
const GC_LIMIT: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests;
