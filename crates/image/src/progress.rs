//! Progress of a pull.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::digest::Digest;
use crate::manifest::Descriptor;

/// The progress of one pull, written by the pull and read by any task.
#[derive(Debug, Default)]
pub(crate) struct PullProgress {
    /// Unset until the manifest is known.
    layers: OnceLock<Vec<LayerCounter>>,
}

#[derive(Debug)]
struct LayerCounter {
    digest: Digest,
    size: u64,
    received: AtomicU64,
    unpacked: AtomicBool,
}

/// The progress at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgressSnapshot {
    /// From the lowest to the topmost; empty until the manifest is known.
    pub layers: Vec<LayerProgress>,
}

/// The progress of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerProgress {
    /// Its blob.
    pub digest: Digest,
    /// Bytes to transfer.
    pub size: u64,
    /// Bytes transferred; all of them if the layer was in the store already.
    pub received: u64,
    /// It is ready for containers.
    pub unpacked: bool,
}

impl PullProgress {
    /// The progress now.
    pub(crate) fn snapshot(&self) -> ProgressSnapshot {
        let layer = |layer: &LayerCounter| LayerProgress {
            digest: layer.digest,
            size: layer.size,
            received: layer.received.load(Ordering::Relaxed),
            unpacked: layer.unpacked.load(Ordering::Relaxed),
        };
        ProgressSnapshot { layers: self.layers.get().into_iter().flatten().map(layer).collect() }
    }

    pub(crate) fn begin(&self, layers: &[Descriptor]) {
        let counter = |layer: &Descriptor| LayerCounter {
            digest: layer.digest,
            size: layer.size,
            received: AtomicU64::new(0),
            unpacked: AtomicBool::new(false),
        };
        let _ = self.layers.set(layers.iter().map(counter).collect());
    }

    pub(crate) fn received(&self, index: usize, bytes: u64) {
        if let Some(layer) = self.layers.get().and_then(|layers| layers.get(index)) {
            layer.received.store(bytes, Ordering::Relaxed);
        }
    }

    pub(crate) fn unpacked(&self, index: usize) {
        if let Some(layer) = self.layers.get().and_then(|layers| layers.get(index)) {
            layer.received.store(layer.size, Ordering::Relaxed);
            layer.unpacked.store(true, Ordering::Relaxed);
        }
    }
}

impl ProgressSnapshot {
    /// Bytes received and bytes in total, over all layers.
    pub fn total(&self) -> (u64, u64) {
        self.layers.iter().fold((0, 0), |(received, size), layer| (received + layer.received, size + layer.size))
    }
}

/// Shared by a pull and its observers.
pub(crate) type SharedProgress = Arc<PullProgress>;
