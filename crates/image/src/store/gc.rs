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
use crate::images::ImageRecord;

/// What must stay, besides images and leases, and how much may stay.
#[derive(Clone, Debug, Default)]
pub struct GcRoots {
    /// The chain ids of all containers' layers: they stay although their image may be removed.
    pub container_layers: BTreeSet<ChainId>,
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
    /// Deletes what nothing refers to. Blocks.
    pub fn collect_garbage(&self, roots: &GcRoots) -> Result<GcReport, ImageStoreError> {
        let mut report = GcReport::default();
        self.sweep(roots, &mut report)?;
        while let Some(image) = self.excess_image(roots)? {
            self.remove_image(image)?;
            report.images.push(image);
            self.sweep(roots, &mut report)?;
        }
        Ok(report)
    }

    fn sweep(&self, roots: &GcRoots, report: &mut GcReport) -> Result<(), ImageStoreError> {
        let trashed = self.mark_and_rename(roots, report)?;
        trashed.iter().try_for_each(|path| remove_path(path))?;
        Ok(())
    }

    fn mark_and_rename(&self, roots: &GcRoots, report: &mut GcReport) -> Result<Vec<PathBuf>, ImageStoreError> {
        let table = self.table();
        let leases = self.leases.lock();
        let blobs: BTreeSet<Digest> = table.iter().flat_map(ImageRecord::blobs).collect();
        let mut layers = roots.container_layers.clone();
        layers.extend(table.iter().flat_map(ImageRecord::chain));
        let mut trashed = vec![];
        for (digest, size) in self.content.list()? {
            if !blobs.contains(&digest) && !leases.contains_key(&digest) {
                let (path, trash) = (self.content.path(digest), self.trash());
                fs::rename(&path, &trash).map_err(failed("rename", &path))?;
                trashed.push(trash);
                (report.blobs, report.bytes) = (report.blobs + 1, report.bytes + size);
            }
        }
        for (chain, size) in self.layers.list() {
            if !layers.contains(&chain) && !leases.contains_key(&chain.digest()) {
                let trash = self.trash();
                self.layers.move_to(chain, &trash)?;
                trashed.push(trash);
                (report.layers, report.bytes) = (report.layers + 1, report.bytes + size);
            }
        }
        Ok(trashed)
    }

    /// The next image to remove, if the store is over its bound.
    fn excess_image(&self, roots: &GcRoots) -> Result<Option<Digest>, ImageStoreError> {
        let Some(max) = roots.disk_max else { return Ok(None) };
        let usage = self.usage()?;
        if usage.blob_bytes + usage.layer_bytes <= max {
            return Ok(None);
        }
        let table = self.table();
        let removable = table.iter().filter(|image| !image.pinned && !roots.images_in_use.contains(&image.id));
        Ok(removable.min_by_key(|image| image.stored_at).map(|image| image.id))
    }
}
