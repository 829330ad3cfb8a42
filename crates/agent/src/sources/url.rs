//! Manifests at a URL: one Pod or a list of them, fetched periodically.
//!
//! Only a response with status 200 and a valid manifest changes anything. As in the Go kubelet, an empty body means no pods.
//! Redirects are followed, and the proxies of the environment used, as Go's client does (`fetch`). Each fetch opens a new
//! connection: fetches are 20 seconds apart by default, so a kept one would be idle.

use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Uri};
use podwright_core::model::{Manifest, Source, SourceChange};
use tokio::time::{MissedTickBehavior, interval};

use super::{Changes, Decode, InvalidManifest, pods};
use crate::host::Pool;
use fetch::{FetchError, Fetcher};

mod fetch;

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
pub async fn run(config: UrlSourceConfig, decode: Decode, changes: Changes, pool: Pool) {
    let fetcher = Fetcher::new(pool.clone());
    let mut ticks = interval(config.check_frequency);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut state = UrlState::default();
    loop {
        tokio::select! {
            () = changes.closed() => return,
            _ = ticks.tick() => {}
        }
        let (set, error) = match fetcher.fetch(&config).await {
            Ok(body) => state.on_body(body, &config.uri, &decode, &pool).await,
            Err(error) => (None, Some(error)),
        };
        state.log(&config.uri, error.as_ref());
        if let Some(set) = set
            && changes.send((Source::Url, set)).await.is_err()
        {
            return;
        }
    }
}

/// The last body that was sent to core, and the number of failures since.
#[derive(Default)]
struct UrlState {
    delivered: Option<Delivered>,
    failures: u32,
}

#[derive(Clone, Copy, PartialEq)]
enum Delivered {
    Nothing,
    Body(u64),
}

/// The pods of a body; `None` if this body was delivered last.
fn decode_if_new(
    body: &[u8],
    last: Option<Delivered>,
    origin: &str,
    decode: &Decode,
) -> Result<Option<(Delivered, Vec<Manifest>)>, InvalidManifest> {
    let mut hasher = DefaultHasher::new();
    hasher.write(body);
    let delivered = Delivered::Body(hasher.finish());
    if last == Some(delivered) {
        return Ok(None);
    }
    Ok(Some((delivered, pods(body, origin, decode)?)))
}

impl UrlState {
    /// The change to send for this body, and an error to log. An empty body is both. Up to 10 MiB are decoded, so the pool does it.
    async fn on_body(
        &mut self,
        body: Bytes,
        uri: &Uri,
        decode: &Decode,
        pool: &Pool,
    ) -> (Option<SourceChange>, Option<FetchError>) {
        let set = |pods| SourceChange::Set { pods, broken: Vec::new() };
        if body.is_empty() {
            let is_new = self.delivered.replace(Delivered::Nothing) != Some(Delivered::Nothing);
            return (is_new.then(|| set(Vec::new())), Some(FetchError::Empty));
        }
        let (last, origin, decode) = (self.delivered, uri.to_string(), Arc::clone(decode));
        let work = move || decode_if_new(&body, last, &origin, &decode);
        match pool.run("manifests of the URL source", DECODE_MAX, work).await {
            Ok(Ok(None)) => (None, None),
            Ok(Ok(Some((delivered, pods)))) => {
                self.delivered = Some(delivered);
                (Some(set(pods)), None)
            }
            Ok(Err(error)) => (None, Some(FetchError::Manifest(error))),
            Err(error) => (None, Some(FetchError::Decode(error))),
        }
    }

    /// Logs the first three failures in a row, and the recovery.
    fn log(&mut self, uri: &Uri, error: Option<&FetchError>) {
        let Some(error) = error else {
            if self.failures > 0 {
                tracing::info!(url = %uri, count = self.failures, "manifest fetch succeeded again");
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

/// Further failures in a row are logged at debug level.
const FAILURES_LOGGED: u32 = 3;
/// Far more than the largest body takes.
const DECODE_MAX: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;
