//! One object, or all of a kind in a namespace, followed for as long as some pod needs it.
//!
//! A pod that asks for the first time gets what was read after its ask; one read serves all who asked before it began. When the
//! server is away everybody gets what is known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use podwright_core::model::{Event, PodUid};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::cacheable::Cacheable;
use super::watch_cache::{Selection, WatchContext};
use super::watch_connections::WatchConnection;
use super::{READ_MAX, patiently, where_in};
use crate::backoff::Backoff;
use crate::client::request;
use crate::error::ApiError;
use crate::lines::Lines;
use crate::staleness::{Freshness, Staleness, never_delivered, patience};

/// What is there, by name.
pub(crate) type Items<T> = BTreeMap<String, Arc<T>>;

/// A handle on what is followed; the last one ends it.
pub(super) struct Watched<T> {
    known: watch::Receiver<Known<T>>,
    shared: Arc<Shared>,
    task: AbortHandle,
}

/// What is known of it.
struct Known<T> {
    /// `None`: it could never be read.
    items: Option<Items<T>>,
    /// All asks up to this one were answered by a read that began after them.
    covered: u64,
    /// Why the last read failed.
    error: Option<ApiError>,
}

/// Between those who ask and the one who reads.
#[derive(Default)]
struct Shared {
    /// Who needs it; `false`: it was not answered yet.
    pods: Mutex<BTreeMap<PodUid, bool>>,
    asks: AtomicU64,
    asked: Notify,
}

impl Shared {
    fn ask(&self) -> u64 {
        let number = self.asks.fetch_add(1, Ordering::SeqCst) + 1;
        self.asked.notify_one();
        number
    }

    /// Waits for an ask after this one.
    async fn asked_after(&self, covered: u64) {
        while self.asks.load(Ordering::SeqCst) <= covered {
            self.asked.notified().await;
        }
    }
}

impl<T> Drop for Watched<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<T: Cacheable> Watched<T> {
    /// Begins to follow.
    pub(super) fn begin(line: WatchContext, selection: Selection) -> Self {
        let shared = Arc::new(Shared::default());
        let (sender, known) = watch::channel(Known { items: None, covered: 0, error: None });
        let backoff = Backoff::new(RETRY_FIRST, RETRY_MAX);
        let (shared_too, floor, freshness) = (Arc::clone(&shared), String::new(), Freshness::default());
        let follower = Watcher { line, selection, shared: shared_too, known: sender, backoff, floor, freshness };
        let task = tokio::spawn(follower.run()).abort_handle();
        Self { known, shared, task }
    }

    /// The pod needs it.
    pub(super) fn enter(&self, uid: &PodUid) {
        self.shared.pods.lock().expect("nobody panics with it").entry(uid.clone()).or_insert(false);
    }

    /// The pod does not need it any more. Whether anyone does.
    pub(super) fn leave(&self, uid: &PodUid) -> bool {
        let mut pods = self.shared.pods.lock().expect("nobody panics with it");
        pods.remove(uid);
        !pods.is_empty()
    }

    /// What there is: for a pod's first ask, read after it, if the server answers.
    pub(super) async fn fresh_for(&self, uid: &PodUid) -> Result<Items<T>, ApiError> {
        let mut known = self.known.clone();
        let is_new = !std::mem::replace(
            self.shared.pods.lock().expect("nobody panics with it").entry(uid.clone()).or_insert(false),
            true,
        );
        let needed = if is_new || known.borrow().items.is_none() { self.shared.ask() } else { 0 };
        let waited = tokio::time::timeout(ANSWER_MAX, known.wait_for(|known| known.covered >= needed)).await;
        let late = waited.is_err();
        drop(waited);
        let known = known.borrow();
        match (&known.items, &known.error) {
            (Some(items), _) => Ok(items.clone()),
            (None, Some(error)) if !late => Err(error.clone()),
            (None, _) => Err(ApiError::Timeout(ANSWER_MAX)),
        }
    }

    /// What is known at the moment.
    pub(super) fn known_for(&self, uid: &PodUid) -> Items<T> {
        self.enter(uid);
        let known = self.known.borrow();
        if known.items.is_none() {
            self.shared.ask();
        }
        known.items.clone().unwrap_or_default()
    }
}

/// The one who reads and watches.
struct Watcher<T> {
    line: WatchContext,
    selection: Selection,
    shared: Arc<Shared>,
    known: watch::Sender<Known<T>>,
    backoff: Backoff,
    /// The newest version that was heard of: what is said of earlier times is old.
    floor: String,
    freshness: Freshness,
}

impl<T: Cacheable> Watcher<T> {
    async fn run(mut self) {
        self.asked().await;
        loop {
            match self.read().await {
                Ok(()) => self.follow().await,
                Err(error) => self.pause(&error).await,
            }
        }
    }

    /// Lists, and answers everyone who asked before.
    async fn read(&mut self) -> Result<(), ApiError> {
        let covers = self.shared.asks.load(Ordering::SeqCst);
        let (line, path) = (self.line.clone(), self.path());
        match patiently(|| list(&line, &path)).await {
            Ok((items, version))
                if self.freshness.judge(is_older(&version, &self.floor), &version) != Staleness::Old =>
            {
                self.floor = version;
                self.take(items, covers).await;
                Ok(())
            }
            Ok((_, version)) => {
                let behind = format!("its list (version {version}) is older than what it said before");
                self.not_read(ApiError::Garbage(behind), covers)
            }
            Err(error) => self.not_read(error, covers),
        }
    }

    /// Who asked gets what is known, or this.
    fn not_read(&self, error: ApiError, covers: u64) -> Result<(), ApiError> {
        self.known.send_modify(|known| {
            known.covered = covers;
            known.error = Some(error.clone());
        });
        Err(error)
    }

    /// Watches until a list is needed.
    async fn follow(&mut self) {
        let mut version = self.floor.clone();
        let mut unheard_since = Instant::now();
        loop {
            if self.rests() {
                // Only a new pod may find another one of that name.
                return self.asked().await;
            }
            let Some(place) = self.line.places.take() else {
                return self.sleep(POLL).await;
            };
            let began = Instant::now();
            let opened = self.open(&place, &version).await;
            let is_open = opened.is_ok();
            let ended = match opened {
                Ok(lines) => self.listen(lines, &mut version).await,
                Err(error) => Err(error),
            };
            drop(place);
            if is_open {
                unheard_since = Instant::now();
            }
            match ended {
                Ok(heard) if never_delivered(heard, began.elapsed()) => return,
                // The server ends a watch when its time is over. One that ends at once is no watch.
                Ok(_) if began.elapsed() > Duration::from_secs(1) => self.backoff.reset(),
                Ok(_) => self.pause(&ApiError::Unreachable("the watch ended at once".into())).await,
                Err(error) if error.is_gone() => return,
                // What was missed only a list tells; a watch that was merely lost goes on where it was.
                Err(error @ ApiError::Garbage(_)) => return self.pause(&error).await,
                Err(error) => {
                    self.pause(&error).await;
                    // A server that answers, but has no watch to give, may have a list.
                    if error.code().is_some() || unheard_since.elapsed() >= POLL {
                        return;
                    }
                }
            }
        }
    }

    /// It is there and can't change.
    fn rests(&self) -> bool {
        let known = self.known.borrow();
        let items = known.items.iter().flatten();
        let (all, immutable) =
            items.fold((0, 0), |(all, still), (_, item)| (all + 1, still + usize::from(item.is_immutable())));
        all > 0 && all == immutable
    }

    /// Begins a watch after this version; its lines.
    async fn open(&mut self, place: &WatchConnection, version: &str) -> Result<Lines, ApiError> {
        let query =
            format!("watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}");
        let watching = place.cluster.clone();
        let path = with_query(self.path(), &query);
        let sending = async move {
            let sent = tokio::time::timeout(OPEN_MAX, watching.send(request(Method::GET, &path, None)));
            sent.await.unwrap_or(Err(ApiError::Timeout(OPEN_MAX)))
        };
        let mut sending = std::pin::pin!(sending);
        loop {
            tokio::select! {
                response = &mut sending => return Ok(Lines::new(response?.into_body())),
                () = self.asked() => self.read_again().await,
            }
        }
    }

    /// Hears a watch to its end. Whether anything was said.
    async fn listen(&mut self, mut lines: Lines, version: &mut String) -> Result<bool, ApiError> {
        let began = Instant::now();
        let until = began + Duration::from_secs(WATCH_SECONDS) + WATCH_GRACE;
        let mut heard = false;
        loop {
            let line = tokio::select! {
                () = self.asked() => {
                    self.read_again().await;
                    continue;
                }
                line = tokio::time::timeout_at(patience(heard, began, until), lines.next()) => line,
            };
            let line = match line {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(heard),
                Err(_) if !heard => return Ok(false),
                Err(_) => return Err(ApiError::Unreachable("the watch did not end in time".into())),
            };
            self.backoff.reset();
            heard = true;
            *version = self.heard(&line?).await?;
        }
    }

    /// A new pod asks while the watch goes on: what fails here is told to it, or made good by what is known.
    async fn read_again(&mut self) {
        if let Err(error) = self.read().await {
            tracing::debug!(%error, resource = T::RESOURCE, "a fresh read for a new pod failed");
        }
    }

    /// One line of a watch; the version it brings.
    async fn heard(&mut self, line: &[u8]) -> Result<String, ApiError> {
        let garbage = |error: serde_json::Error| ApiError::Garbage(where_in(&error));
        let event: Heard<'_> = serde_json::from_slice(line).map_err(garbage)?;
        let object = event.object.get().as_bytes();
        if event.kind == "ERROR" {
            return Err(ApiError::from_status(object));
        }
        let who = crate::trimmed::who(object).map_err(garbage)?;
        let is_old = is_older(&who.resource_version, &self.floor) || who.resource_version == self.floor;
        if event.kind == "BOOKMARK" || is_old {
            return Ok(who.resource_version);
        }
        let mut items = self.known.borrow().items.clone().unwrap_or_default();
        match event.kind.as_str() {
            "ADDED" | "MODIFIED" => {
                items.insert(who.name, Arc::new(T::read(object).map_err(garbage)?));
            }
            "DELETED" => {
                items.remove(&who.name);
            }
            other => return Err(ApiError::Garbage(format!("a watch event of type {other:?}"))),
        }
        let covered = self.known.borrow().covered;
        self.take(items, covered).await;
        self.floor.clone_from(&who.resource_version);
        Ok(who.resource_version)
    }

    /// This is how it is now; pods that were told otherwise hear of it.
    async fn take(&mut self, items: Items<T>, covered: u64) {
        let mut is_news = false;
        self.known.send_modify(|known| {
            let told = known.covered > 0;
            is_news = match &known.items {
                Some(old) => T::TOLD && !is_same(old, &items),
                None => told,
            };
            *known = Known { items: Some(items), covered: covered.max(known.covered), error: None };
        });
        if !is_news {
            return;
        }
        let pods: BTreeSet<PodUid> = self.shared.pods.lock().expect("nobody panics with it").keys().cloned().collect();
        for uid in pods {
            let _ = self.line.events.send(Event::ObjectsChanged { uid }).await;
        }
    }

    async fn pause(&mut self, error: &ApiError) {
        let wait = self.backoff.failed().max(error.retry_after().unwrap_or_default());
        if self.backoff.failures() == TOLD_AFTER {
            tracing::warn!(%error, path = self.selection.path(), "an object can't be followed: trying on");
        }
        self.sleep(wait).await;
    }

    /// Sleeps, unless someone asks.
    async fn sleep(&self, wait: Duration) {
        let _ = tokio::time::timeout(wait, self.asked()).await;
    }

    /// Someone asks who is not answered yet.
    fn asked(&self) -> impl Future<Output = ()> + use<T> {
        let (shared, covered) = (Arc::clone(&self.shared), self.known.borrow().covered);
        async move { shared.asked_after(covered).await }
    }

    fn path(&self) -> String {
        self.selection.path().to_owned()
    }
}

async fn list<T: Cacheable>(line: &WatchContext, path: &str) -> Result<(Items<T>, String), ApiError> {
    let garbage = |error: serde_json::Error| ApiError::Garbage(where_in(&error));
    let _turn = line.reads.acquire().await;
    let body = line.cluster.call(request(Method::GET, path, None), READ_MAX).await?;
    let page: Page<'_> = serde_json::from_slice(&body).map_err(garbage)?;
    let mut items = Items::new();
    for item in page.items.iter().flatten() {
        let item = T::read(item.get().as_bytes()).map_err(garbage)?;
        items.insert(item.metadata().name.clone().unwrap_or_default(), Arc::new(item));
    }
    Ok((items, page.metadata.resource_version))
}

fn with_query(path: String, query: &str) -> String {
    let mark = if path.contains('?') { '&' } else { '?' };
    format!("{path}{mark}{query}")
}

fn is_same<T: Cacheable>(a: &Items<T>, b: &Items<T>) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|((a_name, a), (b_name, b))| a_name == b_name && a.is_same(b))
}

/// Versions are numbers; what isn't one can't be compared.
fn is_older(a: &str, b: &str) -> bool {
    matches!((a.parse::<u128>(), b.parse::<u128>()), (Ok(a), Ok(b)) if a < b)
}

#[derive(Deserialize)]
struct Page<'a> {
    metadata: crate::trimmed::Who,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
struct Heard<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Longer than a read with all its patience.
const ANSWER_MAX: Duration = Duration::from_secs(12);
const WATCH_SECONDS: u64 = 480;
const WATCH_GRACE: Duration = Duration::from_secs(30);
/// The answer to a watch begins at once, or it waits for a stream that the server does not grant.
const OPEN_MAX: Duration = Duration::from_secs(10);
/// Between reads of what has no place for a watch, or none that opens.
const POLL: Duration = Duration::from_secs(30);
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// So often it fails in a row before people hear of it.
const TOLD_AFTER: u32 = 5;
