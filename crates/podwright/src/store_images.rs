//! The images of the embedded engine for people: the same work for the local API of an agent, and for a command on a store that no
//! agent uses.

mod errors;
mod pull;

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::ready;
use futures::stream::{self, StreamExt};
use podwright_engine::images::{ContainersOnDisk, EngineImages, ImageUser, image_users_on_disk};
use podwright_image::{Digest, GcReport, GcRoots, ImageRecord, ImageStore, ImageStoreError, Puller};
use podwright_server::local::{
    FreedContent, ImageErrorKind, ImageFuture, ImageLine, ImageLines, ImageRequestError, NodeImage, NodeImages,
    PullAmount, PullRequest,
};
use podwright_tasks::{Pool, PoolLimits};
use serde_json::{Value, json};

use errors::{archive_error, pool_error, store_error};

/// The images of one store. Clones share it.
#[derive(Clone)]
pub(crate) struct StoreImages(Arc<Shared>);

struct Shared {
    store: Arc<ImageStore>,
    puller: Arc<Puller>,
    /// For transfers of users only: they may take as long as a client does.
    pool: Pool,
    containers: ContainerSource,
}

/// How to learn which containers there are.
pub(crate) enum ContainerSource {
    /// The engine runs in this process.
    Engine(Arc<dyn ContainersOnDisk>),
    /// It does not run; this is its root directory.
    Records(PathBuf),
}

impl StoreImages {
    pub(crate) fn new(store: Arc<ImageStore>, puller: Arc<Puller>, containers: ContainerSource) -> Self {
        let pool = Pool::new(PoolLimits { per_key: THREADS, per_owner: THREADS, active: THREADS, stuck: 4 * THREADS });
        Self(Arc::new(Shared { store, puller, pool, containers }))
    }

    /// The images of an engine that runs.
    pub(crate) fn of_engine(images: &EngineImages) -> Self {
        let containers = ContainerSource::Engine(Arc::clone(images.containers()));
        Self::new(Arc::clone(images.store()), Arc::clone(images.puller()), containers)
    }

    /// Disk work on a thread of its own.
    fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T, ImageRequestError> + Send + 'static,
    ) -> ImageFuture<T> {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            let pool = shared.pool.clone();
            pool.run_to_end("images", move || work(&shared)).await.map_err(|error| pool_error(&error))?
        })
    }

    /// Removes images by id, then what no other image needs.
    fn remove_with(
        &self,
        choose: impl FnOnce(&Shared) -> Result<BTreeSet<Digest>, ImageRequestError> + Send + 'static,
    ) -> ImageLines {
        let removing = self.blocking(move |shared| {
            let ids = choose(shared)?;
            ids.iter().try_for_each(|id| shared.store.remove_image(*id).map(drop)).map_err(|e| store_error(&e))?;
            Ok(ImageLine::Removed(ids.iter().map(ToString::to_string).collect()))
        });
        let this = self.clone();
        Box::pin(stream::once(removing).flat_map(move |removed| match removed {
            Ok(removed) => {
                let freed = this.blocking(Shared::collect_garbage);
                stream::once(ready(Ok(removed))).chain(stream::once(freed)).boxed()
            }
            Err(error) => stream::once(ready(Err(error))).boxed(),
        }))
    }
}

impl Shared {
    /// All of them, or an error for the first that does not exist.
    fn find_all(&self, names: &[String]) -> Result<Vec<ImageRecord>, ImageRequestError> {
        let find = |name: &String| match self.store.find(name) {
            Ok(Some(image)) => Ok(image),
            Ok(None) => {
                let message = format!("image {name} does not exist; podwright image ls shows all");
                Err(ImageRequestError::new(ImageErrorKind::NotFound, message))
            }
            Err(error) => Err(errors::no_reference(name, &error)),
        };
        names.iter().map(find).collect()
    }

    fn users(&self) -> Vec<ImageUser> {
        match &self.containers {
            ContainerSource::Engine(containers) => containers.image_users(),
            ContainerSource::Records(root) => image_users_on_disk(root),
        }
    }

    /// The images of these names; without `force`, an error if a container uses one of them.
    fn removable(&self, names: &[String], force: bool) -> Result<BTreeSet<Digest>, ImageRequestError> {
        let images = self.find_all(names)?;
        let users = if force { vec![] } else { self.users() };
        for (image, name) in images.iter().zip(names) {
            let id = image.id.to_string();
            let pods: BTreeSet<String> = users
                .iter()
                .filter(|user| user.image_id == id)
                .map(|user| format!("{} (container {})", user.pod, user.container))
                .collect();
            if !pods.is_empty() {
                return Err(in_use(name, &pods));
            }
        }
        Ok(images.iter().map(|image| image.id).collect())
    }

    /// Images that have no name, are not pinned, and that no container uses.
    fn unnamed(&self) -> BTreeSet<Digest> {
        let used: BTreeSet<String> = self.users().into_iter().map(|user| user.image_id).collect();
        let images = self.store.images();
        let unnamed = images.iter().filter(|image| image.names.is_empty() && !image.pinned);
        unnamed.map(|image| image.id).filter(|id| !used.contains(&id.to_string())).collect()
    }

    /// Deletes what neither images nor containers need. An engine that does not run may have containers whose layers only it knows: it
    /// collects the garbage when it runs again.
    fn collect_garbage(&self) -> Result<ImageLine, ImageRequestError> {
        let collected = match &self.containers {
            ContainerSource::Engine(containers) => self.store.collect_garbage(|| containers.gc_roots()),
            ContainerSource::Records(root) => match stored_containers(root)? {
                0 => self.store.collect_garbage(GcRoots::default),
                containers => return Ok(ImageLine::Kept(containers)),
            },
        };
        let GcReport { blobs, layers, bytes, .. } = collected.map_err(|error| store_error(&error))?;
        Ok(ImageLine::Freed(FreedContent { blobs, layers, bytes }))
    }

    fn inspect(&self, image: &ImageRecord) -> Result<Value, ImageStoreError> {
        let configuration = self.store.content().read(image.id, self.store.limits().config_bytes)?;
        let mut object = serde_json::to_value(shown(image)).expect("plain data");
        let layers = image.layers.iter();
        object["layers"] = layers.map(|l| json!({ "blob": l.blob, "size": l.size, "diffId": l.diff_id })).collect();
        object["configuration"] = serde_json::from_slice(&configuration).unwrap_or_default();
        Ok(object)
    }

    /// An image may lack a blob: a layer that came unpacked with another image is not transferred.
    fn check_blobs(&self, images: &[ImageRecord], names: &[String]) -> Result<(), ImageRequestError> {
        for (image, name) in images.iter().zip(names) {
            let missing = image.layers.iter().find(|layer| self.store.content().size(layer.blob).is_none());
            if let Some(layer) = missing {
                let message = format!(
                    "image {name} can't be saved: this node has its layer {} only unpacked, since another image brought it; \
                     `podwright image pull {}` gets it",
                    layer.blob,
                    image.tags().next().map_or_else(|| name.clone(), ToString::to_string)
                );
                return Err(ImageRequestError::new(ImageErrorKind::Failed, message));
            }
        }
        Ok(())
    }
}

impl NodeImages for StoreImages {
    fn list(&self) -> ImageFuture<Vec<NodeImage>> {
        self.blocking(|shared| Ok(shared.store.images().iter().map(shown).collect()))
    }

    fn inspect(&self, images: Vec<String>) -> ImageFuture<Vec<Value>> {
        self.blocking(move |shared| {
            let images = shared.find_all(&images)?;
            images.iter().map(|image| shared.inspect(image).map_err(|error| store_error(&error))).collect()
        })
    }

    fn pull(&self, request: PullRequest) -> ImageLines {
        pull::lines(&self.0.puller, request)
    }

    fn load(&self, archive: Box<dyn Read + Send>) -> ImageLines {
        let cancel = CancelOnDrop::default();
        let cancelled = Arc::clone(&cancel.0);
        let loading = self.blocking(move |shared| {
            let loaded = shared.store.load(archive, &cancelled).map_err(|error| archive_error(&error));
            // An archive has files that are part of no image, most of all one that can't be used.
            let garbage = shared.collect_garbage();
            let images = loaded?.iter().map(|image| ImageLine::Image(shown(image))).collect::<Vec<_>>();
            Ok(images.into_iter().chain([garbage?]).collect::<Vec<_>>())
        });
        let loaded = async move {
            let _cancel = cancel;
            loading.await
        };
        Box::pin(stream::once(loaded).flat_map(|loaded| match loaded {
            Ok(lines) => stream::iter(lines.into_iter().map(Ok)).boxed(),
            Err(error) => stream::once(ready(Err(error))).boxed(),
        }))
    }

    fn save(&self, images: Vec<String>, archive: Box<dyn Write + Send>) -> ImageFuture<()> {
        self.blocking(move |shared| {
            let found = shared.find_all(&images)?;
            shared.check_blobs(&found, &images)?;
            shared.store.save(&found, archive).map_err(|error| archive_error(&error))
        })
    }

    fn remove(&self, images: Vec<String>, force: bool) -> ImageLines {
        self.remove_with(move |shared| shared.removable(&images, force))
    }

    fn prune(&self) -> ImageLines {
        self.remove_with(|shared| Ok(shared.unnamed()))
    }

    fn pull_amount(&self, image: &str) -> Option<PullAmount> {
        let (received, size) = self.0.puller.progress(&image.parse().ok()?)?.total();
        Some(PullAmount { received, size })
    }
}

/// Ends blocking work whose caller has gone.
#[derive(Default)]
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn in_use(image: &str, pods: &BTreeSet<String>) -> ImageRequestError {
    let (shown, more) =
        (pods.iter().take(USERS_SHOWN).cloned().collect::<Vec<_>>(), pods.len().saturating_sub(USERS_SHOWN));
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let message = format!(
        "image {image} is in use by pod {}{more}: delete the pod first, or remove the image with --force; its containers keep \
         their files",
        shown.join(", pod ")
    );
    ImageRequestError::new(ImageErrorKind::InUse, message)
}

/// How many containers an engine that does not run has. A directory that can not be read says nothing: they may run on their layers.
fn stored_containers(root: &Path) -> Result<usize, ImageRequestError> {
    let dir = root.join("engine/containers");
    match fs::read_dir(&dir) {
        Ok(entries) => Ok(entries.count()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => {
            let message = format!("nothing was freed: the containers in {} can't be read: {error}", dir.display());
            Err(ImageRequestError::new(ImageErrorKind::Failed, message))
        }
    }
}

/// An image without its layers and configuration.
fn shown(image: &ImageRecord) -> NodeImage {
    NodeImage {
        id: image.id.to_string(),
        tags: image.tags().map(ToString::to_string).collect(),
        digests: image.repo_digests().map(ToString::to_string).collect(),
        manifest: image.manifest.to_string(),
        size: image.size(),
        stored_at: image.stored_at,
        pinned: image.pinned,
    }
}

/// More than the transfers that the local API allows at once: short requests are always served.
const THREADS: usize = 16;
/// Containers that are named if an image is in use.
const USERS_SHOWN: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_that_can_not_be_read_are_not_taken_for_none() {
        let root = tempfile::tempdir().unwrap();
        assert!(matches!(stored_containers(root.path()), Ok(0)), "no engine was here");
        let dir = root.path().join("engine/containers");
        fs::create_dir_all(dir.join("c1")).unwrap();
        assert!(matches!(stored_containers(root.path()), Ok(1)));
        fs::remove_dir_all(&dir).unwrap();
        // Reading a file as a directory fails as a bad disk does.
        fs::write(&dir, "").unwrap();
        assert!(stored_containers(root.path()).is_err());
    }
}
