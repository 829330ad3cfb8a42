//! The task behind a watched selection: lists, watches from the list's version on, and lists again when a pod requests it or the
//! watch can not continue.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use podwright_core::model::Event;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::Instant;

use super::cacheable::Cacheable;
use super::connections::WatchConnection;
use super::watched::{CachedState, Items, ReadRequests};
use super::{Selection, WatchContext};
use crate::backoff::RetryBackoff;
use crate::client::request;
use crate::error::ApiError;
use crate::object_read::{READ_TIMEOUT, decode_error, retry_forbidden};
use crate::staleness::{Freshness, LIST_AGE_MIN, Staleness, never_delivered, next_line_deadline};
use crate::trimmed::ObjectIdentity;
use crate::watch_stream::{WatchEvent, WatchStream};

/// Reads and watches one selection.
pub(super) struct Watcher<T> {
    context: WatchContext,
    selection: Selection,
    requests: Arc<ReadRequests>,
    state: watch::Sender<CachedState<T>>,
    backoff: RetryBackoff,
    /// The newest version seen: objects and lists of earlier versions are stale.
    newest_version: String,
    freshness: Freshness,
}

impl<T: Cacheable> Watcher<T> {
    pub(super) fn new(
        context: WatchContext,
        selection: Selection,
        requests: Arc<ReadRequests>,
        state: watch::Sender<CachedState<T>>,
    ) -> Self {
        let backoff = RetryBackoff::new(RETRY_FIRST, RETRY_MAX);
        let (newest_version, freshness) = (String::new(), Freshness::default());
        Self { context, selection, requests, state, backoff, newest_version, freshness }
    }

    pub(super) async fn run(mut self) {
        self.requested().await;
        loop {
            match self.read().await {
                Ok(()) => self.watch().await,
                Err(error) => self.back_off(&error).await,
            }
        }
    }

    /// Lists, and answers every request made before.
    async fn read(&mut self) -> Result<(), ApiError> {
        let answers = self.requests.newest();
        let (context, path) = (self.context.clone(), self.path());
        match retry_forbidden(|| list(&context, &path)).await {
            Ok((items, version))
                if self.freshness.classify(is_older(&version, &self.newest_version), &version) != Staleness::Old =>
            {
                self.newest_version = version;
                self.update(items, answers).await;
                Ok(())
            }
            Ok((_, version)) => {
                let stale = format!("the list (version {version}) is older than a previous response");
                self.read_failed(ApiError::Malformed(stale), answers)
            }
            Err(error) => self.read_failed(error, answers),
        }
    }

    /// Answers pending requests with the cached objects, or this error if there are none.
    fn read_failed(&self, error: ApiError, answers: u64) -> Result<(), ApiError> {
        self.state.send_modify(|state| {
            state.answered = answers;
            state.error = Some(error.clone());
        });
        Err(error)
    }

    /// Watches, again and again, until a list is needed.
    async fn watch(&mut self) {
        let mut version = self.newest_version.clone();
        let listed = Instant::now();
        let mut last_open = listed;
        loop {
            if self.is_immutable() {
                // Only a new pod may find another object of that name.
                return self.requested().await;
            }
            let Some(connection) = self.context.watch_connections.take() else {
                return self.sleep(POLL_INTERVAL).await;
            };
            let began = Instant::now();
            let opened = self.open(&connection, &version).await;
            let is_open = opened.is_ok();
            let ended = match opened {
                Ok(stream) => self.follow(stream, &mut version).await,
                Err(error) => Err(error),
            };
            drop(connection);
            if is_open {
                last_open = Instant::now();
            }
            match ended {
                Ok(delivered) if never_delivered(delivered, began.elapsed()) => return,
                // The server ends a watch at its timeout. One that ends immediately counts as a failure.
                Ok(_) if began.elapsed() > Duration::from_secs(1) => self.backoff.reset(),
                Ok(_) => self.back_off(&ApiError::Unreachable("the watch ended immediately".into())).await,
                // A list that was too old so soon may be so again.
                Err(error) if error.is_gone() && listed.elapsed() < LIST_AGE_MIN => return self.back_off(&error).await,
                Err(error) if error.is_gone() => return,
                // A malformed event may have been a change: list. A watch that was only disconnected resumes at its version.
                Err(error @ ApiError::Malformed(_)) => return self.back_off(&error).await,
                Err(error) => {
                    self.back_off(&error).await;
                    // A server that refuses watches may still serve lists.
                    if error.code().is_some() || last_open.elapsed() >= POLL_INTERVAL {
                        return;
                    }
                }
            }
        }
    }

    /// All objects of the selection exist and are immutable.
    fn is_immutable(&self) -> bool {
        let state = self.state.borrow();
        state.items.as_ref().is_some_and(|items| !items.is_empty() && items.values().all(|item| item.is_immutable()))
    }

    /// Opens a watch after this version.
    async fn open(&mut self, connection: &WatchConnection, version: &str) -> Result<WatchStream, ApiError> {
        let query =
            format!("watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}");
        let client = connection.client.clone();
        let path = with_query(self.path(), &query);
        let sending = async move {
            let sent = tokio::time::timeout(OPEN_TIMEOUT, client.send(request(Method::GET, &path, None)));
            sent.await.unwrap_or(Err(ApiError::Timeout(OPEN_TIMEOUT)))
        };
        let mut sending = std::pin::pin!(sending);
        loop {
            tokio::select! {
                response = &mut sending => return Ok(WatchStream::new(response?.into_body())),
                () = self.requested() => self.read_during_watch().await,
            }
        }
    }

    /// Applies the events of a watch until it ends; returns whether there was any.
    async fn follow(&mut self, mut stream: WatchStream, version: &mut String) -> Result<bool, ApiError> {
        let opened = Instant::now();
        let until = opened + Duration::from_secs(WATCH_SECONDS) + WATCH_GRACE;
        let mut delivered = false;
        loop {
            let line = tokio::select! {
                () = self.requested() => {
                    self.read_during_watch().await;
                    continue;
                }
                line = tokio::time::timeout_at(next_line_deadline(delivered, opened, until), stream.next()) => line,
            };
            let line = match line {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(delivered),
                Err(_) if !delivered => return Ok(false),
                Err(_) => return Err(ApiError::Unreachable("the watch did not end in time".into())),
            };
            delivered = true;
            *version = self.apply(&line?).await?;
            self.backoff.reset();
        }
    }

    /// Lists for a new pod while the watch continues. On failure the pod gets the cached objects, or the error.
    async fn read_during_watch(&mut self) {
        if let Err(error) = self.read().await {
            tracing::debug!(%error, resource = T::RESOURCE, "read for a new pod failed");
        }
    }

    /// Applies one watch event; returns the object's version.
    async fn apply(&mut self, line: &[u8]) -> Result<String, ApiError> {
        let event = WatchEvent::parse(line).map_err(|error| decode_error(&error))?;
        let object = event.object.get().as_bytes();
        if event.kind == "ERROR" {
            return Err(ApiError::from_status(object));
        }
        let identity = crate::trimmed::identity(object).map_err(|error| decode_error(&error))?;
        let version = identity.resource_version;
        let is_stale = is_older(&version, &self.newest_version) || version == self.newest_version;
        if event.kind == "BOOKMARK" || is_stale {
            return Ok(version);
        }
        let mut items = self.state.borrow().items.clone().unwrap_or_default();
        match event.kind.as_str() {
            "ADDED" | "MODIFIED" => {
                items.insert(identity.name, Arc::new(T::read(object).map_err(|error| decode_error(&error))?));
            }
            "DELETED" => {
                items.remove(&identity.name);
            }
            other => return Err(ApiError::Malformed(format!("a watch event of type {other:?}"))),
        }
        let answered = self.state.borrow().answered;
        self.update(items, answered).await;
        self.newest_version.clone_from(&version);
        Ok(version)
    }

    /// Stores the current objects, and notifies the pods that were given something else before.
    async fn update(&mut self, items: Items<T>, answered: u64) {
        let mut notify = false;
        self.state.send_modify(|state| {
            notify = match &state.items {
                Some(old) => T::NOTIFY_CHANGES && !is_same(old, &items),
                // A request was answered with an error before.
                None => state.answered > 0,
            };
            *state = CachedState { items: Some(items), answered: answered.max(state.answered), error: None };
        });
        if !notify {
            return;
        }
        for uid in self.requests.pods() {
            let _ = self.context.events.send(Event::ObjectsChanged { uid }).await;
        }
    }

    async fn back_off(&mut self, error: &ApiError) {
        let wait = self.backoff.failed().max(error.retry_after().unwrap_or_default());
        if self.backoff.failures() == WARN_AFTER {
            tracing::warn!(%error, url = self.selection.path(), attempt = WARN_AFTER, "object watch failed: retrying");
        }
        self.sleep(wait).await;
    }

    /// Sleeps, but no longer than until the next request.
    async fn sleep(&self, wait: Duration) {
        let _ = tokio::time::timeout(wait, self.requested()).await;
    }

    /// Waits until there is a request that is not answered yet.
    fn requested(&self) -> impl Future<Output = ()> + use<T> {
        let (requests, answered) = (Arc::clone(&self.requests), self.state.borrow().answered);
        async move { requests.newer_than(answered).await }
    }

    fn path(&self) -> String {
        self.selection.path().to_owned()
    }
}

async fn list<T: Cacheable>(context: &WatchContext, path: &str) -> Result<(Items<T>, String), ApiError> {
    let _permit = context.list_permits.acquire().await;
    let body = context.client.call(request(Method::GET, path, None), READ_TIMEOUT).await?;
    let page: ListPage<'_> = serde_json::from_slice(&body).map_err(|error| decode_error(&error))?;
    let mut items = Items::new();
    for item in page.items.iter().flatten() {
        let item = T::read(item.get().as_bytes()).map_err(|error| decode_error(&error))?;
        items.insert(item.metadata().name.clone().unwrap_or_default(), Arc::new(item));
    }
    Ok((items, page.metadata.resource_version))
}

fn with_query(path: String, query: &str) -> String {
    let separator = if path.contains('?') { '&' } else { '?' };
    format!("{path}{separator}{query}")
}

fn is_same<T: Cacheable>(a: &Items<T>, b: &Items<T>) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|((a_name, a), (b_name, b))| a_name == b_name && a.is_same(b))
}

/// Resource versions are decimal numbers; others can not be compared.
fn is_older(a: &str, b: &str) -> bool {
    matches!((a.parse::<u128>(), b.parse::<u128>()), (Ok(a), Ok(b)) if a < b)
}

#[derive(Deserialize)]
struct ListPage<'a> {
    metadata: ObjectIdentity,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

const WATCH_SECONDS: u64 = 480;
const WATCH_GRACE: Duration = Duration::from_secs(30);
/// The response to a watch starts at once, or the request waits for a stream that the server does not grant.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Between lists when no connection is free for a watch, or none opens.
const POLL_INTERVAL: Duration = Duration::from_secs(30);
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// Consecutive failures before a warning is logged.
const WARN_AFTER: u32 = 5;
