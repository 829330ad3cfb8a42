//! The store behind the local API: it plays the API server for the pods that were submitted to this node.
//!
//! Names are kept, a delete sets deletionTimestamp and grace, the final delete removes the object and makes the REMOVE. What is
//! taken is on disk before the answer; one writer at a time, and whoever goes away in the middle leaves nothing half done.

mod admit;
mod disk;
mod refusal;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use podwright_core::model::{
    FullName, Manifest, ObjectError, ObjectRef, ObjectRequest, ObjectResult, Pod, PodRecord, PodStatus, PodUid, Source,
    SourceChange, full_name, is_terminal,
};
use podwright_cri::BoxFuture;
use tokio::sync::Mutex;

use crate::feed::{PodFeed, PodView};
use crate::object_store::PodObjectStore;
use crate::sources::Changes;
use disk::ManifestDir;

pub use admit::DeleteOptions;
pub use disk::{POD_BYTES_MAX, PODS_MAX};
pub use refusal::Refusal;

/// The objects by UID.
type Objects = BTreeMap<PodUid, Arc<Pod>>;

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
#[error("open the submitted pods in {}", path.display())]
pub struct StoreError {
    path: PathBuf,
    source: io::Error,
}

/// The pods submitted to this node.
pub struct Store {
    node: String,
    dir: ManifestDir,
    feed: Arc<PodFeed>,
    changes: Changes,
    /// Held over a write to disk: one writer at a time.
    objects: Mutex<Objects>,
    /// Files that held no pod when the store was opened, and why.
    broken: Vec<(String, String)>,
}

impl Store {
    /// Read what is kept below this directory. What is broken there is taken from the journal's records if they have it, else
    /// put aside and named.
    pub fn open(
        root_dir: &Path,
        node: &str,
        records: &[PodRecord],
        feed: Arc<PodFeed>,
        changes: Changes,
    ) -> Result<Arc<Self>, StoreError> {
        let failed = |source| StoreError { path: root_dir.join("manifests"), source };
        let dir = ManifestDir::open(root_dir).map_err(failed)?;
        let (mut pods, files) = dir.load().map_err(failed)?;
        let mut broken = Vec::new();
        for file in files {
            let remembered = records.iter().find(|r| r.uid == file.uid && r.source == Source::Local);
            let rescued = remembered.filter(|record| write(&dir, &record.pod).is_ok());
            if let Some(record) = rescued {
                tracing::warn!(path = %file.path.display(), why = file.why, "a submitted pod's file is broken: rewritten from the journal");
                pods.push(Pod::clone(&record.pod));
                continue;
            }
            let path = dir.put_aside(&file.path).unwrap_or(file.path);
            tracing::error!(path = %path.display(), why = file.why, "a submitted pod's file is broken: put aside");
            broken.push((path.display().to_string(), file.why));
        }
        let pods = one_of_each_name(pods, &dir);
        // An agent that was here before showed versions that were smaller.
        feed.start_after(u64::try_from(Timestamp::now().as_microsecond()).unwrap_or_default());
        let mut objects = BTreeMap::new();
        for pod in pods {
            let (uid, pod) = (uid_of(&pod), Arc::new(pod));
            feed.put_object(Arc::clone(&pod), Source::Local, Some(ORIGIN.into()));
            objects.insert(uid, pod);
        }
        Ok(Arc::new(Self { node: node.into(), dir, feed, changes, objects: Mutex::new(objects), broken }))
    }

    /// Tell core what is there: the first SET.
    pub async fn begin(&self) {
        let objects = self.objects.lock().await;
        let pods = objects.values().map(manifest).collect();
        self.tell(SourceChange::Set { pods, broken: self.broken.clone() }).await;
    }

    async fn tell(&self, change: SourceChange) {
        // The receiver is gone only at the end.
        let _ = self.changes.send((Source::Local, change)).await;
    }

    /// The object is now this: on disk, then shown, then told to core.
    async fn put(&self, objects: &mut Objects, pod: Pod) -> Result<Arc<PodView>, Refusal> {
        let pod = Arc::new(pod);
        self.write(&pod).await?;
        Ok(self.show(objects, pod).await)
    }

    async fn remove(&self, objects: &mut Objects, uid: &PodUid) -> Result<(), Refusal> {
        self.unlink(uid).await?;
        self.hide(objects, uid).await;
        Ok(())
    }

    /// Another object takes the place of this one. Both are on disk for a moment: the older one goes when they are read again.
    async fn replace(&self, objects: &mut Objects, old: &PodUid, pod: Pod) -> Result<Arc<PodView>, Refusal> {
        let pod = Arc::new(pod);
        self.write(&pod).await?;
        self.hide(objects, old).await;
        let view = self.show(objects, pod).await;
        if let Err(error) = self.unlink(old).await {
            tracing::warn!(uid = %old, %error, "the file of a pod that has another life now is left until the next start");
        }
        Ok(view)
    }

    async fn show(&self, objects: &mut Objects, pod: Arc<Pod>) -> Arc<PodView> {
        objects.insert(uid_of(&pod), Arc::clone(&pod));
        let view = self.feed.put_object(Arc::clone(&pod), Source::Local, Some(ORIGIN.into()));
        self.tell(SourceChange::Put(manifest(&pod))).await;
        view
    }

    async fn hide(&self, objects: &mut Objects, uid: &PodUid) {
        objects.remove(uid);
        self.feed.remove_object(uid);
        self.tell(SourceChange::Remove(uid.clone())).await;
    }

    async fn write(&self, pod: &Arc<Pod>) -> Result<(), Refusal> {
        let (dir, pod) = (self.dir.clone(), Arc::clone(pod));
        blocking(move || write(&dir, &pod)).await
    }

    async fn unlink(&self, uid: &PodUid) -> Result<(), Refusal> {
        let (dir, gone) = (self.dir.clone(), uid.clone());
        blocking(move || dir.remove(&gone).map_err(|error| Refusal::disk(&error))).await
    }

    async fn patch_status(&self, object: &ObjectRef, status: Arc<PodStatus>) -> ObjectResult {
        let mut objects = self.objects.lock().await;
        let mut pod = Pod::clone(find(&objects, object)?);
        let ends = is_terminal(status.phase.as_deref());
        let ended = pod.status.as_ref().is_some_and(|s| is_terminal(s.phase.as_deref()));
        pod.status = Some(PodStatus::clone(&status));
        let pod = Arc::new(pod);
        // The end of a pod is kept: after a restart nobody may think that it is still to come. All else is computed again.
        if ends && !ended {
            self.write(&pod).await.map_err(unavailable)?;
        }
        objects.insert(object.uid.clone(), Arc::clone(&pod));
        self.feed.put_object(Arc::clone(&pod), Source::Local, Some(ORIGIN.into()));
        Ok(Some(pod))
    }

    async fn delete_finished(&self, object: &ObjectRef) -> ObjectResult {
        let mut objects = self.objects.lock().await;
        find(&objects, object)?;
        self.remove(&mut objects, &object.uid).await.map_err(unavailable)?;
        Ok(None)
    }

    async fn answer(&self, request: ObjectRequest) -> ObjectResult {
        match request {
            ObjectRequest::PatchStatus { object, status, .. } => self.patch_status(&object, status).await,
            ObjectRequest::Delete { object } => self.delete_finished(&object).await,
            ObjectRequest::CreateMirror { .. } | ObjectRequest::DeleteMirror { .. } => {
                Err(ObjectError::Refused("submitted pods have no mirrors".into()))
            }
        }
    }
}

/// The one who is asked keeps the object: what was begun is ended, whether or not the caller still waits.
#[derive(Clone)]
pub struct LocalObjectStore(pub Arc<Store>);

impl PodObjectStore for LocalObjectStore {
    fn request(&self, request: ObjectRequest) -> BoxFuture<'static, ObjectResult> {
        let store = Arc::clone(&self.0);
        Box::pin(async move {
            let answer = podwright_tasks::spawn("store-request", async move { store.answer(request).await }).await;
            answer.unwrap_or_else(|error| Err(ObjectError::Unavailable { message: error.to_string(), after: None }))
        })
    }
}

fn find<'a>(objects: &'a Objects, object: &ObjectRef) -> Result<&'a Arc<Pod>, ObjectError> {
    match objects.get(&object.uid) {
        Some(pod) if full_name(pod) == object.full_name => Ok(pod),
        Some(_) => Err(ObjectError::OtherUid),
        None if of_name(objects, &object.full_name).is_some() => Err(ObjectError::OtherUid),
        None => Err(ObjectError::NotFound),
    }
}

fn of_name<'a>(objects: &'a Objects, name: &FullName) -> Option<&'a Arc<Pod>> {
    objects.values().find(|pod| full_name(pod) == *name)
}

/// Two of one name are there when an agent died while one took the other's place: the older one goes.
fn one_of_each_name(mut pods: Vec<Pod>, dir: &ManifestDir) -> Vec<Pod> {
    let ended = |pod: &Pod| pod.status.as_ref().is_some_and(|status| is_terminal(status.phase.as_deref()));
    let age = |pod: &Pod| (pod.metadata.creation_timestamp.as_ref().map(|at| at.0), !ended(pod));
    pods.sort_by_key(|pod| std::cmp::Reverse(age(pod)));
    let mut names = BTreeSet::new();
    pods.retain(|pod| {
        let first = names.insert(full_name(pod));
        if !first && let Err(error) = dir.remove(&uid_of(pod)) {
            tracing::warn!(name = %full_name(pod), %error, "the file of an earlier life can't be removed");
        }
        first
    });
    pods
}

fn manifest(pod: &Arc<Pod>) -> Manifest {
    Manifest { pod: Arc::clone(pod), origin: ORIGIN.into() }
}

fn uid_of(pod: &Pod) -> PodUid {
    PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default())
}

fn write(dir: &ManifestDir, pod: &Pod) -> Result<(), Refusal> {
    let text = serde_json::to_vec(pod).map_err(|error| Refusal::disk(&error.into()))?;
    dir.write(&uid_of(pod), &text).map_err(|error| Refusal::disk(&error))
}

async fn blocking(work: impl FnOnce() -> Result<(), Refusal> + Send + 'static) -> Result<(), Refusal> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Refusal::Disk { message: error.to_string() }))
}

fn unavailable(refusal: Refusal) -> ObjectError {
    ObjectError::Unavailable { message: refusal.to_string(), after: None }
}

/// Where submitted pods come from, in words.
const ORIGIN: &str = "the local API";

#[cfg(test)]
mod tests;
