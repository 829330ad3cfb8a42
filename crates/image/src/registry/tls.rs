//! TLS for registries: the system's certificates or those of `hosts.toml`, and client certificates.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use super::RegistryError;
use super::hosts_toml::RegistryHost;

/// The configuration for a host; `None` for one without settings of its own. Reads files.
pub(super) fn client_config(host: Option<&RegistryHost>) -> Result<ClientConfig, RegistryError> {
    let name = host.map(ToString::to_string).unwrap_or_default();
    let problem = |problem: String| RegistryError::Tls { host: name.clone(), problem };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let builder = builder.map_err(|e| problem(e.to_string()))?;
    let builder = match host {
        Some(host) if host.skip_verify => {
            let algorithms = provider.signature_verification_algorithms;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(NoVerification(algorithms)))
        }
        _ => {
            let ca = host.map(|host| host.ca.as_slice()).unwrap_or_default();
            let mut roots = system_roots();
            for path in ca {
                for certificate in certificates(path).map_err(&problem)? {
                    let added = roots.add(certificate);
                    added.map_err(|e| problem(format!("{}: {e}", path.display())))?;
                }
            }
            builder.with_root_certificates(roots)
        }
    };
    match host.and_then(|host| host.client.first()) {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, key)) => {
            let chain = certificates(certificate).map_err(&problem)?;
            let path = key.as_ref().unwrap_or(certificate);
            let key = PrivateKeyDer::from_pem_file(path);
            // The parser's message says what is wrong with the file, not what is in it.
            let key = key.map_err(|e| problem(format!("private key {}: {e}", path.display())))?;
            builder.with_client_auth_cert(chain, key).map_err(|e| problem(e.to_string()))
        }
    }
}

/// The system's bundle; on a system without one, Mozilla's as compiled in.
fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let shown = |e: rustls_pki_types::pem::Error| format!("{}: {e}", path.display());
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(shown)?.collect();
    match found.map_err(shown)? {
        none if none.is_empty() => Err(format!("{}: no certificate in PEM", path.display())),
        some => Ok(some),
    }
}

/// `skip_verify` of `hosts.toml`: any certificate, but the handshake's signatures must fit it.
#[derive(Debug)]
struct NoVerification(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for NoVerification {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
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
