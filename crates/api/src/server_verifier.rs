//! Verifies the certificate of an API server with the `certificate-authority` of a kubeconfig, as Go's clients do: also one that is in that
//! file itself, whether or not it is marked as that of a CA.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::ring::default_provider;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};

use crate::authorities::Authorities;

/// Trusts these certificates and those that they have issued.
#[derive(Debug)]
pub(crate) struct ServerVerifier(pub(crate) Authorities);

/// Why the certificate of an API server is refused, and what to do.
#[derive(thiserror::Error)]
#[error("the certificate of the API server is refused: {source}{hint}")]
struct ServerCertificateError {
    source: webpki::Error,
    hint: String,
}

/// As users read it: rustls shows the errors of others by this trait.
impl std::fmt::Debug for ServerCertificateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl ServerVerifier {
    fn refused(&self, source: webpki::Error, chain: &[&CertificateDer<'_>], now: UnixTime) -> Error {
        let hint = match &source {
            webpki::Error::CaUsedAsEndEntity => {
                "; it is marked as that of a CA: issue one without (basicConstraints CA:FALSE), or add it to certificate-authority itself".into()
            }
            webpki::Error::UnsupportedSignatureAlgorithmContext(_)
            | webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => {
                "; its CA needs an RSA key of 2048 to 8192 bits, an ECDSA key on P-256 or P-384, or an Ed25519 key, and SHA-256 or better".into()
            }
            webpki::Error::UnknownIssuer => match self.0.unusable_issuer(chain, now) {
                Some(why) => format!("; the certificate of its issuer in certificate-authority {why}"),
                None => "; certificate-authority of the kubeconfig has neither its issuer nor itself".into(),
            },
            _ => String::new(),
        };
        let error = ServerCertificateError { source, hint };
        Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let chain = || std::iter::once(own).chain(rest).collect::<Vec<_>>();
        self.0.verify(own, rest, now).map_err(|error| self.refused(error, &chain(), now))?;
        verify_server_name(&ParsedCertificate::try_from(own)?, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    // Handshakes are verified apart from the CA.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &default_provider().signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &default_provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};

    use super::*;
    use crate::authorities::PeerRole;

    type Der = CertificateDer<'static>;

    fn named(name: &str, change: impl FnOnce(&mut CertificateParams)) -> CertificateParams {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        change(&mut params);
        params
    }

    fn self_signed(change: impl FnOnce(&mut CertificateParams)) -> Der {
        named("server", change).self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    /// A certificate and one that it has issued for a server.
    fn issued(ca: impl FnOnce(&mut CertificateParams), server: impl FnOnce(&mut CertificateParams)) -> (Der, Der) {
        let (params, key) = (named("ca", ca), KeyPair::generate().unwrap());
        let root = params.self_signed(&key).unwrap().der().clone();
        let issuer = Issuer::new(params, key);
        (root, named("server", server).signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap().der().clone())
    }

    /// The error, or nothing.
    fn verdict(trusted: &Der, server: &Der, name: &str) -> String {
        let verifier = ServerVerifier(Authorities::readable(vec![trusted.clone()], PeerRole::Server).unwrap());
        let name = ServerName::try_from(name.to_owned()).unwrap();
        match verifier.verify_server_cert(server, &[], &name, &[], UnixTime::now()) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    fn ca(params: &mut CertificateParams) {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    }

    /// What Go's `crypto/x509` accepts (1.26).
    #[test]
    fn a_server_certificate_in_the_ca_file_is_trusted() {
        let kinds = [IsCa::Ca(BasicConstraints::Unconstrained), IsCa::NoCa, IsCa::ExplicitNoCa];
        for is_ca in kinds {
            let server = self_signed(|params| params.is_ca = is_ca);
            assert_eq!(verdict(&server, &server, "localhost"), "", "{is_ca:?}");
            assert_ne!(verdict(&server, &server, "example.com"), "", "{is_ca:?}: another name");
        }
        let (_, server) = issued(ca, |_| {});
        assert_eq!(verdict(&server, &server, "localhost"), "", "issued by another CA");
        let expired = self_signed(|params| params.not_after = rcgen::date_time_ymd(2001, 1, 1));
        assert_ne!(verdict(&expired, &expired, "localhost"), "", "expired");
        let client = self_signed(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]);
        assert_ne!(verdict(&client, &client, "localhost"), "", "not for servers");
    }

    #[test]
    fn only_a_ca_issues_server_certificates_and_the_reason_is_named() {
        type Change = fn(&mut CertificateParams);
        let no_hint: &str = "";
        let table: [(&str, Change, Change, &str); 6] = [
            ("a CA", ca, |_| {}, no_hint),
            ("no basic constraints", |_| {}, |_| {}, "is not one of a CA"),
            (
                "no keyCertSign",
                |params| {
                    ca(params);
                    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
                },
                |_| {},
                "is not one of a CA",
            ),
            (
                "expired",
                |params| {
                    ca(params);
                    params.not_after = rcgen::date_time_ymd(2001, 1, 1);
                },
                |_| {},
                "has expired",
            ),
            (
                "clientAuth only",
                |params| {
                    ca(params);
                    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
                },
                |_| {},
                "may not issue certificates of servers",
            ),
            // Go accepts this one.
            ("a server that is a CA", ca, ca, "basicConstraints CA:FALSE"),
        ];
        for (name, of_ca, of_server, hint) in table {
            let (root, server) = issued(of_ca, of_server);
            let error = verdict(&root, &server, "localhost");
            assert!(error.contains(hint) && error.is_empty() == hint.is_empty(), "{name}: {error}");
        }
        let (root, _) = issued(ca, |_| {});
        let other = self_signed(|_| {});
        assert!(verdict(&root, &other, "localhost").contains("has neither its issuer nor itself"));
    }

    #[test]
    fn certificates_that_can_not_be_parsed_are_left_out() {
        let server = self_signed(|_| {});
        let broken = CertificateDer::from(vec![0x30, 0]);
        assert!(Authorities::readable(vec![broken.clone(), server], PeerRole::Server).is_some());
        assert!(Authorities::readable(vec![broken], PeerRole::Server).is_none());
    }
}
