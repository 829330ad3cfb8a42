//! The certificates that a client sent in its handshake, and whether the current CA has signed them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use tokio::time::Instant;

/// Kept for a connection.
pub(in crate::kubelet) struct ClientChain {
    certificates: Vec<CertificateDer<'static>>,
    verdict: Mutex<Option<Verdict>>,
}

/// The last verification.
struct Verdict {
    authorities: Arc<dyn ClientCertVerifier>,
    at: Instant,
    trusted: bool,
}

impl ClientChain {
    /// The client's own certificate is the first.
    pub(in crate::kubelet) fn new(certificates: Vec<CertificateDer<'static>>) -> Self {
        Self { certificates, verdict: Mutex::default() }
    }

    /// The client's own certificate; not verified. `None`: it sent none.
    pub(in crate::kubelet) fn own(&self) -> Option<&CertificateDer<'static>> {
        self.certificates.first()
    }

    /// Verified at most once per [`VERDICT_AGE_MAX`] and CA: it costs milliseconds, and any client may send requests.
    pub(super) fn is_signed_by(&self, authorities: &Arc<dyn ClientCertVerifier>) -> bool {
        let Some((own, rest)) = self.certificates.split_first() else { return false };
        if self.certificates.len() > CHAIN_MAX {
            return false;
        }
        let mut last = self.verdict.lock().unwrap_or_else(PoisonError::into_inner);
        let known =
            |last: &&Verdict| Arc::ptr_eq(&last.authorities, authorities) && last.at.elapsed() < VERDICT_AGE_MAX;
        if let Some(known) = last.as_ref().filter(known) {
            return known.trusted;
        }
        let verified = authorities.verify_client_cert(own, rest, UnixTime::now());
        if let Err(error) = &verified {
            tracing::debug!(%error, "client certificate is not trusted");
        }
        let trusted = verified.is_ok();
        *last = Some(Verdict { authorities: Arc::clone(authorities), at: Instant::now(), trusted });
        trusted
    }
}

/// The client's certificate and its intermediate CAs. The paths through intermediate CAs of the same name grow with their factorial.
const CHAIN_MAX: usize = 5;
/// A certificate that expires is trusted for this long at most.
const VERDICT_AGE_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rustls::client::danger::HandshakeSignatureValid;
    use rustls::server::danger::ClientCertVerified;
    use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

    use super::*;

    /// Trusts every chain, or none.
    #[derive(Debug)]
    struct CountingVerifier {
        trusts: bool,
        calls: AtomicUsize,
    }

    impl CountingVerifier {
        fn new(trusts: bool) -> Arc<Self> {
            Arc::new(Self { trusts, calls: 0.into() })
        }
    }

    impl ClientCertVerifier for CountingVerifier {
        fn root_hint_subjects(&self) -> &[DistinguishedName] {
            &[]
        }
        fn verify_client_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: UnixTime,
        ) -> Result<ClientCertVerified, Error> {
            self.calls.fetch_add(1, Ordering::SeqCst);
            if self.trusts { Ok(ClientCertVerified::assertion()) } else { Err(Error::NoCertificatesPresented) }
        }
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            unreachable!("no handshake")
        }
        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            unreachable!("no handshake")
        }
        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![]
        }
    }

    fn chain(length: usize) -> ClientChain {
        ClientChain::new(vec![CertificateDer::from(vec![1]); length])
    }

    #[test]
    fn a_long_chain_is_not_trusted_and_not_verified() {
        let verifier = CountingVerifier::new(true);
        let authorities: Arc<dyn ClientCertVerifier> = verifier.clone();
        for (length, trusted) in [(0, false), (1, true), (5, true), (6, false), (1000, false)] {
            assert_eq!(chain(length).is_signed_by(&authorities), trusted, "{length}");
        }
        assert_eq!(verifier.calls.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_chain_is_verified_once_a_minute_and_with_every_new_ca() {
        let (old, new) = (CountingVerifier::new(true), CountingVerifier::new(false));
        let authorities: [Arc<dyn ClientCertVerifier>; 2] = [old.clone(), new.clone()];
        let chain = chain(2);
        let calls = || (old.calls.load(Ordering::SeqCst), new.calls.load(Ordering::SeqCst));
        assert!((0..100).all(|_| chain.is_signed_by(&authorities[0])));
        assert_eq!(calls(), (1, 0));
        assert!((0..100).all(|_| !chain.is_signed_by(&authorities[1])), "a removed CA is not trusted any more");
        assert_eq!(calls(), (1, 1));
        tokio::time::advance(VERDICT_AGE_MAX).await;
        assert!(!chain.is_signed_by(&authorities[1]));
        assert_eq!(calls(), (1, 2));
    }
}
