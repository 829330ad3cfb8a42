//! The CAs of client certificates. The verifier of rustls does not check the validity of a CA itself, as Go's does: those that are not
//! valid at the moment are left out.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::provider;

/// The CAs of a file.
#[derive(Debug)]
pub(super) struct Authorities {
    all: Vec<DatedAuthority>,
    current: Mutex<CurrentVerifier>,
}

#[derive(Debug)]
struct DatedAuthority {
    certificate: CertificateDer<'static>,
    /// Seconds since 1970, both included.
    valid: std::ops::RangeInclusive<i64>,
}

/// The verifier for the CAs that are valid now.
#[derive(Debug)]
struct CurrentVerifier {
    /// Indexes of these CAs.
    valid: Vec<usize>,
    /// `None`: no CA is valid.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
}

impl Authorities {
    /// Fails for a certificate that cannot be a CA.
    pub(super) fn new(certificates: Vec<CertificateDer<'static>>) -> Result<Self, Error> {
        let mut roots = RootCertStore::empty();
        let mut all = vec![];
        for certificate in certificates {
            roots.add(certificate.clone())?;
            let encoding = || Error::InvalidCertificate(CertificateError::BadEncoding);
            let (_, parsed) = X509Certificate::from_der(&certificate).map_err(|_| encoding())?;
            let validity = parsed.validity();
            let valid = validity.not_before.timestamp()..=validity.not_after.timestamp();
            all.push(DatedAuthority { certificate: certificate.clone(), valid });
        }
        Ok(Self { all, current: Mutex::new(CurrentVerifier { valid: vec![], verifier: None }) })
    }

    fn verifier(&self, now: UnixTime) -> Option<Arc<dyn ClientCertVerifier>> {
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let valid = self.all.iter().enumerate().filter(|(_, authority)| authority.valid.contains(&now));
        let valid: Vec<usize> = valid.map(|(index, _)| index).collect();
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.valid != valid {
            let verifier = self.build(&valid).inspect_err(|error| tracing::warn!(%error, "client CAs cannot be used"));
            *current = CurrentVerifier { valid, verifier: verifier.ok() };
        }
        current.verifier.clone()
    }

    fn build(&self, valid: &[usize]) -> Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(valid.iter().map(|index| self.all[*index].certificate.clone()));
        let verifier: Arc<dyn ClientCertVerifier> =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(provider())).build()?;
        Ok(verifier)
    }
}

impl ClientCertVerifier for Authorities {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let unknown = || Error::InvalidCertificate(CertificateError::UnknownIssuer);
        self.verifier(now).ok_or_else(unknown)?.verify_client_cert(own, rest, now)
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
