//! `podwright proxy`: the local API on a port of the loopback interface, for clients that cannot use a Unix socket, as kubectl.
//!
//! ```text
//!  kubectl ─▶ TLS on 127.0.0.1, bearer token ─▶ one connection to api.sock per request
//! ```
//! Every user and process of the host can reach a loopback port, so each request needs a random token. kubectl sends a token only
//! over TLS: the certificate is made at the start, and is in the kubeconfig with the token. The key never leaves the process.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::header::{AUTHORIZATION, CONNECTION};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, SanType};
use rustix::rand::{GetRandomFlags, getrandom};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::serve::{HEADER_TIMEOUT, HttpResponse};
use crate::status_error::StatusError;

/// Why the proxy cannot start.
#[derive(Debug, thiserror::Error)]
pub enum LoopbackProxyError {
    /// The port is in use, or may not be used.
    #[error("listen on {address}: {source}; choose another --port, or 0 for a free one")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The failed system call.
        source: io::Error,
    },
    /// No random numbers.
    #[error("make a token: {0}")]
    Random(#[source] rustix::io::Errno),
    /// The certificate cannot be made.
    #[error("make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The certificate cannot be used.
    #[error("set up TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// A listener that forwards authorized requests to the socket of an agent.
pub struct LoopbackProxy {
    listener: TcpListener,
    address: SocketAddr,
    acceptor: TlsAcceptor,
    certificate: String,
    token: String,
    socket: PathBuf,
}

impl LoopbackProxy {
    /// Listens on this port of 127.0.0.1; 0: a free one.
    pub async fn open(port: u16, socket: PathBuf) -> Result<Self, LoopbackProxyError> {
        let wanted = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listen = |source| LoopbackProxyError::Listen { address: wanted, source };
        let listener = TcpListener::bind(wanted).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let (acceptor, certificate) = tls()?;
        let token = random_token().map_err(LoopbackProxyError::Random)?;
        Ok(Self { listener, address, acceptor, certificate, token, socket })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The certificate in PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// What every request must have as its bearer token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Serves until the future is dropped.
    pub async fn serve(self) {
        let target = Arc::new(ProxyTarget { token: self.token, socket: self.socket });
        let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let permit = Arc::clone(&permits).acquire_owned().await;
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            let (acceptor, target) = (self.acceptor.clone(), Arc::clone(&target));
            podwright_tasks::spawn("proxy-connection", async move {
                let _permit = permit;
                serve_connection(stream, acceptor, target).await;
            });
        }
    }
}

/// Where requests go, and what they need.
struct ProxyTarget {
    token: String,
    socket: PathBuf,
}

async fn serve_connection(stream: TcpStream, acceptor: TlsAcceptor, target: Arc<ProxyTarget>) {
    let _ = stream.set_nodelay(true);
    let Ok(Ok(stream)) = timeout(HEADER_TIMEOUT, acceptor.accept(stream)).await else { return };
    let service = service_fn(move |request| {
        let target = Arc::clone(&target);
        async move { Ok::<_, Infallible>(forward(&target, request).await.unwrap_or_else(StatusError::response)) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_MAX)
        .max_buf_size(BUFFER_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let _ = connection.await;
}

/// Sends the request to the agent on a connection of its own, and returns the response as it comes.
async fn forward(target: &ProxyTarget, mut request: Request<Incoming>) -> Result<HttpResponse, StatusError> {
    if !is_authorized(request.headers(), &target.token) {
        return Err(StatusError::unauthorized());
    }
    // The agent does not know the token, and must not log it.
    request.headers_mut().remove(AUTHORIZATION);
    let gone = |error: &dyn std::fmt::Display| {
        StatusError::unavailable(&format!("the agent on {} does not respond: {error}", target.socket.display()))
    };
    let stream = UnixStream::connect(&target.socket).await.map_err(|error| gone(&error))?;
    let (mut sender, connection) = client::handshake(TokioIo::new(stream)).await.map_err(|error| gone(&error))?;
    podwright_tasks::spawn("proxied-request", connection.with_upgrades());
    let upgrade = request.extensions_mut().remove::<hyper::upgrade::OnUpgrade>();
    let mut response = sender.send_request(request).await.map_err(|error| gone(&error))?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let agent = hyper::upgrade::on(&mut response);
        if let Some(client) = upgrade {
            podwright_tasks::spawn("proxied-stream", async move {
                let Ok((client, agent)) = futures::future::try_join(client, agent).await else { return };
                let (mut client, mut agent) = (TokioIo::new(client), TokioIo::new(agent));
                let _ = tokio::io::copy_bidirectional(&mut client, &mut agent).await;
            });
        }
    } else {
        // The agent serves one request per connection; the client may keep its own open.
        response.headers_mut().remove(CONNECTION);
    }
    Ok(response.map(|body| body.map_err(io::Error::other).boxed_unsync()))
}

/// The comparison takes the same time wherever the tokens differ.
fn is_authorized(headers: &HeaderMap, token: &str) -> bool {
    let given = headers.get(AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
    let Some(given) = given.strip_prefix(b"Bearer ") else { return false };
    let differences = given.iter().zip(token.as_bytes()).fold(0, |all, (a, b)| all | (a ^ b));
    given.len() == token.len() && differences == 0
}

/// A certificate for 127.0.0.1 and localhost, which its key has signed.
fn tls() -> Result<(TlsAcceptor, String), LoopbackProxyError> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec!["localhost".to_owned()])?;
    params.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "podwright proxy");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let now = SystemTime::now();
    // Beginning an hour ago for clocks that are corrected.
    (params.not_before, params.not_after) = ((now - HOUR).into(), (now + LIFETIME).into());
    let certificate = params.self_signed(&key)?;
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)?;
    Ok((TlsAcceptor::from(Arc::new(config)), certificate.pem()))
}

/// 32 random bytes in hexadecimal digits.
fn random_token() -> rustix::io::Result<String> {
    let (mut bytes, mut filled) = ([0; 32], 0);
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Fewer than the agent serves, so that its own commands always work.
const CONNECTIONS_MAX: usize = 128;
/// For the next request on a connection.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Bytes of the request header, and of the write buffer.
const BUFFER_MAX: usize = 64 << 10;
/// Pause after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
const HOUR: Duration = Duration::from_secs(3600);
/// The proxy is started again before.
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_the_token_authorizes() {
        let token = random_token().unwrap();
        assert!(token.len() == 64 && token != random_token().unwrap());
        let with = |value: &str| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(value).unwrap())]);
            is_authorized(&headers, &token)
        };
        assert!(with(&format!("Bearer {token}")));
        for wrong in
            ["", "Bearer ", "Basic YTpi", &token, &format!("Bearer {}", &token[1..]), &format!("Bearer {token}0")]
        {
            assert!(!with(wrong), "{wrong}");
        }
        assert!(!with(&format!("Bearer {}", token.replace(&token[..1], "x"))));
        assert!(!is_authorized(&HeaderMap::new(), &token));
    }

    #[tokio::test]
    async fn it_listens_on_the_loopback_interface_and_speaks_tls() {
        let dir = tempfile::tempdir().unwrap();
        let proxy = LoopbackProxy::open(0, dir.path().join("api.sock")).await.unwrap();
        assert!(proxy.address().ip().is_loopback() && proxy.certificate().contains("BEGIN CERTIFICATE"));
        let port = proxy.address().port();
        let taken = LoopbackProxy::open(port, dir.path().join("api.sock")).await.err().expect("the port is in use");
        assert!(taken.to_string().contains("choose another --port"), "{taken}");
    }
}
