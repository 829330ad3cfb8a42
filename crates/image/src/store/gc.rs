//! Garbage collection: blobs and layers that no image, container or lease refers to are deleted.
//!
//! Mark and sweep hold the locks of images and leases, so that nothing becomes referenced in between; the sweep only renames into
//! `trash/`, and the deletion follows without a lock.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use podwright_linux::beneath::remove_path;

use super::{ImageStore, ImageStoreError};
use crate::chain::ChainId;
use crate::digest::Digest;
use crate::durable::failed;
use crate::images::{DAMAGED_PREFIX, ImageRecord};

/// What must stay, besides images and leases, and how much may stay.
#[derive(Clone, Debug, Default)]
pub struct GcRoots {
    /// The chain ids of all containers' layers: they stay although their image may be removed.
    pub container_layers: BTreeSet<ChainId>,
    /// No layer is deleted: there is a container whose layers are not known.
    pub keep_all_layers: bool,
    /// Images that containers use: they are not removed for [`GcRoots::disk_max`].
    pub images_in_use: BTreeSet<Digest>,
    /// If the store uses more bytes, images that are neither in use nor pinned are removed, the oldest first. `None`: no bound.
    pub disk_max: Option<u64>,
}

/// What garbage collection did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcReport {
    /// Blobs deleted.
    pub blobs: usize,
    /// Unpacked layers deleted.
    pub layers: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Images removed because of [`GcRoots::disk_max`].
    pub images: Vec<Digest>,
}

impl ImageStore {
    /// Deletes what nothing refers to. Blocks. While a damaged list of images is kept, nothing is deleted: it is not known which content is
    /// of an image, and a node without its registry could not get it again.
    ///
    /// `roots` is called while no lease can be added or dropped: a container that holds its layers by a [`ContentLease`] until it
    /// is listed by `roots` loses none of them. `roots` must not use the store.
    ///
    /// [`ContentLease`]: crate::ContentLease
    pub fn collect_garbage(&self, roots: impl Fn() -> GcRoots) -> Result<GcReport, ImageStoreError> {
        if let Some(path) = self.damaged_list()? {
            tracing::error!(
                path = %path.display(),
                "the list of images was damaged, so that no content is deleted. Pull or load the images again, then remove this file"
            );
            return Ok(GcReport::default());
        }
        let mut collection = Collection { store: self, roots, report: GcReport::default() };
        collection.sweep()?;
        while let Some(image) = collection.remove_excess_image()? {
            collection.report.images.push(image);
            collection.sweep()?;
        }
        Ok(collection.report)
    }

    /// A list of images that [`ImageTable::open`] has put aside.
    ///
    /// [`ImageTable::open`]: crate::images::ImageTable::open
    fn damaged_list(&self) -> Result<Option<PathBuf>, ImageStoreError> {
        for entry in fs::read_dir(&self.dir).map_err(failed("read", &self.dir))? {
            let entry = entry.map_err(failed("read", &self.dir))?;
            if entry.file_name().to_string_lossy().starts_with(DAMAGED_PREFIX) {
                return Ok(Some(entry.path()));
            }
        }
        Ok(None)
    }
}

/// One collection under way.
struct Collection<'a, R> {
    store: &'a ImageStore,
    roots: R,
    report: GcReport,
}

impl<R: Fn() -> GcRoots> Collection<'_, R> {
    fn sweep(&mut self) -> Result<(), ImageStoreError> {
        let trashed = self.mark_and_rename()?;
        trashed.iter().try_for_each(|path| remove_path(path))?;
        Ok(())
    }

    fn mark_and_rename(&mut self) -> Result<Vec<PathBuf>, ImageStoreError> {
        let (store, report) = (self.store, &mut self.report);
        let table = store.table();
        let leases = store.leases.lock();
        let blobs: BTreeSet<Digest> = table.list().iter().flat_map(ImageRecord::blobs).collect();
        let GcRoots { container_layers: mut layers, keep_all_layers, .. } = (self.roots)();
        layers.extend(table.list().iter().flat_map(ImageRecord::chain));
        let mut trashed = vec![];
        for (digest, size) in store.content.list()? {
            if !blobs.contains(&digest) && !leases.contains_key(&digest) {
                let (path, trash) = (store.content.path(digest), store.trash());
                fs::rename(&path, &trash).map_err(failed("rename", &path))?;
                trashed.push(trash);
                (report.blobs, report.bytes) = (report.blobs + 1, report.bytes + size);
            }
        }
        for (chain, size) in store.layers.list() {
            if !keep_all_layers && !layers.contains(&chain) && !leases.contains_key(&chain.digest()) {
                let trash = store.trash();
                store.layers.move_to(chain, &trash)?;
                trashed.push(trash);
                (report.layers, report.bytes) = (report.layers + 1, report.bytes + size);
            }
        }
        Ok(trashed)
    }

    /// Removes one image, if the store is over its bound.
    fn remove_excess_image(&self) -> Result<Option<Digest>, ImageStoreError> {
        let usage = self.store.usage()?;
        let mut table = self.store.table();
        let leases = self.store.leases.lock();
        let roots = (self.roots)();
        if roots.disk_max.is_none_or(|max| usage.blob_bytes + usage.layer_bytes <= max) {
            return Ok(None);
        }
        let used = |image: &ImageRecord| roots.images_in_use.contains(&image.id) || leases.contains_key(&image.id);
        let removable = table.list().iter().filter(|image| !image.pinned && !used(image));
        let Some(oldest) = removable.min_by_key(|image| image.stored_at).map(|image| image.id) else { return Ok(None) };
        table.remove(oldest)?;
        Ok(Some(oldest))
    }
}
