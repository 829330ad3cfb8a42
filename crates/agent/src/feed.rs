//! All pods as the local API shows them, from every source: one sequence of changes, one resourceVersion for all pods, and the
//! most recent changes for watches.
//!
//! ```text
//!  event loop: statuses ──┐                  ┌─▶ lists, single pods
//!                         ├─▶ views by UID ──┤
//!  object store: objects ─┘    (one version) └─▶ ring of changes ─▶ watches, each with its own position in the ring
//! ```
//! Only changed parts are copied: a view shares its object with core's record. Pods of the object store are shown as stored there,
//! with the status that the event loop published last, after it was committed to the journal. A watch that falls behind the ring has to list again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use podwright_core::model::{Pod, PodSnapshot, PodStatus, PodUid, Source, is_terminal};
use serde::ser::{Serialize, SerializeStruct, Serializer};
use tokio::sync::watch;

/// Changes kept for watches: enough for all pods of a full node to start at the same time.
const RING_MAX: usize = 512;
/// UIDs of pods removed from the store for which the event loop may still publish statuses.
const REMOVED_MAX: usize = 256;

/// One pod as the API shows it.
#[derive(Clone, Debug)]
pub struct PodView {
    /// Metadata and spec. Its status and resourceVersion are not used.
    pub object: Arc<Pod>,
    /// The status published last; `None`: there is none yet.
    pub status: Option<Arc<PodStatus>>,
    /// The source of the pod.
    pub source: Source,
    /// The file or URL of its manifest.
    pub origin: Option<Arc<str>>,
    /// The resourceVersion of its last change; 0: not in the feed.
    pub version: u64,
    /// The resourceVersion with which it appeared: of two pods of the same name the later one wins.
    pub first_version: u64,
    /// deletionTimestamp and deletionGracePeriodSeconds of a pod whose object does not have them (static pods).
    deletion: Option<(Timestamp, i64)>,
}

impl PodView {
    /// The view of a snapshot, outside of the feed.
    pub(crate) fn of(pod: &PodSnapshot) -> Self {
        Self {
            object: Arc::clone(&pod.pod),
            status: pod.status.clone(),
            source: pod.source,
            origin: pod.origin.clone(),
            version: 0,
            first_version: 0,
            deletion: pod.deletion,
        }
    }

    /// The result of a dry run, which never enters the feed.
    pub(crate) fn dry_run(pod: Pod, source: Source, version: u64) -> Self {
        let status = pod.status.clone().map(Arc::new);
        Self { object: Arc::new(pod), status, source, origin: None, version, first_version: 0, deletion: None }
    }

    /// The same view with another resourceVersion: the last state of a removed pod, for a DELETED watch event.
    pub fn at_version(&self, version: u64) -> Self {
        Self { version, ..self.clone() }
    }

    /// `metadata.uid`; empty if it is missing.
    pub fn uid(&self) -> PodUid {
        PodUid::from(self.object.metadata.uid.as_deref().unwrap_or_default())
    }

    /// `metadata.namespace`; empty if it is missing.
    pub fn namespace(&self) -> &str {
        self.object.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// `metadata.name`; empty if it is missing.
    pub fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    /// Its phase is Succeeded or Failed.
    pub fn has_ended(&self) -> bool {
        self.status.as_ref().is_some_and(|status| is_terminal(status.phase.as_deref()))
    }

    /// The metadata with its resourceVersion, and with a deletionTimestamp if the pod is being removed, whatever its source.
    pub fn metadata(&self) -> ObjectMeta {
        let mut meta = self.object.metadata.clone();
        meta.resource_version = (self.version > 0).then(|| self.version.to_string());
        if let Some((at, grace)) = self.deletion {
            meta.deletion_timestamp.get_or_insert_with(|| Time(Timestamp::from_second(at.as_second()).unwrap_or(at)));
            meta.deletion_grace_period_seconds.get_or_insert(grace);
        }
        meta
    }

    /// A copy as a Pod object.
    pub fn pod(&self) -> Pod {
        let status = self.status.as_ref().map(|status| PodStatus::clone(status));
        Pod { metadata: self.metadata(), spec: self.object.spec.clone(), status }
    }

    fn same(&self, other: &Self) -> bool {
        let same_object = Arc::ptr_eq(&self.object, &other.object) || self.object == other.object;
        same_object && self.status == other.status && self.deletion == other.deletion && self.source == other.source
    }
}

impl Serialize for PodView {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut pod = serializer.serialize_struct("Pod", 5)?;
        pod.serialize_field("apiVersion", "v1")?;
        pod.serialize_field("kind", "Pod")?;
        pod.serialize_field("metadata", &self.metadata())?;
        pod.serialize_field("spec", &self.object.spec)?;
        match &self.status {
            Some(status) => pod.serialize_field("status", &**status)?,
            None => pod.serialize_field("status", &PodStatus::default())?,
        }
        pod.end()
    }
}

/// One change of one pod.
#[derive(Clone, Debug)]
pub struct PodChange {
    /// The resourceVersion of the change.
    pub version: u64,
    /// Before the change; `None`: the pod is new.
    pub old: Option<Arc<PodView>>,
    /// After the change; `None`: the pod was removed.
    pub new: Option<Arc<PodView>>,
}

/// The ring no longer has all changes after the requested version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too old resource version: {requested} ({oldest})")]
pub struct ResourceExpired {
    /// The requested version.
    pub requested: u64,
    /// The oldest version from which a watch can start.
    pub oldest: u64,
}

/// All pods and their recent changes.
pub struct PodFeed {
    inner: Mutex<Inner>,
    newest: watch::Sender<u64>,
}

#[derive(Debug)]
struct Inner {
    version: u64,
    /// The oldest version from which a watch can start.
    oldest: u64,
    pods: BTreeMap<PodUid, Entry>,
    ring: VecDeque<PodChange>,
    removed: VecDeque<PodUid>,
}

#[derive(Debug)]
struct Entry {
    view: Arc<PodView>,
    /// The object store has the object.
    stored: bool,
    /// The status was published by the event loop.
    published: bool,
}

impl Default for PodFeed {
    fn default() -> Self {
        let (pods, ring, removed) = (BTreeMap::new(), VecDeque::new(), VecDeque::new());
        let inner = Inner { version: 1, oldest: 1, pods, ring, removed };
        Self { inner: Mutex::new(inner), newest: watch::Sender::new(1) }
    }
}

impl PodFeed {
    /// Continues after this version, so that all versions of an earlier agent are older.
    pub(crate) fn start_after(&self, version: u64) {
        let mut inner = self.inner();
        if version > inner.version {
            (inner.version, inner.oldest) = (version, version);
            inner.ring.clear();
        }
    }

    /// Takes over the state of a pod from the event loop.
    pub(crate) fn publish(&self, pod: &PodSnapshot) {
        let mut inner = self.inner();
        if inner.removed.contains(&pod.uid) {
            return;
        }
        match inner.pods.get_mut(&pod.uid) {
            Some(entry) if entry.stored => {
                entry.published |= pod.status.is_some();
                if pod.status.is_none() || entry.view.status == pod.status {
                    return;
                }
                let view = PodView { status: pod.status.clone(), ..PodView::clone(&entry.view) };
                self.upsert(inner, pod.uid.clone(), view, true, true);
            }
            _ => self.upsert(inner, pod.uid.clone(), PodView::of(pod), false, true),
        }
    }

    /// The event loop has dropped a pod.
    pub(crate) fn unpublish(&self, uid: &PodUid) {
        let mut inner = self.inner();
        inner.removed.retain(|removed| removed != uid);
        if inner.pods.get(uid).is_some_and(|entry| !entry.stored) {
            self.remove(inner, uid);
        }
    }

    /// Takes over an object of the object store.
    pub fn put_object(&self, object: Arc<Pod>, source: Source, origin: Option<Arc<str>>) -> Arc<PodView> {
        let inner = self.inner();
        let uid = PodUid::from(object.metadata.uid.as_deref().unwrap_or_default());
        let published = inner.pods.get(&uid).filter(|entry| entry.published);
        // A status published by the event loop is newer than the one it asked the store to write.
        let status = match published {
            Some(entry) => entry.view.status.clone(),
            None => object.status.clone().map(Arc::new),
        };
        let published = published.is_some();
        let view = PodView { object, status, source, origin, version: 0, first_version: 0, deletion: None };
        self.upsert(inner, uid.clone(), view, true, published);
        Arc::clone(&self.inner().pods[&uid].view)
    }

    /// The object store has deleted this object. Later statuses of the pod are ignored. Returns its last view.
    pub fn remove_object(&self, uid: &PodUid) -> Option<Arc<PodView>> {
        let mut inner = self.inner();
        if inner.pods.get(uid).is_some_and(|entry| entry.published) {
            if inner.removed.len() == REMOVED_MAX {
                inner.removed.pop_front();
            }
            inner.removed.push_back(uid.clone());
        }
        self.remove(inner, uid)
    }

    /// All pods, ordered by namespace and name, and the version of the list.
    pub fn list(&self) -> (u64, Vec<Arc<PodView>>) {
        let (version, mut views) = {
            let inner = self.inner();
            (inner.version, inner.pods.values().map(|entry| Arc::clone(&entry.view)).collect::<Vec<_>>())
        };
        views.sort_by(|a, b| {
            (a.namespace(), a.name(), a.first_version).cmp(&(b.namespace(), b.name(), b.first_version))
        });
        (version, views)
    }

    /// The pod of this name; of several the one that appeared last.
    pub fn by_name(&self, namespace: &str, name: &str) -> Option<Arc<PodView>> {
        let inner = self.inner();
        let views = inner.pods.values().map(|entry| &entry.view);
        let found = views.filter(|v| v.namespace() == namespace && v.name() == name).max_by_key(|v| v.first_version);
        found.cloned()
    }

    /// The pod with this UID.
    pub fn get(&self, uid: &PodUid) -> Option<Arc<PodView>> {
        self.inner().pods.get(uid).map(|entry| Arc::clone(&entry.view))
    }

    /// The version of the newest change.
    pub fn version(&self) -> u64 {
        self.inner().version
    }

    /// At most `max` changes after this version.
    pub fn changes_after(&self, version: u64, max: usize) -> Result<Vec<PodChange>, ResourceExpired> {
        let inner = self.inner();
        if version < inner.oldest || version > inner.version {
            return Err(ResourceExpired { requested: version, oldest: inner.oldest });
        }
        let first = inner.ring.partition_point(|change| change.version <= version);
        Ok(inner.ring.iter().skip(first).take(max).cloned().collect())
    }

    /// Receives the version of the newest change.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic under this lock")
    }

    fn upsert(&self, mut inner: MutexGuard<'_, Inner>, uid: PodUid, mut view: PodView, stored: bool, published: bool) {
        let old = inner.pods.get(&uid).map(|entry| Arc::clone(&entry.view));
        if let Some(old) = old.as_ref().filter(|old| old.same(&view)) {
            let entry = Entry { view: Arc::clone(old), stored, published };
            inner.pods.insert(uid, entry);
            return;
        }
        let version = inner.version + 1;
        (view.version, view.first_version) = (version, old.as_ref().map_or(version, |old| old.first_version));
        let view = Arc::new(view);
        inner.pods.insert(uid, Entry { view: Arc::clone(&view), stored, published });
        self.push(inner, PodChange { version, old, new: Some(view) });
    }

    fn remove(&self, mut inner: MutexGuard<'_, Inner>, uid: &PodUid) -> Option<Arc<PodView>> {
        let old = inner.pods.remove(uid)?.view;
        let version = inner.version + 1;
        self.push(inner, PodChange { version, old: Some(Arc::clone(&old)), new: None });
        Some(old)
    }

    fn push(&self, mut inner: MutexGuard<'_, Inner>, change: PodChange) {
        let version = change.version;
        inner.version = version;
        if inner.ring.len() == RING_MAX
            && let Some(dropped) = inner.ring.pop_front()
        {
            inner.oldest = dropped.version;
        }
        inner.ring.push_back(change);
        drop(inner);
        self.newest.send_replace(version);
    }
}

#[cfg(test)]
mod tests;
