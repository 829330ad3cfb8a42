//! Keeping the objects of pods at the statuses we have: what is sent when, and when an object may go.
//!
//! ```text
//!  our status ─┐                                    ┌─ done ─▶ the newest known of the object: base of the next patch
//!              ├─▶ merge ─ differs? ─▶ one ask ────┤
//!  the object ─┘      └─ equal, finished, deleted,  └─ failed ─▶ later
//!                        keeper's phase terminal ─▶ Delete
//! ```
//!
//! At most one ask per pod is under way, and each is made from what is known when it is made: the newest always wins, and
//! nothing has to be queued. All this is per object: a mirror made anew gets everything. A keeper that drops a field is not
//! asked for it again and again.

mod merge;
mod object;
mod pace;
mod patch;
mod retry;
mod urgency;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::{
    Ask, AskError, AskId, AskResult, FullName, ObjectRef, Pod, PodSpec, PodStatus, PodUid, Source, Time,
};

pub(crate) use merge::foreign;
pub use merge::{keep_ends, merge};
use object::{Listening, Object, Turn, UnderWay};
use pace::Pace;
pub use patch::patch;
use urgency::{Urgency, is_urgent, urgency};

/// Everything is compared so often, whatever was heard.
const COMPARE: Duration = Duration::from_secs(10);
/// An answer is waited for so long.
pub(crate) const ASK_LIMIT: Duration = Duration::from_secs(10);

/// The objects of our pods.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct StatusSync {
    /// By the pod's own UID; of a static pod it is its mirror.
    objects: BTreeMap<PodUid, Object>,
    asked: BTreeMap<AskId, PodUid>,
    /// Ordinary news: a few at once, then five a second.
    pace: Pace<200, 10>,
    /// Pods that begin: fifty a second.
    #[serde(default)]
    beginnings: Pace<20, 50>,
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
    pub(crate) fn seen(&mut self, pod: &PodUid, keeper: Source, object: &Pod, is_mirror: bool) {
        let uid = PodUid::from(object.metadata.uid.as_deref().unwrap_or_default());
        match self.objects.get_mut(pod) {
            Some(had) if had.uid == uid => had.shown(object),
            _ => {
                self.objects.insert(pod.clone(), Object::new(keeper, uid, object, is_mirror));
            }
        }
    }

    /// There is no object of this pod any more.
    pub(crate) fn forget(&mut self, pod: &PodUid) {
        self.objects.remove(pod);
        self.pace.leave(pod);
        self.beginnings.leave(pod);
    }

    /// A keeper has said everything it has: these.
    pub(crate) fn retain(&mut self, keeper: Source, pods: &BTreeSet<PodUid>) {
        self.objects.retain(|uid, o| o.keeper != keeper || o.is_mirror || pods.contains(uid));
    }

    /// What is to be asked of the keeper now, if anything.
    pub(crate) fn next(
        &mut self,
        pod: &PodUid,
        ours: Ours<'_>,
        now: Time,
        draw: &mut u64,
    ) -> Option<(Source, AskId, Ask)> {
        let object = self.objects.get_mut(pod)?;
        if object.under_way.is_some() || object.listening != Listening::Yes {
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
                Turn::WaitsToBegin => self.beginnings.take(pod, now),
                Turn::Waits | Turn::NotAsked => self.pace.take(pod, now),
            };
            // What is told takes along what waited; what waits is in one line only.
            let had = std::mem::replace(&mut object.turn, if may_tell { Turn::NotAsked } else { turn });
            if had == Turn::Waits {
                self.pace.leave(pod);
            }
            if had == Turn::WaitsToBegin {
                self.beginnings.leave(pod);
            }
            if !may_tell {
                return None;
            }
        }
        let name = || ObjectRef { full_name: ours.full_name.clone(), uid: object.uid.clone() };
        let (ask, sent) = if let Some(status) = status {
            let (base, urgent) = (Arc::clone(&object.kept.status), is_urgent(&object.kept.status, &status));
            let sent = Some((Arc::clone(&base), Arc::clone(&status)));
            (Ask::PatchStatus { object: name(), base, status, urgent }, sent)
        } else if object.may_go(ours.finished) {
            (Ask::Delete { object: name() }, None)
        } else {
            if is_new {
                object.even = Some(ours.status.clone());
            }
            return None;
        };
        *draw += 1;
        let id = AskId(*draw);
        object.under_way = Some(UnderWay { id, sent, overtaken: false });
        self.asked.insert(id, pod.clone());
        Some((object.keeper, id, ask))
    }

    /// A keeper answers; `None` if it was not asked from here, or nobody waits for it any more.
    pub(crate) fn answered(&mut self, id: AskId, result: &AskResult, now: Time) -> Option<Answered> {
        let uid = self.asked.remove(&id)?;
        let object = self.objects.get_mut(&uid)?;
        let UnderWay { sent, overtaken, .. } = object.under_way.take_if(|u| u.id == id)?;
        let deleted = sent.is_none();
        let told = match result {
            Ok(kept) => {
                object.done(sent, kept.as_deref(), overtaken);
                None
            }
            Err(AskError::NotFound) => {
                object.listening = Listening::NotFound;
                None
            }
            Err(AskError::OtherUid) => {
                object.listening = Listening::Over;
                None
            }
            Err(AskError::Refused(message)) => {
                let first = !object.retry.told;
                object.retry.refuse(sent.map(|(_, status)| status), now);
                let what = if deleted { "end" } else { "status" };
                first.then(|| format!("the keeper of this pod's object refuses its {what}: {message}"))
            }
            Err(AskError::Unavailable { after, .. }) => {
                object.retry.fail(*after, now, uid.as_str());
                None
            }
        };
        Some(Answered { uid, told, is_newest: !overtaken && !deleted })
    }

    /// A keeper's history was set back: versions and deletions that are known mean nothing.
    pub(crate) fn begin_anew(&mut self, keeper: Source) {
        for object in self.objects.values_mut().filter(|o| o.keeper == keeper) {
            (object.kept.version, object.kept.deleting) = (None, false);
        }
    }

    /// What could not be told because the keeper was away is told now.
    pub(crate) fn keeper_is_back(&mut self, keeper: Source, now: Time) {
        let objects = self.objects.values_mut().filter(|o| o.keeper == keeper);
        objects.for_each(|o| o.retry.keeper_is_back(now));
    }

    /// Pods whose retry has come; from time to time, all.
    pub(crate) fn due(&mut self, now: Time) -> Vec<PodUid> {
        let all = self.compare_at <= now;
        if all {
            self.compare_at = now + COMPARE;
            // A server that has just started says of much that it is not there.
            let unfound = self.objects.values_mut().filter(|o| o.listening == Listening::NotFound);
            unfound.for_each(|o| o.listening = Listening::Yes);
        }
        let mut turns = self.beginnings.turns(now);
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
        retries.chain(compare).chain(self.pace.wake()).chain(self.beginnings.wake()).min()
    }
}

#[cfg(test)]
mod tests;
