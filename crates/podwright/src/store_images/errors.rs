//! Errors of the image store for users: what they mean, and the whole chain of causes on one line.

use podwright_image::{
    ArchiveError, ContentError, DiskError, ImageStoreError, LayerError, PullError, PullErrorKind, ReferenceError,
    UnpackError,
};
use podwright_server::local::{ImageErrorKind, ImageRequestError};
use podwright_tasks::{PoolError, error_chain};

/// A name that is not an image reference.
pub(super) fn no_reference(name: &str, error: &ReferenceError) -> ImageRequestError {
    ImageRequestError::new(
        ImageErrorKind::Invalid,
        format!("{name:?} is not a valid image name: {}", error_chain(error)),
    )
}

pub(super) fn pull_error(error: &PullError) -> ImageRequestError {
    let kind = match error.kind() {
        PullErrorKind::NotFound => ImageErrorKind::NotFound,
        PullErrorKind::Unauthorized | PullErrorKind::Unavailable => ImageErrorKind::Registry,
        PullErrorKind::NoSpace => ImageErrorKind::NoSpace,
        PullErrorKind::Invalid => ImageErrorKind::Invalid,
        PullErrorKind::Internal => ImageErrorKind::Failed,
    };
    ImageRequestError::new(kind, error_chain(error))
}

pub(super) fn archive_error(error: &ArchiveError) -> ImageRequestError {
    let kind = match error {
        ArchiveError::Tar(_)
        | ArchiveError::TooLarge { .. }
        | ArchiveError::NotAnArchive
        | ArchiveError::Malformed { .. }
        | ArchiveError::Missing { .. }
        | ArchiveError::Empty
        | ArchiveError::Name(_)
        | ArchiveError::Manifest(_) => ImageErrorKind::Invalid,
        ArchiveError::Content(error) => content_kind(error),
        ArchiveError::Layer(error) => layer_kind(error),
        ArchiveError::File(_) | ArchiveError::Write(_) | ArchiveError::Store(_) => ImageErrorKind::Failed,
    };
    ImageRequestError::new(kind, error_chain(error))
}

pub(super) fn store_error(error: &ImageStoreError) -> ImageRequestError {
    ImageRequestError::new(ImageErrorKind::Failed, error_chain(error))
}

pub(super) fn pool_error(error: &PoolError) -> ImageRequestError {
    ImageRequestError::new(ImageErrorKind::Failed, error_chain(error))
}

fn layer_kind(error: &LayerError) -> ImageErrorKind {
    match error {
        LayerError::Unpack(UnpackError::Disk { .. }) => ImageErrorKind::NoSpace,
        LayerError::Unpack(UnpackError::Create { .. }) => ImageErrorKind::Failed,
        LayerError::Unpack(_) => ImageErrorKind::Invalid,
        LayerError::Content(error) => content_kind(error),
        _ => ImageErrorKind::Failed,
    }
}

fn content_kind(error: &ContentError) -> ImageErrorKind {
    match error {
        ContentError::Disk(DiskError::NoSpace { .. } | DiskError::NoInodes { .. }) => ImageErrorKind::NoSpace,
        ContentError::Disk(_) | ContentError::File(_) | ContentError::Missing(_) => ImageErrorKind::Failed,
        ContentError::Digest { .. } | ContentError::Size { .. } | ContentError::TooLarge { .. } => {
            ImageErrorKind::Invalid
        }
    }
}
