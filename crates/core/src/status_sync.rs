//! Keeping the objects of pods at the statuses we have: what is sent when, and when an object may go.
//!
//! ```text
//!  our status ─┐                                    ┌─ done ─▶ the newest known of the object: base of the next patch
//!              ├─▶ merge ─ differs? ─▶ one ask ────┤
//!  the object ─┘      └─ equal, finished, deleted,  └─ failed ─▶ later
//!                        store's phase terminal ─▶ Delete
//! ```
//!
//! At most one ask per pod is under way, and each is made from what is known when it is made: the newest always wins, and
//! nothing has to be queued. All this is per object: a mirror made anew gets everything. A store that drops a field is not
//! asked for it again and again.

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

pub use merge::{keep_ends, merge};
use object::{Object, Presence, Turn, UnderWay};
pub use patch::patch;
use token_bucket::TokenBucket;
use urgency::{Urgency, is_urgent, urgency};

/// Everything is compared so often, whatever was heard.
const COMPARE: Duration = Duration::from_secs(10);
/// An answer is waited for so long.
pub(crate) const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// The objects of our pods.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct StatusSync {
    /// By the pod's own UID; of a static pod it is its mirror.
    objects: BTreeMap<PodUid, Object>,
    asked: BTreeMap<RequestId, PodUid>,
    /// Ordinary news: a few at once, then five a second.
    pace: TokenBucket<200, 10>,
    /// Pods that begin: fifty a second.
    #[serde(default)]
    start_limiter: TokenBucket<20, 50>,
    compare_at: Time,
}

/// What the pod has to say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ours<'a> {
    pub(crate) full_name: &'a FullName,
    pub(crate) spec: Option<&'a PodSpec>,
    pub(crate) status: &'a PodStatus,
    /// Its clean-up is done: the object may go.
    pub(crate) finished: bool,
}

/// An answer that was waited for.
#[derive(Debug, PartialEq)]
pub(crate) struct Answered {
    /// Whose.
    pub(crate) uid: PodUid,
    /// What people should hear of it.
    pub(crate) told: Option<String>,
    /// It shows the object as it is now: nothing else was heard of it since the ask.
    pub(crate) is_newest: bool,
}

impl StatusSync {
    /// The source shows an object of this pod.
    pub(crate) fn seen(&mut self, pod: &PodUid, store: Source, object: &Pod, is_mirror: bool) {
        let uid = PodUid::from(object.metadata.uid.as_deref().unwrap_or_default());
        match self.objects.get_mut(pod) {
            Some(had) if had.uid == uid => had.shown(object),
            _ => {
                self.objects.insert(pod.clone(), Object::new(store, uid, object, is_mirror));
            }
        }
    }

    /// There is no object of this pod any more.
    pub(crate) fn forget(&mut self, pod: &PodUid) {
        self.objects.remove(pod);
        self.pace.leave(pod);
        self.start_limiter.leave(pod);
    }

    /// A store has said everything it has: these.
    pub(crate) fn retain(&mut self, store: Source, pods: &BTreeSet<PodUid>) {
        self.objects.retain(|uid, o| o.store != store || o.is_mirror || pods.contains(uid));
    }

    /// What is to be asked of the store now, if anything.
    pub(crate) fn next(
        &mut self,
        pod: &PodUid,
        ours: Ours<'_>,
        now: Time,
        draw: &mut u64,
    ) -> Option<(Source, RequestId, ObjectRequest)> {
        let object = self.objects.get_mut(pod)?;
        if object.under_way.is_some() || object.presence != Presence::Yes {
            return None;
        }
        let urgency = if ours.finished { Urgency::Urgent } else { urgency(&object.kept.status, ours.status) };
        if object.turn.is_waited_for(urgency) {
            return None;
        }
        let status = object.to_send(ours);
        if status.as_ref().is_some_and(|status| object.retry.waits(status, now)) {
            return None;
        }
        let is_new = status.is_some();
        let status = status.filter(|status| object.differs(status));
        if status.is_some() {
            let turn = object.turn_for(urgency);
            let may_tell = match turn {
                Turn::Has => true,
                Turn::WaitsToBegin => self.start_limiter.take(pod, now),
                Turn::Waits | Turn::NotAsked => self.pace.take(pod, now),
            };
            // What is told takes along what waited; what waits is in one line only.
            let had = std::mem::replace(&mut object.turn, if may_tell { Turn::NotAsked } else { turn });
            if had == Turn::Waits {
                self.pace.leave(pod);
            }
            if had == Turn::WaitsToBegin {
                self.start_limiter.leave(pod);
            }
            if !may_tell {
                return None;
            }
        }
        let name = || ObjectRef { full_name: ours.full_name.clone(), uid: object.uid.clone() };
        let (request, sent) = if let Some(status) = status {
            let (base, urgent) = (Arc::clone(&object.kept.status), is_urgent(&object.kept.status, &status));
            let sent = Some((Arc::clone(&base), Arc::clone(&status)));
            (ObjectRequest::PatchStatus { object: name(), base, status, urgent }, sent)
        } else if object.may_go(ours.finished) {
            (ObjectRequest::Delete { object: name() }, None)
        } else {
            if is_new {
                object.last_equal_status = Some(ours.status.clone());
            }
            return None;
        };
        *draw += 1;
        let id = RequestId(*draw);
        object.under_way = Some(UnderWay { id, sent, overtaken: false });
        self.asked.insert(id, pod.clone());
        Some((object.store, id, request))
    }

    /// A store answers; `None` if it was not asked from here, or nobody waits for it any more.
    pub(crate) fn answered(&mut self, id: RequestId, result: &ObjectResult, now: Time) -> Option<Answered> {
        let uid = self.asked.remove(&id)?;
        let object = self.objects.get_mut(&uid)?;
        let UnderWay { sent, overtaken, .. } = object.under_way.take_if(|u| u.id == id)?;
        let deleted = sent.is_none();
        let told = match result {
            Ok(kept) => {
                object.done(sent, kept.as_deref(), overtaken);
                None
            }
            Err(ObjectError::NotFound) => {
                object.presence = Presence::NotFound;
                None
            }
            Err(ObjectError::OtherUid) => {
                object.presence = Presence::Over;
                None
            }
            Err(ObjectError::Refused(message)) => {
                let first = !object.retry.told;
                object.retry.refuse(sent.map(|(_, status)| status), now);
                let what = if deleted { "end" } else { "status" };
                first.then(|| format!("the store of this pod's object refuses its {what}: {message}"))
            }
            Err(ObjectError::Unavailable { after, .. }) => {
                object.retry.fail(*after, now, uid.as_str());
                None
            }
        };
        Some(Answered { uid, told, is_newest: !overtaken && !deleted })
    }

    /// A store's history was set back: versions and deletions that are known mean nothing.
    pub(crate) fn history_reset(&mut self, store: Source) {
        for object in self.objects.values_mut().filter(|o| o.store == store) {
            (object.kept.version, object.kept.deleting) = (None, false);
        }
    }

    /// What could not be told because the store was away is told now.
    pub(crate) fn store_reconnected(&mut self, store: Source, now: Time) {
        let objects = self.objects.values_mut().filter(|o| o.store == store);
        objects.for_each(|o| o.retry.store_reconnected(now));
    }

    /// Pods whose retry has come; from time to time, all.
    pub(crate) fn due(&mut self, now: Time) -> Vec<PodUid> {
        let all = self.compare_at <= now;
        if all {
            self.compare_at = now + COMPARE;
            // A server that has just started says of much that it is not there.
            let unfound = self.objects.values_mut().filter(|o| o.presence == Presence::NotFound);
            unfound.for_each(|o| o.presence = Presence::Yes);
        }
        let mut turns = self.start_limiter.turns(now);
        turns.extend(self.pace.turns(now));
        for uid in &turns {
            if let Some(object) = self.objects.get_mut(uid) {
                object.turn = Turn::Has;
            }
        }
        let due = |o: &mut Object| o.retry.at.take_if(|at| *at <= now).is_some();
        let due = |(uid, o): (&PodUid, &mut Object)| (due(o) || all || turns.contains(uid)).then(|| uid.clone());
        self.objects.iter_mut().filter_map(due).collect()
    }

    /// When to look again.
    pub(crate) fn wake(&self) -> Option<Time> {
        let retries = self.objects.values().filter_map(|o| o.retry.at);
        let compare = (!self.objects.is_empty()).then_some(self.compare_at);
        retries.chain(compare).chain(self.pace.wake()).chain(self.start_limiter.wake()).min()
    }
}

#[cfg(test)]
mod tests;
