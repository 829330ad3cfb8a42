//! What one entry of a layer can fail with.

use std::io;

use podwright_linux::beneath::RemoveError;
use rustix::io::Errno;

use super::super::{UnpackError, UnpackRequest};
use crate::digest::excerpt;
use crate::tar_reader::TarError;

/// One entry, for error messages.
pub(super) struct EntryStep<'a> {
    pub(super) request: &'a UnpackRequest<'a>,
    pub(super) path: &'a [u8],
}

impl EntryStep<'_> {
    fn shown(&self) -> String {
        excerpt(&String::from_utf8_lossy(self.path))
    }

    pub(super) fn refused(&self, reason: &'static str) -> UnpackError {
        UnpackError::Entry { layer: self.request.layer, path: self.shown(), reason }
    }

    pub(super) fn failed(&self, action: &'static str) -> impl FnOnce(io::Error) -> UnpackError {
        let (layer, path, disk) = (self.request.layer, self.shown(), self.request.disk.clone());
        move |source| match (source.kind(), disk.check(1)) {
            (io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded, Err(source)) => {
                UnpackError::Disk { layer, source }
            }
            _ => UnpackError::Create { layer, action, path, source },
        }
    }

    pub(super) fn lookup(&self, error: Errno) -> UnpackError {
        match error {
            Errno::LOOP => self.refused("a directory of the name is a symlink"),
            Errno::NOTDIR => self.refused("a directory of the name is a file"),
            Errno::XDEV => self.refused("the name leads out of the layer"),
            other => self.failed("open the directory of")(other.into()),
        }
    }

    pub(super) fn not_removed(&self) -> impl FnOnce(RemoveError) -> UnpackError {
        let failed = self.failed("replace");
        move |error| failed(io::Error::other(error))
    }

    pub(super) fn stream(&self, source: io::Error) -> UnpackError {
        UnpackError::Tar { layer: self.request.layer, source: TarError::Read(source) }
    }

    pub(super) fn check_cancelled(&self) -> Result<(), UnpackError> {
        let layer = self.request.layer;
        let cancelled = self.request.cancelled.load(std::sync::atomic::Ordering::Relaxed);
        if cancelled { Err(UnpackError::Cancelled { layer }) } else { Ok(()) }
    }
}
