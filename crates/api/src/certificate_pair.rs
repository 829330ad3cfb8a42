//! A certificate with its key.

use std::sync::Arc;

use podwright_core::certificates::CertificateFacts;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::watch;

use crate::certificate;

/// The newest certificate of a rotation; `None` while there is none that is valid.
pub type CurrentCertificate = watch::Receiver<Option<Arc<CertificatePair>>>;

/// A certificate, those of the CAs between it and a root, and its private key, which was checked to belong to it.
#[derive(Clone)]
pub struct CertificatePair {
    /// PEM; the first is the own one.
    certificates: String,
    /// PEM.
    key: SecretString,
    facts: CertificateFacts,
}

/// Why a certificate and a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// There is no certificate, or it is malformed.
    #[error("there is no valid certificate in it")]
    Certificate,
    /// There is no private key.
    #[error("there is no private key in it")]
    Key,
    /// The key is of another certificate, or of an unsupported kind.
    #[error("certificate and key do not fit: {0}")]
    Mismatch(rustls::Error),
}

impl CertificatePair {
    /// From two PEM texts, which may be the same. Other blocks in them are ignored.
    pub fn parse(certificates: &[u8], key: &[u8]) -> Result<Self, PairError> {
        let chain = CertificateDer::pem_slice_iter(certificates).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|_| PairError::Certificate)?;
        let facts = chain.first().and_then(|own| certificate::facts(own)).ok_or(PairError::Certificate)?;
        let der = PrivateKeyDer::from_pem_slice(key).map_err(|_| PairError::Key)?;
        let provider = rustls::crypto::ring::default_provider();
        CertifiedKey::from_der(chain, der, &provider).map_err(PairError::Mismatch)?;
        let certificates = blocks(certificates, |label| label == "CERTIFICATE");
        let key = blocks(key, |label| label.ends_with("PRIVATE KEY"));
        Ok(Self { certificates, key: key.into(), facts })
    }

    /// Facts of the certificate.
    pub fn facts(&self) -> &CertificateFacts {
        &self.facts
    }

    /// The certificates as PEM.
    pub fn certificates(&self) -> &str {
        &self.certificates
    }

    /// The private key as PEM.
    pub fn key(&self) -> &SecretString {
        &self.key
    }

    /// Certificates, then the key.
    pub(crate) fn file_content(&self) -> SecretString {
        format!("{}{}", self.certificates, self.key.expose_secret()).into()
    }
}

/// The blocks of a PEM text with such a label, as they are.
pub(crate) fn blocks(pem: &[u8], wanted: impl Fn(&str) -> bool) -> String {
    let text = String::from_utf8_lossy(pem);
    let (mut found, mut inside) = (String::new(), false);
    for line in text.lines().map(str::trim) {
        let label = |begin: &str| line.strip_prefix(begin).and_then(|rest| rest.strip_suffix("-----"));
        inside = inside || label("-----BEGIN ").is_some_and(&wanted);
        if inside {
            found.push_str(line);
            found.push('\n');
        }
        inside = inside && label("-----END ").is_none();
    }
    found
}

impl std::fmt::Debug for CertificatePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertificatePair").field("facts", &self.facts).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn pem(key: &KeyPair, names: &[&str]) -> String {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        CertificateParams::new(names).unwrap().self_signed(key).unwrap().pem()
    }

    #[test]
    fn a_pair_fits_and_keeps_only_its_blocks() {
        let (own, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let certificate = pem(&own, &["a.local", "127.0.0.1", "::1"]);
        let both = format!("Bag Attributes\n{certificate}{}", own.serialize_pem());
        let pair = CertificatePair::parse(both.as_bytes(), both.as_bytes()).unwrap();
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(lines(pair.certificates()), lines(&certificate));
        assert_eq!(lines(pair.key().expose_secret()), lines(&own.serialize_pem()));
        assert_eq!(pair.facts().names.dns_names.iter().collect::<Vec<_>>(), ["a.local"]);
        let addresses = pair.facts().names.ip_addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(addresses, ["127.0.0.1", "::1"]);
        let again = CertificatePair::parse(
            pair.file_content().expose_secret().as_bytes(),
            pair.file_content().expose_secret().as_bytes(),
        );
        assert_eq!(again.unwrap().facts(), pair.facts());
        let failed = |certificate: &str, key: &str| {
            CertificatePair::parse(certificate.as_bytes(), key.as_bytes()).unwrap_err().to_string()
        };
        assert!(failed(&certificate, &other.serialize_pem()).contains("do not fit"));
        assert!(failed("", &own.serialize_pem()).contains("no valid certificate"));
        assert!(failed(&certificate, "").contains("no private key"));
        assert!(!format!("{pair:?}").contains("PRIVATE"), "{pair:?}");
    }
}
