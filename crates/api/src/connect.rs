//! One HTTP/2 connection to the API server: opened on demand, kept alive with pings, reopened with back-off.

use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt};
use podwright_tasks::Pool;
use secrecy::ExposeSecret;
use tokio::time::Instant;
use tower::{BoxError, Service};

use crate::authorities::{Authorities, PeerRole};
use crate::backoff::RetryBackoff;
use crate::certificate_pair::blocks;
use crate::kubeconfig::{Access, Identity};
use crate::server_verifier::ServerVerifier;

/// An HTTP client with one connection.
pub(crate) type HttpClient = Client<BackoffConnector<HttpsConnector<HttpConnector<HostLookup>>>, Body>;

/// Why no HTTP client can be made for an `Access`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("{0}")]
    Tls(#[from] kube::Error),
    #[error("tls-server-name: {0:?} is not a valid name")]
    ServerName(String),
    #[error("certificate-authority: no certificate that can be parsed; it must have at least one, as PEM")]
    NoAuthority,
}

/// A client for this access. Does not connect yet.
pub(crate) fn http(access: &Access, backoff: ConnectBackoff, pool: Pool) -> Result<HttpClient, ConnectError> {
    let mut tcp = HttpConnector::new_with_resolver(HostLookup(pool));
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let tls = tls(access)?;
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    let builder = match &access.identity.server_name {
        Some(name) => {
            let name = name.clone().try_into().map_err(|_| ConnectError::ServerName(name.clone()))?;
            builder.with_server_name_resolver(FixedServerNameResolver::new(name))
        }
        None => builder,
    };
    let connector = builder.enable_http2().wrap_connector(tcp);
    Ok(Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        // Concurrent requests share the one connection that is being opened.
        .http2_only(true)
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_keep_alive_while_idle(true)
        .build(BackoffConnector { inner: connector, backoff }))
}

fn tls(access: &Access) -> Result<rustls::ClientConfig, ConnectError> {
    let Identity { roots, client, insecure, .. } = &access.identity;
    let mut config = kube::Config::new(access.server.clone());
    config.accept_invalid_certs = *insecure;
    // Not those of the host.
    config.root_cert = roots.as_ref().map(|_| vec![]);
    if let Some((certificate, key)) = client {
        // One file may hold both: each part is passed on only once.
        let certificate = blocks(certificate, |label| label == "CERTIFICATE");
        let key = blocks(key.expose_secret().as_bytes(), |label| label.ends_with("PRIVATE KEY"));
        let base64 = |bytes: &[u8]| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes);
        config.auth_info.client_certificate_data = Some(base64(certificate.as_bytes()));
        config.auth_info.client_key_data = Some(base64(key.as_bytes()).into());
    }
    let mut tls = config.rustls_client_config()?;
    if let Some(pem) = roots.as_deref().filter(|_| !insecure) {
        let parts = x509_parser::pem::Pem::iter_from_buffer(pem).filter_map(Result::ok);
        let ders = parts.filter(|part| part.label == "CERTIFICATE").map(|part| part.contents.into()).collect();
        let authorities = Authorities::readable(ders, PeerRole::Server).ok_or(ConnectError::NoAuthority)?;
        tls.dangerous().set_certificate_verifier(Arc::new(ServerVerifier(authorities)));
    }
    Ok(tls)
}

/// Looks up the API server's name with the C library, which knows every source in nsswitch.conf. It may take longer than a
/// connection is waited for, so it has threads apart from everything else.
#[derive(Clone)]
pub(crate) struct HostLookup(Pool);

impl Service<Name> for HostLookup {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let pool = self.0.clone();
        Box::pin(async move {
            let lookup = move || (name.as_str(), 0).to_socket_addrs();
            Ok(pool.run("name lookup of the API server", HANDSHAKE_TIMEOUT, lookup).await??)
        })
    }
}

/// The back-off between attempts to connect, and the time before which no attempt is made; shared by successive connections.
#[derive(Clone)]
pub(crate) struct ConnectBackoff(Arc<Mutex<(RetryBackoff, Instant)>>);

impl Default for ConnectBackoff {
    fn default() -> Self {
        Self(Arc::new(Mutex::new((RetryBackoff::new(BACKOFF_FIRST, BACKOFF_MAX), Instant::now()))))
    }
}

impl ConnectBackoff {
    fn not_before(&self) -> Instant {
        self.0.lock().expect("no panic under this lock").1
    }

    fn record(&self, connected: bool) {
        let (backoff, not_before) = &mut *self.0.lock().expect("no panic under this lock");
        if connected {
            backoff.reset();
        } else {
            *not_before = Instant::now() + backoff.failed();
        }
    }
}

/// A connector that waits for the back-off before it connects.
#[derive(Clone)]
pub(crate) struct BackoffConnector<C> {
    inner: C,
    backoff: ConnectBackoff,
}

impl<C> Service<Uri> for BackoffConnector<C>
where
    C: Service<Uri, Error = BoxError> + Clone + Send + 'static,
    C::Future: Send,
    C::Response: Send,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<C::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        // Use the service that is ready; its clone is for the next call.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let backoff = self.backoff.clone();
        Box::pin(async move {
            tokio::time::sleep_until(backoff.not_before()).await;
            let connected = tokio::time::timeout(HANDSHAKE_TIMEOUT, inner.call(uri)).await;
            let timed_out = |_| Err(format!("no connection within {HANDSHAKE_TIMEOUT:?}").into());
            let connected = connected.unwrap_or_else(timed_out);
            backoff.record(connected.is_ok());
            connected
        })
    }
}

/// TCP.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The name lookup, TCP and TLS. The C library queries the second name server after five seconds.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const PING_INTERVAL: Duration = Duration::from_secs(15);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::{ClientConnection, ServerConfig, ServerConnection};

    use super::*;

    fn access(roots: &str) -> Access {
        let identity = Identity { roots: Some(roots.into()), client: None, server_name: None, insecure: false };
        let server = Uri::from_static("https://localhost:6443");
        Access { server, identity, authorization: None, renew_at: Timestamp::MAX }
    }

    fn handshake(client: rustls::ClientConfig, server: ServerConfig) -> Result<(), rustls::Error> {
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
        let mut server = ServerConnection::new(Arc::new(server)).unwrap();
        while client.is_handshaking() {
            let mut bytes = vec![];
            while client.wants_write() {
                client.write_tls(&mut bytes).unwrap();
            }
            server.read_tls(&mut bytes.as_slice()).unwrap();
            server.process_new_packets()?;
            bytes.clear();
            while server.wants_write() {
                server.write_tls(&mut bytes).unwrap();
            }
            client.read_tls(&mut bytes.as_slice()).unwrap();
            client.process_new_packets()?;
        }
        Ok(())
    }

    /// As `openssl req -x509` makes it.
    #[test]
    fn a_self_signed_api_server_is_trusted_if_its_certificate_is_the_authority() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let served = |params: &CertificateParams| {
            let key = KeyPair::generate().unwrap();
            let certificate = params.self_signed(&key).unwrap();
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            let server = ServerConfig::builder().with_no_client_auth();
            (certificate.pem(), server.with_single_cert(vec![certificate.der().clone()], key).unwrap())
        };
        let ((pem, server), (other, _)) = (served(&params), served(&params));
        handshake(tls(&access(&pem)).unwrap(), server.clone()).unwrap();
        let error = handshake(tls(&access(&other)).unwrap(), server).unwrap_err().to_string();
        assert!(error.contains("the certificate of the API server is refused"), "{error}");
    }

    #[test]
    fn an_authority_without_a_certificate_is_named() {
        let error = tls(&access("-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n")).unwrap_err();
        assert!(error.to_string().contains("certificate-authority"), "{error}");
    }
}
