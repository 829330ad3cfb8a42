//! HTTP requests with limits: connections, redirects, bounded bodies.

use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderMap, LOCATION, USER_AGENT};
use http::uri::{PathAndQuery, Scheme};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::{Instant, timeout};

use super::RegistryError;
use super::lookup::PooledLookup;
use crate::digest::excerpt;

/// Connections to any host, with one set of certificates.
pub(super) type RegistryHttpClient = Client<HttpsConnector<HttpConnector<PooledLookup>>, Full<Bytes>>;

/// A client with these certificates. Does not connect yet.
pub(super) fn http_client(tls: rustls::ClientConfig, lookup: PooledLookup) -> RegistryHttpClient {
    let mut tcp = HttpConnector::new_with_resolver(lookup);
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_LIMIT));
    let connector =
        HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(tcp);
    Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(POOL_IDLE)
        .pool_max_idle_per_host(POOL_IDLE_MAX)
        .build(connector)
}

/// A request that may be redirected.
pub(super) struct Fetch<'a> {
    pub(super) method: Method,
    pub(super) url: Uri,
    /// Sent to the first host only, with `Authorization` and what `hosts.toml` adds.
    pub(super) private_headers: HeaderMap,
    /// Sent to every host that the request is redirected to.
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// 0: every redirect is refused.
    pub(super) redirects_max: usize,
    /// Its certificates are for the first host only.
    pub(super) client: &'a RegistryHttpClient,
    /// For other hosts.
    pub(super) plain_client: &'a RegistryHttpClient,
    pub(super) limit: Duration,
}

impl Fetch<'_> {
    /// Sends the request and follows redirects. Returns the last URL, for messages, and the response of any status.
    pub(super) async fn send(self) -> Result<(String, Response<Incoming>), RegistryError> {
        let mut url = self.url.clone();
        for hop in 0.. {
            let same_host = url.scheme() == self.url.scheme() && url.authority() == self.url.authority();
            let shown = shown(&url);
            let response = self.once(&url, same_host).await?;
            let status = response.status();
            let redirect = matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308);
            let Some(location) = response.headers().get(LOCATION).filter(|_| redirect) else {
                return Ok((shown, response));
            };
            let location = String::from_utf8_lossy(location.as_bytes()).into_owned();
            let refused = |reason| {
                let location = excerpt(location.split('?').next().unwrap_or_default());
                RegistryError::Redirect { url: shown.clone(), location, reason }
            };
            if hop >= self.redirects_max {
                return Err(refused("too many redirects"));
            }
            url = redirected(&url, &location).map_err(refused)?;
        }
        unreachable!("the loop ends at its bound of redirects")
    }

    async fn once(&self, url: &Uri, same_host: bool) -> Result<Response<Incoming>, RegistryError> {
        let shown = shown(url);
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = url.clone();
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().insert(USER_AGENT, http::HeaderValue::from_static(AGENT));
        if same_host {
            request.headers_mut().extend(self.private_headers.clone());
        } else {
            request.headers_mut().remove(AUTHORIZATION);
        }
        let client = if same_host { self.client } else { self.plain_client };
        match timeout(self.limit, client.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(RegistryError::Connection { url: shown, source: error.into() }),
            Err(_) => Err(RegistryError::Timeout { url: shown, limit: self.limit }),
        }
    }
}

/// The target of a redirect, if it may be followed.
fn redirected(from: &Uri, location: &str) -> Result<Uri, &'static str> {
    if location.len() > LOCATION_BYTES_MAX {
        return Err("the URL is too long");
    }
    // A fragment is for browsers.
    let location = location.split('#').next().unwrap_or_default();
    let absolute = |text: &str| text.parse::<Uri>().map_err(|_| "it is no URL");
    let to = if location.starts_with("//") {
        absolute(&format!("{}:{location}", from.scheme_str().unwrap_or("https")))?
    } else if location.starts_with('/') {
        let mut parts = from.clone().into_parts();
        parts.path_and_query = Some(location.parse::<PathAndQuery>().map_err(|_| "it is no URL")?);
        Uri::from_parts(parts).map_err(|_| "it is no URL")?
    } else {
        absolute(location)?
    };
    if to.authority().is_none_or(|authority| authority.host().is_empty()) {
        return Err("it has no host");
    }
    if to.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("it contains credentials");
    }
    match to.scheme() {
        Some(scheme) if *scheme == Scheme::HTTPS => Ok(to),
        Some(scheme) if *scheme == Scheme::HTTP && from.scheme() == Some(&Scheme::HTTPS) => {
            Err("it leaves https for http")
        }
        Some(scheme) if *scheme == Scheme::HTTP => Ok(to),
        _ => Err("only http and https are followed"),
    }
}

/// A URL for messages: without its query, which may hold a signature.
pub(super) fn shown(url: &Uri) -> String {
    let (scheme, authority) = (url.scheme_str().unwrap_or_default(), url.authority().map_or("", |a| a.as_str()));
    format!("{scheme}://{authority}{}", url.path())
}

/// Reads a small body.
pub(super) async fn read_bounded(
    url: &str,
    body: Incoming,
    max: u64,
    limit: Duration,
) -> Result<Vec<u8>, RegistryError> {
    let mut reader = BodyReader::new(url, body, limit);
    let (mut content, deadline) = (vec![], Instant::now() + limit);
    while let Some(chunk) = reader.chunk().await? {
        content.extend_from_slice(&chunk);
        if content.len() as u64 > max {
            return Err(RegistryError::TooLarge { url: url.to_owned(), max });
        }
        if Instant::now() > deadline {
            return Err(RegistryError::Timeout { url: url.to_owned(), limit });
        }
    }
    Ok(content)
}

/// A response body with a minimum rate.
pub(super) struct BodyReader {
    url: String,
    body: Incoming,
    limit: Duration,
    /// When the present window ends, and bytes that came in it.
    window: (Instant, usize),
}

impl BodyReader {
    pub(super) fn new(url: &str, body: Incoming, limit: Duration) -> Self {
        Self { url: url.to_owned(), body, limit, window: (Instant::now() + limit, 0) }
    }

    /// The next bytes; `None` at the end. A body below [`WINDOW_BYTES_MIN`] per window times out like one that stalls.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, RegistryError> {
        loop {
            let now = Instant::now();
            if self.window.1 >= WINDOW_BYTES_MIN || now >= self.window.0 {
                if self.window.1 < WINDOW_BYTES_MIN {
                    return Err(RegistryError::Timeout { url: self.url.clone(), limit: self.limit });
                }
                self.window = (now + self.limit, 0);
            }
            match tokio::time::timeout_at(self.window.0, self.body.frame()).await {
                Err(_) => return Err(RegistryError::Timeout { url: self.url.clone(), limit: self.limit }),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => {
                    return Err(RegistryError::Connection { url: self.url.clone(), source: error.into() });
                }
                // Trailers are ignored.
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.window.1 += data.len();
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}

/// The error for a response that is no success, with the message that registries send along.
pub(super) async fn status_error(url: String, response: Response<Incoming>, limit: Duration) -> RegistryError {
    #[derive(serde::Deserialize)]
    struct Errors {
        errors: Vec<Entry>,
    }
    #[derive(serde::Deserialize)]
    struct Entry {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let status: StatusCode = response.status();
    let body = read_bounded(&url, response.into_body(), ERROR_BYTES_MAX, limit.min(ERROR_LIMIT)).await;
    let parsed = body.ok().and_then(|body| serde_json::from_slice::<Errors>(&body).ok());
    let message = parsed.and_then(|errors| errors.errors.into_iter().next());
    let message =
        message.map(|entry| excerpt(&format!("{}: {}", entry.code, entry.message)).replace(char::is_control, " "));
    RegistryError::Status { url, status, message }
}

const AGENT: &str = concat!("podwright/", env!("CARGO_PKG_VERSION"));
/// TCP only.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const POOL_IDLE: Duration = Duration::from_secs(30);
const POOL_IDLE_MAX: usize = 4;
/// Signed URLs of object stores have about 2 KiB.
const LOCATION_BYTES_MAX: usize = 16 << 10;
/// Bytes that a body must bring within the idle limit.
const WINDOW_BYTES_MIN: usize = 4 << 10;
/// Error documents are short.
const ERROR_BYTES_MAX: u64 = 64 << 10;
const ERROR_LIMIT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_stay_on_http_and_never_leave_tls() {
        let from: Uri = "https://r.example/v2/a/blobs/x".parse().unwrap();
        let to = |location: &str| redirected(&from, location).map(|url| url.to_string());
        assert_eq!(to("https://cdn.example/x?sig=1#f").unwrap(), "https://cdn.example/x?sig=1");
        assert_eq!(to("/other?y").unwrap(), "https://r.example/other?y");
        assert_eq!(to("//cdn.example/x").unwrap(), "https://cdn.example/x");
        for refused in [
            "file:///etc/shadow",
            "file://localhost/etc/shadow",
            "ftp://a/b",
            "gopher://a",
            "http://cdn/x",
            "x",
            "",
            "https://u:p@h/x",
            "\u{0}",
        ] {
            assert!(to(refused).is_err(), "{refused}");
        }
        let plain: Uri = "http://r.example/".parse().unwrap();
        assert!(redirected(&plain, "http://cdn.example/x").is_ok() && redirected(&plain, "https://c.example/").is_ok());
    }
}
