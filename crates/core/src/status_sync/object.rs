//! One pod object: its newest known state, the request in flight for it, and when it may be deleted.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::retry::ObjectRetry;
use super::urgency::Urgency;
use super::{LocalStatus, keep_final_terminations, merge, patch};
use crate::model::{Pod, PodStatus, PodUid, RequestId, Source, is_older_version, is_terminal};
use crate::mutate::{self, Mutant};

/// A pod object and the state of its synchronisation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct TrackedObject {
    pub(super) store: Source,
    /// The object's own UID.
    pub(super) uid: PodUid,
    pub(super) is_mirror: bool,
    /// The newest known state, from the watch or from a response.
    pub(super) last_seen: ObjectState,
    pub(super) in_flight: Option<InFlightRequest>,
    pub(super) permit: Permit,
    /// A patch that had no effect: it is not sent again.
    pub(super) noop_patch: Option<Value>,
    /// The status of the pod that last needed no patch. Only saves the comparison.
    #[serde(skip)]
    pub(super) last_equal_status: Option<PodStatus>,
    pub(super) presence: Presence,
    pub(super) retry: ObjectRetry,
}

/// State of an object in its store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ObjectState {
    pub(super) status: Arc<PodStatus>,
    pub(super) resource_version: Option<String>,
    pub(super) deleting: bool,
}

/// A request whose response is outstanding.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct InFlightRequest {
    pub(super) id: RequestId,
    /// The base of the patch and the status that was sent; `None` for a delete.
    pub(super) sent: Option<(Arc<PodStatus>, Arc<PodStatus>)>,
    /// The watch has shown a change since.
    #[serde(default)]
    pub(super) superseded: bool,
}

/// Permission of the rate limiters to send a patch that is not urgent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Permit {
    #[default]
    None,
    /// Waits for a token of the ordinary limiter.
    WaitsForUpdate,
    /// Waits for a token of the limiter of starting pods.
    WaitsForStart,
    /// A token was taken; the next patch may be sent.
    Granted,
}

/// Whether the store has this object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Presence {
    Present,
    /// The store answered NotFound. The watch or the next comparison may correct this.
    NotFound,
    /// Deleted, or another object has its name.
    Gone,
}

impl Permit {
    /// A patch of this urgency already waits for a permit.
    pub(super) fn covers(self, urgency: Urgency) -> bool {
        match self {
            Self::WaitsForUpdate => urgency == Urgency::Ordinary,
            Self::WaitsForStart => urgency < Urgency::Urgent,
            Self::None | Self::Granted => false,
        }
    }
}

impl TrackedObject {
    /// From the first watch event.
    pub(super) fn new(store: Source, uid: PodUid, object: &Pod, is_mirror: bool) -> Self {
        let (last_seen, retry, presence) = (ObjectState::of(object), ObjectRetry::default(), Presence::Present);
        let (in_flight, permit, noop_patch, last_equal_status) = (None, Permit::default(), None, None);
        Self { store, uid, is_mirror, last_seen, in_flight, permit, noop_patch, last_equal_status, presence, retry }
    }

    /// The watch shows it again. Older resource versions are ignored.
    pub(super) fn observe(&mut self, object: &Pod) {
        if self.last_seen.is(object) {
            return self.mark_present();
        }
        let object_state = ObjectState::of(object);
        if is_older_version(object_state.resource_version.as_deref(), self.last_seen.resource_version.as_deref()) {
            return;
        }
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.superseded = true;
        }
        self.replace_state(object_state);
    }

    /// Replaces the state, which also shows that the object exists.
    fn replace_state(&mut self, last_seen: ObjectState) {
        // A deletion is never undone: a response that was made before it may arrive after it.
        let deleting = last_seen.deleting || self.last_seen.deleting;
        (self.last_seen, self.last_equal_status) = (ObjectState { deleting, ..last_seen }, None);
        self.mark_present();
    }

    /// Corrects an earlier NotFound.
    fn mark_present(&mut self) {
        if self.presence == Presence::NotFound {
            self.presence = Presence::Present;
        }
    }

    /// The request succeeded; the object in the response is the base of the next patch.
    /// If the watch has shown a change since, the resource versions decide which is newer. If not, the response is, even from a
    /// server whose history was reset and whose versions are smaller.
    pub(super) fn done(
        &mut self,
        sent: Option<(Arc<PodStatus>, Arc<PodStatus>)>,
        object_state: Option<&Pod>,
        superseded: bool,
    ) {
        self.retry = ObjectRetry::default();
        let Some((base, sent)) = sent else {
            self.presence = Presence::Gone;
            return;
        };
        let got = match object_state {
            Some(pod) => ObjectState::of(pod),
            None => ObjectState { status: Arc::clone(&sent), ..self.last_seen.clone() },
        };
        // The patch changed nothing: the store drops what remains of it.
        if got.status == base {
            (self.noop_patch, self.last_equal_status) = (patch(&self.uid, &base, &sent), None);
        }
        let is_old =
            superseded && is_older_version(got.resource_version.as_deref(), self.last_seen.resource_version.as_deref());
        if !is_old && !mutate::is_active(Mutant::StaleBase) {
            self.replace_state(got);
        }
    }

    /// The status this object should have; `None` if it is known to have it.
    pub(super) fn to_send(&self, local: LocalStatus<'_>) -> Option<Arc<PodStatus>> {
        if self.retry.retry_at.is_none() && self.last_equal_status.as_ref() == Some(local.status) {
            return None;
        }
        let mut status = merge(local.status, &self.last_seen.status);
        if self.is_mirror {
            // A static pod may run again after it ended.
            status.phase.clone_from(&local.status.phase);
            status.reason.clone_from(&local.status.reason);
            status.message.clone_from(&local.status.message);
        }
        if let Some(spec) = local.spec.filter(|_| self.store == Source::Api) {
            keep_final_terminations(spec, &self.last_seen.status, &mut status);
        }
        Some(Arc::new(status))
    }

    /// The permit that a patch of this urgency needs. Urgent patches, and patches for the local store, are not limited.
    pub(super) fn permit_for(&self, urgency: Urgency) -> Permit {
        match urgency {
            Urgency::Urgent => Permit::Granted,
            _ if self.permit == Permit::Granted || self.store != Source::Api => Permit::Granted,
            Urgency::Started => Permit::WaitsForStart,
            Urgency::Ordinary => Permit::WaitsForUpdate,
        }
    }

    /// A patch is needed, and it is not one that had no effect before.
    pub(super) fn differs(&self, status: &PodStatus) -> bool {
        let base = &*self.last_seen.status;
        if self.noop_patch.is_none() && differ_obviously(base, status) {
            return true;
        }
        let patch = patch(&self.uid, base, status);
        patch.is_some() && patch != self.noop_patch
    }

    /// The object has a deletion timestamp, its pod has finished and the store has its terminal phase. It must not be deleted
    /// earlier.
    pub(super) fn may_delete(&self, finished: bool) -> bool {
        let ended = finished && is_terminal(self.last_seen.status.phase.as_deref());
        self.last_seen.deleting && !self.is_mirror && (ended || mutate::is_active(Mutant::DeletedEarly))
    }
}

impl ObjectState {
    fn of(object: &Pod) -> Self {
        Self {
            status: Arc::new(object.status.clone().unwrap_or_default()),
            resource_version: object.metadata.resource_version.clone(),
            deleting: object.metadata.deletion_timestamp.is_some(),
        }
    }

    /// The same state, compared without a copy.
    fn is(&self, object: &Pod) -> bool {
        self.resource_version == object.metadata.resource_version
            && self.deleting == object.metadata.deletion_timestamp.is_some()
            && object.status.as_ref().is_some_and(|status| *status == *self.status)
    }
}

/// Finds common differences without building the patch.
fn differ_obviously(a: &PodStatus, b: &PodStatus) -> bool {
    let containers = |s: &PodStatus| s.container_statuses.as_deref().unwrap_or_default().len();
    let pairs = || a.container_statuses.iter().flatten().zip(b.container_statuses.iter().flatten());
    a.phase != b.phase
        || containers(a) != containers(b)
        || pairs()
            .any(|(a, b)| (a.ready, a.restart_count, &a.container_id) != (b.ready, b.restart_count, &b.container_id))
}
