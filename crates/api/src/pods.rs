//! The pods that the API server assigns to this node: a list, then a watch from its version on, while the agent runs.
//!
//! ```text
//!   the Node object exists ─▶ list ─▶ SET ─▶ watch ─▶ single changes
//!                               ▲               │ ended or disconnected: watch again from the last version
//!                               └── 410 Gone ◀──┘
//! ```
//!
//! During an outage of any length the last known pods stay.

mod position;

use std::time::Duration;

use http::Method;
use podwright_core::model::{Source, SourceChange};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::backoff::RetryBackoff;
use crate::client::{ApiClient, request};
use crate::error::ApiError;
use crate::node::RegisteredNode;
use crate::staleness::{Freshness, LIST_AGE_MIN, Staleness, never_delivered, next_line_deadline};
use crate::watch_stream::{WatchEvent, WatchStream};
use position::{ChangeKind, PodItem, PodPosition};

/// Lists and watches the pods of `node` once its object exists; ends when the receiver of `changes` is dropped.
///
/// `recorded` is the newest version among the pods that an earlier agent recorded. The first list may come from the server's cache
/// (`resourceVersion=0`, as the Go kubelet's reflector does), which keeps many nodes that start together off etcd; one that is
/// older than the records is not used.
pub async fn run(
    client: ApiClient,
    node: String,
    mut object: watch::Receiver<Option<RegisteredNode>>,
    changes: mpsc::Sender<(Source, SourceChange)>,
    recorded: Option<u64>,
) {
    if object.wait_for(Option::is_some).await.is_err() {
        return;
    }
    let mut pods = PodSource {
        position: PodPosition::new(&node),
        client,
        node,
        changes,
        backoff: RetryBackoff::new(RETRY_FIRST, RETRY_MAX),
        gone_backoff: RetryBackoff::new(RETRY_FIRST, GONE_RETRY_MAX),
        freshness: Freshness::default(),
        cached: recorded,
    };
    while !pods.changes.is_closed() {
        let version = pods.list().await;
        pods.watch(version).await;
    }
}

struct PodSource {
    client: ApiClient,
    node: String,
    changes: mpsc::Sender<(Source, SourceChange)>,
    position: PodPosition,
    backoff: RetryBackoff,
    /// For watches that are refused right after a successful list.
    gone_backoff: RetryBackoff,
    freshness: Freshness,
    /// Until the first list: the version from which on a list of the server's cache is accepted. Without recorded pods there is
    /// nothing to compare it with, and the list must be consistent: pods that run and are missing in an old list would be stopped.
    cached: Option<u64>,
}

impl PodSource {
    /// Lists until it succeeds; returns the version to watch from.
    async fn list(&mut self) -> String {
        loop {
            let cached = self.cached.take();
            match self.pages(cached.is_some()).await {
                Ok((_, version)) if cached.is_some_and(|min| version.parse().is_ok_and(|found: u64| found < min)) => {
                    tracing::info!(
                        resource_version = version,
                        "the server's cache is older than the recorded pods: listing again"
                    );
                }
                Ok((items, version)) => match self.freshness.classify(self.position.is_behind(&version), &version) {
                    Staleness::Old => {
                        let stale = format!("the list (version {version}) is older than a previous response");
                        self.failed("list", &ApiError::Malformed(stale)).await;
                    }
                    staleness => {
                        self.succeeded();
                        if staleness == Staleness::HistoryReset {
                            let _ = self.changes.send((Source::Api, SourceChange::HistoryReset)).await;
                        }
                        let change = self.position.set(items, &version);
                        let _ = self.changes.send((Source::Api, change)).await;
                        return version;
                    }
                },
                Err(error) => self.failed("list", &error).await,
            }
            if self.changes.is_closed() {
                return String::new();
            }
        }
    }

    /// All pages of a list. One that does not come to its end is an error: the pods that it lacks would be terminated.
    async fn pages(&self, from_cache: bool) -> Result<(Vec<PodItem>, String), ApiError> {
        let (mut items, mut empty_pages) = (vec![], 0);
        let mut continue_token = String::new();
        loop {
            // Only the first page names a version.
            let version = if from_cache && continue_token.is_empty() { "&resourceVersion=0" } else { "" };
            let path = format!("{}&limit={PAGE}{version}{}", self.path(), continue_parameter(&continue_token));
            let body = self.client.call(request(Method::GET, &path, None), LIST_TIMEOUT).await?;
            let page: PodListPage<'_> = serde_json::from_slice(&body).map_err(|error| malformed(&error))?;
            // Pods that are missing from it are terminated, so only an API server's list may be accepted.
            if page.kind != "PodList" || page.metadata.resource_version.is_empty() {
                return Err(ApiError::Malformed("not a PodList".into()));
            }
            for item in &page.items {
                items.push(PodItem::read(item.get().as_bytes())?);
            }
            let Some(token) = page.metadata.continue_token.filter(|token| !token.is_empty()) else {
                return Ok((items, page.metadata.resource_version));
            };
            empty_pages += usize::from(page.items.is_empty());
            if empty_pages > EMPTY_PAGES_MAX || items.len() >= PODS_MAX {
                let count = items.len();
                return Err(ApiError::Malformed(format!(
                    "a list without end: {count} pods, {empty_pages} empty pages"
                )));
            }
            continue_token = token;
        }
    }

    /// Watches from this version on, again and again, until a list is needed.
    async fn watch(&mut self, mut version: String) {
        let listed = Instant::now();
        while !self.changes.is_closed() {
            let began = Instant::now();
            match self.watch_once(&mut version).await {
                Ok(delivered) if never_delivered(delivered, began.elapsed()) => {
                    tracing::info!("pod watch delivered nothing: listing again");
                    return;
                }
                // The server ends a watch at its timeout. One that ends immediately counts as a failure.
                Ok(_) if began.elapsed() > Duration::from_secs(1) => self.succeeded(),
                Ok(_) => self.failed("watch", &ApiError::Unreachable("the watch ended immediately".into())).await,
                Err(error) if error.is_gone() => {
                    tracing::info!(%error, "pod watch is too far behind: listing again");
                    // A list that was too old so soon may be so again.
                    if listed.elapsed() < LIST_AGE_MIN {
                        let wait = self.gone_backoff.failed();
                        self.sleep(wait).await;
                    }
                    return;
                }
                Err(error @ ApiError::Malformed(_)) => {
                    // The malformed event may have been a change: list.
                    self.failed("watch", &error).await;
                    return;
                }
                Err(error) => {
                    self.failed("watch", &error).await;
                    // A server that refuses watches may still serve lists.
                    if error.code().is_some_and(|code| code >= 500) && self.backoff.failures() > WARN_AFTER {
                        return;
                    }
                }
            }
        }
    }

    /// Opens a watch and applies its events until it ends; returns whether there was any.
    async fn watch_once(&mut self, version: &mut String) -> Result<bool, ApiError> {
        // Nodes that started together must not renew their watches together.
        let seconds = WATCH_SECONDS + u64::from(std::process::id() % 240);
        let query = format!("&watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={version}");
        let path = format!("{}{query}", self.path());
        let response = self.client.send(request(Method::GET, &path, None)).await?;
        if self.backoff.failures() > 0 && self.changes.send((Source::Api, SourceChange::Reconnected)).await.is_err() {
            return Ok(true);
        }
        let opened = Instant::now();
        let until = opened + Duration::from_secs(seconds) + WATCH_GRACE;
        let (mut stream, mut delivered) = (WatchStream::new(response.into_body()), false);
        loop {
            let deadline = next_line_deadline(delivered, opened, until);
            let line = match tokio::time::timeout_at(deadline, stream.next()).await {
                Ok(Some(line)) => line?,
                Ok(None) => break,
                Err(_) if !delivered => break,
                Err(_) => return Err(ApiError::Unreachable("the watch did not end in time".into())),
            };
            delivered = true;
            let event = WatchEvent::parse(&line).map_err(|error| malformed(&error))?;
            let object = event.object.get().as_bytes();
            if event.kind != "ERROR" {
                self.succeeded();
                self.gone_backoff.reset();
            }
            let kind = match event.kind.as_str() {
                "ADDED" | "MODIFIED" => ChangeKind::Put,
                "DELETED" => ChangeKind::Deleted,
                "BOOKMARK" => {
                    *version = version_of(object)?;
                    self.position.advance(version);
                    continue;
                }
                "ERROR" => return Err(ApiError::from_status(object)),
                other => return Err(ApiError::Malformed(format!("a watch event of type {other:?}"))),
            };
            let event_version = version_of(object)?;
            if let Some(change) = self.position.change(kind, PodItem::read(object)?)
                && self.changes.send((Source::Api, change)).await.is_err()
            {
                return Ok(delivered);
            }
            // Only after the change was applied: an event that fails is requested again.
            if !self.position.is_behind(&event_version) {
                *version = event_version;
            }
        }
        Ok(delivered)
    }

    fn path(&self) -> String {
        format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}", self.node)
    }

    fn succeeded(&mut self) {
        let failures = self.backoff.failures();
        if failures >= WARN_AFTER {
            tracing::info!(attempt = failures, "pods can be listed and watched again");
        }
        self.backoff.reset();
    }

    async fn failed(&mut self, call: &str, error: &ApiError) {
        let wait = self.backoff.failed().max(error.retry_after().unwrap_or_default());
        match self.backoff.failures() {
            attempt if attempt < WARN_AFTER => {
                tracing::info!(call, attempt, %error, "pod list or watch failed: retrying")
            }
            WARN_AFTER => {
                tracing::warn!(call, attempt = WARN_AFTER, %error, "pod list or watch keeps failing: retrying")
            }
            attempt => tracing::debug!(call, attempt, %error, "pod list or watch failed: retrying"),
        }
        self.sleep(wait).await;
    }

    async fn sleep(&self, wait: Duration) {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = self.changes.closed() => {}
        }
    }
}

#[derive(Deserialize)]
struct PodListPage<'a> {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: ListMeta,
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    continue_token: Option<String>,
}

fn continue_parameter(token: &str) -> String {
    // The token is usually base64url; other characters are escaped.
    let escaped: String = token
        .bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect();
    if escaped.is_empty() { escaped } else { format!("&continue={escaped}") }
}

/// The object's resource version. A watch without one would start at the newest version, and miss changes before that.
fn version_of(object: &[u8]) -> Result<String, ApiError> {
    let version = crate::trimmed::identity(object).map_err(|error| malformed(&error))?.resource_version;
    if version.is_empty() { Err(ApiError::Malformed("an object without version".into())) } else { Ok(version) }
}

fn malformed(error: &serde_json::Error) -> ApiError {
    ApiError::Malformed(error.to_string())
}

/// Pods of one page of a list.
const PAGE: usize = 50;
/// A node has a few hundred.
const PODS_MAX: usize = 20_000;
/// A server may end a page early, before it has found a pod of this node.
const EMPTY_PAGES_MAX: usize = 20;
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
const WATCH_SECONDS: u64 = 300;
const WATCH_GRACE: Duration = Duration::from_secs(30);
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Kubernetes: the maximum of the reflector's back-off.
const GONE_RETRY_MAX: Duration = Duration::from_secs(30);
/// Consecutive failures before a warning is logged; later ones are logged at debug level.
const WARN_AFTER: u32 = 3;
