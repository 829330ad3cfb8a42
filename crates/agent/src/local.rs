//! The store of the local API, which acts as API server for the pods that are submitted to this node.
//!
//! A delete sets deletionTimestamp and the grace period; the final delete removes the object and sends a REMOVE to core. An
//! accepted object is on disk before the response; there is one writer at a time, and a request is completed even if its
//! client disconnects.

mod admit;
mod disk;
mod request_error;

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
use crate::host::Pool;
use crate::object_store::PodObjectStore;
use crate::sources::Changes;
use disk::ManifestDir;

pub use admit::DeleteOptions;
pub use disk::{POD_BYTES_MAX, PODS_MAX};
pub use request_error::PodRequestError;

/// The objects by UID.
type Objects = BTreeMap<PodUid, Arc<Pod>>;

/// The store can't be opened.
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
    pool: Pool,
    feed: Arc<PodFeed>,
    changes: Changes,
    /// Locked during writes to disk: one writer at a time.
    objects: Mutex<Objects>,
    /// Files without a valid pod when the store was opened, with the error.
    broken: Vec<(String, String)>,
}

impl Store {
    /// Reads the pods below this directory. The pod of a broken file is taken from the journal's records if possible, else the file is
    /// renamed and reported. A file that the disk did not return stays as it is.
    pub fn open(
        root_dir: &Path,
        node: &str,
        records: &[PodRecord],
        feed: Arc<PodFeed>,
        changes: Changes,
        pool: Pool,
    ) -> Result<Arc<Self>, StoreError> {
        let failed = |source| StoreError { path: root_dir.join("manifests"), source };
        let dir = ManifestDir::open(root_dir).map_err(failed)?;
        let (mut pods, files) = dir.load().map_err(failed)?;
        let mut broken = Vec::new();
        for file in files {
            let remembered = records.iter().find(|r| r.uid == file.uid && r.source == Source::Local);
            if let Some(record) = remembered {
                tracing::warn!(path = %file.path.display(), reason = file.why, "file of a submitted pod is broken, taken from the journal");
                // The pod runs on, also if the disk is full or read-only.
                if !file.is_unread
                    && let Err(error) = write(&dir, &record.pod)
                {
                    tracing::error!(path = %file.path.display(), %error, "writing the file of a submitted pod failed");
                }
                pods.push(Pod::clone(&record.pod));
                continue;
            }
            let path = match file.is_unread {
                true => file.path,
                false => dir.rename_broken(&file.path).unwrap_or(file.path),
            };
            tracing::error!(path = %path.display(), reason = file.why, "file of a submitted pod is broken");
            broken.push((path.display().to_string(), file.why));
        }
        let pods = without_duplicates(pods, &dir);
        // Resource versions must be greater than those of an earlier run of the agent.
        feed.start_after(u64::try_from(Timestamp::now().as_microsecond()).unwrap_or_default());
        let mut objects = BTreeMap::new();
        for pod in pods {
            let (uid, pod) = (uid_of(&pod), Arc::new(pod));
            feed.put_object(Arc::clone(&pod), Source::Local, Some(ORIGIN.into()));
            objects.insert(uid, pod);
        }
        Ok(Arc::new(Self { node: node.into(), dir, pool, feed, changes, objects: Mutex::new(objects), broken }))
    }

    /// Sends the first SET to core.
    pub async fn begin(&self) {
        let objects = self.objects.lock().await;
        let pods = objects.values().map(manifest).collect();
        self.send(SourceChange::Set { pods, broken: self.broken.clone() }).await;
    }

    async fn send(&self, change: SourceChange) {
        // Fails only when the agent stops.
        let _ = self.changes.send((Source::Local, change)).await;
    }

    /// Writes the object to disk, then publishes it in the feed, then sends it to core.
    async fn put(&self, objects: &mut Objects, pod: Pod) -> Result<Arc<PodView>, PodRequestError> {
        let pod = Arc::new(pod);
        self.write(&pod).await?;
        Ok(self.publish(objects, pod).await)
    }

    async fn remove(&self, objects: &mut Objects, uid: &PodUid) -> Result<(), PodRequestError> {
        self.unlink(uid).await?;
        self.withdraw(objects, uid).await;
        Ok(())
    }

    /// Replaces an object with another of the same name. After a crash both may be on disk: the older one is removed at the
    /// next start.
    async fn replace(&self, objects: &mut Objects, old: &PodUid, pod: Pod) -> Result<Arc<PodView>, PodRequestError> {
        let pod = Arc::new(pod);
        self.write(&pod).await?;
        self.withdraw(objects, old).await;
        let view = self.publish(objects, pod).await;
        if let Err(error) = self.unlink(old).await {
            tracing::warn!(uid = %old, %error, "removing the file of a replaced pod failed, retried at the next start");
        }
        Ok(view)
    }

    async fn publish(&self, objects: &mut Objects, pod: Arc<Pod>) -> Arc<PodView> {
        objects.insert(uid_of(&pod), Arc::clone(&pod));
        let view = self.feed.put_object(Arc::clone(&pod), Source::Local, Some(ORIGIN.into()));
        self.send(SourceChange::Put(manifest(&pod))).await;
        view
    }

    async fn withdraw(&self, objects: &mut Objects, uid: &PodUid) {
        objects.remove(uid);
        self.feed.remove_object(uid);
        self.send(SourceChange::Remove(uid.clone())).await;
    }

    async fn write(&self, pod: &Arc<Pod>) -> Result<(), PodRequestError> {
        let (dir, pod) = (self.dir.clone(), Arc::clone(pod));
        self.blocking(move || write(&dir, &pod)).await
    }

    async fn unlink(&self, uid: &PodUid) -> Result<(), PodRequestError> {
        let (dir, gone) = (self.dir.clone(), uid.clone());
        self.blocking(move || dir.remove(&gone).map_err(|error| PodRequestError::disk(&error))).await
    }

    /// Waits for the end: a write that was given up could still happen later, and undo a newer one.
    async fn blocking(
        &self,
        work: impl FnOnce() -> Result<(), PodRequestError> + Send + 'static,
    ) -> Result<(), PodRequestError> {
        let done = self.pool.run_to_end("submitted pods", work).await;
        done.unwrap_or_else(|error| Err(PodRequestError::Disk { message: error.to_string() }))
    }

    async fn patch_status(&self, object: &ObjectRef, status: Arc<PodStatus>) -> ObjectResult {
        let mut objects = self.objects.lock().await;
        let mut pod = Pod::clone(find(&objects, object)?);
        let ends = is_terminal(status.phase.as_deref());
        let ended = pod.status.as_ref().is_some_and(|s| is_terminal(s.phase.as_deref()));
        pod.status = Some(PodStatus::clone(&status));
        let pod = Arc::new(pod);
        // A terminal phase is saved, so that the pod does not run again after a restart. Other statuses are computed again.
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

/// The store as core's [`PodObjectStore`]. A request is completed even if the caller no longer waits.
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
        None if find_by_name(objects, &object.full_name).is_some() => Err(ObjectError::OtherUid),
        None => Err(ObjectError::NotFound),
    }
}

fn find_by_name<'a>(objects: &'a Objects, name: &FullName) -> Option<&'a Arc<Pod>> {
    objects.values().find(|pod| full_name(pod) == *name)
}

/// Removes the older of two pods with the same name, which an agent leaves if it dies during a replacement. Only a pod that has ended is
/// replaced, and the clock may have been set back since it was created.
fn without_duplicates(mut pods: Vec<Pod>, dir: &ManifestDir) -> Vec<Pod> {
    let ended = |pod: &Pod| pod.status.as_ref().is_some_and(|status| is_terminal(status.phase.as_deref()));
    let age = |pod: &Pod| (!ended(pod), pod.metadata.creation_timestamp.as_ref().map(|at| at.0));
    pods.sort_by_key(|pod| std::cmp::Reverse(age(pod)));
    let mut names = BTreeSet::new();
    pods.retain(|pod| {
        let first = names.insert(full_name(pod));
        if !first && let Err(error) = dir.remove(&uid_of(pod)) {
            tracing::warn!(pod = %full_name(pod), %error, "removing the file of a replaced pod failed");
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

fn write(dir: &ManifestDir, pod: &Pod) -> Result<(), PodRequestError> {
    let text = serde_json::to_vec(pod).map_err(|error| PodRequestError::disk(&error.into()))?;
    dir.write(&uid_of(pod), &text).map_err(|error| PodRequestError::disk(&error))
}

fn unavailable(error: PodRequestError) -> ObjectError {
    ObjectError::Unavailable { message: error.to_string(), after: None }
}

/// The origin of submitted pods in messages.
const ORIGIN: &str = "the local API";

#[cfg(test)]
mod tests;
