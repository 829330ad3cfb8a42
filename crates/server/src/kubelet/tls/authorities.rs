//! The certificates of `clientCAFile`: CAs of client certificates, and client certificates that are trusted themselves.

use std::sync::Arc;

use podwright_api::authorities::{Authorities, PeerRole};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme};

use super::provider;

/// Trusts these certificates and those that they have issued.
#[derive(Debug)]
pub(super) struct ClientAuthorities(Authorities);

impl ClientAuthorities {
    /// Fails for a certificate that cannot be parsed.
    pub(super) fn new(certificates: Vec<CertificateDer<'static>>) -> Result<Self, Error> {
        Authorities::new(certificates, PeerRole::Client).map(Self).map_err(invalid)
    }
}

impl ClientCertVerifier for ClientAuthorities {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.0.verify(own, rest, now).map_err(invalid)?;
        Ok(ClientCertVerified::assertion())
    }

    // Handshakes are verified apart from the CA.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

fn invalid(error: webpki::Error) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))
}
