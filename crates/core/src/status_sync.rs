//! Status manager: keeps the status of each pod object in its store (API server or local store) equal to local, and deletes the
//! object once its pod has finished.
//!
//! ```text
//!  our status ─┐                                       ┌─ ok ─▶ the object in the response is the base of the next patch
//!              ├─▶ merge ─ differs? ─▶ one request ───┤
//!  the object ─┘      └─ equal, finished, deleted,     └─ failed ─▶ retry
//!                        phase in the store terminal ─▶ Delete
//! ```
//!
//! At most one request per pod is in flight, and each is built from the newest state at the time it is sent, so nothing is
//! queued. State is per object: a mirror pod that was created again gets a full patch. A patch that had no effect, because the
//! store drops a field, is not repeated.

mod merge;
mod object;
mod patch;
mod retry;
mod token_bucket;
mod urgency;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::{
    FullName, ObjectError, ObjectRef, ObjectRequest, ObjectResult, Pod, PodSpec, PodStatus, PodUid, RequestId, Source,
    Time,
};

pub use merge::{keep_final_terminations, merge};
use object::{InFlightRequest, Permit, Presence, TrackedObject};
pub use patch::patch;
use token_bucket::TokenBucket;
use urgency::{Urgency, is_urgent, urgency};

/// All objects are compared with their pods at this interval, also without an event.
const COMPARE: Duration = Duration::from_secs(10);
/// Timeout of a request.
pub(crate) const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// The objects of our pods.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct StatusSync {
    /// By the UID of the pod; the object of a static pod is its mirror pod.
    objects: BTreeMap<PodUid, TrackedObject>,
    requests: BTreeMap<RequestId, PodUid>,
    /// Ordinary updates: a burst of 10, then five per second.
    update_limiter: TokenBucket<200, 10>,
    /// Updates of pods that have just started: fifty per second.
    #[serde(default)]
    start_limiter: TokenBucket<20, 50>,
    compare_at: Time,
}

/// The state of one pod that its object should show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalStatus<'a> {
    pub(crate) full_name: &'a FullName,
    pub(crate) spec: Option<&'a PodSpec>,
    pub(crate) status: &'a PodStatus,
    /// Its clean-up is done: the object may be deleted.
    pub(crate) finished: bool,
}

/// Outcome of a request that was in flight.
#[derive(Debug, PartialEq)]
pub(crate) struct RequestOutcome {
    pub(crate) uid: PodUid,
    /// Text of a warning event, the first time a request is refused.
    pub(crate) warning: Option<String>,
    /// The response is the newest state of the object: the watch has shown nothing else since the request was sent.
    pub(crate) is_newest: bool,
}

impl StatusSync {
    /// The watch shows an object of this pod.
    pub(crate) fn observe(&mut self, pod: &PodUid, store: Source, object: &Pod, is_mirror: bool) {
        let uid = PodUid::from(object.metadata.uid.as_deref().unwrap_or_default());
        match self.objects.get_mut(pod) {
            Some(had) if had.uid == uid => had.observe(object),
            _ => {
                self.objects.insert(pod.clone(), TrackedObject::new(store, uid, object, is_mirror));
            }
        }
    }

    /// The object of this pod is gone.
    pub(crate) fn forget(&mut self, pod: &PodUid) {
        self.objects.remove(pod);
        self.update_limiter.cancel(pod);
        self.start_limiter.cancel(pod);
    }

    /// A store has listed all its objects: those of these pods.
    pub(crate) fn retain(&mut self, store: Source, pods: &BTreeSet<PodUid>) {
        self.objects.retain(|uid, o| o.store != store || o.is_mirror || pods.contains(uid));
    }

    /// The request to send now, if any.
    pub(crate) fn next_request(
        &mut self,
        pod: &PodUid,
        local: LocalStatus<'_>,
        now: Time,
        last_id: &mut u64,
    ) -> Option<(Source, RequestId, ObjectRequest)> {
        let object = self.objects.get_mut(pod)?;
        if object.in_flight.is_some() || object.presence != Presence::Present {
            return None;
        }
        let urgency = if local.finished { Urgency::Urgent } else { urgency(&object.last_seen.status, local.status) };
        if object.permit.covers(urgency) {
            return None;
        }
        let status = object.to_send(local);
        if status.as_ref().is_some_and(|status| object.retry.is_delayed(status, now)) {
            return None;
        }
        let is_new = status.is_some();
        let status = status.filter(|status| object.differs(status));
        if status.is_some() {
            let permit = object.permit_for(urgency);
            let may_send = match permit {
                Permit::Granted => true,
                Permit::WaitsForStart => self.start_limiter.acquire(pod, now),
                Permit::WaitsForUpdate | Permit::None => self.update_limiter.acquire(pod, now),
            };
            // A patch also carries the changes that waited for a permit; a pod waits for one limiter only.
            let had = std::mem::replace(&mut object.permit, if may_send { Permit::None } else { permit });
            if had == Permit::WaitsForUpdate {
                self.update_limiter.cancel(pod);
            }
            if had == Permit::WaitsForStart {
                self.start_limiter.cancel(pod);
            }
            if !may_send {
                return None;
            }
        }
        let name = || ObjectRef { full_name: local.full_name.clone(), uid: object.uid.clone() };
        let (request, sent) = if let Some(status) = status {
            let (base, urgent) = (Arc::clone(&object.last_seen.status), is_urgent(&object.last_seen.status, &status));
            let sent = Some((Arc::clone(&base), Arc::clone(&status)));
            (ObjectRequest::PatchStatus { object: name(), base, status, urgent }, sent)
        } else if object.may_delete(local.finished) {
            (ObjectRequest::Delete { object: name() }, None)
        } else {
            if is_new {
                object.last_equal_status = Some(local.status.clone());
            }
            return None;
        };
        *last_id += 1;
        let id = RequestId(*last_id);
        object.in_flight = Some(InFlightRequest { id, sent, superseded: false });
        self.requests.insert(id, pod.clone());
        Some((object.store, id, request))
    }

    /// A store responds. `None` if the request was not made here or its object has been replaced since.
    pub(crate) fn on_response(&mut self, id: RequestId, result: &ObjectResult, now: Time) -> Option<RequestOutcome> {
        let uid = self.requests.remove(&id)?;
        let object = self.objects.get_mut(&uid)?;
        let InFlightRequest { sent, superseded, .. } = object.in_flight.take_if(|u| u.id == id)?;
        let deleted = sent.is_none();
        let warning = match result {
            Ok(object_state) => {
                object.done(sent, object_state.as_deref(), superseded);
                None
            }
            Err(ObjectError::NotFound) => {
                object.presence = Presence::NotFound;
                None
            }
            Err(ObjectError::OtherUid) => {
                object.presence = Presence::Gone;
                None
            }
            Err(ObjectError::Refused(message)) => {
                let first = !object.retry.reported;
                object.retry.refuse(sent.map(|(_, status)| status), now);
                let what = if deleted { "deletion" } else { "status" };
                first.then(|| format!("the store of this pod's object refuses its {what}: {message}"))
            }
            Err(ObjectError::Unavailable { after, .. }) => {
                object.retry.fail(*after, now, uid.as_str());
                None
            }
        };
        Some(RequestOutcome { uid, warning, is_newest: !superseded && !deleted })
    }

    /// A store's history was reset: known resource versions and deletions are void.
    pub(crate) fn history_reset(&mut self, store: Source) {
        for object in self.objects.values_mut().filter(|o| o.store == store) {
            (object.last_seen.resource_version, object.last_seen.deleting) = (None, false);
        }
    }

    /// Every status is in its store; none is being sent, waits for a permit or for a retry.
    pub(crate) fn is_idle(&self) -> bool {
        let is_idle = |o: &TrackedObject| {
            let waits = matches!(o.permit, Permit::WaitsForStart | Permit::WaitsForUpdate);
            o.presence != Presence::Present || (o.in_flight.is_none() && o.retry.retry_at.is_none() && !waits)
        };
        self.objects.values().all(is_idle)
    }

    /// Requests that failed because the store was unavailable are retried now.
    pub(crate) fn store_reconnected(&mut self, store: Source, now: Time) {
        let objects = self.objects.values_mut().filter(|o| o.store == store);
        objects.for_each(|o| o.retry.store_reconnected(now));
    }

    /// Pods whose retry is due or whose permit was granted; every `COMPARE`, all.
    pub(crate) fn due(&mut self, now: Time) -> Vec<PodUid> {
        let all = self.compare_at <= now;
        if all {
            self.compare_at = now + COMPARE;
            // An API server that has just started may answer NotFound for objects that exist.
            let unfound = self.objects.values_mut().filter(|o| o.presence == Presence::NotFound);
            unfound.for_each(|o| o.presence = Presence::Present);
        }
        let mut granted = self.start_limiter.grant_due(now);
        granted.extend(self.update_limiter.grant_due(now));
        for uid in &granted {
            if let Some(object) = self.objects.get_mut(uid) {
                object.permit = Permit::Granted;
            }
        }
        let due = |o: &mut TrackedObject| o.retry.retry_at.take_if(|at| *at <= now).is_some();
        let due =
            |(uid, o): (&PodUid, &mut TrackedObject)| (due(o) || all || granted.contains(uid)).then(|| uid.clone());
        self.objects.iter_mut().filter_map(due).collect()
    }

    /// When [`Self::due`] should be called next.
    pub(crate) fn wake(&self) -> Option<Time> {
        let retries = self.objects.values().filter_map(|o| o.retry.retry_at);
        let compare = (!self.objects.is_empty()).then_some(self.compare_at);
        retries.chain(compare).chain(self.update_limiter.wake()).chain(self.start_limiter.wake()).min()
    }
}

#[cfg(test)]
mod law_tests;
#[cfg(test)]
mod tests;
