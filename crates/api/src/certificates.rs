//! The node's certificates: requested from signers of the API server, kept in files, and rotated before they expire.
//!
//! ```text
//!  core::certificates (when, for whom) ◀──▶ rotation ──▶ signing_request ──▶ API server: a signer
//!                                              │
//!                                              ├──▶ store: kubelet-client-current.pem ─▶ kubelet-client-2026-01-31-12-00-00.pem
//!                                              └──▶ ApiClient: new connections, or the HTTPS server
//! ```

mod bootstrap;
mod rotation;
mod signing_request;
mod store;

pub use crate::certificate_pair::{CertificatePair, CurrentCertificate, PairError};
pub use bootstrap::{BootstrapError, prepare_kubeconfig};
pub use rotation::{CertificateRotation, CertificateStatus, RotationClients, RotationError};
pub use signing_request::SigningError;
pub use store::{CertificateFileError, CertificateStore};

/// The certificates of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateKind {
    /// Authenticates the node to the API server.
    Client,
    /// Of the HTTPS server.
    Serving,
}

impl CertificateKind {
    /// Prefix of the names of its files, as with the Go kubelet.
    pub(crate) fn file_prefix(self) -> &'static str {
        match self {
            Self::Client => "kubelet-client",
            Self::Serving => "kubelet-server",
        }
    }

    /// `spec.signerName` of its requests.
    pub(crate) fn signer(self) -> &'static str {
        match self {
            Self::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::Serving => "kubernetes.io/kubelet-serving",
        }
    }

    /// `spec.usages` of its requests, for a key that is not RSA.
    pub(crate) fn usages(self) -> [&'static str; 2] {
        match self {
            Self::Client => ["digital signature", "client auth"],
            Self::Serving => ["digital signature", "server auth"],
        }
    }

    /// In log lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Serving => "serving",
        }
    }
}
