//! The content store: blobs by digest. A blob is visible only when it is complete and its digest and size were verified.
//!
//! ```text
//! content/
//! ├─ blobs/sha256/<hex>     complete and verified
//! └─ ingest/<n>             being written; removed when its writer is dropped, and at start
//! ```
//!
//! All functions block; callers run them on threads of their own.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::digest::{ContentHasher, Digest};
use crate::disk::{DiskError, DiskReserve};
use crate::durable::{DurableFileError, failed, sync_dir};
use crate::leases::ContentLease;
use crate::limits::ImageLimits;

/// Blobs on disk.
#[derive(Debug)]
pub struct ContentStore {
    blobs: PathBuf,
    ingest: PathBuf,
    disk: DiskReserve,
    next: AtomicU64,
}

/// Why content could not be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    /// The content is not what its digest says.
    #[error("content has digest {actual} instead of {expected}")]
    Digest {
        /// As named by the manifest or the request.
        expected: Digest,
        /// Of the bytes.
        actual: Digest,
    },
    /// The content has another length than its descriptor says.
    #[error("content {digest} has {actual} bytes instead of {expected}")]
    Size {
        /// The content.
        digest: Digest,
        /// As the descriptor says.
        expected: u64,
        /// Bytes until the end, or until there were too many.
        actual: u64,
    },
    /// Content of unknown length passed its bound.
    #[error("content has more than {max} bytes")]
    TooLarge {
        /// The bound.
        max: u64,
    },
    /// It is not in the store.
    #[error("content {0} is not in the store")]
    Missing(Digest),
    /// The disk is full or would be.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] DurableFileError),
}

/// What is known about content before it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedContent {
    /// Digest and size, from a descriptor.
    Exact(Digest, u64),
    /// Nothing but a bound.
    AtMost(u64),
}

impl ContentStore {
    /// Opens or creates the store. Unfinished content of earlier processes is removed.
    pub(crate) fn open(dir: &Path, limits: &ImageLimits) -> Result<Self, DurableFileError> {
        let (blobs, ingest) = (dir.join("blobs/sha256"), dir.join("ingest"));
        fs::create_dir_all(&blobs).map_err(failed("create", &blobs))?;
        fs::create_dir_all(&ingest).map_err(failed("create", &ingest))?;
        for entry in fs::read_dir(&ingest).map_err(failed("read", &ingest))?.flatten() {
            fs::remove_file(entry.path()).map_err(failed("remove", &entry.path()))?;
        }
        Ok(Self { blobs, ingest, disk: DiskReserve::new(dir, limits), next: AtomicU64::new(0) })
    }

    /// Where the blob is or would be.
    pub(crate) fn path(&self, digest: Digest) -> PathBuf {
        self.blobs.join(digest.hex())
    }

    /// The length of a blob; `None` if it is not there.
    pub fn size(&self, digest: Digest) -> Option<u64> {
        fs::symlink_metadata(self.path(digest)).ok().filter(fs::Metadata::is_file).map(|about| about.len())
    }

    /// Opens a blob. The content was verified when it was stored; the disk may have damaged it since.
    pub(crate) fn open_blob(&self, digest: Digest) -> Result<File, ContentError> {
        let path = self.path(digest);
        match File::open(&path) {
            Ok(file) => Ok(file),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(ContentError::Missing(digest)),
            Err(e) => Err(failed("open", &path)(e).into()),
        }
    }

    /// Reads a small blob and verifies it again.
    pub fn read(&self, digest: Digest, max: u64) -> Result<Vec<u8>, ContentError> {
        let mut content = vec![];
        let file = self.open_blob(digest)?;
        file.take(max + 1).read_to_end(&mut content).map_err(failed("read", &self.path(digest)))?;
        if content.len() as u64 > max {
            return Err(ContentError::TooLarge { max });
        }
        let actual = Digest::of(&content);
        if actual == digest { Ok(content) } else { Err(ContentError::Digest { expected: digest, actual }) }
    }

    /// Stores a small document.
    pub(crate) fn write(&self, content: &[u8]) -> Result<Digest, ContentError> {
        let digest = Digest::of(content);
        if self.size(digest) == Some(content.len() as u64) {
            return Ok(digest);
        }
        let mut ingest = self.ingest(ExpectedContent::Exact(digest, content.len() as u64))?;
        ingest.write(content)?;
        ingest.commit()
    }

    /// Begins to write content. Fails if the disk would not keep its reserve.
    pub(crate) fn ingest(&self, expected: ExpectedContent) -> Result<Ingest, ContentError> {
        let announced = match expected {
            ExpectedContent::Exact(_, size) => size,
            ExpectedContent::AtMost(_) => 0,
        };
        self.disk.check(announced)?;
        let path = self.ingest.join(self.next.fetch_add(1, Ordering::Relaxed).to_string());
        let file = File::create_new(&path).map_err(failed("create", &path))?;
        let (blobs, disk) = (self.blobs.clone(), self.disk.clone());
        let hasher = ContentHasher::default();
        Ok(Ingest { path, file, hasher, written: 0, unchecked: 0, expected, blobs, disk })
    }

    /// Removes a blob, for example one that turned out to be damaged. Missing is fine.
    pub fn remove(&self, digest: Digest) -> Result<(), ContentError> {
        let path = self.path(digest);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("remove", &path)(e).into()),
            _ => Ok(()),
        }
    }

    /// All blobs with their sizes.
    pub(crate) fn list(&self) -> Result<Vec<(Digest, u64)>, DurableFileError> {
        let entries = fs::read_dir(&self.blobs).map_err(failed("read", &self.blobs))?.flatten();
        let blob = |entry: fs::DirEntry| {
            let digest = Digest::from_hex(entry.file_name().to_str()?)?;
            Some((digest, entry.metadata().ok()?.len()))
        };
        Ok(entries.filter_map(blob).collect())
    }
}

/// Content that is being written. Dropped without [`Ingest::commit`], it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Ingest {
    path: PathBuf,
    file: File,
    hasher: ContentHasher,
    written: u64,
    /// Bytes since the free space was last checked.
    unchecked: u64,
    expected: ExpectedContent,
    blobs: PathBuf,
    disk: DiskReserve,
}

impl Ingest {
    /// Appends. More bytes than expected are refused before they are written.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), ContentError> {
        let actual = self.written + bytes.len() as u64;
        match self.expected {
            ExpectedContent::Exact(digest, expected) if actual > expected => {
                return Err(ContentError::Size { digest, expected, actual });
            }
            ExpectedContent::AtMost(max) if actual > max => return Err(ContentError::TooLarge { max }),
            _ => {}
        }
        self.unchecked += bytes.len() as u64;
        if self.unchecked >= DISK_CHECK_BYTES {
            self.unchecked = 0;
            self.disk.check(0)?;
        }
        self.file.write_all(bytes).map_err(|e| self.write_failed(e, bytes.len() as u64))?;
        self.hasher.update(bytes);
        self.written = actual;
        Ok(())
    }

    /// Begins again at the first byte, for a source that cannot continue where it stopped.
    pub(crate) fn restart(&mut self) -> Result<(), ContentError> {
        self.file.set_len(0).map_err(failed("truncate", &self.path))?;
        io::Seek::rewind(&mut self.file).map_err(failed("rewind", &self.path))?;
        (self.hasher, self.written) = (ContentHasher::default(), 0);
        Ok(())
    }

    /// Verifies the content, syncs it and makes it visible under its digest.
    pub(crate) fn commit(self) -> Result<Digest, ContentError> {
        self.commit_after(|_| {})
    }

    /// The same for content whose digest is known only now: it is leased before it becomes visible.
    pub(crate) fn commit_leased(self, lease: &mut ContentLease) -> Result<Digest, ContentError> {
        self.commit_after(|digest| lease.hold_blob(digest))
    }

    fn commit_after(mut self, before: impl FnOnce(Digest)) -> Result<Digest, ContentError> {
        let actual = std::mem::take(&mut self.hasher).finish();
        if let ExpectedContent::Exact(expected, size) = self.expected {
            if self.written != size {
                return Err(ContentError::Size { digest: expected, expected: size, actual: self.written });
            }
            if actual != expected {
                return Err(ContentError::Digest { expected, actual });
            }
        }
        self.file.sync_data().map_err(|e| self.write_failed(e, 0))?;
        before(actual);
        let blob = self.blobs.join(actual.hex());
        fs::rename(&self.path, &blob).map_err(failed("rename", &self.path))?;
        sync_dir(&self.blobs)?;
        Ok(actual)
    }

    fn write_failed(&self, error: io::Error, needed: u64) -> ContentError {
        match (error.kind(), self.disk.check(needed)) {
            (io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded, Err(full)) => full.into(),
            _ => failed("write", &self.path)(error).into(),
        }
    }
}

impl Drop for Ingest {
    fn drop(&mut self) {
        // After a commit the name does not exist any more. A file that cannot be removed is removed at the next start.
        let _ = fs::remove_file(&self.path);
    }
}

/// The free space is checked once per this many bytes.
const DISK_CHECK_BYTES: u64 = 16 << 20;

#[cfg(test)]
mod tests;
