//! All followed objects of one kind, and which pods need them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use podwright_core::model::{Event, PodUid};
use tokio::sync::{Semaphore, mpsc};

use super::checked;
use super::followed::{Followed, Items};
use super::kept::Kept;
use crate::client::Cluster;
use crate::error::ApiError;

/// What every follower needs.
#[derive(Clone)]
pub(crate) struct Line {
    /// For reads.
    pub(super) cluster: Cluster,
    /// For watches: a connection of their own.
    pub(super) watching: Cluster,
    /// Places for watches on it.
    pub(super) places: Arc<Semaphore>,
    pub(super) events: mpsc::Sender<Event>,
}

impl Line {
    pub(super) fn new(cluster: &Cluster, events: mpsc::Sender<Event>) -> Self {
        let places = Arc::new(Semaphore::new(WATCHES_MAX));
        Self { cluster: cluster.clone(), watching: cluster.another(), places, events }
    }
}

/// One object by its name, or all of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Selection {
    pub(super) namespace: String,
    pub(super) name: Option<String>,
}

/// Objects of one kind.
pub(crate) struct Shelf<T> {
    line: Line,
    followed: Mutex<BTreeMap<Selection, Arc<Followed<T>>>>,
}

impl<T: Kept> Shelf<T> {
    pub(crate) fn new(line: Line) -> Self {
        Self { line, followed: Mutex::default() }
    }

    /// One object.
    pub(crate) async fn single(&self, uid: &PodUid, namespace: &str, name: &str) -> Result<Arc<T>, ApiError> {
        let items = self.join(uid, namespace, Some(name))?.fresh_for(uid).await?;
        items.get(name).cloned().ok_or_else(|| not_found(T::RESOURCE, name))
    }

    /// All of a namespace, or only the one of this name.
    pub(crate) async fn all(&self, uid: &PodUid, namespace: &str, name: Option<&str>) -> Result<Items<T>, ApiError> {
        self.join(uid, namespace, name)?.fresh_for(uid).await
    }

    /// As `all`, without waiting for anyone.
    pub(crate) fn known(&self, uid: &PodUid, namespace: &str, name: Option<&str>) -> Items<T> {
        self.join(uid, namespace, name).map(|followed| followed.known_for(uid)).unwrap_or_default()
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

    fn join(&self, uid: &PodUid, namespace: &str, name: Option<&str>) -> Result<Arc<Followed<T>>, ApiError> {
        let name = name.map(checked).transpose()?.map(str::to_owned);
        let selection = Selection { namespace: checked(namespace)?.to_owned(), name };
        let mut all = self.followed.lock().expect("nobody panics with it");
        if all.len() >= OBJECTS_MAX && !all.contains_key(&selection) {
            return Err(ApiError::Unreachable(format!("more than {OBJECTS_MAX} {} are needed here", T::RESOURCE)));
        }
        let begin = || Arc::new(Followed::begin(self.line.clone(), selection.clone()));
        let followed = Arc::clone(all.entry(selection.clone()).or_insert_with(begin));
        // Under the lock, so that nobody lets go of it in between.
        followed.enter(uid);
        Ok(followed)
    }
}

fn not_found(resource: &str, name: &str) -> ApiError {
    let message = format!("{resource} {name:?} not found");
    ApiError::Answer { code: 404, reason: "NotFound".into(), message, retry_after: None }
}

/// A server allows 1000 streams on a connection by default, some proxies 250. What is beyond is read from time to time.
const WATCHES_MAX: usize = 200;
/// Far more than the pods of a node can name.
const OBJECTS_MAX: usize = 10_000;
