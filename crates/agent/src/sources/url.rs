//! Manifests at a URL: one Pod, or a list of them, fetched again and again.
//!
//! Only an answer of 200 that can be understood changes anything, with one exception that is the Go kubelet's: an empty
//! body means no pods. A new connection for each fetch: twenty seconds apart, a kept one would only be idle.

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

use super::{Changes, Decode, MANIFEST_MAX, pods};

/// What is wrong with the URL or its headers, as the user gave them.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No http or https URL.
    #[error("{0:?} is no http:// or https:// URL")]
    Url(String),
    /// A user name or password in it would end up in logs.
    #[error("credentials don't belong into the URL: give them as a header, --manifest-url-header Authorization:…")]
    Credentials,
    /// A header that HTTP doesn't allow.
    #[error("{0:?} is no header that can be sent")]
    Header(String),
}

/// The URL source's settings.
#[derive(Clone)]
pub struct Config {
    uri: Uri,
    headers: HeaderMap,
    check_frequency: Duration,
}

impl Config {
    /// From `staticPodURL`, `staticPodURLHeader` and `httpCheckFrequency`.
    pub fn new<'a>(
        url: &str,
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
        check_frequency: Duration,
    ) -> Result<Self, ConfigError> {
        let uri: Uri = url.parse().map_err(|_| ConfigError::Url(url.into()))?;
        let authority = uri.authority().filter(|_| matches!(uri.scheme_str(), Some("http" | "https")));
        let authority = authority.ok_or_else(|| ConfigError::Url(url.into()))?;
        if authority.as_str().contains('@') {
            return Err(ConfigError::Credentials);
        }
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let bad = || ConfigError::Header(name.into());
            let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?;
            map.append(key, HeaderValue::from_str(value).map_err(|_| bad())?);
        }
        Ok(Self { uri, headers: map, check_frequency })
    }
}

/// Without the values of the headers: they are secrets as often as not.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<_> = self.headers.keys().collect();
        f.debug_struct("Config").field("uri", &self.uri).field("headers", &headers).finish_non_exhaustive()
    }
}

/// Fetch the URL and tell what it has, until nobody listens any more.
pub async fn run(config: Config, decode: Decode, changes: Changes) {
    let mut ticks = interval(config.check_frequency);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut memory = Memory::default();
    loop {
        tokio::select! {
            () = changes.closed() => return,
            _ = ticks.tick() => {}
        }
        let result = match fetch(&config).await {
            Ok(body) => memory.take(&body, &config.uri.to_string(), &decode),
            Err(error) => Err((None, error)),
        };
        let (set, error) = match result {
            Ok(set) => (set, None),
            Err((set, error)) => (set, Some(error)),
        };
        memory.log(&config.uri, error.as_ref());
        if let Some(set) = set
            && changes.send((Source::Url, set)).await.is_err()
        {
            return;
        }
    }
}

/// Why nothing came of a fetch.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("no answer within {} s", FETCH_MAX.as_secs())]
    Timeout,
    #[error("connect: {0}")]
    Connect(#[source] io::Error),
    #[error("read the trusted certificates: {0}")]
    Roots(String),
    #[error("{0}")]
    Http(#[from] hyper::Error),
    #[error("the answer was {0}")]
    Status(StatusCode),
    #[error("the body has more than {MANIFEST_MAX} bytes")]
    TooLarge,
    #[error("read the body: {0}")]
    Body(String),
    #[error("the body is empty: no pods")]
    Empty,
    #[error("{0}")]
    Manifest(String),
}

/// What was last delivered, and how often it failed since.
#[derive(Default)]
struct Memory {
    delivered: Option<Delivered>,
    failures: u32,
}

#[derive(PartialEq)]
enum Delivered {
    Nothing,
    Body(u64),
}

impl Memory {
    /// What to tell of this body. An empty one is told, and an error too.
    fn take(
        &mut self,
        body: &[u8],
        origin: &str,
        decode: &Decode,
    ) -> Result<Option<SourceChange>, (Option<SourceChange>, FetchError)> {
        if body.is_empty() {
            let news = self.delivered != Some(Delivered::Nothing);
            self.delivered = Some(Delivered::Nothing);
            let set = news.then(|| SourceChange::Set { pods: Vec::new(), broken: Vec::new() });
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

    /// Three failures in a row are told, and then the recovery.
    fn log(&mut self, uri: &Uri, error: Option<&FetchError>) {
        let Some(error) = error else {
            if self.failures > 0 {
                tracing::info!(%uri, failures = self.failures, "the manifest URL works again");
            }
            self.failures = 0;
            return;
        };
        self.failures = self.failures.saturating_add(1);
        match self.failures {
            n if n < LOGGED => tracing::warn!(%uri, %error, "the manifest URL gave nothing new"),
            LOGGED => {
                tracing::warn!(%uri, %error, "the manifest URL gave nothing new; silent from here until it works again")
            }
            _ => tracing::debug!(%uri, %error, "the manifest URL gave nothing new"),
        }
    }
}

async fn fetch(config: &Config) -> Result<Bytes, FetchError> {
    timeout(FETCH_MAX, fetch_unlimited(config)).await.unwrap_or(Err(FetchError::Timeout))
}

async fn fetch_unlimited(config: &Config) -> Result<Bytes, FetchError> {
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
    config: &Config,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Bytes, FetchError> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // The connection moves only while it is polled; it ends with this fetch.
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

/// The machine's trusted authorities, read anew each time: the file changes with the system's updates.
fn trusted() -> Result<rustls::RootCertStore, FetchError> {
    let file = roots_file(std::env::var_os("SSL_CERT_FILE"), &ROOTS);
    let bytes = std::fs::read(&file).map_err(|e| FetchError::Roots(format!("{}: {e}", file.display())))?;
    let mut store = rustls::RootCertStore::empty();
    store.add_parsable_certificates(CertificateDer::pem_slice_iter(&bytes).flatten());
    if store.is_empty() {
        return Err(FetchError::Roots("there are none".into()));
    }
    Ok(store)
}

/// The file people name, or the first that is there.
fn roots_file(named: Option<OsString>, usual: &[&str]) -> PathBuf {
    let named = named.filter(|file| !file.is_empty()).map(PathBuf::from);
    let found = || usual.iter().map(PathBuf::from).find(|file| file.exists());
    named.or_else(found).unwrap_or_else(|| PathBuf::from(usual[0]))
}

struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// For one fetch, from the name's lookup to the last byte.
const FETCH_MAX: Duration = Duration::from_secs(10);
/// The failure in a row after which the log goes quiet.
const LOGGED: u32 = 3;
/// Where distributions keep the trusted authorities, as Go looks for them: Debian and most others, Fedora and RHEL, SUSE, Alpine.
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
