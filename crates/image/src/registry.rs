//! Client of registries: the OCI distribution protocol, for pulls.
//!
//! ```text
//! reference ─▶ hosts (hosts.toml: mirrors first, the registry last) ─▶ manifest by tag or digest ─▶ blobs by digest
//!                                                         └─ 401 ─▶ token server ─▶ once more
//! ```
//!
//! A registry may be slow, broken or hostile: every wait has a limit, every document a bound, redirects are few and stay on HTTP,
//! and credentials go to the registry they were given for and to no other host.

mod auth;
mod client;
mod hosts_toml;
mod lookup;
mod tls;
mod transfer;
mod transport;

use std::time::Duration;

use http::StatusCode;
use podwright_tasks::{PoolError, error_chain};

use crate::content::ContentError;
use crate::digest::Digest;
use crate::reference::ImageReference;

pub use auth::RegistryCredentials;
pub use hosts_toml::{HostsTomlError, RegistryHost, parse_hosts_toml};

pub(crate) use client::{RegistryClient, RepositorySession};

/// How registries are reached.
#[derive(Clone, Debug)]
pub struct RegistryOptions {
    /// The directory with a `hosts.toml` per registry (containerd's `config_path`). `None`: no mirrors.
    pub config_dir: Option<std::path::PathBuf>,
    /// From the request to the head of the response, with connecting.
    pub response_limit: Duration,
    /// A body that brings less than 4 KiB within this time is aborted.
    pub idle_limit: Duration,
    /// Layers of one pull that are transferred at the same time.
    pub parallel_layers: usize,
    /// Times that a broken transfer of one blob is continued.
    pub resumes: u32,
}

impl Default for RegistryOptions {
    fn default() -> Self {
        Self {
            config_dir: None,
            response_limit: Duration::from_secs(30),
            idle_limit: Duration::from_secs(60),
            parallel_layers: 3,
            resumes: 5,
        }
    }
}

/// Why a registry did not deliver. URLs are shown without their query: it may hold a signature.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// No connection, or it broke.
    #[error("{url}")]
    Connection {
        /// The request.
        url: String,
        /// Details, with the system's error at the end.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No response, or a body that stalls.
    #[error("{url}: no data for {} s", limit.as_secs_f32())]
    Timeout {
        /// The request.
        url: String,
        /// How long it was waited for.
        limit: Duration,
    },
    /// Another status than the protocol has.
    #[error("{url}: status {status}{}", message.as_deref().map(|m| format!(": {m}")).unwrap_or_default())]
    Status {
        /// The request.
        url: String,
        /// The status.
        status: StatusCode,
        /// The server's own explanation, shortened.
        message: Option<String>,
    },
    /// A redirect that is not followed.
    #[error("{url}: redirect to {location:?} refused: {reason}")]
    Redirect {
        /// The request.
        url: String,
        /// Where it leads, shortened and without its query.
        location: String,
        /// The rule it breaks.
        reason: &'static str,
    },
    /// The token server's answer can't be used.
    #[error("{url}: {reason}")]
    Token {
        /// The token server.
        url: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// A document or body is larger than allowed or than announced.
    #[error("{url}: the body has more than {max} bytes")]
    TooLarge {
        /// The request.
        url: String,
        /// The bound.
        max: u64,
    },
    /// The body ended early.
    #[error("{url}: the body ended after {received} of {size} bytes")]
    Truncated {
        /// The request.
        url: String,
        /// Bytes that came.
        received: u64,
        /// Bytes that the descriptor says.
        size: u64,
    },
    /// The server announces another size than the manifest.
    #[error("{url}: the server has {announced} bytes, the manifest says {size}")]
    Size {
        /// The request.
        url: String,
        /// `Content-Length` or `Content-Range`.
        announced: u64,
        /// As in the manifest.
        size: u64,
    },
    /// The content is not what was requested.
    #[error("{url}: the content has digest {actual} instead of {expected}")]
    Digest {
        /// The request.
        url: String,
        /// Requested, or in the server's own header.
        expected: Digest,
        /// Of the content.
        actual: Digest,
    },
    /// The content could not be stored.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// The disk work was not begun or did not end.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Certificates can't be used.
    #[error("TLS for {host}: {problem}")]
    Tls {
        /// The host.
        host: String,
        /// What is wrong.
        problem: String,
    },
    /// The configuration of the registry can't be used.
    #[error("configuration of registry {registry}")]
    Hosts {
        /// The registry.
        registry: String,
        /// What is wrong.
        #[source]
        source: HostsTomlError,
    },
    /// No host of the registry delivered.
    #[error("{reference}: {}", attempts.iter().map(|error| error_chain(error)).collect::<Vec<_>>().join("; "))]
    AllHosts {
        /// The image.
        reference: ImageReference,
        /// In the order in which the hosts were asked.
        attempts: Vec<RegistryError>,
    },
    /// `hosts.toml` leaves no host for this kind of request.
    #[error("{reference}: no host in hosts.toml has the capability {capability:?}")]
    NoHost {
        /// The image.
        reference: ImageReference,
        /// `resolve` or `pull`.
        capability: &'static str,
    },
}

impl RegistryError {
    /// The same request may succeed a moment later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Connection { .. } | Self::Timeout { .. } | Self::Truncated { .. } => true,
            Self::Status { status, .. } => status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS,
            _ => false,
        }
    }

    /// The registry itself (the last host asked) answered with this status.
    pub(crate) fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Status { status, .. } => Some(*status),
            Self::AllHosts { attempts, .. } => attempts.last().and_then(Self::status),
            _ => None,
        }
    }

    /// The failure is ours, and another host would not help.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::Content(ContentError::Disk(_) | ContentError::File(_)) | Self::Pool(_))
    }
}
