//! Every pod as the API shows it, whatever its source: one order of changes, one resourceVersion for all, and the last
//! changes for those who watch.
//!
//! ```text
//!  the loop: records ──┐                  ┌─▶ lists, single pods
//!                      ├─▶ views by UID ──┤
//!  the store: objects ─┘    (one version) └─▶ ring of changes ─▶ watches, each with a place of its own in it
//! ```
//! Nothing is copied but what changed: a view shares its object with core's record. Pods that the store keeps are shown as the
//! store has them, with the status the loop last published. Whoever watches and is slower than the ring has to list again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use podwright_core::model::{Cause, Pod, PodRecord, PodStatus, PodUid, Record, Source, is_terminal};
use serde::ser::{Serialize, SerializeStruct, Serializer};
use tokio::sync::watch;

/// Changes stored for those who watch: all pods of a full node start at once within it.
const RING_MAX: usize = 512;
/// Pods the store let go of and the loop may still speak of for a moment.
const RELEASED_MAX: usize = 256;

/// One pod as it is shown.
#[derive(Clone, Debug)]
pub struct PodView {
    /// Metadata and spec. Its status and resourceVersion don't count.
    pub object: Arc<Pod>,
    /// The status last published.
    pub status: Option<Arc<PodStatus>>,
    /// Where it comes from.
    pub source: Source,
    /// The file or URL it comes from.
    pub origin: Option<Arc<str>>,
    /// Its resourceVersion.
    pub version: u64,
    /// The version with which it was first shown: of two pods of one name the later one is meant.
    pub first_version: u64,
    /// When it is to be gone, and its grace, for pods whose objects can't say so.
    deletion: Option<(Timestamp, i64)>,
}

impl PodView {
    /// A pod as this record has it.
    pub fn of(record: &PodRecord) -> Self {
        Self {
            object: Arc::clone(&record.pod),
            status: record.status.clone().map(Arc::new),
            source: record.source,
            origin: record.origin.as_deref().map(Arc::from),
            version: 0,
            first_version: 0,
            deletion: deletion(record),
        }
    }

    /// A pod that is only shown to who requested what would be.
    pub fn dry_run(pod: Pod, source: Source, version: u64) -> Self {
        let status = pod.status.clone().map(Arc::new);
        Self { object: Arc::new(pod), status, source, origin: None, version, first_version: 0, deletion: None }
    }

    /// The same with another version: as it was, when it was taken away.
    pub fn at_version(&self, version: u64) -> Self {
        Self { version, ..self.clone() }
    }

    /// Its UID.
    pub fn uid(&self) -> PodUid {
        PodUid::from(self.object.metadata.uid.as_deref().unwrap_or_default())
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        self.object.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    /// Its phase is final.
    pub fn has_ended(&self) -> bool {
        self.status.as_ref().is_some_and(|status| is_terminal(status.phase.as_deref()))
    }

    /// The metadata as shown: with its version, and with a deletionTimestamp if it is to go, whatever its source.
    pub fn metadata(&self) -> ObjectMeta {
        let mut meta = self.object.metadata.clone();
        meta.resource_version = (self.version > 0).then(|| self.version.to_string());
        if let Some((at, grace)) = self.deletion {
            meta.deletion_timestamp.get_or_insert_with(|| Time(Timestamp::from_second(at.as_second()).unwrap_or(at)));
            meta.deletion_grace_period_seconds.get_or_insert(grace);
        }
        meta
    }

    /// The whole pod, copied.
    pub fn pod(&self) -> Pod {
        let status = self.status.as_ref().map(|status| PodStatus::clone(status));
        Pod { metadata: self.metadata(), spec: self.object.spec.clone(), status }
    }

    fn same(&self, other: &Self) -> bool {
        let same_object = Arc::ptr_eq(&self.object, &other.object) || self.object == other.object;
        same_object && self.status == other.status && self.deletion == other.deletion && self.source == other.source
    }
}

/// One that is to go says so as the API does.
fn deletion(record: &PodRecord) -> Option<(Timestamp, i64)> {
    let gone = |cause| matches!(cause, Cause::Deleted | Cause::Removed | Cause::Orphan);
    let ending = record.ending.as_ref().filter(|e| e.deleted || gone(e.cause))?;
    Some((ending.deadline.wall, i64::try_from(ending.grace.as_secs()).unwrap_or(i64::MAX)))
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
    /// The order of changes.
    pub version: u64,
    /// Before; `None`: it is new.
    pub old: Option<Arc<PodView>>,
    /// After; `None`: it is gone.
    pub new: Option<Arc<PodView>>,
}

/// Changes after the version requested for are no longer all there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too old resource version: {requested} ({oldest})")]
pub struct ResourceExpired {
    /// What was requested for.
    pub requested: u64,
    /// The first version one can still watch from.
    pub oldest: u64,
}

/// All pods, and what changed.
pub struct PodFeed {
    inner: Mutex<Inner>,
    newest: watch::Sender<u64>,
}

#[derive(Debug)]
struct Inner {
    version: u64,
    /// The version one can watch from, at least.
    oldest: u64,
    pods: BTreeMap<PodUid, Entry>,
    ring: VecDeque<PodChange>,
    released: VecDeque<PodUid>,
}

#[derive(Debug)]
struct Entry {
    view: Arc<PodView>,
    /// The store has the object.
    stored: bool,
    /// The status is the loop's.
    published: bool,
}

impl Default for PodFeed {
    fn default() -> Self {
        let (pods, ring, released) = (BTreeMap::new(), VecDeque::new(), VecDeque::new());
        let inner = Inner { version: 1, oldest: 1, pods, ring, released };
        Self { inner: Mutex::new(inner), newest: watch::Sender::new(1) }
    }
}

impl PodFeed {
    /// Go on after this version, so that what an earlier agent showed is older.
    pub fn start_after(&self, version: u64) {
        let mut inner = self.inner();
        if version > inner.version {
            (inner.version, inner.oldest) = (version, version);
            inner.ring.clear();
        }
    }

    /// The loop's record of a pod is now this.
    pub fn put_record(&self, record: &PodRecord) {
        let mut inner = self.inner();
        if inner.released.contains(&record.uid) {
            return;
        }
        match inner.pods.get_mut(&record.uid) {
            Some(entry) if entry.stored => {
                entry.published |= record.status.is_some();
                if record.status.is_none() || entry.view.status.as_deref() == record.status.as_ref() {
                    return;
                }
                let status = record.status.clone().map(Arc::new);
                let view = PodView { status, ..PodView::clone(&entry.view) };
                self.upsert(inner, record.uid.clone(), view, true, true);
            }
            _ => self.upsert(inner, record.uid.clone(), PodView::of(record), false, true),
        }
    }

    /// The loop has forgotten a pod.
    pub fn remove_record(&self, uid: &PodUid) {
        let mut inner = self.inner();
        inner.released.retain(|released| released != uid);
        if inner.pods.get(uid).is_some_and(|entry| !entry.stored) {
            self.remove(inner, uid);
        }
    }

    /// What a turn of the loop wrote down.
    pub fn apply_records(&self, records: &[Record]) {
        for record in records {
            match record {
                Record::Put(record) => self.put_record(record),
                Record::Forget(uid) => self.remove_record(uid),
            }
        }
    }

    /// The store has this object now.
    pub fn put_object(&self, object: Arc<Pod>, source: Source, origin: Option<Arc<str>>) -> Arc<PodView> {
        let inner = self.inner();
        let uid = PodUid::from(object.metadata.uid.as_deref().unwrap_or_default());
        let published = inner.pods.get(&uid).filter(|entry| entry.published);
        // What the loop publishes is newer than what it requested the store to keep.
        let status = match published {
            Some(entry) => entry.view.status.clone(),
            None => object.status.clone().map(Arc::new),
        };
        let published = published.is_some();
        let view = PodView { object, status, source, origin, version: 0, first_version: 0, deletion: None };
        self.upsert(inner, uid.clone(), view, true, published);
        Arc::clone(&self.inner().pods[&uid].view)
    }

    /// The store has let go of this object: the last word on it.
    pub fn remove_object(&self, uid: &PodUid) -> Option<Arc<PodView>> {
        let mut inner = self.inner();
        if inner.pods.get(uid).is_some_and(|entry| entry.published) {
            if inner.released.len() == RELEASED_MAX {
                inner.released.pop_front();
            }
            inner.released.push_back(uid.clone());
        }
        self.remove(inner, uid)
    }

    /// All pods, ordered by name, and the version of this sight.
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

    /// The pod of this name; of several the newest.
    pub fn by_name(&self, namespace: &str, name: &str) -> Option<Arc<PodView>> {
        let inner = self.inner();
        let views = inner.pods.values().map(|entry| &entry.view);
        let found = views.filter(|v| v.namespace() == namespace && v.name() == name).max_by_key(|v| v.first_version);
        found.cloned()
    }

    /// One pod.
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

    /// Tells of every change, by its version.
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
