//! What is known of a pod in the runtime, and how old that knowledge is.

use std::time::Duration;

use crate::model::{Effect, PodSeen, PodUid, Seq, Time};
use crate::mutate::{self, Mutant};

/// How long a hint waits for the end of a call that is at work on the pod, which requests an observation anyway.
const HOLD: Duration = Duration::from_millis(20);

/// The newest look at one pod.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Observed {
    pub(crate) seen: PodSeen,
    /// When the newest look was asked for; `None` before the first.
    at: Option<Seq>,
    /// Our own last call returned here: older sight says nothing about it.
    acted: Seq,
    looking: Option<Seq>,
    dirty: bool,
    /// A hint that is held back, until then.
    #[serde(default)]
    held: Option<Time>,
    /// Queries in a row that found the runtime unavailable while it may answer others, and when to try again.
    #[serde(default)]
    unavailable: Option<(u32, Time, String)>,
    /// Looks that failed in a row, and when to try again.
    failed: Option<(u32, Time, String)>,
}

impl Observed {
    /// Our own last call is in what we see.
    pub(crate) fn fresh(&self) -> bool {
        self.at.is_some_and(|at| at > self.acted || mutate::made(Mutant::OldSight))
    }

    pub(crate) fn known(&self) -> bool {
        self.at.is_some()
    }

    pub(crate) fn at(&self) -> Option<Seq> {
        self.at
    }

    pub(crate) fn acted(&mut self, seq: Seq) {
        self.acted = self.acted.max(seq);
        self.dirty = true;
    }

    pub(crate) fn mark_dirty(&mut self) {
        self.dirty = true;
    }

    /// Something may have happened. `acting`: a call of ours is at work on the pod, so it is most likely that very call's doing,
    /// and one look after its end tells both.
    pub(crate) fn hint(&mut self, acting: bool, now: Time) {
        if mutate::made(Mutant::HintIsSight) {
            self.acted = Seq::default();
        } else if acting {
            self.held.get_or_insert(now + HOLD);
        } else {
            self.dirty = true;
        }
    }

    /// The runtime was unavailable: that says nothing about this pod. The query is repeated with a growing delay, at once when the
    /// runtime returns after an outage.
    pub(crate) fn lost(&mut self, seq: Seq, message: &str, now: Time) {
        if self.looking == Some(seq) {
            self.looking = None;
        }
        let count = self.unavailable.as_ref().map_or(0, |(count, ..)| *count) + 1;
        let again = now + Duration::from_millis(100) * 2u32.pow(count.min(8));
        self.unavailable = Some((count, again, message.to_owned()));
        self.dirty = true;
    }

    pub(crate) fn runtime_is_back(&mut self) {
        self.unavailable = None;
    }

    /// A list newer than all we know has nothing of this pod.
    pub(crate) fn absent(&mut self, seq: Seq) {
        if self.at.is_none_or(|at| at < seq) {
            self.at = Some(seq);
            self.seen = PodSeen::default();
        }
    }

    /// The answer to a look. Returns whether it is news.
    pub(crate) fn observed(&mut self, seq: Seq, result: Result<PodSeen, String>, now: Time) -> bool {
        if self.looking == Some(seq) {
            self.looking = None;
        }
        match result {
            Ok(seen) if self.at.is_none_or(|at| at < seq) => {
                self.at = Some(seq);
                (self.failed, self.unavailable) = (None, None);
                let news = self.seen != seen;
                self.seen = seen;
                news
            }
            Ok(_) => false,
            Err(message) => {
                let count = self.failed.as_ref().map_or(0, |f| f.0) + 1;
                let wait = Duration::from_millis(500) * 2u32.pow(count.min(6));
                self.failed = Some((count, now + wait, message));
                self.dirty = true;
                false
            }
        }
    }

    /// Why the pod can't be seen, if that has happened more than once.
    pub(crate) fn trouble(&self) -> Option<(u32, &str)> {
        let failed = self.failed.as_ref().map(|(count, _, message)| (*count, message.as_str()));
        // A restart of the runtime makes it unavailable for a moment: three in a row are this pod's own trouble.
        let unavailable = self.unavailable.as_ref().filter(|(count, ..)| *count > 2);
        failed.or_else(|| unavailable.map(|(count, _, message)| (count - 1, message.as_str())))
    }

    fn retry_at(&self) -> Option<Time> {
        let failed = self.failed.as_ref().map(|(_, at, _)| *at);
        failed.max(self.unavailable.as_ref().map(|(_, at, _)| *at))
    }

    /// Ask for a look if one is wanted and none is under way.
    pub(crate) fn look(&mut self, uid: &PodUid, seq: &mut Seq, now: Time, out: &mut Vec<Effect>) {
        self.dirty |= self.held.is_some_and(|at| at <= now);
        let wait = self.retry_at();
        if !self.dirty || self.looking.is_some() || wait.is_some_and(|at| at > now) {
            return;
        }
        self.dirty = false;
        self.held = None;
        let seq = seq.draw();
        self.looking = Some(seq);
        out.push(Effect::Observe { uid: uid.clone(), seq });
    }

    /// When to look again. A moment that has passed waits for the runtime, whose return steps every pod.
    pub(crate) fn wake(&self, now: Time) -> Option<Time> {
        let again = self.retry_at().filter(|_| self.dirty && self.looking.is_none());
        again.into_iter().chain(self.held).filter(|at| *at > now).min()
    }
}
