//! TLS of the kubelet's API: the serving certificate and the CA of client certificates, both reloaded when their files change.
//! A certificate that a signer of the API server issues is passed in by the agent.
//!
//! A client certificate is requested, never required. The handshake proves only that the client has the key; whether the certificate
//! is trusted is decided per request, with the CA that is current then.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use podwright_agent::host::{Pool, PoolError};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme, SupportedProtocolVersion};

mod authorities;
mod client_chain;
mod reload;
mod self_signed;

use authorities::ClientAuthorities;
pub(super) use client_chain::ClientChain;
use reload::{FilePart, FileStamps, file_stamps};
use self_signed::load_or_create;

/// Where certificates are read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate of the server.
    pub serving: ServingSource,
    /// Directory of the self-signed certificate (`--cert-dir`).
    pub cert_dir: PathBuf,
    /// The name in the self-signed certificate.
    pub hostname: String,
    /// `authentication.x509.clientCAFile`; `None`: client certificates are not requested.
    pub client_ca: Option<PathBuf>,
}

/// Where the certificate of the server comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServingSource {
    /// `tlsCertFile` and `tlsPrivateKeyFile`.
    Files {
        /// PEM; the server's certificate first, then intermediate ones.
        certificate: PathBuf,
        /// PEM.
        key: PathBuf,
    },
    /// Made by the server itself, in the certificate directory.
    SelfSigned,
    /// Issued by a signer of the API server, and set with [`ServerTls::set_serving`]. Until then handshakes fail.
    Issued,
}

/// Versions and cipher suites.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsPolicy {
    /// TLS 1.2 is refused (`tlsMinVersion: VersionTLS13`).
    pub only_tls13: bool,
    /// `tlsCipherSuites`, in the names of IANA; empty: the default. They apply to TLS 1.2; those of TLS 1.3 are always offered.
    pub cipher_suites: Vec<String>,
}

impl TlsPolicy {
    /// The names that may be in [`TlsPolicy::cipher_suites`].
    pub fn known_cipher_suites() -> Vec<String> {
        provider().cipher_suites.iter().map(|suite| suite_name(suite.suite())).collect()
    }
}

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The failed system call.
        source: std::io::Error,
    },
    /// A file cannot be written.
    #[error("write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The failed system call.
        source: std::io::Error,
    },
    /// A file is not PEM, or has no certificate or key.
    #[error("{}: {why}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Certificate and key do not fit, or have an unsupported algorithm.
    #[error("{}: {source}", path.display())]
    Certificate {
        /// The file of the certificate.
        path: PathBuf,
        /// The error of the TLS library.
        source: rustls::Error,
    },
    /// The configuration has no usable version or cipher suite.
    #[error("configure TLS")]
    Policy(#[source] rustls::Error),
    /// The self-signed certificate cannot be made.
    #[error("create a self-signed certificate")]
    SelfSigned(#[from] rcgen::Error),
    /// The file system does not answer.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// The current certificates, and the TLS configuration that uses them.
pub struct ServerTls {
    files: TlsFiles,
    config: Arc<ServerConfig>,
    serving: Arc<ServingCertificate>,
    /// `None`: no CA file is configured.
    authorities: Option<RwLock<Arc<dyn ClientCertVerifier>>>,
    /// The files as they were before they were read, of each [`FilePart`].
    opened: [FileStamps; 2],
}

/// The certificate of new connections; `None`: it is not issued yet.
#[derive(Debug)]
struct ServingCertificate(RwLock<Option<Arc<CertifiedKey>>>);

impl ServingCertificate {
    fn set(&self, new: CertifiedKey) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(new));
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ServerTls {
    /// Reads all files; creates the self-signed certificate if none is configured and none exists.
    pub async fn open(files: TlsFiles, policy: &TlsPolicy, pool: &Pool) -> Result<Self, TlsError> {
        let to_read = files.clone();
        let read = move || {
            // First: a change while the files are read is seen by the first check.
            let stamps = FilePart::ALL.map(|part| file_stamps(&to_read, part));
            Ok::<_, TlsError>((stamps, serving(&to_read)?, authorities(&to_read)?))
        };
        let (opened, serving, authorities) = pool.run(POOL_KEY, READ_TIMEOUT, read).await??;
        let serving = Arc::new(ServingCertificate(RwLock::new(serving.map(Arc::new))));
        let mut provider = provider();
        if !policy.cipher_suites.is_empty() {
            provider
                .cipher_suites
                .retain(|suite| suite.tls13().is_some() || policy.cipher_suites.contains(&suite_name(suite.suite())));
        }
        let (both, newest) = ([&rustls::version::TLS13, &rustls::version::TLS12], [&rustls::version::TLS13]);
        let versions: &[&'static SupportedProtocolVersion] = if policy.only_tls13 { &newest } else { &both };
        let algorithms = provider.signature_verification_algorithms;
        let builder = ServerConfig::builder_with_provider(Arc::new(provider));
        let builder = builder.with_protocol_versions(versions).map_err(TlsError::Policy)?;
        let builder = match &authorities {
            Some(_) => builder.with_client_cert_verifier(Arc::new(AnyCertificate(algorithms))),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::<ServingCertificate>::clone(&serving));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { files, config: Arc::new(config), serving, authorities: authorities.map(RwLock::new), opened })
    }

    /// Uses an issued certificate (PEM) for new connections.
    pub fn set_serving(&self, certificates: &str, key: &str) -> Result<(), TlsError> {
        let path = || self.files.cert_dir.clone();
        let wrong = |error: rustls::pki_types::pem::Error| TlsError::Pem { path: path(), why: error.to_string() };
        let chain = CertificateDer::pem_slice_iter(certificates.as_bytes()).collect::<Result<Vec<_>, _>>();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(wrong)?;
        let new = CertifiedKey::from_der(chain.map_err(wrong)?, key, &provider());
        self.serving.set(new.map_err(|source| TlsError::Certificate { path: path(), source })?);
        Ok(())
    }

    /// For new connections.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// The chain is signed by the current CA, valid now, and for client authentication.
    pub(super) fn is_trusted(&self, chain: &ClientChain) -> bool {
        let Some(authorities) = &self.authorities else { return false };
        let current = Arc::clone(&authorities.read().unwrap_or_else(PoisonError::into_inner));
        chain.is_signed_by(&current)
    }
}

/// `None`: it is set from outside.
fn serving(files: &TlsFiles) -> Result<Option<CertifiedKey>, TlsError> {
    match &files.serving {
        ServingSource::Files { certificate, key } => read_pair(certificate, key).map(Some),
        ServingSource::SelfSigned => load_or_create(&files.cert_dir, &files.hostname).map(Some),
        ServingSource::Issued => Ok(None),
    }
}

fn read_pair(certificate: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
    let pem = |path: &Path, error: rustls::pki_types::pem::Error| TlsError::Pem {
        path: path.to_owned(),
        why: error.to_string(),
    };
    let chain = certificates(certificate)?;
    let der = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| pem(key, error))?;
    CertifiedKey::from_der(chain, der, &provider())
        .map_err(|source| TlsError::Certificate { path: certificate.to_owned(), source })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |why: String| TlsError::Pem { path: path.to_owned(), why };
    let found = CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| wrong(error.to_string()))?;
    if found.is_empty() { Err(wrong("there is no certificate in it".into())) } else { Ok(found) }
}

fn authorities(files: &TlsFiles) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
    let Some(path) = &files.client_ca else { return Ok(None) };
    let wrong = |source| TlsError::Certificate { path: path.clone(), source };
    Ok(Some(Arc::new(ClientAuthorities::new(certificates(path)?).map_err(wrong)?)))
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    use std::io::Read;
    let failed = |source| TlsError::Read { path: path.to_owned(), source };
    let mut content = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(FILE_MAX).read_to_end(&mut content).map_err(failed)?;
    Ok(content)
}

fn provider() -> CryptoProvider {
    rustls::crypto::ring::default_provider()
}

/// The name of IANA, which Go uses too.
fn suite_name(suite: rustls::CipherSuite) -> String {
    format!("{suite:?}").replace("TLS13_", "TLS_")
}

/// Requests a client certificate and accepts any whose key the client has.
#[derive(Debug)]
struct AnyCertificate(WebPkiSupportedAlgorithms);

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // The CA may change; without hints a client sends the certificate that it has.
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

const POOL_KEY: &str = "certificates of the HTTPS server";
/// For a few small files.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// A bundle of some hundred certificates.
const FILE_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests;
