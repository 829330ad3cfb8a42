//! Unpacks one layer into a directory that overlayfs can use as a lower directory.
//!
//! ```text
//! blob ─▶ hash ─▶ gunzip/unzstd ─▶ bound ─▶ hash (diffID) ─▶ tar entries ─▶ files below one directory
//! ```
//!
//! The stream is hostile. Every name is split into its parts and its directory opened with `openat2` that neither leaves the root
//! nor follows a symlink; files are then created by descriptor. Both digests are compared at the end, and the caller makes the
//! directory visible only then.

mod apply;
mod entry_path;

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::compression::decompress;
use crate::digest::{ContentHasher, Digest};
use crate::disk::{DiskError, DiskReserve};
use crate::limits::ImageLimits;
use crate::tar_reader::{TarError, TarReader};

use apply::Applier;

/// Why a layer could not be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The stream is no usable tar.
    #[error("layer {layer}")]
    Tar {
        /// The layer's blob.
        layer: Digest,
        /// What is wrong with it.
        #[source]
        source: TarError,
    },
    /// An entry that must not be in a layer.
    #[error("layer {layer}: entry {path:?}: {reason}")]
    Entry {
        /// The layer's blob.
        layer: Digest,
        /// The entry's name, shortened.
        path: String,
        /// The rule it breaks.
        reason: &'static str,
    },
    /// The kernel refused to create an entry.
    #[error("layer {layer}: {action} {path:?}")]
    Create {
        /// The layer's blob.
        layer: Digest,
        /// What was tried, as a verb.
        action: &'static str,
        /// The entry's name, shortened.
        path: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// More uncompressed bytes than allowed.
    #[error("layer {layer} has more than {max} bytes uncompressed")]
    TooLarge {
        /// The layer's blob.
        layer: Digest,
        /// The bound.
        max: u64,
    },
    /// The blob in the store is damaged.
    #[error("layer {layer} is damaged: its content has digest {actual}")]
    BlobDigest {
        /// The layer's blob.
        layer: Digest,
        /// Of what was read.
        actual: Digest,
    },
    /// The content is not what the configuration says.
    #[error(
        "layer {layer}: the uncompressed content has digest {actual}, the configuration (rootfs.diff_ids) says {expected}"
    )]
    DiffId {
        /// The layer's blob.
        layer: Digest,
        /// Of the configuration.
        expected: Digest,
        /// Of the content.
        actual: Digest,
    },
    /// The disk is full or would be.
    #[error("layer {layer}")]
    Disk {
        /// The layer's blob.
        layer: Digest,
        /// Free and required space, or the system's error.
        #[source]
        source: DiskError,
    },
    /// The caller cancelled it.
    #[error("layer {layer}: unpacking was cancelled")]
    Cancelled {
        /// The layer's blob.
        layer: Digest,
    },
}

/// A layer to unpack.
pub(crate) struct UnpackRequest<'a> {
    pub(crate) layer: Digest,
    pub(crate) diff_id: Digest,
    /// An existing, empty directory.
    pub(crate) root: &'a Path,
    /// The unpacked layers below, from the topmost to the lowest: directories that the tar only implies are like theirs.
    pub(crate) lowers: &'a [PathBuf],
    pub(crate) limits: &'a ImageLimits,
    pub(crate) disk: &'a DiskReserve,
    pub(crate) cancelled: &'a AtomicBool,
}

/// Unpacks the blob and compares both digests. Returns the bytes of file content. After an error the directory holds a part.
pub(crate) fn unpack(blob: impl Read, request: &UnpackRequest<'_>) -> Result<u64, UnpackError> {
    let layer = request.layer;
    let mut compressed = Hashed { source: blob, hasher: ContentHasher::default() };
    let mut applier = Applier::open(request)?;
    let applied = apply_stream(&mut compressed, &mut applier, request);
    if !matches!(applied, Err(UnpackError::Cancelled { .. } | UnpackError::Disk { .. })) {
        // A damaged blob explains whatever else went wrong, and is pulled again.
        io::copy(&mut compressed, &mut io::sink()).map_err(|e| unreadable(layer, e))?;
        let actual = compressed.hasher.finish();
        if actual != layer {
            return Err(UnpackError::BlobDigest { layer, actual });
        }
    }
    let actual = applied?;
    if actual != request.diff_id {
        return Err(UnpackError::DiffId { layer, expected: request.diff_id, actual });
    }
    applier.finish()
}

/// Applies the uncompressed stream to its end. Returns its digest.
fn apply_stream(
    source: impl Read,
    applier: &mut Applier<'_>,
    request: &UnpackRequest<'_>,
) -> Result<Digest, UnpackError> {
    let (layer, max) = (request.layer, request.limits.layer_bytes);
    let plain = decompress(source).map_err(|e| unreadable(layer, e))?;
    let hashed = Hashed { source: Bounded { source: plain, left: max }, hasher: ContentHasher::default() };
    let mut tar = TarReader::new(hashed, request.limits.layer_entries);
    let applied = apply_all(&mut tar, applier, request);
    let mut rest = tar.into_rest();
    let drained = applied.and_then(|()| io::copy(&mut rest, &mut io::sink()).map_err(|e| unreadable(layer, e)));
    if rest.source.left == 0 {
        return Err(UnpackError::TooLarge { layer, max });
    }
    drained?;
    Ok(rest.hasher.finish())
}

fn unreadable(layer: Digest, source: io::Error) -> UnpackError {
    UnpackError::Tar { layer, source: TarError::Read(source) }
}

fn apply_all<R: Read>(
    tar: &mut TarReader<R>,
    applier: &mut Applier<'_>,
    request: &UnpackRequest<'_>,
) -> Result<(), UnpackError> {
    let layer = request.layer;
    while let Some(entry) = tar.next_entry().map_err(|source| UnpackError::Tar { layer, source })? {
        if request.cancelled.load(Ordering::Relaxed) {
            return Err(UnpackError::Cancelled { layer });
        }
        applier.apply(&entry, tar)?;
    }
    Ok(())
}

/// Hashes what is read.
struct Hashed<R> {
    source: R,
    hasher: ContentHasher,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}

/// Fails instead of returning more bytes than allowed.
struct Bounded<R> {
    source: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.left = self.left.saturating_sub(count as u64);
        if self.left == 0 && count > 0 { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(count) }
    }
}

#[cfg(test)]
mod tests;
