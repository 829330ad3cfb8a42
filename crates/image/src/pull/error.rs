//! Why a pull failed, and what that means to its caller.

use podwright_tasks::PoolError;

use crate::content::ContentError;
use crate::disk::DiskError;
use crate::layers::LayerError;
use crate::manifest::ImageManifestError;
use crate::reference::ImageReference;
use crate::registry::RegistryError;
use crate::store::ImageStoreError;
use crate::unpack::UnpackError;

/// Why an image was not pulled.
#[derive(Debug, thiserror::Error)]
#[error("pull image {image}")]
pub struct PullError {
    /// The normalised reference.
    pub image: ImageReference,
    /// What went wrong.
    #[source]
    pub(crate) problem: PullProblem,
}

/// What went wrong in a pull.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PullProblem {
    /// The registry did not deliver.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A document of the image can't be used.
    #[error(transparent)]
    Manifest(#[from] ImageManifestError),
    /// Content could not be stored.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// A layer could not be unpacked.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// The store failed otherwise.
    #[error(transparent)]
    Store(#[from] ImageStoreError),
    /// The disk work was not begun or did not end.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// What a failed pull means to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullErrorKind {
    /// The registry has no such image.
    NotFound,
    /// The registry wants other credentials.
    Unauthorized,
    /// The registry can't be reached or fails; a later pull may succeed.
    Unavailable,
    /// The disk of this node is full.
    NoSpace,
    /// The image can't be used on this node, now or later.
    Invalid,
    /// This node failed otherwise.
    Internal,
}

impl PullError {
    /// What it means to the caller.
    pub fn kind(&self) -> PullErrorKind {
        match &self.problem {
            PullProblem::Registry(RegistryError::Content(error)) | PullProblem::Content(error) => content_kind(error),
            PullProblem::Registry(error) => match error.status().map(|status| status.as_u16()) {
                Some(404) => PullErrorKind::NotFound,
                Some(401 | 403) => PullErrorKind::Unauthorized,
                _ if matches!(error, RegistryError::Hosts { .. } | RegistryError::Tls { .. }) => {
                    PullErrorKind::Internal
                }
                _ => PullErrorKind::Unavailable,
            },
            PullProblem::Manifest(_) => PullErrorKind::Invalid,
            PullProblem::Layer(LayerError::Unpack(UnpackError::Disk { .. })) => PullErrorKind::NoSpace,
            PullProblem::Layer(LayerError::Unpack(UnpackError::Create { .. })) => PullErrorKind::Internal,
            PullProblem::Layer(LayerError::Unpack(_)) => PullErrorKind::Invalid,
            PullProblem::Layer(LayerError::Content(error)) => content_kind(error),
            PullProblem::Layer(_) | PullProblem::Store(_) | PullProblem::Pool(_) => PullErrorKind::Internal,
        }
    }
}

fn content_kind(error: &ContentError) -> PullErrorKind {
    match error {
        ContentError::Disk(DiskError::NoSpace { .. } | DiskError::NoInodes { .. }) => PullErrorKind::NoSpace,
        ContentError::Disk(_) | ContentError::File(_) | ContentError::Missing(_) => PullErrorKind::Internal,
        ContentError::Digest { .. } | ContentError::Size { .. } | ContentError::TooLarge { .. } => {
            PullErrorKind::Unavailable
        }
    }
}
