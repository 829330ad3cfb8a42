//! Mirror pods: read-only objects that show static pods in the API.
//!
//! A mirror pod has no worker, and no change of it reaches its static pod: a mirror that was deleted or has another config hash
//! is replaced, one without a static pod is deleted. Nothing here delays a pod.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::{Deserialize, Serialize};

use crate::model::pairs;
use crate::model::{
    FullName, ObjectError, ObjectRef, ObjectRequest, ObjectResult, Pod, PodUid, RequestId, Time,
    clear_resource_version, full_name, is_older_version, jitter,
};
use crate::static_pod::{CONFIG_HASH, CONFIG_MIRROR};

/// First delay after a failure; it doubles.
const RETRY: Duration = Duration::from_secs(1);
/// Upper bound of the delay.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Upper bound of a `Retry-After` that the API server asks for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// Within this time the watch shows a deletion.
const DELETE_OBSERVED_WITHIN: Duration = Duration::from_secs(10);

/// All mirrors of this node's static pods.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Mirrors {
    #[serde(with = "pairs")]
    by_name: BTreeMap<FullName, Mirror>,
    #[serde(with = "pairs")]
    request_states: BTreeMap<FullName, RequestState>,
    requests: BTreeMap<RequestId, FullName>,
    /// Names to compare again.
    dirty: BTreeSet<FullName>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Mirror {
    pod: Arc<Pod>,
    /// We have deleted it; the watch has not shown that yet.
    deleted: bool,
    /// The API server answered NotFound. If the watch still has the mirror at this time, it exists: a server that has just
    /// started may answer NotFound for existing objects.
    recheck_at: Option<Time>,
}

/// State of the requests for one name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct RequestState {
    in_flight: Option<RequestId>,
    /// UID of the mirror that the request deletes; `None` for a create.
    deleting_uid: Option<PodUid>,
    /// UID of a mirror that the watch showed as deleted while a request is in flight: the response of its create is outdated.
    deleted_meanwhile: Option<String>,
    failures: u32,
    retry_at: Option<Time>,
}

/// The mirror that should exist under a name.
#[derive(Clone, Debug)]
pub(crate) enum DesiredMirror {
    /// The mirror of this static pod.
    Present(Arc<Pod>),
    /// No change: the static pod terminates, or its source is not synced.
    Unchanged,
    /// None: the static pod is gone.
    Absent,
}

/// The Node object, owner of every mirror.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeOwner<'a> {
    pub(crate) name: &'a str,
    pub(crate) uid: &'a str,
}

impl Mirrors {
    /// The watch shows a mirror.
    pub(crate) fn observe(&mut self, pod: Arc<Pod>) {
        let name = full_name(&pod);
        let had = self.by_name.get(&name);
        let version = |pod: &Pod| pod.metadata.resource_version.clone();
        if had.is_some_and(|m| is_older_version(version(&pod).as_deref(), version(&m.pod).as_deref())) {
            return;
        }
        let same = had.filter(|m| m.pod.metadata.uid == pod.metadata.uid);
        let (deleted, recheck_at) = same.map_or((false, None), |m| (m.deleted, m.recheck_at));
        self.dirty.insert(name.clone());
        self.by_name.insert(name, Mirror { pod, deleted, recheck_at });
    }

    /// Takes over the object of a response, so that a pod that starts again under this mirror starts from its newest state. A
    /// deleted mirror stays deleted. `is_newest`: regardless of its resource version.
    pub(crate) fn update_from_response(&mut self, pod: &Arc<Pod>, is_newest: bool) {
        let known = self.by_name.get_mut(&full_name(pod)).filter(|m| m.pod.metadata.uid == pod.metadata.uid);
        if let Some(mirror) = known {
            let (new, had) = (&pod.metadata.resource_version, &mirror.pod.metadata.resource_version);
            if is_newest || !is_older_version(new.as_deref(), had.as_deref()) {
                mirror.pod = Arc::clone(pod);
            }
        }
    }

    /// A mirror was created. An earlier one of this name is gone, and so is its resource version.
    fn on_created(&mut self, pod: &Arc<Pod>) {
        self.by_name.retain(|_, m| !m.deleted || full_name(&m.pod) != full_name(pod));
        self.observe(Arc::clone(pod));
    }

    /// The API server's history was reset: known resource versions are void.
    pub(crate) fn history_reset(&mut self) {
        self.by_name.values_mut().for_each(|m| clear_resource_version(&mut m.pod));
    }

    /// The list of all mirrors.
    pub(crate) fn set(&mut self, pods: Vec<Arc<Pod>>) {
        let uids: BTreeSet<Option<String>> = pods.iter().map(|p| p.metadata.uid.clone()).collect();
        let gone = self.by_name.iter().filter(|(_, m)| !uids.contains(&m.pod.metadata.uid));
        let gone: Vec<FullName> = gone.map(|(name, _)| name.clone()).collect();
        for name in gone {
            self.on_deleted(name);
        }
        pods.into_iter().for_each(|pod| self.observe(pod));
    }

    /// This object is gone. False if it is not a mirror.
    pub(crate) fn remove(&mut self, uid: &PodUid) -> bool {
        let has_uid = |m: &Mirror| m.pod.metadata.uid.as_deref() == Some(uid.as_str());
        let Some(name) = self.by_name.iter().find(|(_, m)| has_uid(m)).map(|(name, _)| name.clone()) else {
            return false;
        };
        self.on_deleted(name);
        true
    }

    fn on_deleted(&mut self, name: FullName) {
        let uid = self.by_name.remove(&name).and_then(|mirror| mirror.pod.metadata.uid.clone());
        if let Some(state) = self.request_states.get_mut(&name).filter(|t| t.in_flight.is_some()) {
            state.deleted_meanwhile = uid;
        }
        self.dirty.insert(name);
    }

    /// Compare this name again.
    pub(crate) fn mark_dirty(&mut self, name: &FullName) {
        self.dirty.insert(name.clone());
    }

    /// Compare every mirror again.
    pub(crate) fn mark_all_dirty(&mut self) {
        self.dirty.extend(self.by_name.keys().cloned());
    }

    /// Names to compare; clears the set.
    pub(crate) fn take_dirty(&mut self) -> BTreeSet<FullName> {
        std::mem::take(&mut self.dirty)
    }

    /// The mirror with the config hash of this static pod.
    pub(crate) fn mirror_of(&self, pod: &Pod) -> Option<&Arc<Pod>> {
        let mirror = self.by_name.get(&full_name(pod)).filter(|m| !m.deleted)?;
        (annotation(&mirror.pod, CONFIG_MIRROR) == Some(hash(pod))).then_some(&mirror.pod)
    }

    /// The name of the static pod whose mirror has this UID.
    pub(crate) fn static_pod_name(&self, uid: &PodUid) -> Option<&FullName> {
        let has_uid = |m: &Mirror| m.pod.metadata.uid.as_deref() == Some(uid.as_str());
        self.by_name.iter().find(|(_, m)| has_uid(m)).map(|(name, _)| name)
    }

    pub(crate) fn get(&self, name: &FullName) -> Option<&Arc<Pod>> {
        self.by_name.get(name).filter(|m| !m.deleted).map(|m| &m.pod)
    }

    /// The request to send for this name now, if any.
    pub(crate) fn next_request(
        &mut self,
        name: &FullName,
        desired: &DesiredMirror,
        owner: Option<NodeOwner<'_>>,
        now: Time,
        last_id: &mut u64,
    ) -> Option<(RequestId, ObjectRequest)> {
        let request = self.needed_request(name, desired, owner);
        let Some(request) = request else {
            // Nothing to do: earlier failures no longer count.
            self.request_states.retain(|n, t| n != name || t.in_flight.is_some());
            return None;
        };
        let state = self.request_states.entry(name.clone()).or_default();
        if state.in_flight.is_some() || state.retry_at.is_some_and(|at| now < at) {
            return None;
        }
        *last_id += 1;
        let id = RequestId(*last_id);
        state.in_flight = Some(id);
        state.deleting_uid = match &request {
            ObjectRequest::DeleteMirror { object } => Some(object.uid.clone()),
            _ => None,
        };
        self.requests.insert(id, name.clone());
        Some((id, request))
    }

    fn needed_request(
        &self,
        name: &FullName,
        desired: &DesiredMirror,
        owner: Option<NodeOwner<'_>>,
    ) -> Option<ObjectRequest> {
        let existing = self.by_name.get(name).filter(|m| !m.deleted).map(|m| &m.pod);
        let delete = |pod: &Pod| {
            let uid = PodUid::from(pod.metadata.uid.as_deref()?);
            Some(ObjectRequest::DeleteMirror { object: ObjectRef { full_name: name.clone(), uid } })
        };
        match (desired, existing) {
            (DesiredMirror::Absent, Some(mirror)) => delete(mirror),
            (DesiredMirror::Present(pod), Some(mirror)) => {
                let same_hash = annotation(mirror, CONFIG_MIRROR) == Some(hash(pod));
                let stays = same_hash && mirror.metadata.deletion_timestamp.is_none();
                if stays { None } else { delete(mirror) }
            }
            (DesiredMirror::Present(pod), None) => {
                owner.map(|owner| ObjectRequest::CreateMirror { pod: Arc::new(build_mirror(pod, owner)) })
            }
            (DesiredMirror::Absent, None) | (DesiredMirror::Unchanged, _) => None,
        }
    }

    /// The API server responds; `None` if the request was not made here. The text is for a warning event.
    pub(crate) fn on_response(
        &mut self,
        id: RequestId,
        result: &ObjectResult,
        now: Time,
    ) -> Option<(FullName, Option<String>)> {
        let name = self.requests.remove(&id)?;
        self.dirty.insert(name.clone());
        let state = self.request_states.get_mut(&name)?;
        state.in_flight.take_if(|in_flight| *in_flight == id)?;
        let (deleted_uid, gone) = (state.deleting_uid.take(), state.deleted_meanwhile.take());
        let first = state.failures == 0;
        let mut warning = None;
        match (result, deleted_uid) {
            // Created, and deleted again before the response arrived.
            (Ok(Some(pod)), None) if gone.is_some() && gone == pod.metadata.uid => {}
            // Created: known before the watch shows it.
            (Ok(Some(pod)), None) => self.on_created(pod),
            (Ok(None), None) => {}
            (Ok(_) | Err(ObjectError::OtherUid), Some(uid)) => self.mark_deleted(&name, &uid, None),
            (Err(ObjectError::NotFound), Some(uid)) => {
                self.mark_deleted(&name, &uid, Some(now + DELETE_OBSERVED_WITHIN))
            }
            (Err(error), _) => {
                state.fail(error, now, &name);
                warning = first.then(|| explain(error)).flatten();
                // The earlier NotFound was wrong: a server that has just started had not read the object yet.
                if let Some(mirror) = self.by_name.get_mut(&name).filter(|_| *error == ObjectError::OtherUid) {
                    mirror.deleted = false;
                }
            }
        }
        Some((name, warning))
    }

    fn mark_deleted(&mut self, name: &FullName, uid: &PodUid, recheck_at: Option<Time>) {
        let mirror = self.by_name.get_mut(name).filter(|m| m.pod.metadata.uid.as_deref() == Some(uid.as_str()));
        if let Some(mirror) = mirror {
            (mirror.deleted, mirror.recheck_at) = (true, recheck_at);
        }
    }

    /// Requests that failed because the API server was unavailable are retried now.
    pub(crate) fn store_reconnected(&mut self, now: Time) {
        for state in self.request_states.values_mut().filter(|t| t.retry_at.is_some()) {
            // The failure was reported once already; only the back-off starts again.
            (state.retry_at, state.failures) = (Some(now), state.failures.min(1));
        }
    }

    /// Marks the names whose retry is due.
    pub(crate) fn due(&mut self, now: Time) {
        let due = self
            .request_states
            .iter_mut()
            .filter_map(|(name, t)| t.retry_at.take_if(|at| *at <= now).map(|_| name.clone()));
        self.dirty.extend(due);
        for (name, mirror) in &mut self.by_name {
            if mirror.recheck_at.take_if(|at| *at <= now).is_some() {
                mirror.deleted = false;
                self.dirty.insert(name.clone());
            }
        }
    }

    /// When [`Self::due`] should be called next.
    pub(crate) fn wake(&self) -> Option<Time> {
        let recheck_at = self.by_name.values().filter_map(|m| m.recheck_at);
        self.request_states.values().filter_map(|t| t.retry_at).chain(recheck_at).min()
    }
}

impl RequestState {
    fn fail(&mut self, error: &ObjectError, now: Time, name: &FullName) {
        let requested = match error {
            ObjectError::Unavailable { after, .. } => after.unwrap_or_default().min(RETRY_AFTER_MAX),
            ObjectError::Refused(_) => RETRY_MAX,
            ObjectError::NotFound | ObjectError::OtherUid => Duration::ZERO,
        };
        let wait = (RETRY * 2u32.pow(self.failures.min(5))).min(RETRY_MAX).max(requested);
        self.failures += 1;
        self.retry_at = Some(now + wait + wait.mul_f64(0.5 * jitter(&name.name, u64::from(self.failures))));
    }
}

/// The pod is a mirror pod.
pub(crate) fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, CONFIG_MIRROR).is_some()
}

pub(crate) fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// The config hash of a static pod, which changes with its manifest; its UID where the annotation is missing.
fn hash(pod: &Pod) -> &str {
    annotation(pod, CONFIG_HASH).or(pod.metadata.uid.as_deref()).unwrap_or_default()
}

/// The mirror object of a static pod: its spec, labels and annotations, owned by the Node.
fn build_mirror(pod: &Pod, owner: NodeOwner<'_>) -> Pod {
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

/// Text of the event. Unavailability is reported elsewhere.
fn explain(error: &ObjectError) -> Option<String> {
    match error {
        ObjectError::Refused(message) => Some(format!("the API server refuses its mirror pod: {message}")),
        ObjectError::OtherUid => Some("another pod has the name of its mirror pod".into()),
        ObjectError::NotFound => Some("the namespace of its mirror pod does not exist".into()),
        ObjectError::Unavailable { .. } => None,
    }
}

#[cfg(test)]
mod tests;
