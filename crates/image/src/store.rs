//! The image store of one node: images, their content and their unpacked layers, in one directory with one owner.
//!
//! ```text
//! <dir>/            mode 0700: layers hold setuid programs and device nodes
//! ├─ lock           flock; the pid of the owner
//! ├─ images.json    see `images`
//! ├─ content/       see `content`
//! ├─ layers/        see `layers`
//! └─ trash/         being deleted; emptied at start
//! ```
//!
//! All functions block on the disk, and asynchronous callers run them on blocking threads, except [`ImageStore::images`] and
//! [`ImageStore::find`]: these read what was written last.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::Timestamp;
use podwright_linux::beneath::{RemoveError, remove_path};
use podwright_linux::lock_file::{self, LockFileError};

use crate::chain::ChainId;
use crate::content::{ContentError, ContentStore};
use crate::digest::Digest;
use crate::durable::{DurableFileError, failed};
use crate::images::{ImageRecord, ImageTable, LayerRecord, PublishedImages};
use crate::layers::{LayerError, LayerStore};
use crate::leases::{ContentLease, Leases};
use crate::limits::ImageLimits;
use crate::manifest::{ImageConfiguration, ImageManifest, ImageManifestError};
use crate::platform::Platform;
use crate::reference::{ImageReference, ReferenceError};

mod gc;

pub use gc::{GcReport, GcRoots};

/// Images, content and layers.
#[derive(Debug)]
pub struct ImageStore {
    dir: PathBuf,
    /// Released by the kernel when the process ends.
    _lock: File,
    content: ContentStore,
    layers: LayerStore,
    /// Locked while a change is written.
    images: Mutex<ImageTable>,
    published: PublishedImages,
    leases: Leases,
    limits: ImageLimits,
    platform: Platform,
    /// Numbers names in `trash/`.
    trashed: AtomicU64,
}

/// Bytes that the store uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Manifests, configurations and compressed layers.
    pub blob_bytes: u64,
    /// Files of unpacked layers.
    pub layer_bytes: u64,
}

/// Why the store could not do what was requested.
#[derive(Debug, thiserror::Error)]
pub enum ImageStoreError {
    /// Another process uses this directory.
    #[error("{} is in use by process {pid}", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// As that process wrote it; `unknown` if it has not yet.
        pid: String,
    },
    /// There is no such image.
    #[error("image {0} is not in the store")]
    NoImage(String),
    /// A name is no image reference.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// A document of the image can't be used.
    #[error(transparent)]
    Manifest(#[from] ImageManifestError),
    /// Content could not be read or written.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// A layer is not available.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] DurableFileError),
    /// Something could not be deleted.
    #[error(transparent)]
    Remove(#[from] RemoveError),
}

impl ImageStore {
    /// Opens or creates the store and locks it. What earlier processes left unfinished is removed.
    pub fn open(dir: &Path, limits: ImageLimits, platform: Platform) -> Result<Arc<Self>, ImageStoreError> {
        let create = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        create.map_err(failed("create", dir))?;
        // An existing directory may have another mode.
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).map_err(failed("set mode of", dir))?;
        let lock = lock(&dir.join("lock"))?;
        let trash = dir.join("trash");
        remove_path(&trash)?;
        fs::create_dir(&trash).map_err(failed("create", &trash))?;
        let images = ImageTable::open(&dir.join("images.json"))?;
        Ok(Arc::new(Self {
            dir: dir.to_owned(),
            _lock: lock,
            content: ContentStore::open(&dir.join("content"), &limits)?,
            layers: LayerStore::open(&dir.join("layers"))?,
            published: images.published(),
            images: Mutex::new(images),
            leases: Leases::default(),
            limits,
            platform,
            trashed: AtomicU64::new(0),
        }))
    }

    /// All images, by id. Does not block.
    pub fn images(&self) -> Vec<ImageRecord> {
        self.published.get().iter().cloned().collect()
    }

    /// The image with this name, id (with or without `sha256:`) or unique prefix of an id of at least 7 digits. Does not
    /// block.
    pub fn find(&self, text: &str) -> Result<Option<ImageRecord>, ReferenceError> {
        let images = self.published.get();
        let hex = text.strip_prefix("sha256:").unwrap_or(text);
        if let Some(id) = Digest::from_hex(hex) {
            return Ok(images.by_id(id).cloned());
        }
        let named = text.parse().map(|name| images.by_name(&name).cloned());
        if let Ok(Some(image)) = named {
            return Ok(Some(image));
        }
        if hex.len() >= ID_PREFIX_MIN && hex.bytes().all(|c| c.is_ascii_hexdigit()) {
            let mut found = images.iter().filter(|image| image.id.hex().starts_with(hex));
            return Ok(found.next().filter(|_| found.next().is_none()).cloned());
        }
        named
    }

    /// The configuration of an image.
    pub fn configuration(&self, image: &ImageRecord) -> Result<ImageConfiguration, ImageStoreError> {
        let bytes = self.content.read(image.id, self.limits.config_bytes)?;
        Ok(ImageConfiguration::parse(&bytes, &self.limits)?)
    }

    /// The directories of its unpacked layers from the topmost to the lowest, as overlayfs wants them.
    pub fn lower_dirs(&self, image: &ImageRecord) -> Result<Vec<PathBuf>, ImageStoreError> {
        let missing = |chain| ImageStoreError::Layer(LayerError::NoParent(chain));
        image.chain().into_iter().rev().map(|chain| self.layers.path(chain).ok_or_else(|| missing(chain))).collect()
    }

    /// Unpacks the layers of an image that are missing, for example after a power loss. A blob that is missing or damaged is an
    /// error, and the image must be pulled again. Blocks.
    pub fn ensure_unpacked(&self, image: &ImageRecord, cancelled: &AtomicBool) -> Result<(), ImageStoreError> {
        let mut lease = self.lease();
        let chain = image.chain();
        chain.iter().for_each(|chain| lease.hold_layer(*chain));
        if chain.iter().all(|chain| self.is_unpacked(*chain)) {
            return Ok(());
        }
        image.layers.iter().for_each(|layer| lease.hold_blob(layer.blob));
        for count in 1..=image.layers.len() {
            self.unpack(&image.layers[..count], cancelled)?;
        }
        self.sync()
    }

    /// Removes an image with all its names. Its content goes with the next [`ImageStore::collect_garbage`], unless something else
    /// uses it.
    pub fn remove_image(&self, id: Digest) -> Result<Option<ImageRecord>, ImageStoreError> {
        Ok(self.table().remove(id)?)
    }

    /// Adds a name to an image; another image may lose it.
    pub fn tag(&self, id: Digest, name: ImageReference) -> Result<ImageRecord, ImageStoreError> {
        let mut table = self.table();
        let Some(mut image) = table.list().by_id(id).cloned() else {
            return Err(ImageStoreError::NoImage(id.to_string()));
        };
        image.names = BTreeMap::from([(name, image.manifest)]);
        Ok(table.put(image)?)
    }

    /// Exempts an image from removal by [`GcRoots::disk_max`], or ends the exemption.
    pub fn pin(&self, id: Digest, pinned: bool) -> Result<(), ImageStoreError> {
        let found = self.table().edit(id, |image| image.pinned = pinned)?;
        if found { Ok(()) } else { Err(ImageStoreError::NoImage(id.to_string())) }
    }

    /// A lease that holds nothing yet.
    pub fn lease(&self) -> ContentLease {
        self.leases.lease()
    }

    /// What the store uses now.
    pub fn usage(&self) -> Result<StoreUsage, ImageStoreError> {
        let blob_bytes = self.content.list()?.into_iter().map(|(_, size)| size).sum();
        let layer_bytes = self.layers.list().into_iter().map(|(_, size)| size).sum();
        Ok(StoreUsage { blob_bytes, layer_bytes })
    }

    /// Makes unpacked layers survive a power loss; called after a pull, which does not wait for it.
    pub fn sync(&self) -> Result<(), ImageStoreError> {
        Ok(self.layers.sync()?)
    }

    /// The blobs.
    pub fn content(&self) -> &ContentStore {
        &self.content
    }

    /// The bounds that hold for everything that comes in.
    pub fn limits(&self) -> &ImageLimits {
        &self.limits
    }

    /// The platform that images are chosen for.
    pub fn platform(&self) -> &Platform {
        &self.platform
    }

    /// The unpacked form of the layer is there. Does not block.
    pub(crate) fn is_unpacked(&self, chain: ChainId) -> bool {
        self.layers.path(chain).is_some()
    }

    /// Unpacks the topmost of these layers; those below must be there.
    pub(crate) fn unpack(&self, layers: &[LayerRecord], cancelled: &AtomicBool) -> Result<(), LayerError> {
        let Some(top) = layers.last() else { return Ok(()) };
        let diff_ids: Vec<Digest> = layers.iter().map(|layer| layer.diff_id).collect();
        self.layers.unpack(&self.content, top, &ChainId::of_layers(&diff_ids), &self.limits, cancelled)
    }

    /// Makes a complete image visible: its content is verified and its layers are unpacked.
    pub(crate) fn add(&self, image: NewImage) -> Result<ImageRecord, ImageStoreError> {
        let NewImage { names, manifest, id, layers } = image;
        let record = ImageRecord { id, names, manifest, layers, stored_at: Timestamp::now(), pinned: false };
        debug_assert!(record.chain().iter().all(|chain| self.is_unpacked(*chain)));
        Ok(self.table().put(record)?)
    }

    /// A fresh name in the trash.
    fn trash(&self) -> PathBuf {
        self.dir.join("trash").join(self.trashed.fetch_add(1, Ordering::Relaxed).to_string())
    }

    fn table(&self) -> MutexGuard<'_, ImageTable> {
        self.images.lock().expect("no panic under this lock")
    }
}

/// An image whose content is complete.
pub(crate) struct NewImage {
    pub(crate) names: BTreeMap<ImageReference, Digest>,
    pub(crate) manifest: Digest,
    pub(crate) id: Digest,
    pub(crate) layers: Vec<LayerRecord>,
}

/// The layers of an image, from manifest and configuration; their number was compared.
pub(crate) fn layer_records(manifest: &ImageManifest, configuration: &ImageConfiguration) -> Vec<LayerRecord> {
    let pairs = manifest.layers.iter().zip(&configuration.rootfs.diff_ids);
    pairs.map(|(layer, diff_id)| LayerRecord { blob: layer.digest, size: layer.size, diff_id: *diff_id }).collect()
}

fn lock(path: &Path) -> Result<File, ImageStoreError> {
    lock_file::take(path).map_err(|error| match error {
        LockFileError::Held { pid } => ImageStoreError::Locked { path: path.to_owned(), pid },
        LockFileError::File { action, source } => failed(action, path)(source).into(),
    })
}

/// Shorter prefixes of an id are often names of something else.
const ID_PREFIX_MIN: usize = 7;

#[cfg(test)]
mod tests;
