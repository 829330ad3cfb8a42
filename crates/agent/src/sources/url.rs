//! Manifests at a URL: one Pod or a list of them, fetched periodically.
//!
//! Only a response with status 200 and a valid manifest changes anything. As in the Go kubelet, an empty body means no pods.
//! Each fetch opens a new connection: fetches are 20 seconds apart by default, so a kept one would be idle.

use std::ffi::OsString;
use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper_util::rt::TokioIo;
use podwright_core::model::{Source, SourceChange};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{Changes, Decode, InvalidManifest, MANIFEST_MAX, pods};

/// An invalid URL or header in the configuration.
#[derive(Debug, thiserror::Error)]
pub enum UrlConfigError {
    /// Not an http or https URL.
    #[error("{0:?} is not an http:// or https:// URL")]
    Url(String),
    /// A user name or password in the URL would appear in logs.
    #[error("credentials must not be part of the URL: use a header, --manifest-url-header Authorization:…")]
    Credentials,
    /// A header name or value that HTTP does not allow.
    #[error("{0:?} is not a valid header")]
    Header(String),
}

/// The URL source's settings.
#[derive(Clone)]
pub struct UrlSourceConfig {
    uri: Uri,
    headers: HeaderMap,
    check_frequency: Duration,
}

impl UrlSourceConfig {
    /// From `staticPodURL`, `staticPodURLHeader` and `httpCheckFrequency`.
    pub fn new<'a>(
        url: &str,
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
        check_frequency: Duration,
    ) -> Result<Self, UrlConfigError> {
        let uri: Uri = url.parse().map_err(|_| UrlConfigError::Url(url.into()))?;
        let authority = uri.authority().filter(|_| matches!(uri.scheme_str(), Some("http" | "https")));
        let authority = authority.ok_or_else(|| UrlConfigError::Url(url.into()))?;
        if authority.as_str().contains('@') {
            return Err(UrlConfigError::Credentials);
        }
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let bad = || UrlConfigError::Header(name.into());
            let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?;
            map.append(key, HeaderValue::from_str(value).map_err(|_| bad())?);
        }
        Ok(Self { uri, headers: map, check_frequency })
    }
}

/// Without the values of the headers, which may be secrets.
impl fmt::Debug for UrlSourceConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<_> = self.headers.keys().collect();
        f.debug_struct("UrlSourceConfig").field("uri", &self.uri).field("headers", &headers).finish_non_exhaustive()
    }
}

/// Fetches the URL periodically and sends its pods, until the receiver is dropped.
pub async fn run(config: UrlSourceConfig, decode: Decode, changes: Changes) {
    let mut ticks = interval(config.check_frequency);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut state = UrlState::default();
    loop {
        tokio::select! {
            () = changes.closed() => return,
            _ = ticks.tick() => {}
        }
        let result = match fetch(&config).await {
            Ok(body) => state.on_body(&body, &config.uri.to_string(), &decode),
            Err(error) => Err((None, error)),
        };
        let (set, error) = match result {
            Ok(set) => (set, None),
            Err((set, error)) => (set, Some(error)),
        };
        state.log(&config.uri, error.as_ref());
        if let Some(set) = set
            && changes.send((Source::Url, set)).await.is_err()
        {
            return;
        }
    }
}

/// A fetch without a valid manifest.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("no response within {} s", FETCH_MAX.as_secs())]
    Timeout,
    #[error("connect: {0}")]
    Connect(#[source] io::Error),
    #[error("read the trusted certificates: {0}")]
    Roots(String),
    #[error("{0}")]
    Http(#[from] hyper::Error),
    #[error("the response status was {0}")]
    Status(StatusCode),
    #[error("the body has more than {MANIFEST_MAX} bytes")]
    TooLarge,
    #[error("read the body: {0}")]
    Body(String),
    #[error("the body is empty: no pods")]
    Empty,
    #[error(transparent)]
    Manifest(InvalidManifest),
}

/// The last body that was sent to core, and the number of failures since.
#[derive(Default)]
struct UrlState {
    delivered: Option<Delivered>,
    failures: u32,
}

#[derive(PartialEq)]
enum Delivered {
    Nothing,
    Body(u64),
}

impl UrlState {
    /// The change to send for this body. An empty body is both a change and an error.
    fn on_body(
        &mut self,
        body: &[u8],
        origin: &str,
        decode: &Decode,
    ) -> Result<Option<SourceChange>, (Option<SourceChange>, FetchError)> {
        if body.is_empty() {
            let is_new = self.delivered != Some(Delivered::Nothing);
            self.delivered = Some(Delivered::Nothing);
            let set = is_new.then(|| SourceChange::Set { pods: Vec::new(), broken: Vec::new() });
            return Err((set, FetchError::Empty));
        }
        let mut hasher = DefaultHasher::new();
        hasher.write(body);
        let hash = Some(Delivered::Body(hasher.finish()));
        if self.delivered == hash {
            return Ok(None);
        }
        let pods = pods(body, origin, decode).map_err(|error| (None, FetchError::Manifest(error)))?;
        self.delivered = hash;
        Ok(Some(SourceChange::Set { pods, broken: Vec::new() }))
    }

    /// Logs the first three failures in a row, and the recovery.
    fn log(&mut self, uri: &Uri, error: Option<&FetchError>) {
        let Some(error) = error else {
            if self.failures > 0 {
                tracing::info!(url = %uri, failures = self.failures, "manifest fetch succeeded again");
            }
            self.failures = 0;
            return;
        };
        self.failures = self.failures.saturating_add(1);
        match self.failures {
            n if n < FAILURES_LOGGED => tracing::warn!(url = %uri, %error, "manifest fetch failed"),
            FAILURES_LOGGED => {
                tracing::warn!(url = %uri, %error, "manifest fetch failed, not logged again until it succeeds")
            }
            _ => tracing::debug!(url = %uri, %error, "manifest fetch failed"),
        }
    }
}

async fn fetch(config: &UrlSourceConfig) -> Result<Bytes, FetchError> {
    timeout(FETCH_MAX, fetch_unlimited(config)).await.unwrap_or(Err(FetchError::Timeout))
}

async fn fetch_unlimited(config: &UrlSourceConfig) -> Result<Bytes, FetchError> {
    let host = config.uri.host().expect("checked in new").trim_matches(['[', ']']);
    let tls = config.uri.scheme_str() == Some("https");
    let port = config.uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let stream = TcpStream::connect((host, port)).await.map_err(FetchError::Connect)?;
    if !tls {
        return exchange(config, stream).await;
    }
    let roots = tokio::task::spawn_blocking(trusted).await.map_err(|e| FetchError::Roots(e.to_string()))??;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(|e| FetchError::Connect(io::Error::other(e)))?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
    let stream = connector.connect(name, stream).await.map_err(FetchError::Connect)?;
    exchange(config, stream).await
}

async fn exchange(
    config: &UrlSourceConfig,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Bytes, FetchError> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // The connection needs a task that polls it; it ends with this fetch.
    let _guard = AbortOnDrop(podwright_tasks::spawn("url-connection", connection));
    let target = config.uri.path_and_query().map_or("/", |p| p.as_str());
    let mut request = Request::get(target).body(Empty::<Bytes>::new()).expect("a path of a parsed URL");
    *request.headers_mut() = config.headers.clone();
    let authority = config.uri.authority().expect("checked in new");
    for (name, value) in [("host", authority.as_str()), ("user-agent", AGENT), ("connection", "close")] {
        let value = HeaderValue::from_str(value).expect("an authority is a header value");
        request.headers_mut().entry(name).or_insert(value);
    }
    let response = sender.send_request(request).await?;
    if response.status() != StatusCode::OK {
        return Err(FetchError::Status(response.status()));
    }
    let limit = usize::try_from(MANIFEST_MAX).expect("10 MiB");
    let body = Limited::new(response.into_body(), limit).collect().await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => FetchError::TooLarge,
        false => FetchError::Body(error.to_string()),
    })?;
    Ok(body.to_bytes())
}

/// The node's trusted certificate authorities. Read for each fetch, because system updates change the file.
fn trusted() -> Result<rustls::RootCertStore, FetchError> {
    let file = roots_file(std::env::var_os("SSL_CERT_FILE"), &ROOTS);
    let bytes = std::fs::read(&file).map_err(|e| FetchError::Roots(format!("{}: {e}", file.display())))?;
    let mut store = rustls::RootCertStore::empty();
    store.add_parsable_certificates(CertificateDer::pem_slice_iter(&bytes).flatten());
    if store.is_empty() {
        return Err(FetchError::Roots("the file contains none".into()));
    }
    Ok(store)
}

/// The configured file, or the first usual one that exists.
fn roots_file(configured: Option<OsString>, usual: &[&str]) -> PathBuf {
    let configured = configured.filter(|file| !file.is_empty()).map(PathBuf::from);
    let found = || usual.iter().map(PathBuf::from).find(|file| file.exists());
    configured.or_else(found).unwrap_or_else(|| PathBuf::from(usual[0]))
}

struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// For one fetch, from the DNS lookup to the last byte.
const FETCH_MAX: Duration = Duration::from_secs(10);
/// Further failures in a row are logged at debug level.
const FAILURES_LOGGED: u32 = 3;
/// The certificate files of distributions, in the order of Go's crypto/x509: Debian and most others, Fedora and RHEL, SUSE,
/// Alpine.
const ROOTS: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
const AGENT: &str = concat!("podwright/", env!("CARGO_PKG_VERSION"));

#[cfg(test)]
mod tests;
