//! The reserve that images leave free on the disk, so that a pull never fills it for logs, volumes and other pods.

use std::path::{Path, PathBuf};

use rustix::fs::statvfs;

use crate::durable::{DurableFileError, failed};
use crate::limits::ImageLimits;

/// Checks the free space of one file system.
#[derive(Clone, Debug)]
pub(crate) struct DiskReserve {
    dir: PathBuf,
    reserve_max: u64,
}

/// Why nothing more may be written.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The content would use up the reserve, or the disk is full.
    #[error("no space left for images on the disk of {}: {free} bytes are free, {reserve} are reserved, {needed} more are needed", dir.display())]
    NoSpace {
        /// The directory of the store.
        dir: PathBuf,
        /// Bytes that an unprivileged process could write.
        free: u64,
        /// Bytes that stay free.
        reserve: u64,
        /// Bytes that were about to be written.
        needed: u64,
    },
    /// The content would use up the reserve of inodes.
    #[error("no inodes left for images on the disk of {}: {free} are free, {reserve} are reserved", dir.display())]
    NoInodes {
        /// The directory of the store.
        dir: PathBuf,
        /// Files that an unprivileged process could create.
        free: u64,
        /// Files that stay free.
        reserve: u64,
    },
    /// The file system does not answer.
    #[error(transparent)]
    File(#[from] DurableFileError),
}

impl DiskReserve {
    pub(crate) fn new(dir: &Path, limits: &ImageLimits) -> Self {
        Self { dir: dir.to_owned(), reserve_max: limits.disk_reserve_bytes }
    }

    /// Whether `needed` more bytes leave the reserve free, and the reserve of inodes is still there.
    pub(crate) fn check(&self, needed: u64) -> Result<(), DiskError> {
        let found = statvfs(&self.dir).map_err(|e| failed("statvfs", &self.dir)(e.into()))?;
        let (free, whole) = (found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize);
        let reserve = self.reserve_max.min(whole / 20);
        if free < reserve.saturating_add(needed) {
            return Err(DiskError::NoSpace { dir: self.dir.clone(), free, reserve, needed });
        }
        // Some file systems (btrfs) have no fixed number of inodes and report 0.
        let (free, reserve) = (found.f_favail, (found.f_files / 20).min(INODES_RESERVE_MAX));
        if found.f_files > 0 && free < reserve {
            return Err(DiskError::NoInodes { dir: self.dir.clone(), free, reserve });
        }
        Ok(())
    }
}

/// Files that stay free; on a small disk 5 % of its inodes, if that is less.
const INODES_RESERVE_MAX: u64 = 50_000;
