//! The pods the API server wants on this node: a list, then a watch from there on, for as long as the agent lives.
//!
//! ```text
//!   the node object is there ─▶ list ─▶ SET ─▶ watch ─▶ single changes
//!                                ▲               │ ended or lost: watch on from the last version
//!                                └── 410 Gone ◀──┘
//! ```
//!
//! An outage of any length changes nothing: what was said last holds.

mod known;

use std::time::Duration;

use http::Method;
use podwright_core::model::{Source, SourceChange};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::client::{Cluster, request};
use crate::error::ApiError;
use crate::lines::Lines;
use crate::node::Registered;
use crate::staleness::{Freshness, Staleness, never_delivered, patience};
use known::{Kind, Known, Object};

/// Follow the pods of `node` once its object is there; ends when nobody listens any more.
pub async fn run(
    cluster: Cluster,
    node: String,
    mut object: watch::Receiver<Option<Registered>>,
    changes: mpsc::Sender<(Source, SourceChange)>,
) {
    if object.wait_for(Option::is_some).await.is_err() {
        return;
    }
    let mut pods = Pods {
        known: Known::new(&node),
        cluster,
        node,
        changes,
        backoff: Backoff::new(RETRY_FIRST, RETRY_MAX),
        freshness: Freshness::default(),
    };
    while !pods.changes.is_closed() {
        let version = pods.list().await;
        pods.follow(version).await;
    }
}

/// The source, between list and watch.
struct Pods {
    cluster: Cluster,
    node: String,
    changes: mpsc::Sender<(Source, SourceChange)>,
    known: Known,
    backoff: Backoff,
    freshness: Freshness,
}

impl Pods {
    /// List until it works; the version to watch from.
    async fn list(&mut self) -> String {
        loop {
            match self.pages().await {
                Ok((objects, version)) => match self.freshness.judge(self.known.is_behind(&version), &version) {
                    Staleness::Old => {
                        let behind = format!("its list (version {version}) is older than what it said before");
                        self.failed("list", &ApiError::Garbage(behind)).await;
                    }
                    word => {
                        self.worked();
                        if word == Staleness::HistoryReset {
                            let _ = self.changes.send((Source::Api, SourceChange::HistoryReset)).await;
                        }
                        let change = self.known.set(objects, &version);
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

    async fn pages(&self) -> Result<(Vec<Object>, String), ApiError> {
        let mut objects = vec![];
        let mut going_on = String::new();
        loop {
            let path = format!("{}&limit={PAGE}{}", self.path(), and_continue(&going_on));
            let body = self.cluster.call(request(Method::GET, &path, None), LIST_MAX).await?;
            let page: Page<'_> = serde_json::from_slice(&body).map_err(|error| garbage(&error))?;
            // Pods that are not in it are ended: who says so must be an API server.
            if page.kind != "PodList" || page.metadata.resource_version.is_empty() {
                return Err(ApiError::Garbage("it is no list of pods".into()));
            }
            for item in &page.items {
                objects.push(Object::read(item.get().as_bytes()).map_err(ApiError::Garbage)?);
            }
            match page.metadata.going_on.filter(|token| !token.is_empty()) {
                // A page that is empty and promises more would be asked for without end.
                Some(token) if !page.items.is_empty() && objects.len() < PODS_MAX => going_on = token,
                _ => return Ok((objects, page.metadata.resource_version)),
            }
        }
    }

    /// Watch from this version on, again and again, until a list is needed.
    async fn follow(&mut self, mut version: String) {
        while !self.changes.is_closed() {
            let began = Instant::now();
            match self.watch(&mut version).await {
                Ok(heard) if never_delivered(heard, began.elapsed()) => {
                    tracing::info!("the watch said nothing at all: listing anew");
                    return;
                }
                // The server ends a watch when its time is over. One that ends at once is no watch.
                Ok(_) if began.elapsed() > Duration::from_secs(1) => self.worked(),
                Ok(_) => self.failed("watch", &ApiError::Unreachable("it ended at once".into())).await,
                Err(error) if error.is_gone() => {
                    tracing::info!(%error, "the watch is too far behind: listing anew");
                    return;
                }
                Err(error @ ApiError::Garbage(_)) => {
                    // What was in it is not known: only a list tells.
                    self.failed("watch", &error).await;
                    return;
                }
                Err(error) => {
                    self.failed("watch", &error).await;
                    // A server that is there and has no watch to give may have a list.
                    if error.code().is_some_and(|code| code >= 500) && self.backoff.failures() > QUIET_AFTER {
                        return;
                    }
                }
            }
        }
    }

    /// Whether anything was said.
    async fn watch(&mut self, version: &mut String) -> Result<bool, ApiError> {
        // Nodes that began together must not ask for the next watch together.
        let seconds = WATCH_SECONDS + u64::from(std::process::id() % 240);
        let query = format!("&watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={version}");
        let path = format!("{}{query}", self.path());
        let response = self.cluster.send(request(Method::GET, &path, None)).await?;
        if self.backoff.failures() > 0 && self.changes.send((Source::Api, SourceChange::Reconnected)).await.is_err() {
            return Ok(true);
        }
        let began = Instant::now();
        let until = began + Duration::from_secs(seconds) + WATCH_GRACE;
        let (mut lines, mut heard) = (Lines::new(response.into_body()), false);
        loop {
            let line = match tokio::time::timeout_at(patience(heard, began, until), lines.next()).await {
                Ok(Some(line)) => line?,
                Ok(None) => break,
                Err(_) if !heard => break,
                Err(_) => return Err(ApiError::Unreachable("the watch did not end in time".into())),
            };
            self.worked();
            heard = true;
            let event: Line<'_> = serde_json::from_slice(&line).map_err(|error| garbage(&error))?;
            let object = event.object.get().as_bytes();
            let kind = match event.kind.as_str() {
                "ADDED" | "MODIFIED" => Kind::Put,
                "DELETED" => Kind::Deleted,
                "BOOKMARK" => {
                    *version = version_of(object)?;
                    self.known.pass(version);
                    continue;
                }
                "ERROR" => return Err(ApiError::from_status(object)),
                other => return Err(ApiError::Garbage(format!("a watch event of type {other:?}"))),
            };
            let at = version_of(object)?;
            let object = Object::read(object).map_err(ApiError::Garbage)?;
            if let Some(change) = self.known.change(kind, object)
                && self.changes.send((Source::Api, change)).await.is_err()
            {
                return Ok(heard);
            }
            // Taken in before it is passed: an event that can't be handled is asked for again.
            if !self.known.is_behind(&at) {
                *version = at;
            }
        }
        Ok(heard)
    }

    fn path(&self) -> String {
        format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}", self.node)
    }

    fn worked(&mut self) {
        if self.backoff.failures() >= QUIET_AFTER {
            tracing::info!("the pods of the API server can be followed again");
        }
        self.backoff.reset();
    }

    async fn failed(&mut self, what: &str, error: &ApiError) {
        let wait = self.backoff.failed().max(error.retry_after().unwrap_or_default());
        match self.backoff.failures() {
            n if n < QUIET_AFTER => tracing::info!(%error, "{what} of pods failed"),
            QUIET_AFTER => tracing::warn!(%error, "{what} of pods fails: trying on, quietly"),
            _ => tracing::debug!(%error, "{what} of pods failed"),
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = self.changes.closed() => {}
        }
    }
}

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: PageMeta,
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PageMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    going_on: Option<String>,
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

fn and_continue(token: &str) -> String {
    // The token is base64 for URLs; what isn't is escaped.
    let escaped: String = token
        .bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect();
    if escaped.is_empty() { escaped } else { format!("&continue={escaped}") }
}

/// Where in the server's history an object stands. A watch from nowhere would begin at the end, and miss what went before.
fn version_of(object: &[u8]) -> Result<String, ApiError> {
    let version = crate::trimmed::who(object).map_err(|error| garbage(&error))?.resource_version;
    if version.is_empty() { Err(ApiError::Garbage("an object without version".into())) } else { Ok(version) }
}

fn garbage(error: &serde_json::Error) -> ApiError {
    ApiError::Garbage(error.to_string())
}

/// Pods of one page of a list.
const PAGE: usize = 50;
/// A node has a few hundred.
const PODS_MAX: usize = 20_000;
const LIST_MAX: Duration = Duration::from_secs(60);
const WATCH_SECONDS: u64 = 300;
const WATCH_GRACE: Duration = Duration::from_secs(30);
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// After this many failures in a row the log goes quiet.
const QUIET_AFTER: u32 = 3;
