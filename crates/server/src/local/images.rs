//! The images of the node in the local API: what can be asked of them, and the form of the answers.
//!
//! ```text
//!  request ─▶ handlers ─▶ NodeImages: the store of the embedded engine ─▶ one answer, or lines of JSON while the work goes on
//!                └─ transfer: archives as streamed bodies, between the connection and a blocking thread
//! ```
//! The commands use [`NodeImages`] too: with a store that no agent uses, and with an agent behind its socket. Results, errors and
//! their texts are therefore the same.

mod handlers;
mod transfer;

use std::fmt;
use std::io::{Read, Write};
use std::pin::Pin;

use futures::Stream;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use podwright_cri::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(super) use handlers::{ImageRoute, pulls, pulls_of_pod, respond};

/// The images of the node.
pub trait NodeImages: Send + Sync + 'static {
    /// All images, by id.
    fn list(&self) -> ImageFuture<Vec<NodeImage>>;
    /// Images by name or id, with layers and configuration; an error if one of them does not exist.
    fn inspect(&self, images: Vec<String>) -> ImageFuture<Vec<Value>>;
    /// Pulls an image: lines of progress, then the image. Dropping the stream ends the pull, unless others wait for it.
    fn pull(&self, request: PullRequest) -> ImageLines;
    /// Loads an archive: a line per image. Dropping the stream ends it; the reader is then no longer read.
    fn load(&self, archive: Box<dyn Read + Send>) -> ImageLines;
    /// Writes images to an archive. Nothing is written if one of them does not exist or lacks content.
    fn save(&self, images: Vec<String>, archive: Box<dyn Write + Send>) -> ImageFuture<()>;
    /// Removes images with all their names, and what no other image needs: a line with their ids, then what was freed. Without
    /// `force`, images that containers use are refused, and then none is removed.
    fn remove(&self, images: Vec<String>, force: bool) -> ImageLines;
    /// Removes images without a name, and what no image needs: the same lines.
    fn prune(&self) -> ImageLines;
    /// How far the pull of the image in this field of a pod is. `None`: none is under way.
    fn pull_amount(&self, image: &str) -> Option<PullAmount>;
}

/// The trailer with the error of an archive that could not be completed, for clients that accept trailers (`TE: trailers`).
pub const ARCHIVE_ERROR: &str = "podwright-error";

/// An answer of [`NodeImages`].
pub type ImageFuture<T> = BoxFuture<'static, Result<T, ImageRequestError>>;
/// The answer to work that takes a while. It ends after the first error.
pub type ImageLines = Pin<Box<dyn Stream<Item = Result<ImageLine, ImageRequestError>> + Send>>;

/// An image as the local API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeImage {
    /// `sha256:…`, the digest of its configuration.
    pub id: String,
    /// Names with a tag, in order.
    pub tags: Vec<String>,
    /// Names with a digest, in order.
    pub digests: Vec<String>,
    /// The digest of the manifest for this node's platform.
    pub manifest: String,
    /// Bytes of its layers as they were pulled.
    pub size: u64,
    /// When it was pulled or loaded last.
    pub stored_at: Timestamp,
    /// Never removed to free space.
    pub pinned: bool,
}

/// The body of a request for a pull. It holds a password and has no `Debug`.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PullRequest {
    /// A reference, such as `docker.io/library/busybox:1`.
    pub image: String,
    /// The user of the registry; `None`: anonymous.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// Of this user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
}

/// One line of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ImageLine {
    /// How far a pull is: its layers from the lowest to the topmost.
    Progress(Vec<LayerAmount>),
    /// An image that was pulled or loaded.
    Image(NodeImage),
    /// The ids of the images that were removed.
    Removed(Vec<String>),
    /// The content that no image needed.
    Freed(FreedContent),
    /// Content was not removed: the engine does not run, and its containers, so many, may use it.
    Kept(usize),
}

/// How far the transfer of one layer is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LayerAmount {
    /// Of its blob.
    pub digest: String,
    /// Bytes to transfer.
    pub size: u64,
    /// Bytes transferred; all of them if the node had the layer.
    pub received: u64,
    /// It is ready for containers.
    pub unpacked: bool,
}

/// What garbage collection deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FreedContent {
    /// Manifests, configurations and compressed layers.
    pub blobs: usize,
    /// Unpacked layers.
    pub layers: usize,
    /// Bytes of both.
    pub bytes: u64,
}

/// How far a pull is, over all layers. Both are 0 until the manifest is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PullAmount {
    /// Bytes transferred.
    pub received: u64,
    /// Bytes in total.
    pub size: u64,
}

impl PullAmount {
    /// The sum of the layers.
    pub fn of_layers(layers: &[LayerAmount]) -> Self {
        layers.iter().fold(Self::default(), |sum, layer| Self {
            received: sum.received.saturating_add(layer.received),
            size: sum.size.saturating_add(layer.size),
        })
    }
}

/// `Pulling 34 of 120 MB`.
impl fmt::Display for PullAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.size {
            0 => f.write_str("Pulling"),
            size => write!(f, "Pulling {} of {} MB", self.received / 1_000_000, size.div_ceil(1_000_000)),
        }
    }
}

/// The pull that a container of a pod waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodPull {
    /// Of the pod.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// The container that waits.
    pub container: String,
    /// As in the pod's spec.
    pub image: String,
    /// How far it is.
    #[serde(flatten)]
    pub amount: PullAmount,
}

/// The answer of `/podwright/v1/pulls`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodPulls {
    /// By namespace, name and order of containers.
    pub pulls: Vec<PodPull>,
}

/// Why a request about images failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ImageRequestError {
    /// Selects the HTTP status.
    pub kind: ImageErrorKind,
    /// For users; the whole chain of causes on one line.
    pub message: String,
}

/// What a failed request means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageErrorKind {
    /// There is no such image, here or in the registry.
    NotFound,
    /// The request, the archive or the image can't be used.
    Invalid,
    /// A container uses the image.
    InUse,
    /// Another program keeps the images of this node.
    Elsewhere,
    /// The disk has no space for more.
    NoSpace,
    /// The registry refused the credentials, can't be reached, or failed.
    Registry,
    /// This node failed.
    Failed,
}

impl ImageErrorKind {
    const CODES: [(Self, u16, &'static str); 7] = [
        (Self::NotFound, 404, "NotFound"),
        (Self::Invalid, 400, "BadRequest"),
        (Self::InUse, 409, "Conflict"),
        (Self::Elsewhere, 501, "NotImplemented"),
        (Self::NoSpace, 507, "InsufficientStorage"),
        (Self::Registry, 502, "BadGateway"),
        (Self::Failed, 500, "InternalError"),
    ];

    /// The HTTP status code and the reason of a Status.
    fn code(self) -> (u16, &'static str) {
        let found = Self::CODES.iter().find(|(kind, ..)| *kind == self);
        found.map_or((500, "InternalError"), |(_, code, reason)| (*code, *reason))
    }
}

impl ImageRequestError {
    /// An error with this message.
    pub fn new(kind: ImageErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The error in a Status that this API sent with an HTTP status code.
    pub fn from_status(code: u16, status: Status) -> Self {
        let known = ImageErrorKind::CODES.iter().find(|(_, known, _)| *known == code);
        let message = status.message.unwrap_or_else(|| format!("the agent responded with {code}"));
        Self::new(known.map_or(ImageErrorKind::Failed, |(kind, ..)| *kind), message)
    }
}

/// A line as it is sent: a line of the answer, or the error that ends it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SentImageLine {
    /// The error, as a v1 Status.
    Failed {
        /// With the code that the response would have had.
        error: Status,
    },
    /// A part of the answer.
    Line(ImageLine),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_of_a_pull_is_shown_in_megabytes() {
        let layer = |received, size| LayerAmount { digest: "sha256:a".into(), size, received, unpacked: false };
        let amount = PullAmount::of_layers(&[layer(30_900_000, 100_000_000), layer(4_000_000, 19_500_000)]);
        assert_eq!(amount.to_string(), "Pulling 34 of 120 MB");
        assert_eq!(PullAmount::default().to_string(), "Pulling", "the manifest is not known yet");
    }

    #[test]
    fn lines_and_errors_are_read_back_as_they_were_sent() {
        let line = SentImageLine::Line(ImageLine::Freed(FreedContent { blobs: 1, layers: 2, bytes: 3 }));
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(text, r#"{"freed":{"blobs":1,"layers":2,"bytes":3}}"#);
        assert!(matches!(serde_json::from_str(&text), Ok(SentImageLine::Line(ImageLine::Freed(_)))));
        for (kind, code, _) in ImageErrorKind::CODES {
            let status = Status { message: Some("m".into()), ..Status::default() };
            assert_eq!(ImageRequestError::from_status(code, status), ImageRequestError::new(kind, "m"));
        }
    }
}
