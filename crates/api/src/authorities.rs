//! The certificates of a CA file: CAs of the certificates that peers show, and certificates of peers that are trusted themselves.
//!
//! Of a trust anchor, webpki uses the name, the key and the name constraints. What else limits a CA is checked here, as by Go's
//! `x509.Certificate.Verify`: otherwise the key of any certificate in the file could issue certificates for any peer.

use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, KeyUsage, VerifiedPath, anchor_from_trusted_cert};
use x509_parser::prelude::{FromDer, X509Certificate, X509Error, X509Extension, X509Version};

/// Whose certificates are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRole {
    /// Of clients.
    Client,
    /// Of servers.
    Server,
}

/// The certificates of a file.
#[derive(Debug)]
pub struct Authorities {
    trusted: Vec<TrustedCertificate>,
    role: PeerRole,
}

#[derive(Debug)]
struct TrustedCertificate {
    certificate: CertificateDer<'static>,
    /// Seconds since 1970, both included.
    valid: std::ops::RangeInclusive<i64>,
    /// The role is among its extended key usages, or it has none.
    fits_role: bool,
    /// `None`: it must not sign certificates, and is trusted only as that of a peer.
    anchor: Option<TrustAnchor<'static>>,
    /// The number of intermediate CAs below it; `None`: any.
    path_len: Option<u32>,
    /// DER, to find it by the issuer that a certificate names.
    subject: Vec<u8>,
}

impl TrustedCertificate {
    fn new(certificate: CertificateDer<'static>, role: PeerRole) -> Result<Self, webpki::Error> {
        let encoding = |_| webpki::Error::BadDer;
        let (_, parsed) = X509Certificate::from_der(&certificate).map_err(|_| webpki::Error::BadDer)?;
        let validity = parsed.validity();
        let usages = parsed.extended_key_usage().map_err(encoding)?;
        let constraints = parsed.basic_constraints().map_err(encoding)?;
        let is_ca = may_sign(&parsed).map_err(encoding)?;
        let anchor = is_ca.then(|| anchor_from_trusted_cert(&certificate).map(|anchor| anchor.to_owned()));
        Ok(Self {
            valid: validity.not_before.timestamp()..=validity.not_after.timestamp(),
            fits_role: usages.is_none_or(|usages| match role {
                PeerRole::Client => usages.value.any || usages.value.client_auth,
                PeerRole::Server => usages.value.any || usages.value.server_auth,
            }),
            anchor: anchor.transpose()?,
            path_len: constraints.and_then(|constraints| constraints.value.path_len_constraint),
            subject: parsed.subject().as_raw().to_owned(),
            certificate: certificate.clone(),
        })
    }

    fn is_valid(&self, now: UnixTime) -> bool {
        self.valid.contains(&i64::try_from(now.as_secs()).unwrap_or(i64::MAX))
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
    pub fn new(certificates: Vec<CertificateDer<'static>>, role: PeerRole) -> Result<Self, webpki::Error> {
        let trusted = certificates.into_iter().map(|certificate| TrustedCertificate::new(certificate, role));
        Ok(Self { trusted: trusted.collect::<Result<_, _>>()?, role })
    }

    /// Without those that cannot be parsed (Go: `CertPool.AppendCertsFromPEM`). `None`: no other is left.
    pub fn readable(certificates: Vec<CertificateDer<'static>>, role: PeerRole) -> Option<Self> {
        let trusted =
            certificates.into_iter().filter_map(|certificate| TrustedCertificate::new(certificate, role).ok());
        let trusted: Vec<_> = trusted.collect();
        (!trusted.is_empty()).then_some(Self { trusted, role })
    }

    /// The certificate of a peer is trusted, with the other ones that it has sent. Names are not checked.
    pub fn verify(
        &self,
        own: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), webpki::Error> {
        let peer = EndEntityCert::try_from(own)?;
        let usable = || self.trusted.iter().filter(|trusted| trusted.fits_role && trusted.is_valid(now));
        if usable().any(|trusted| trusted.certificate == *own) {
            return Ok(());
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
        let usage = match self.role {
            PeerRole::Client => KeyUsage::client_auth(),
            PeerRole::Server => KeyUsage::server_auth(),
        };
        let algorithms = default_provider().signature_verification_algorithms.all;
        peer.verify_for_usage(algorithms, &anchors, rest, now, usage, None, Some(&path_fits)).map(drop)
    }

    /// Why no certificate of the file is the issuer of one in a chain, although it has the name of an issuer.
    pub(crate) fn unusable_issuer(&self, chain: &[&CertificateDer<'_>], now: UnixTime) -> Option<&'static str> {
        let issuers = chain.iter().filter_map(|certificate| {
            let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
            Some(parsed.issuer().as_raw().to_owned())
        });
        let issuers: Vec<Vec<u8>> = issuers.collect();
        let named = self.trusted.iter().filter(|trusted| issuers.contains(&trusted.subject));
        named.into_iter().find_map(|trusted| match trusted {
            trusted if !trusted.is_valid(now) => Some("has expired or is not valid yet"),
            TrustedCertificate { anchor: None, .. } => Some("is not one of a CA (basicConstraints, keyUsage)"),
            TrustedCertificate { fits_role: false, .. } => {
                Some("may not issue certificates of servers (extendedKeyUsage)")
            }
            _ => None,
        })
    }
}
