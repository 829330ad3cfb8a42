//! A cache of objects of one kind that pods refer to: read on first use, watched while at least one pod needs them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use podwright_core::model::{Event, PodUid};
use podwright_tasks::Tasks;
use tokio::sync::{Semaphore, mpsc};

use crate::client::ApiClient;
use crate::error::ApiError;
use crate::object_read::path_segment;
use connections::WatchConnections;
use watched::{Items, Watched};

mod cacheable;
mod connections;
mod watched;
mod watcher;

pub(crate) use cacheable::{Cacheable, metadata};

/// What every watcher needs. Clones share the connections and the limits.
#[derive(Clone)]
pub(crate) struct WatchContext {
    /// For lists; the connection is shared with status patches and everything else.
    client: ApiClient,
    /// Bounds the concurrent lists on it.
    list_permits: Arc<Semaphore>,
    /// For watches: separate connections.
    watch_connections: WatchConnections,
    events: mpsc::Sender<Event>,
    tasks: Tasks,
}

impl WatchContext {
    pub(crate) fn new(client: &ApiClient, events: mpsc::Sender<Event>, tasks: Tasks) -> Self {
        let list_permits = Arc::new(Semaphore::new(LISTS_MAX));
        Self { client: client.clone(), list_permits, watch_connections: WatchConnections::new(client), events, tasks }
    }
}

/// What is watched: the path of a list with its field and label selectors.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Selection(String);

impl Selection {
    /// All objects of a namespace, or only the one of this name.
    fn within<T: Cacheable>(namespace: &str, name: Option<&str>) -> Result<Self, ApiError> {
        let list = format!("/api/v1/namespaces/{}/{}", path_segment(namespace)?, T::RESOURCE);
        match name {
            Some(name) => Self::named(&list, name),
            None => Ok(Self::at(list)),
        }
    }

    /// The object of this name in the list at `list`.
    pub(crate) fn named(list: &str, name: &str) -> Result<Self, ApiError> {
        Ok(Self(format!("{list}?fieldSelector=metadata.name%3D{}", path_segment(name)?)))
    }

    /// The list at this path, whose parts the caller has checked or escaped.
    pub(crate) fn at(path: String) -> Self {
        Self(path)
    }

    fn path(&self) -> &str {
        &self.0
    }
}

/// The watched objects of one kind, by selection.
pub(crate) struct WatchCache<T> {
    context: WatchContext,
    subscriptions: Mutex<Subscriptions<T>>,
}

struct Subscriptions<T> {
    watched: BTreeMap<Selection, Arc<Watched<T>>>,
    /// The number of selections of each pod.
    by_pod: BTreeMap<PodUid, usize>,
}

impl<T: Cacheable> WatchCache<T> {
    pub(crate) fn new(context: WatchContext) -> Self {
        Self { context, subscriptions: Mutex::new(Subscriptions { watched: BTreeMap::new(), by_pod: BTreeMap::new() }) }
    }

    /// One object; a 404 error if it does not exist.
    pub(crate) async fn single(&self, uid: &PodUid, namespace: &str, name: &str) -> Result<Arc<T>, ApiError> {
        let items = self.all(uid, namespace, Some(name)).await?;
        items.get(name).cloned().ok_or_else(|| not_found(T::RESOURCE, name))
    }

    /// All objects of a namespace, or only the one of this name.
    pub(crate) async fn all(&self, uid: &PodUid, namespace: &str, name: Option<&str>) -> Result<Items<T>, ApiError> {
        self.selected(uid, Selection::within::<T>(namespace, name)?).await
    }

    /// All objects of a selection.
    pub(crate) async fn selected(&self, uid: &PodUid, selection: Selection) -> Result<Items<T>, ApiError> {
        self.subscribe(uid, selection)?.fresh_for(uid).await
    }

    /// Like `all`, from the cache only, without waiting for a read.
    pub(crate) fn known(&self, uid: &PodUid, namespace: &str, name: Option<&str>) -> Items<T> {
        let selection = Selection::within::<T>(namespace, name);
        let watched = selection.and_then(|selection| self.subscribe(uid, selection));
        watched.map(|watched| watched.known_for(uid)).unwrap_or_default()
    }

    /// Drops all references of the pod; objects without references are no longer watched.
    pub(crate) fn release(&self, uid: &PodUid) {
        let mut subscriptions = self.subscriptions.lock().expect("no panic under this lock");
        subscriptions.by_pod.remove(uid);
        subscriptions.watched.retain(|_, watched| watched.unsubscribe(uid));
    }

    /// The number of watched selections.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.subscriptions.lock().unwrap().watched.len()
    }

    fn subscribe(&self, uid: &PodUid, selection: Selection) -> Result<Arc<Watched<T>>, ApiError> {
        let mut subscriptions = self.subscriptions.lock().expect("no panic under this lock");
        let Subscriptions { watched, by_pod } = &mut *subscriptions;
        // Under the lock, so that a concurrent release does not drop it first.
        if let Some(watched) = watched.get(&selection).filter(|watched| watched.is_subscribed(uid)) {
            return Ok(Arc::clone(watched));
        }
        let count = by_pod.entry(uid.clone()).or_default();
        if *count >= SELECTIONS_PER_POD_MAX {
            let message = format!("the pod refers to more than {SELECTIONS_PER_POD_MAX} {}", T::RESOURCE);
            return Err(ApiError::Unreachable(message));
        }
        *count += 1;
        let start = || Arc::new(Watched::start(self.context.clone(), selection.clone()));
        let watched = Arc::clone(watched.entry(selection.clone()).or_insert_with(start));
        watched.subscribe(uid);
        Ok(watched)
    }
}

/// The error of the server for an object that does not exist.
pub(crate) fn not_found(resource: &str, name: &str) -> ApiError {
    let message = format!("{resource} {name:?} not found");
    ApiError::Status { code: 404, reason: "NotFound".into(), message, retry_after: None }
}

/// A connection has 100 streams; many new pods at once must leave some of them for status patches.
const LISTS_MAX: usize = 40;
/// Far more objects of one kind than a pod refers to. There is no limit for all pods together, which one of them could exhaust:
/// the number of pods is limited.
pub(crate) const SELECTIONS_PER_POD_MAX: usize = 256;
