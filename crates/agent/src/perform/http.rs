//! HTTP client of probes and lifecycle hooks: one GET request on a new connection.
//!
//! There is no connection pool, proxy, cookie or compression. Certificates are not verified: a probe checks whether the container
//! answers, not its identity, and pods seldom have certificates for their IP. This client is used for nothing else.
//!
//! Unlike the Go kubelet no SO_LINGER is set: on Linux it makes `close` block until the peer has acknowledged, and a hung peer
//! would block one of our threads.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, USER_AGENT,
};
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use crate::name_lookup::NameResolver;

/// The target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    pub(super) tls: bool,
    /// An IPv6 address has no brackets here.
    pub(super) host: String,
    pub(super) port: u16,
    /// Path and query, escaped, beginning with a slash.
    pub(super) target: String,
}

/// The response.
#[derive(Debug)]
pub(super) struct HandlerResponse {
    pub(super) status: u16,
    /// The `Location` header.
    pub(super) location: Option<String>,
    /// The beginning of the body, at most [`BODY_BYTES_MAX`] bytes.
    pub(super) body: Vec<u8>,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    /// The handler can't be expressed as an HTTP request.
    #[error("{0}")]
    Request(String),
    /// The TCP connection failed.
    #[error("dial tcp {address}: {source}")]
    Connect { address: String, source: std::io::Error },
    /// The TLS handshake failed.
    #[error("TLS handshake with {address}: {source}")]
    Tls { address: String, source: std::io::Error },
    /// The connection failed before the response headers.
    #[error("Get {url:?}: {source}")]
    Exchange { url: String, source: hyper::Error },
    /// The connection failed within the response body.
    #[error("Get {url:?}: reading the body: {source}")]
    Body { url: String, source: hyper::Error },
    /// Too many redirects.
    #[error("Get {0:?}: stopped after {REDIRECTS_MAX} redirects")]
    Redirects(String),
}

impl HttpError {
    /// The server answered with plain HTTP where TLS was expected.
    pub(super) fn is_plain_http(&self) -> bool {
        let Self::Tls { source, .. } = self else { return false };
        let inner = source.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        matches!(inner, Some(rustls::Error::InvalidMessage(_)))
    }
}

impl Url {
    /// `path` as users write it: it may contain a query, lack its slash, or contain characters that must be escaped.
    pub(super) fn new(tls: bool, host: &str, port: u16, path: &str) -> Self {
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Self { tls, host, port, target: escape_target(path) }
    }

    /// Resolves a `Location` header. `None`: it is not an HTTP URL.
    pub(super) fn join(&self, location: &str) -> Option<Self> {
        let (tls, rest) = if let Some(rest) = location.strip_prefix("https://") {
            (true, rest)
        } else if let Some(rest) = location.strip_prefix("http://") {
            (false, rest)
        } else if let Some(rest) = location.strip_prefix("//") {
            (self.tls, rest)
        } else if location.split(['/', '?', '#']).next().is_some_and(|head| head.contains(':')) {
            return None;
        } else {
            return Some(Self { target: self.relative(location), ..self.clone() });
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
            _ => (authority, if tls { 443 } else { 80 }),
        };
        if host.is_empty() { None } else { Some(Self::new(tls, host, port, path)) }
    }

    fn relative(&self, location: &str) -> String {
        if location.starts_with('/') {
            return escape_target(location);
        }
        let path = self.target.split('?').next().unwrap_or("/");
        if location.starts_with('?') {
            return escape_target(&format!("{path}{location}"));
        }
        let folder = path.rfind('/').map_or("/", |at| &path[..=at]);
        escape_target(&format!("{folder}{location}"))
    }

    /// `host:port`, as in the `Host` header.
    pub(super) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}{}", if self.tls { "https" } else { "http" }, self.authority(), self.target)
    }
}

/// Connects for one pod: its name lookups are separate from those of others.
pub(super) struct Dialer<'a> {
    pub(super) names: &'a NameResolver,
    pub(super) uid: &'a str,
}

impl Dialer<'_> {
    pub(super) async fn connect(&self, host: &str, port: u16) -> std::io::Result<TcpStream> {
        self.names.connect(self.uid, host, port).await
    }
}

/// Sends one GET request. Redirects and the time limit are left to the caller.
async fn get(
    dialer: &Dialer<'_>,
    url: &Url,
    headers: &[(String, String)],
    purpose: &str,
) -> Result<HandlerResponse, HttpError> {
    let headers = request_headers(url, headers, purpose)?;
    let address = url.authority();
    let connected = dialer.connect(&url.host, url.port).await;
    let stream = connected.map_err(|source| HttpError::Connect { address: address.clone(), source })?;
    if !url.tls {
        return exchange(url, headers, stream).await;
    }
    let failed = |source| HttpError::Tls { address: address.clone(), source };
    let name = ServerName::try_from(url.host.clone())
        .map_err(|_| HttpError::Request(format!("{:?} is not a host name", url.host)))?;
    let stream = TlsConnector::from(tls_config()).connect(name, stream).await.map_err(failed)?;
    exchange(url, headers, stream).await
}

async fn exchange(
    url: &Url,
    headers: HeaderMap,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<HandlerResponse, HttpError> {
    let failed = |source| HttpError::Exchange { url: url.to_string(), source };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    // The connection is closed with this exchange.
    let _connection = AbortOnDropHandle::new(podwright_tasks::spawn("http-connection", connection));
    let mut request = hyper::Request::get(&url.target)
        .body(Empty::<Bytes>::new())
        .map_err(|error| HttpError::Request(error.to_string()))?;
    *request.headers_mut() = headers;
    let response = sender.send_request(request).await.map_err(failed)?;
    let status = response.status().as_u16();
    let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let mut stream = response.into_body();
    // The content is seldom used, but the body must arrive without an error.
    let mut body = Vec::new();
    while body.len() < BODY_BYTES_MAX {
        match stream.frame().await {
            None => break,
            Some(Ok(frame)) => body.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
            Some(Err(source)) => return Err(HttpError::Body { url: url.to_string(), source }),
        }
    }
    body.truncate(BODY_BYTES_MAX);
    Ok(HandlerResponse { status, location, body })
}

/// Sends a GET request and follows redirects on the same host. A redirect to another host is the result (Go kubelet:
/// `RedirectChecker`).
pub(super) async fn follow(
    dialer: &Dialer<'_>,
    first: &Url,
    headers: &[(String, String)],
    purpose: &str,
) -> Result<HandlerResponse, HttpError> {
    let mut url = first.clone();
    for _ in 0..REDIRECTS_MAX {
        let response = get(dialer, &url, headers, purpose).await?;
        let next = match response.status {
            301 | 302 | 303 | 307 | 308 => response.location.as_deref().and_then(|location| url.join(location)),
            _ => None,
        };
        match next {
            Some(next) if next.host.eq_ignore_ascii_case(&first.host) => url = next,
            _ => return Ok(response),
        }
    }
    Err(HttpError::Redirects(first.to_string()))
}

/// The user's headers and the defaults for those that are not set; an empty `Accept` removes the header.
fn request_headers(url: &Url, own: &[(String, String)], purpose: &str) -> Result<HeaderMap, HttpError> {
    let mut headers = HeaderMap::new();
    for (name, value) in own {
        let invalid = || HttpError::Request(format!("invalid header {name:?}"));
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
        headers.append(name, HeaderValue::from_str(value).map_err(|_| invalid())?);
    }
    let default =
        |text: &str| HeaderValue::from_str(text).map_err(|_| HttpError::Request(format!("invalid host {text:?}")));
    if !headers.contains_key(HOST) {
        headers.insert(HOST, default(&url.authority())?);
    }
    if !headers.contains_key(USER_AGENT) {
        headers.insert(USER_AGENT, default(&format!("kube-{purpose}/{KUBERNETES_VERSION}"))?);
    }
    match headers.get(ACCEPT) {
        None => drop(headers.insert(ACCEPT, HeaderValue::from_static("*/*"))),
        Some(value) if value.is_empty() => drop(headers.remove(ACCEPT)),
        Some(_) => {}
    }
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(headers)
}

/// The headers without credentials, for a connection that turned out to be unencrypted.
pub(super) fn without_authorization(headers: &[(String, String)]) -> Vec<(String, String)> {
    headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case(AUTHORIZATION.as_str())).cloned().collect()
}

fn escape_target(path: &str) -> String {
    let path = path.split('#').next().unwrap_or_default();
    let mut target = String::with_capacity(path.len() + 1);
    if !path.starts_with('/') {
        target.push('/');
    }
    for byte in path.bytes() {
        match byte {
            b'!'..=b'~' if !matches!(byte, b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}') => {
                target.push(char::from(byte));
            }
            _ => target.push_str(&format!("%{byte:02X}")),
        }
    }
    target
}

fn tls_config() -> Arc<ClientConfig> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    let make = || {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().expect("ring has the default versions");
        let verifier = Arc::new(AcceptAnyCertificate(provider));
        Arc::new(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
    };
    Arc::clone(CONFIG.get_or_init(make))
}

/// Accepts every certificate.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
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
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Go: the number of redirects that `http.Client` follows.
const REDIRECTS_MAX: usize = 10;

/// Kubernetes: `maxRespBodyLength`, the part of the body that is read.
const BODY_BYTES_MAX: usize = 10 * 1024;

/// The Kubernetes version whose behaviour is implemented; part of the user agent.
pub(super) const KUBERNETES_VERSION: &str = "1.36";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped() {
        let table = [
            ("", "/"),
            ("healthz", "/healthz"),
            ("/a?b=c#d", "/a?b=c"),
            ("/a b/ü", "/a%20b/%C3%BC"),
            ("/a%20b", "/a%20b"),
            ("?x", "/?x"),
            ("/a\r\nX: y", "/a%0D%0AX:%20y"),
        ];
        for (path, expected) in table {
            assert_eq!(Url::new(false, "h", 1, path).target, expected, "{path:?}");
        }
    }

    #[test]
    fn locations_are_resolved() {
        let from = Url::new(false, "10.0.0.1", 8080, "/a/b?c");
        let table = [
            ("/x", Some("http://10.0.0.1:8080/x")),
            ("x", Some("http://10.0.0.1:8080/a/x")),
            ("?q", Some("http://10.0.0.1:8080/a/b?q")),
            ("https://10.0.0.1/x", Some("https://10.0.0.1:443/x")),
            ("http://u:p@other:81", Some("http://other:81/")),
            ("//[::1]:9/y", Some("http://[::1]:9/y")),
            ("ftp://x/y", None),
            ("http://", None),
        ];
        for (location, expected) in table {
            assert_eq!(from.join(location).map(|url| url.to_string()).as_deref(), expected, "{location}");
        }
    }

    #[test]
    fn request_headers_have_defaults_that_users_can_replace() {
        let url = Url::new(false, "::1", 80, "/");
        let plain = request_headers(&url, &[], "probe").unwrap();
        let text = |name: HeaderName| plain.get(name).map(|v| v.to_str().unwrap().to_owned());
        assert_eq!(text(HOST).as_deref(), Some("[::1]:80"));
        assert_eq!(text(USER_AGENT).as_deref(), Some("kube-probe/1.36"));
        assert_eq!(text(ACCEPT).as_deref(), Some("*/*"));
        let own = [("Host", "h"), ("user-agent", "me"), ("Accept", ""), ("X", "1"), ("x", "2")];
        let own: Vec<_> = own.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let headers = request_headers(&url, &own, "probe").unwrap();
        assert_eq!(
            (&headers[HOST], &headers[USER_AGENT]),
            (&HeaderValue::from_static("h"), &HeaderValue::from_static("me"))
        );
        assert!(!headers.contains_key(ACCEPT));
        assert_eq!(headers.get_all("x").iter().count(), 2);
        assert!(request_headers(&url, &[("a b".into(), "c".into())], "probe").is_err());
        assert!(request_headers(&url, &[("a".into(), "c\nd".into())], "probe").is_err());
    }
}
