//! The handle on one watched selection: an object, or all objects of a kind in a namespace.
//!
//! A pod's first request returns objects that were read after the request; one read serves all requests made before it started.
//! While the server is unreachable, requests return what is cached.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use podwright_core::model::PodUid;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use super::cacheable::Cacheable;
use super::watcher::Watcher;
use super::{Selection, WatchContext};
use crate::error::ApiError;

/// Objects by name.
pub(crate) type Items<T> = BTreeMap<String, Arc<T>>;

/// A watched selection. Dropping it stops the watch.
pub(super) struct Watched<T> {
    state: watch::Receiver<CachedState<T>>,
    requests: Arc<ReadRequests>,
    watcher: AbortHandle,
}

/// What the watcher has read so far.
pub(super) struct CachedState<T> {
    /// `None`: no read has succeeded yet.
    pub(super) items: Option<Items<T>>,
    /// Requests up to this number are answered by a read that started after them.
    pub(super) answered: u64,
    /// Why the last read failed.
    pub(super) error: Option<ApiError>,
}

/// The requests for a fresh read, from the pods' side to the watcher.
#[derive(Default)]
pub(super) struct ReadRequests {
    /// The pods that need the selection; `false`: the pod has not requested it yet, only subscribed.
    pods: Mutex<BTreeMap<PodUid, bool>>,
    made: AtomicU64,
    notify: Notify,
}

impl ReadRequests {
    /// Requests a fresh read; returns the number of the request.
    fn request(&self) -> u64 {
        let number = self.made.fetch_add(1, Ordering::SeqCst) + 1;
        self.notify.notify_one();
        number
    }

    /// The number of the newest request.
    pub(super) fn newest(&self) -> u64 {
        self.made.load(Ordering::SeqCst)
    }

    /// Waits for a request newer than `answered`.
    pub(super) async fn newer_than(&self, answered: u64) {
        while self.newest() <= answered {
            self.notify.notified().await;
        }
    }

    /// The pods that need the selection.
    pub(super) fn pods(&self) -> Vec<PodUid> {
        self.pods.lock().expect("no panic under this lock").keys().cloned().collect()
    }
}

impl<T> Drop for Watched<T> {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

impl<T: Cacheable> Watched<T> {
    /// Starts the watcher; it reads nothing before the first request.
    pub(super) fn start(context: WatchContext, selection: Selection) -> Self {
        let requests = Arc::new(ReadRequests::default());
        let (sender, state) = watch::channel(CachedState { items: None, answered: 0, error: None });
        let tasks = context.tasks.clone();
        let watcher = Watcher::new(context, selection, Arc::clone(&requests), sender);
        let watcher = tasks.service("object-watch", watcher.run());
        Self { state, requests, watcher }
    }

    /// Records that the pod needs the selection.
    pub(super) fn subscribe(&self, uid: &PodUid) {
        self.requests.pods.lock().expect("no panic under this lock").entry(uid.clone()).or_insert(false);
    }

    /// Whether the pod needs the selection.
    pub(super) fn is_subscribed(&self, uid: &PodUid) -> bool {
        self.requests.pods.lock().expect("no panic under this lock").contains_key(uid)
    }

    /// Records that the pod does not need the selection any more; returns whether another pod does.
    pub(super) fn unsubscribe(&self, uid: &PodUid) -> bool {
        let mut pods = self.requests.pods.lock().expect("no panic under this lock");
        pods.remove(uid);
        !pods.is_empty()
    }

    /// The objects; for a pod's first request, read after the request if the server answers.
    pub(super) async fn fresh_for(&self, uid: &PodUid) -> Result<Items<T>, ApiError> {
        let mut state = self.state.clone();
        let is_first = !std::mem::replace(
            self.requests.pods.lock().expect("no panic under this lock").entry(uid.clone()).or_insert(false),
            true,
        );
        let needed = if is_first || state.borrow().items.is_none() { self.requests.request() } else { 0 };
        let waited = tokio::time::timeout(ANSWER_TIMEOUT, state.wait_for(|state| state.answered >= needed)).await;
        let timed_out = waited.is_err();
        drop(waited);
        let state = state.borrow();
        match (&state.items, &state.error) {
            (Some(items), _) => Ok(items.clone()),
            (None, Some(error)) if !timed_out => Err(error.clone()),
            (None, _) => Err(ApiError::Timeout(ANSWER_TIMEOUT)),
        }
    }

    /// The cached objects; requests a read if there was none yet.
    pub(super) fn known_for(&self, uid: &PodUid) -> Items<T> {
        self.subscribe(uid);
        let state = self.state.borrow();
        if state.items.is_none() {
            self.requests.request();
        }
        state.items.clone().unwrap_or_default()
    }
}

/// Longer than a read with all its retries.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(12);
