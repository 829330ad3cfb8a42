//! One fetch: proxy, connection, TLS, request, redirects. Follows Go's `http.Client` and `http.ProxyFromEnvironment`.

use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, COOKIE, HeaderName, HeaderValue, LOCATION, PROXY_AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::UrlSourceConfig;
use crate::host::{Pool, PoolError};
use crate::name_lookup::NameResolver;
use crate::sources::{InvalidManifest, MANIFEST_MAX};

/// A fetch without a valid manifest.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("no response within {} s", FETCH_MAX.as_secs())]
    Timeout,
    #[error("connect: {0}")]
    Connect(#[source] io::Error),
    #[error("connect to the proxy {proxy}: {source}")]
    ConnectProxy { proxy: String, source: io::Error },
    #[error("the proxy {0} is not supported: use an http:// or https:// proxy")]
    ProxyScheme(String),
    #[error("the proxy {proxy} refused the connection: {status}")]
    ProxyRefused { proxy: String, status: StatusCode },
    #[error("read the trusted certificates: {0}")]
    Roots(String),
    #[error("{0}")]
    Http(#[from] hyper::Error),
    #[error("the response status was {0}")]
    Status(StatusCode),
    #[error("the redirect to {0:?} is not an http:// or https:// URL")]
    RedirectUrl(String),
    #[error("stopped after {REDIRECTS_MAX} redirects")]
    Redirects,
    #[error("the body has more than {MANIFEST_MAX} bytes")]
    TooLarge,
    #[error("read the body: {0}")]
    Body(String),
    #[error("the body is empty: no pods")]
    Empty,
    #[error(transparent)]
    Manifest(InvalidManifest),
    #[error("decode the body: {0}")]
    Decode(#[source] PoolError),
}

/// A TCP or TLS stream.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Fetches URLs.
pub(super) struct Fetcher {
    pool: Pool,
    names: NameResolver,
    proxies: ProxyVariables,
}

/// The values of the environment variables of Go's `ProxyFromEnvironment`.
#[derive(Clone, Debug, Default)]
pub(super) struct ProxyVariables {
    pub(super) http: String,
    pub(super) https: String,
    pub(super) no: String,
}

impl ProxyVariables {
    fn from_env() -> Self {
        let first = |names: [&str; 2]| {
            let values = names.iter().filter_map(|name| std::env::var(name).ok());
            values.into_iter().find(|value| !value.is_empty()).unwrap_or_default()
        };
        Self {
            http: first(["HTTP_PROXY", "http_proxy"]),
            https: first(["HTTPS_PROXY", "https_proxy"]),
            no: first(["NO_PROXY", "no_proxy"]),
        }
    }

    /// The proxy for this URL. `None`: a direct connection. Loopback never has one.
    pub(super) fn of(&self, uri: &Uri) -> Option<Intercept> {
        let (host, port) = target(uri);
        let is_loopback = host.parse::<IpAddr>().map_or(host.eq_ignore_ascii_case("localhost"), |ip| ip.is_loopback());
        if is_loopback {
            return None;
        }
        // An entry may name a port; the matcher knows hosts only.
        let entries = self.no.split(',').filter_map(|entry| match entry.trim().rsplit_once(':') {
            Some((host, number)) if !host.contains(':') || host.ends_with(']') => {
                (number.parse() == Ok(port)).then(|| host.trim_matches(['[', ']']))
            }
            _ => Some(entry.trim()),
        });
        let no = entries.collect::<Vec<_>>().join(",");
        Matcher::builder().http(self.http.as_str()).https(self.https.as_str()).no(no).build().intercept(uri)
    }
}

impl Fetcher {
    /// With the proxies of the environment.
    pub(super) fn new(pool: Pool) -> Self {
        Self { names: NameResolver::system(pool.clone()), pool, proxies: ProxyVariables::from_env() }
    }

    #[cfg(test)]
    pub(super) fn with_proxies(self, proxies: ProxyVariables) -> Self {
        Self { proxies, ..self }
    }

    /// The body at the URL, after redirects.
    pub(super) async fn fetch(&self, config: &UrlSourceConfig) -> Result<Bytes, FetchError> {
        timeout(FETCH_MAX, self.follow(config)).await.unwrap_or(Err(FetchError::Timeout))
    }

    async fn follow(&self, config: &UrlSourceConfig) -> Result<Bytes, FetchError> {
        let (mut uri, mut headers) = (config.uri.clone(), config.headers.clone());
        // Go: the first request and then at most ten.
        for _ in 0..=REDIRECTS_MAX {
            let response = self.get(&uri, &headers).await?;
            let Some(location) = redirect(&response.response) else { return body(response).await };
            let next = join(&uri, &location).ok_or(FetchError::RedirectUrl(location))?;
            if !keeps_credentials(&config.uri, &next) {
                for name in [AUTHORIZATION, COOKIE, WWW_AUTHENTICATE, HeaderName::from_static("cookie2")] {
                    headers.remove(name);
                }
            }
            uri = next;
        }
        Err(FetchError::Redirects)
    }

    async fn get(&self, uri: &Uri, headers: &HeaderMap) -> Result<Response, FetchError> {
        let proxy = self.proxies.of(uri);
        let is_tls = uri.scheme_str() == Some("https");
        let (host, port) = target(uri);
        let stream = match &proxy {
            None => Box::new(self.connect(host, port).await.map_err(FetchError::Connect)?),
            Some(proxy) => self.connect_proxy(proxy).await?,
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        if !is_tls {
            let mut headers = headers.clone();
            let auth = proxy.as_ref().and_then(Intercept::basic_auth).cloned();
            headers.extend(auth.map(|auth| (PROXY_AUTHORIZATION, auth)));
            // A proxy needs the whole URL.
            let target = if proxy.is_some() { uri.to_string() } else { path.to_owned() };
            return send(stream, Method::GET, &target, authority(uri), headers).await;
        }
        let stream = match &proxy {
            None => stream,
            Some(proxy) => tunnel(stream, proxy, host, port).await?,
        };
        let stream = self.tls(stream, host).await?;
        send(stream, Method::GET, path, authority(uri), headers.clone()).await
    }

    async fn connect(&self, host: &str, port: u16) -> io::Result<tokio::net::TcpStream> {
        self.names.connect("URL source", host, port).await
    }

    async fn connect_proxy(&self, proxy: &Intercept) -> Result<Box<dyn Stream>, FetchError> {
        let uri = proxy.uri();
        let (host, port) = target(uri);
        let failed = |source| FetchError::ConnectProxy { proxy: uri.to_string(), source };
        match uri.scheme_str() {
            Some("http") => Ok(Box::new(self.connect(host, port).await.map_err(failed)?)),
            Some("https") => self.tls(Box::new(self.connect(host, port).await.map_err(failed)?), host).await,
            _ => Err(FetchError::ProxyScheme(uri.to_string())),
        }
    }

    async fn tls(&self, stream: Box<dyn Stream>, host: &str) -> Result<Box<dyn Stream>, FetchError> {
        let roots = self.pool.run("trusted certificates", FETCH_MAX, trusted).await;
        let roots = roots.map_err(|error| FetchError::Roots(error.to_string()))??;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has the default versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(host.to_owned()).map_err(|e| FetchError::Connect(io::Error::other(e)))?;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
        Ok(Box::new(connector.connect(name, stream).await.map_err(FetchError::Connect)?))
    }
}

/// Host without brackets, and port.
fn target(uri: &Uri) -> (&str, u16) {
    let default = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    (uri.host().unwrap_or_default().trim_matches(['[', ']']), uri.port_u16().unwrap_or(default))
}

fn authority(uri: &Uri) -> &str {
    uri.authority().map_or("", |authority| authority.as_str())
}

/// A response and the connection that its body comes from.
struct Response {
    response: http::Response<Incoming>,
    _connection: AbortOnDropHandle<Result<(), hyper::Error>>,
}

async fn send(
    stream: Box<dyn Stream>,
    method: Method,
    target: &str,
    host: &str,
    headers: HeaderMap,
) -> Result<Response, FetchError> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // The connection needs a task that polls it; it ends with this exchange.
    let connection = AbortOnDropHandle::new(podwright_tasks::spawn("url-connection", connection.with_upgrades()));
    let request = Request::builder().method(method).uri(target).body(Empty::<Bytes>::new());
    let mut request = request.expect("the target is part of a parsed URL");
    *request.headers_mut() = headers;
    for (name, value) in [("host", host), ("user-agent", AGENT), ("connection", "close")] {
        let value = HeaderValue::from_str(value).expect("an authority is a header value");
        request.headers_mut().entry(name).or_insert(value);
    }
    Ok(Response { response: sender.send_request(request).await?, _connection: connection })
}

/// A tunnel through the proxy.
async fn tunnel(
    stream: Box<dyn Stream>,
    proxy: &Intercept,
    host: &str,
    port: u16,
) -> Result<Box<dyn Stream>, FetchError> {
    let target = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // It ends when the tunnel is dropped.
    drop(podwright_tasks::spawn("url-proxy-connection", connection.with_upgrades()));
    let request = Request::connect(&target).header("host", &target).header("user-agent", AGENT);
    let mut request = request.body(Empty::<Bytes>::new()).expect("host and port of a parsed URL");
    request.headers_mut().extend(proxy.basic_auth().map(|auth| (PROXY_AUTHORIZATION, auth.clone())));
    let response = sender.send_request(request).await?;
    let status = response.status();
    if !status.is_success() {
        return Err(FetchError::ProxyRefused { proxy: proxy.uri().to_string(), status });
    }
    Ok(Box::new(TokioIo::new(hyper::upgrade::on(response).await?)))
}

fn redirect(response: &http::Response<Incoming>) -> Option<String> {
    let location = response.headers().get(LOCATION)?.to_str().ok()?;
    matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308).then(|| location.to_owned())
}

/// Credentials in a `Location` are not used: they would appear in logs.
fn join(base: &Uri, location: &str) -> Option<Uri> {
    let mut url = url::Url::parse(&base.to_string()).ok()?.join(location).ok()?;
    url.set_username("").ok()?;
    url.set_password(None).ok()?;
    url.set_fragment(None);
    matches!(url.scheme(), "http" | "https").then(|| url.as_str().parse().ok())?
}

/// Go: `shouldCopyHeaderOnRedirect`, to the same host or below it. Unlike Go, not from https to http.
fn keeps_credentials(first: &Uri, next: &Uri) -> bool {
    let [from, to] = [first, next].map(|uri| uri.host().unwrap_or_default().to_ascii_lowercase());
    let downgrade = first.scheme_str() == Some("https") && next.scheme_str() != Some("https");
    !downgrade && (from == to || to.strip_suffix(&from).is_some_and(|rest| rest.ends_with('.')))
}

async fn body(Response { response, _connection }: Response) -> Result<Bytes, FetchError> {
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
pub(super) fn roots_file(configured: Option<OsString>, usual: &[&str]) -> PathBuf {
    let configured = configured.filter(|file| !file.is_empty()).map(PathBuf::from);
    let found = || usual.iter().map(PathBuf::from).find(|file| file.exists());
    configured.or_else(found).unwrap_or_else(|| PathBuf::from(usual[0]))
}

/// For one fetch, from the DNS lookup to the last byte, redirects included.
const FETCH_MAX: Duration = Duration::from_secs(10);
/// Go: the number of redirects that `http.Client` follows.
const REDIRECTS_MAX: usize = 10;
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
