//! Mirror pods: read-only shadows that show static pods in the API.
//!
//! A mirror never has a worker, and nothing that is done to it reaches its static pod: one that was deleted, or shows something
//! else, is replaced; one without a static pod is removed. Nothing here delays a pod.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::{Deserialize, Serialize};

use crate::model::{
    FullName, ObjectError, ObjectRef, ObjectRequest, ObjectResult, Pod, PodUid, RequestId, Time,
    clear_resource_version, full_name, is_older_version, jitter,
};
use crate::record::pairs;
use crate::static_pod::{CONFIG_HASH, CONFIG_MIRROR};

/// The first wait after a failure; it doubles.
const RETRY: Duration = Duration::from_secs(1);
/// And ends here.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// A store that asks for more patience than this gets this.
const PATIENCE_MAX: Duration = Duration::from_secs(60);
/// The API server shows within this time that a mirror is gone.
const SHOWN_GONE: Duration = Duration::from_secs(10);

/// All mirrors of this node's static pods.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Mirrors {
    #[serde(with = "pairs")]
    by_name: BTreeMap<FullName, Mirror>,
    #[serde(with = "pairs")]
    tries: BTreeMap<FullName, Try>,
    asked: BTreeMap<RequestId, FullName>,
    /// Names to which something happened.
    touched: BTreeSet<FullName>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Mirror {
    pod: Arc<Pod>,
    /// We have removed it; its source has not said so yet.
    gone: bool,
    /// The API server did not find it. If it is still shown then, it is there: a server that has just started finds little.
    doubted: Option<Time>,
}

/// What was asked about one name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Try {
    under_way: Option<RequestId>,
    /// The mirror that is to be removed; `None`: one is being made.
    removes: Option<PodUid>,
    /// The mirror that was shown and is gone, while the answer that it was made is on its way.
    came_and_went: Option<String>,
    failures: u32,
    at: Option<Time>,
}

/// What should be shown under a name.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    /// This static pod.
    Shown(Arc<Pod>),
    /// What is there stays: its static pod ends, or nobody can tell yet.
    AsIs,
    /// Nothing: its static pod is gone.
    Nothing,
}

/// The Node object, which owns every mirror.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner<'a> {
    pub(crate) name: &'a str,
    pub(crate) uid: &'a str,
}

impl Mirrors {
    /// The API server shows a mirror.
    pub(crate) fn seen(&mut self, pod: Arc<Pod>) {
        let name = full_name(&pod);
        let had = self.by_name.get(&name);
        let version = |pod: &Pod| pod.metadata.resource_version.clone();
        if had.is_some_and(|m| is_older_version(version(&pod).as_deref(), version(&m.pod).as_deref())) {
            return;
        }
        let same = had.filter(|m| m.pod.metadata.uid == pod.metadata.uid);
        let (gone, doubted) = same.map_or((false, None), |m| (m.gone, m.doubted));
        self.touched.insert(name.clone());
        self.by_name.insert(name, Mirror { pod, gone, doubted });
    }

    /// An answer shows a mirror that is known: a pod that begins anew under it must not begin at old news. One that is gone stays
    /// gone. `is_newest`: whatever its version says.
    pub(crate) fn answered_with(&mut self, pod: &Arc<Pod>, is_newest: bool) {
        let known = self.by_name.get_mut(&full_name(pod)).filter(|m| m.pod.metadata.uid == pod.metadata.uid);
        if let Some(mirror) = known {
            let (new, had) = (&pod.metadata.resource_version, &mirror.pod.metadata.resource_version);
            if is_newest || !is_older_version(new.as_deref(), had.as_deref()) {
                mirror.pod = Arc::clone(pod);
            }
        }
    }

    /// A mirror was made. Whatever had its name before is gone, and its version with it.
    fn made(&mut self, pod: &Arc<Pod>) {
        self.by_name.retain(|_, m| !m.gone || full_name(&m.pod) != full_name(pod));
        self.seen(Arc::clone(pod));
    }

    /// The API server's history was set back: versions that are known mean nothing.
    pub(crate) fn history_reset(&mut self) {
        self.by_name.values_mut().for_each(|m| clear_resource_version(&mut m.pod));
    }

    /// These are all there are.
    pub(crate) fn set(&mut self, pods: Vec<Arc<Pod>>) {
        let uids: BTreeSet<Option<String>> = pods.iter().map(|p| p.metadata.uid.clone()).collect();
        let lost = self.by_name.iter().filter(|(_, m)| !uids.contains(&m.pod.metadata.uid));
        let lost: Vec<FullName> = lost.map(|(name, _)| name.clone()).collect();
        for name in lost {
            self.lose(name);
        }
        pods.into_iter().for_each(|pod| self.seen(pod));
    }

    /// This object is gone. False if it is no mirror.
    pub(crate) fn removed(&mut self, uid: &PodUid) -> bool {
        let is_it = |m: &Mirror| m.pod.metadata.uid.as_deref() == Some(uid.as_str());
        let Some(name) = self.by_name.iter().find(|(_, m)| is_it(m)).map(|(name, _)| name.clone()) else {
            return false;
        };
        self.lose(name);
        true
    }

    fn lose(&mut self, name: FullName) {
        let uid = self.by_name.remove(&name).and_then(|mirror| mirror.pod.metadata.uid.clone());
        if let Some(trial) = self.tries.get_mut(&name).filter(|t| t.under_way.is_some()) {
            trial.came_and_went = uid;
        }
        self.touched.insert(name);
    }

    /// Something happened that concerns this name.
    pub(crate) fn touch(&mut self, name: &FullName) {
        self.touched.insert(name.clone());
    }

    /// Look at every mirror again.
    pub(crate) fn touch_all(&mut self) {
        self.touched.extend(self.by_name.keys().cloned());
    }

    /// Names to be looked at.
    pub(crate) fn take_touched(&mut self) -> BTreeSet<FullName> {
        std::mem::take(&mut self.touched)
    }

    /// The mirror that shows this very pod.
    pub(crate) fn of(&self, pod: &Pod) -> Option<&Arc<Pod>> {
        let mirror = self.by_name.get(&full_name(pod)).filter(|m| !m.gone)?;
        (annotation(&mirror.pod, CONFIG_MIRROR) == Some(hash(pod))).then_some(&mirror.pod)
    }

    /// The name of the static pod that the mirror of this UID shows.
    pub(crate) fn name_of(&self, uid: &PodUid) -> Option<&FullName> {
        let is_it = |m: &Mirror| m.pod.metadata.uid.as_deref() == Some(uid.as_str());
        self.by_name.iter().find(|(_, m)| is_it(m)).map(|(name, _)| name)
    }

    /// A mirror by its name.
    pub(crate) fn get(&self, name: &FullName) -> Option<&Arc<Pod>> {
        self.by_name.get(name).filter(|m| !m.gone).map(|m| &m.pod)
    }

    /// What is to be asked of the API server about this name now, if anything.
    pub(crate) fn next(
        &mut self,
        name: &FullName,
        wanted: &Wanted,
        owner: Option<Owner<'_>>,
        now: Time,
        draw: &mut u64,
    ) -> Option<(RequestId, ObjectRequest)> {
        let request = self.missing(name, wanted, owner);
        let Some(request) = request else {
            // Nothing is missing: what failed before is forgiven.
            self.tries.retain(|n, t| n != name || t.under_way.is_some());
            return None;
        };
        let trial = self.tries.entry(name.clone()).or_default();
        if trial.under_way.is_some() || trial.at.is_some_and(|at| now < at) {
            return None;
        }
        *draw += 1;
        let id = RequestId(*draw);
        trial.under_way = Some(id);
        trial.removes = match &request {
            ObjectRequest::DeleteMirror { object } => Some(object.uid.clone()),
            _ => None,
        };
        self.asked.insert(id, name.clone());
        Some((id, request))
    }

    fn missing(&self, name: &FullName, wanted: &Wanted, owner: Option<Owner<'_>>) -> Option<ObjectRequest> {
        let there = self.by_name.get(name).filter(|m| !m.gone).map(|m| &m.pod);
        let remove = |pod: &Pod| {
            let uid = PodUid::from(pod.metadata.uid.as_deref()?);
            Some(ObjectRequest::DeleteMirror { object: ObjectRef { full_name: name.clone(), uid } })
        };
        match (wanted, there) {
            (Wanted::Nothing, Some(mirror)) => remove(mirror),
            (Wanted::Shown(pod), Some(mirror)) => {
                let same = annotation(mirror, CONFIG_MIRROR) == Some(hash(pod));
                let stays = same && mirror.metadata.deletion_timestamp.is_none();
                if stays { None } else { remove(mirror) }
            }
            (Wanted::Shown(pod), None) => {
                owner.map(|owner| ObjectRequest::CreateMirror { pod: Arc::new(mirror(pod, owner)) })
            }
            (Wanted::Nothing, None) | (Wanted::AsIs, _) => None,
        }
    }

    /// The API server answers; `None` if it was not asked from here. The text is for people.
    pub(crate) fn answered(
        &mut self,
        id: RequestId,
        result: &ObjectResult,
        now: Time,
    ) -> Option<(FullName, Option<String>)> {
        let name = self.asked.remove(&id)?;
        self.touched.insert(name.clone());
        let trial = self.tries.get_mut(&name)?;
        trial.under_way.take_if(|under_way| *under_way == id)?;
        let (removed, gone) = (trial.removes.take(), trial.came_and_went.take());
        let first = trial.failures == 0;
        let mut told = None;
        match (result, removed) {
            // Made, and gone before we heard of it.
            (Ok(Some(pod)), None) if gone.is_some() && gone == pod.metadata.uid => {}
            // Made: known before the watch shows it.
            (Ok(Some(pod)), None) => self.made(pod),
            (Ok(None), None) => {}
            (Ok(_) | Err(ObjectError::OtherUid), Some(uid)) => self.is_removed(&name, &uid, None),
            (Err(ObjectError::NotFound), Some(uid)) => self.is_removed(&name, &uid, Some(now + SHOWN_GONE)),
            (Err(error), _) => {
                trial.fail(error, now, &name);
                told = first.then(|| explain(error)).flatten();
                // A server that has just started may call what it has not read yet "not found": then it is there still.
                if let Some(mirror) = self.by_name.get_mut(&name).filter(|_| *error == ObjectError::OtherUid) {
                    mirror.gone = false;
                }
            }
        }
        Some((name, told))
    }

    fn is_removed(&mut self, name: &FullName, uid: &PodUid, doubted: Option<Time>) {
        let mirror = self.by_name.get_mut(name).filter(|m| m.pod.metadata.uid.as_deref() == Some(uid.as_str()));
        if let Some(mirror) = mirror {
            (mirror.gone, mirror.doubted) = (true, doubted);
        }
    }

    /// What could not be done because the API server was away is done now.
    pub(crate) fn store_reconnected(&mut self, now: Time) {
        for trial in self.tries.values_mut().filter(|t| t.at.is_some()) {
            // It was told once; only the waits begin anew.
            (trial.at, trial.failures) = (Some(now), trial.failures.min(1));
        }
    }

    /// Names whose retry has come are looked at again.
    pub(crate) fn due(&mut self, now: Time) {
        let due = self.tries.iter_mut().filter_map(|(name, t)| t.at.take_if(|at| *at <= now).map(|_| name.clone()));
        self.touched.extend(due);
        for (name, mirror) in &mut self.by_name {
            if mirror.doubted.take_if(|at| *at <= now).is_some() {
                mirror.gone = false;
                self.touched.insert(name.clone());
            }
        }
    }

    /// When to look again.
    pub(crate) fn wake(&self) -> Option<Time> {
        let doubted = self.by_name.values().filter_map(|m| m.doubted);
        self.tries.values().filter_map(|t| t.at).chain(doubted).min()
    }
}

impl Try {
    fn fail(&mut self, error: &ObjectError, now: Time, name: &FullName) {
        let asked = match error {
            ObjectError::Unavailable { after, .. } => after.unwrap_or_default().min(PATIENCE_MAX),
            ObjectError::Refused(_) => RETRY_MAX,
            ObjectError::NotFound | ObjectError::OtherUid => Duration::ZERO,
        };
        let wait = (RETRY * 2u32.pow(self.failures.min(5))).min(RETRY_MAX).max(asked);
        self.failures += 1;
        self.at = Some(now + wait + wait.mul_f64(0.5 * jitter(&name.name, u64::from(self.failures))));
    }
}

/// This pod is a mirror.
pub(crate) fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, CONFIG_MIRROR).is_some()
}

pub(crate) fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// What tells one content of a static pod from another.
fn hash(pod: &Pod) -> &str {
    annotation(pod, CONFIG_HASH).or(pod.metadata.uid.as_deref()).unwrap_or_default()
}

/// The mirror of a static pod: its spec, labels and annotations, and who it belongs to.
fn mirror(pod: &Pod, owner: Owner<'_>) -> Pod {
    let mut annotations = pod.metadata.annotations.clone().unwrap_or_default();
    annotations.insert(CONFIG_MIRROR.into(), hash(pod).to_owned());
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: owner.name.into(),
        uid: owner.uid.into(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    Pod {
        metadata: ObjectMeta {
            name: pod.metadata.name.clone(),
            namespace: Some(pod.metadata.namespace.clone().unwrap_or_else(|| "default".into())),
            labels: pod.metadata.labels.clone(),
            annotations: Some(annotations),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: pod.spec.clone(),
        status: None,
    }
}

/// What people should hear: a server that is away speaks for itself.
fn explain(error: &ObjectError) -> Option<String> {
    match error {
        ObjectError::Refused(message) => Some(format!("the API server refuses its mirror: {message}")),
        ObjectError::OtherUid => Some("another pod has the name of its mirror".into()),
        ObjectError::NotFound => Some("the namespace of its mirror does not exist".into()),
        ObjectError::Unavailable { .. } => None,
    }
}

#[cfg(test)]
mod tests;
