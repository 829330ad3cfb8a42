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
mod pace;
mod patch;
mod retry;
mod urgency;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::{
    Ask, AskError, AskId, AskResult, FullName, ObjectRef, Pod, PodSpec, PodStatus, PodUid, Source, Time,
};
use crate::mutate::{self, Mutant};
use crate::sources::is_older;
use crate::status::is_terminal;

pub(crate) use merge::foreign;
pub use merge::{keep_ends, merge};
use pace::Pace;
pub use patch::patch;
use retry::Retry;
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

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Object {
    keeper: Source,
    /// The object's own UID.
    uid: PodUid,
    is_mirror: bool,
    /// The newest known: of the watch and of answers.
    kept: Kept,
    under_way: Option<UnderWay>,
    turn: Turn,
    /// A patch that had no effect: it is not sent again.
    idle: Option<Value>,
    /// Our status that what is kept was found to need nothing for. Only saves the comparison.
    #[serde(skip)]
    even: Option<PodStatus>,
    listening: Listening,
    retry: Retry,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Kept {
    status: Arc<PodStatus>,
    version: Option<String>,
    deleting: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct UnderWay {
    id: AskId,
    /// What it was sent from, and the status that was sent; `None`: the object was to be deleted.
    sent: Option<(Arc<PodStatus>, Arc<PodStatus>)>,
    /// Its source has shown something newer since.
    #[serde(default)]
    overtaken: bool,
}

/// Whether it may tell what nobody waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Turn {
    #[default]
    NotAsked,
    Waits,
    WaitsToBegin,
    Has,
}

/// Whether the keeper has this object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Listening {
    Yes,
    /// It said no; its source, or the next comparison, may tell more.
    NotFound,
    /// It is gone, or the name is another's.
    Over,
}

impl StatusSync {
    /// The source shows an object of this pod.
    pub(crate) fn seen(&mut self, pod: &PodUid, keeper: Source, object: &Pod, is_mirror: bool) {
        let uid = PodUid::from(object.metadata.uid.as_deref().unwrap_or_default());
        match self.objects.get_mut(pod) {
            Some(had) if had.uid == uid && had.kept.is(object) => had.is_there(),
            Some(had) if had.uid == uid => had.shown(Kept::of(object)),
            _ => {
                let kept = Kept::of(object);
                let retry = Retry::default();
                let listening = Listening::Yes;
                let (under_way, turn, idle, even) = (None, Turn::default(), None, None);
                let new = Object { keeper, uid, is_mirror, kept, under_way, turn, idle, even, listening, retry };
                self.objects.insert(pod.clone(), new);
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

impl Turn {
    /// News of this urgency is in line already.
    fn is_waited_for(self, urgency: Urgency) -> bool {
        match self {
            Self::Waits => urgency == Urgency::Ordinary,
            Self::WaitsToBegin => urgency < Urgency::Urgent,
            Self::NotAsked | Self::Has => false,
        }
    }
}

impl Object {
    /// The source shows it. Old news is none.
    fn shown(&mut self, kept: Kept) {
        if is_older(kept.version.as_deref(), self.kept.version.as_deref()) {
            return;
        }
        if let Some(under_way) = &mut self.under_way {
            under_way.overtaken = true;
        }
        self.newest(kept);
    }

    /// This is how it is now, which also shows that the keeper has it.
    fn newest(&mut self, kept: Kept) {
        // A deletion is never taken back: an answer that was made before it, and comes after it, is no news of that.
        let deleting = kept.deleting || self.kept.deleting;
        (self.kept, self.even) = (Kept { deleting, ..kept }, None);
        self.is_there();
    }

    /// The keeper has it after all.
    fn is_there(&mut self) {
        if self.listening == Listening::NotFound {
            self.listening = Listening::Yes;
        }
    }

    /// The keeper did it: what it has now is the base of what comes next.
    /// If its source has shown it since, versions say which of the two is newer; if not, it is the answer, even of a server
    /// whose history was set back and whose versions are small.
    fn done(&mut self, sent: Option<(Arc<PodStatus>, Arc<PodStatus>)>, kept: Option<&Pod>, overtaken: bool) {
        self.retry = Retry::default();
        let Some((base, sent)) = sent else {
            self.listening = Listening::Over;
            return;
        };
        let got = match kept {
            Some(pod) => Kept::of(pod),
            None => Kept { status: Arc::clone(&sent), ..self.kept.clone() },
        };
        // It had this already, and what was sent changed nothing: it will not take the rest.
        if got.status == base {
            (self.idle, self.even) = (patch(&self.uid, &base, &sent), None);
        }
        let is_old = overtaken && is_older(got.version.as_deref(), self.kept.version.as_deref());
        if !is_old && !mutate::made(Mutant::BaseIsOld) {
            self.newest(got);
        }
    }

    /// The status this object is to have, unless it is known that it has it.
    fn to_send(&self, ours: Ours<'_>) -> Option<Arc<PodStatus>> {
        if self.retry.at.is_none() && self.even.as_ref() == Some(ours.status) {
            return None;
        }
        let mut status = merge(ours.status, &self.kept.status);
        if let Some(spec) = ours.spec.filter(|_| self.keeper == Source::Api) {
            keep_ends(spec, &self.kept.status, &mut status);
        }
        Some(Arc::new(status))
    }

    /// Where it stands with news of this urgency: what is urgent goes at once, the rest gets in line.
    fn turn_for(&self, urgency: Urgency) -> Turn {
        match urgency {
            Urgency::Urgent => Turn::Has,
            _ if self.turn == Turn::Has || self.keeper != Source::Api => Turn::Has,
            Urgency::Begins => Turn::WaitsToBegin,
            Urgency::Ordinary => Turn::Waits,
        }
    }

    /// There is something to send, and it was not sent in vain already.
    fn differs(&self, status: &PodStatus) -> bool {
        let base = &*self.kept.status;
        if self.idle.is_none() && differ_plainly(base, status) {
            return true;
        }
        let patch = patch(&self.uid, base, status);
        patch.is_some() && patch != self.idle
    }

    /// Deleted, finished, and its end is known to everybody: now, and not earlier, the object may go.
    fn may_go(&self, finished: bool) -> bool {
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

#[cfg(test)]
mod tests;
