//! The certificates of `clientCAFile`: CAs of client certificates, and client certificates that are trusted themselves.
//!
//! Of a trust anchor, webpki uses the name, the key and the name constraints. What else limits a CA is checked here, as by Go's
//! `x509.Certificate.Verify`: otherwise the key of any certificate in the file could issue certificates for any user.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme};
use webpki::{EndEntityCert, KeyUsage, VerifiedPath, anchor_from_trusted_cert};
use x509_parser::prelude::{FromDer, X509Certificate, X509Error, X509Extension, X509Version};

use super::provider;

/// The certificates of a file.
#[derive(Debug)]
pub(super) struct Authorities(Vec<TrustedCertificate>);

#[derive(Debug)]
struct TrustedCertificate {
    certificate: CertificateDer<'static>,
    /// Seconds since 1970, both included.
    valid: std::ops::RangeInclusive<i64>,
    /// Client authentication is among its extended key usages, or it has none.
    for_clients: bool,
    /// `None`: it must not sign certificates, and is trusted only as that of a client.
    anchor: Option<TrustAnchor<'static>>,
    /// The number of intermediate CAs below it; `None`: any.
    path_len: Option<u32>,
}

impl TrustedCertificate {
    fn new(certificate: CertificateDer<'static>) -> Result<Self, Error> {
        let encoding = || Error::InvalidCertificate(CertificateError::BadEncoding);
        let (_, parsed) = X509Certificate::from_der(&certificate).map_err(|_| encoding())?;
        let validity = parsed.validity();
        let usages = parsed.extended_key_usage().map_err(|_| encoding())?;
        let constraints = parsed.basic_constraints().map_err(|_| encoding())?;
        let is_ca = may_sign(&parsed).map_err(|_| encoding())?;
        let anchor = is_ca.then(|| anchor_from_trusted_cert(&certificate).map(|anchor| anchor.to_owned()));
        Ok(Self {
            valid: validity.not_before.timestamp()..=validity.not_after.timestamp(),
            for_clients: usages.is_none_or(|usages| usages.value.any || usages.value.client_auth),
            anchor: anchor.transpose().map_err(invalid)?,
            path_len: constraints.and_then(|constraints| constraints.value.path_len_constraint),
            certificate: certificate.clone(),
        })
    }

    fn is_usable(&self, now: UnixTime) -> bool {
        self.for_clients && self.valid.contains(&i64::try_from(now.as_secs()).unwrap_or(i64::MAX))
    }
}

/// Go: `Certificate.CheckSignatureFrom`, and the critical extensions of `Certificate.isValid`. A certificate of version 1 has no
/// extensions, and the administrator decides that it is a CA.
fn may_sign(certificate: &X509Certificate<'_>) -> Result<bool, X509Error> {
    let constraints = certificate.basic_constraints()?;
    let usages = certificate.key_usage()?;
    let is_ca = constraints.map_or(certificate.version() != X509Version::V3, |constraints| constraints.value.ca);
    let signs = usages.is_none_or(|usages| usages.value.flags == 0 || usages.value.key_cert_sign());
    let unknown = |extension: &X509Extension<'_>| extension.critical && extension.parsed_extension().unsupported();
    Ok(is_ca && signs && !certificate.extensions().iter().any(unknown))
}

impl Authorities {
    /// Fails for a certificate that cannot be parsed.
    pub(super) fn new(certificates: Vec<CertificateDer<'static>>) -> Result<Self, Error> {
        certificates.into_iter().map(TrustedCertificate::new).collect::<Result<_, _>>().map(Self)
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
        let client = EndEntityCert::try_from(own).map_err(invalid)?;
        let usable = || self.0.iter().filter(|trusted| trusted.is_usable(now));
        if usable().any(|trusted| trusted.certificate == *own) {
            return Ok(ClientCertVerified::assertion());
        }
        let anchors = usable().filter_map(|trusted| Some((trusted.anchor.clone()?, trusted.path_len)));
        let (anchors, path_lens): (Vec<_>, Vec<_>) = anchors.unzip();
        let path_fits = |path: &VerifiedPath<'_>| {
            // By address: a renewed CA has the same name and key, and may have another path length.
            let index = anchors.iter().position(|anchor| std::ptr::eq(anchor, path.anchor()));
            let max = path_lens[index.ok_or(webpki::Error::UnknownIssuer)?];
            let count = path.intermediate_certificates().count();
            let fits = max.is_none_or(|max| u32::try_from(count).is_ok_and(|count| count <= max));
            if fits { Ok(()) } else { Err(webpki::Error::PathLenConstraintViolated) }
        };
        let algorithms = provider().signature_verification_algorithms.all;
        client
            .verify_for_usage(algorithms, &anchors, rest, now, KeyUsage::client_auth(), None, Some(&path_fits))
            .map_err(invalid)?;
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
