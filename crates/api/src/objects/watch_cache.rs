//! All followed objects of one kind, and which pods need them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use podwright_core::model::{Event, PodUid};
use tokio::sync::{Semaphore, mpsc};

use super::cacheable::Cacheable;
use super::checked;
use super::watch_connections::WatchConnections;
use super::watched::{Items, Watched};
use crate::client::Cluster;
use crate::error::ApiError;

/// What every follower needs.
#[derive(Clone)]
pub(crate) struct WatchContext {
    /// For reads, beside statuses and all else.
    pub(super) cluster: Cluster,
    /// Reads that may be under way on it.
    pub(super) reads: Arc<Semaphore>,
    /// For watches: connections of their own.
    pub(super) places: WatchConnections,
    pub(super) events: mpsc::Sender<Event>,
}

impl WatchContext {
    pub(super) fn new(cluster: &Cluster, events: mpsc::Sender<Event>) -> Self {
        let reads = Arc::new(Semaphore::new(READS_MAX));
        Self { cluster: cluster.clone(), reads, places: WatchConnections::new(cluster), events }
    }
}

/// What is followed: the path of a list, with what is selected from it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Selection(String);

impl Selection {
    /// All of a namespace, or only the one of this name.
    fn within<T: Cacheable>(namespace: &str, name: Option<&str>) -> Result<Self, ApiError> {
        let list = format!("/api/v1/namespaces/{}/{}", checked(namespace)?, T::RESOURCE);
        match name {
            Some(name) => Self::named(&list, name),
            None => Ok(Self::at(list)),
        }
    }

    /// The one of this name.
    pub(super) fn named(list: &str, name: &str) -> Result<Self, ApiError> {
        Ok(Self(format!("{list}?fieldSelector=metadata.name%3D{}", checked(name)?)))
    }

    /// What this path lists; its parts were checked.
    pub(super) fn at(path: String) -> Self {
        Self(path)
    }

    pub(super) fn path(&self) -> &str {
        &self.0
    }
}

/// Objects of one kind.
pub(crate) struct WatchCache<T> {
    line: WatchContext,
    followed: Mutex<BTreeMap<Selection, Arc<Watched<T>>>>,
}

impl<T: Cacheable> WatchCache<T> {
    pub(crate) fn new(line: WatchContext) -> Self {
        Self { line, followed: Mutex::default() }
    }

    /// One object.
    pub(crate) async fn single(&self, uid: &PodUid, namespace: &str, name: &str) -> Result<Arc<T>, ApiError> {
        let items = self.all(uid, namespace, Some(name)).await?;
        items.get(name).cloned().ok_or_else(|| not_found(T::RESOURCE, name))
    }

    /// All of a namespace, or only the one of this name.
    pub(crate) async fn all(&self, uid: &PodUid, namespace: &str, name: Option<&str>) -> Result<Items<T>, ApiError> {
        self.selected(uid, Selection::within::<T>(namespace, name)?).await
    }

    /// All that is selected.
    pub(super) async fn selected(&self, uid: &PodUid, selection: Selection) -> Result<Items<T>, ApiError> {
        self.join(uid, selection)?.fresh_for(uid).await
    }

    /// As `all`, without waiting for anyone.
    pub(crate) fn known(&self, uid: &PodUid, namespace: &str, name: Option<&str>) -> Items<T> {
        let joined = Selection::within::<T>(namespace, name).and_then(|selection| self.join(uid, selection));
        joined.map(|followed| followed.known_for(uid)).unwrap_or_default()
    }

    /// The pod needs nothing any more; what nobody needs is let go.
    pub(crate) fn release(&self, uid: &PodUid) {
        self.followed.lock().expect("nobody panics with it").retain(|_, followed| followed.leave(uid));
    }

    /// What is followed now.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.followed.lock().unwrap().len()
    }

    fn join(&self, uid: &PodUid, selection: Selection) -> Result<Arc<Watched<T>>, ApiError> {
        let mut all = self.followed.lock().expect("nobody panics with it");
        if all.len() >= OBJECTS_MAX && !all.contains_key(&selection) {
            return Err(ApiError::Unreachable(format!("more than {OBJECTS_MAX} {} are needed here", T::RESOURCE)));
        }
        let begin = || Arc::new(Watched::begin(self.line.clone(), selection.clone()));
        let followed = Arc::clone(all.entry(selection.clone()).or_insert_with(begin));
        // Under the lock, so that nobody lets go of it in between.
        followed.enter(uid);
        Ok(followed)
    }
}

pub(super) fn not_found(resource: &str, name: &str) -> ApiError {
    let message = format!("{resource} {name:?} not found");
    ApiError::Answer { code: 404, reason: "NotFound".into(), message, retry_after: None }
}

/// A connection has 100 streams; a crowd of new pods leaves some of them for statuses.
const READS_MAX: usize = 40;
/// Far more than the pods of a node can name.
const OBJECTS_MAX: usize = 10_000;
