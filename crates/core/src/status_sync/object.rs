//! One pod's object: the newest known of it, the ask that is under way for it, and when it may go.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::retry::Retry;
use super::urgency::Urgency;
use super::{Ours, keep_ends, merge, patch};
use crate::model::{Pod, PodStatus, PodUid, RequestId, Source, is_older_version, is_terminal};
use crate::mutate::{self, Mutant};

/// An object, and where we stand with its store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Object {
    pub(super) store: Source,
    /// The object's own UID.
    pub(super) uid: PodUid,
    pub(super) is_mirror: bool,
    /// The newest known: of the watch and of answers.
    pub(super) kept: Kept,
    pub(super) under_way: Option<UnderWay>,
    pub(super) turn: Turn,
    /// A patch that had no effect: it is not sent again.
    pub(super) noop_patch: Option<Value>,
    /// Our status that what is kept was found to need nothing for. Only saves the comparison.
    #[serde(skip)]
    pub(super) last_equal_status: Option<PodStatus>,
    pub(super) presence: Presence,
    pub(super) retry: Retry,
}

/// What is known of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) status: Arc<PodStatus>,
    pub(super) version: Option<String>,
    pub(super) deleting: bool,
}

/// What its store was asked for and has not answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct UnderWay {
    pub(super) id: RequestId,
    /// What it was sent from, and the status that was sent; `None`: the object was to be deleted.
    pub(super) sent: Option<(Arc<PodStatus>, Arc<PodStatus>)>,
    /// Its source has shown something newer since.
    #[serde(default)]
    pub(super) overtaken: bool,
}

/// Whether it may tell what nobody waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Turn {
    #[default]
    NotAsked,
    Waits,
    WaitsToBegin,
    Has,
}

/// Whether the store has this object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Presence {
    Yes,
    /// It said no; its source, or the next comparison, may tell more.
    NotFound,
    /// It is gone, or the name is another's.
    Over,
}

impl Turn {
    /// News of this urgency is in line already.
    pub(super) fn is_waited_for(self, urgency: Urgency) -> bool {
        match self {
            Self::Waits => urgency == Urgency::Ordinary,
            Self::WaitsToBegin => urgency < Urgency::Urgent,
            Self::NotAsked | Self::Has => false,
        }
    }
}

impl Object {
    /// The source shows it for the first time.
    pub(super) fn new(store: Source, uid: PodUid, object: &Pod, is_mirror: bool) -> Self {
        let (kept, retry, presence) = (Kept::of(object), Retry::default(), Presence::Yes);
        let (under_way, turn, noop_patch, last_equal_status) = (None, Turn::default(), None, None);
        Self { store, uid, is_mirror, kept, under_way, turn, noop_patch, last_equal_status, presence, retry }
    }

    /// The source shows it again. Old news is none.
    pub(super) fn shown(&mut self, object: &Pod) {
        if self.kept.is(object) {
            return self.is_there();
        }
        let kept = Kept::of(object);
        if is_older_version(kept.version.as_deref(), self.kept.version.as_deref()) {
            return;
        }
        if let Some(under_way) = &mut self.under_way {
            under_way.overtaken = true;
        }
        self.newest(kept);
    }

    /// This is how it is now, which also shows that the store has it.
    fn newest(&mut self, kept: Kept) {
        // A deletion is never taken back: an answer that was made before it, and comes after it, is no news of that.
        let deleting = kept.deleting || self.kept.deleting;
        (self.kept, self.last_equal_status) = (Kept { deleting, ..kept }, None);
        self.is_there();
    }

    /// The store has it after all.
    fn is_there(&mut self) {
        if self.presence == Presence::NotFound {
            self.presence = Presence::Yes;
        }
    }

    /// The store did it: what it has now is the base of what comes next.
    /// If its source has shown it since, versions say which of the two is newer; if not, it is the answer, even of a server
    /// whose history was set back and whose versions are small.
    pub(super) fn done(&mut self, sent: Option<(Arc<PodStatus>, Arc<PodStatus>)>, kept: Option<&Pod>, overtaken: bool) {
        self.retry = Retry::default();
        let Some((base, sent)) = sent else {
            self.presence = Presence::Over;
            return;
        };
        let got = match kept {
            Some(pod) => Kept::of(pod),
            None => Kept { status: Arc::clone(&sent), ..self.kept.clone() },
        };
        // It had this already, and what was sent changed nothing: it will not take the rest.
        if got.status == base {
            (self.noop_patch, self.last_equal_status) = (patch(&self.uid, &base, &sent), None);
        }
        let is_old = overtaken && is_older_version(got.version.as_deref(), self.kept.version.as_deref());
        if !is_old && !mutate::made(Mutant::BaseIsOld) {
            self.newest(got);
        }
    }

    /// The status this object is to have, unless it is known that it has it.
    pub(super) fn to_send(&self, ours: Ours<'_>) -> Option<Arc<PodStatus>> {
        if self.retry.at.is_none() && self.last_equal_status.as_ref() == Some(ours.status) {
            return None;
        }
        let mut status = merge(ours.status, &self.kept.status);
        if let Some(spec) = ours.spec.filter(|_| self.store == Source::Api) {
            keep_ends(spec, &self.kept.status, &mut status);
        }
        Some(Arc::new(status))
    }

    /// Where it stands with news of this urgency: what is urgent goes at once, the rest gets in line.
    pub(super) fn turn_for(&self, urgency: Urgency) -> Turn {
        match urgency {
            Urgency::Urgent => Turn::Has,
            _ if self.turn == Turn::Has || self.store != Source::Api => Turn::Has,
            Urgency::Begins => Turn::WaitsToBegin,
            Urgency::Ordinary => Turn::Waits,
        }
    }

    /// There is something to send, and it was not sent in vain already.
    pub(super) fn differs(&self, status: &PodStatus) -> bool {
        let base = &*self.kept.status;
        if self.noop_patch.is_none() && differ_plainly(base, status) {
            return true;
        }
        let patch = patch(&self.uid, base, status);
        patch.is_some() && patch != self.noop_patch
    }

    /// Deleted, finished, and its end is known to everybody: now, and not earlier, the object may go.
    pub(super) fn may_go(&self, finished: bool) -> bool {
        let ended = finished && is_terminal(self.kept.status.phase.as_deref());
        self.kept.deleting && !self.is_mirror && (ended || mutate::made(Mutant::DeletedEarly))
    }
}

impl Kept {
    fn of(object: &Pod) -> Self {
        Self {
            status: Arc::new(object.status.clone().unwrap_or_default()),
            version: object.metadata.resource_version.clone(),
            deleting: object.metadata.deletion_timestamp.is_some(),
        }
    }

    /// This is known already: what is shown again and again need not be copied each time.
    fn is(&self, object: &Pod) -> bool {
        self.version == object.metadata.resource_version
            && self.deleting == object.metadata.deletion_timestamp.is_some()
            && object.status.as_ref().is_some_and(|status| *status == *self.status)
    }
}

/// Some differences are seen without making the patch.
fn differ_plainly(a: &PodStatus, b: &PodStatus) -> bool {
    let containers = |s: &PodStatus| s.container_statuses.as_deref().unwrap_or_default().len();
    let pairs = || a.container_statuses.iter().flatten().zip(b.container_statuses.iter().flatten());
    a.phase != b.phase
        || containers(a) != containers(b)
        || pairs()
            .any(|(a, b)| (a.ready, a.restart_count, &a.container_id) != (b.ready, b.restart_count, &b.container_id))
}
