//! The observed state of one pod in the runtime, and whether it is newer than our last call (the pod cache).

use std::time::Duration;

use crate::model::{CallError, Effect, PodSeen, PodUid, Seq, Time};
use crate::mutate::{self, Mutant};

/// How long a hint waits for a call in flight to return, which requests an observation anyway.
const HOLD: Duration = Duration::from_millis(20);

/// The newest observation of one pod.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Observed {
    pub(crate) seen: PodSeen,
    /// Sequence number of the newest observation; `None` before the first.
    at: Option<Seq>,
    /// Sequence number at which our last call returned: older observations may not show its effect.
    acted: Seq,
    in_flight: Option<Seq>,
    dirty: bool,
    /// A hint is delayed until this time.
    #[serde(default)]
    held: Option<Time>,
    /// Observations in a row that found the runtime unavailable while it may answer others, the time of the next attempt, and the
    /// last error.
    #[serde(default)]
    unavailable: Option<(u32, Time, String)>,
    /// Failed observations in a row, the time of the next attempt, and the last error.
    failed: Option<(u32, Time, String)>,
}

impl Observed {
    /// The observation was made after our last call returned.
    pub(crate) fn fresh(&self) -> bool {
        self.at.is_some_and(|at| at > self.acted || mutate::is_active(Mutant::StaleObservation))
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

    /// A runtime event concerns this pod. `acting`: a call of ours is in flight and most likely caused the event, so one
    /// observation after its return is enough.
    pub(crate) fn hint(&mut self, acting: bool, now: Time) {
        if mutate::is_active(Mutant::HintIsObservation) {
            self.acted = Seq::default();
        } else if acting {
            self.held.get_or_insert(now + HOLD);
        } else {
            self.dirty = true;
        }
    }

    /// The runtime was unavailable, which is not a failure of this pod. The query is repeated with a growing delay, and at once
    /// when the runtime returns after an outage.
    pub(crate) fn lost(&mut self, seq: Seq, message: &str, now: Time) {
        if self.in_flight == Some(seq) {
            self.in_flight = None;
        }
        let count = self.unavailable.as_ref().map_or(0, |(count, ..)| *count) + 1;
        let again = now + Duration::from_millis(100) * 2u32.pow(count.min(8));
        let again = if mutate::is_active(Mutant::ObservedAtOnce) { now } else { again };
        self.unavailable = Some((count, again, message.to_owned()));
        self.dirty = true;
    }

    pub(crate) fn runtime_is_back(&mut self) {
        self.unavailable = None;
    }

    /// A list that is newer than the last observation does not have this pod.
    pub(crate) fn absent(&mut self, seq: Seq) {
        if self.at.is_none_or(|at| at < seq) {
            self.at = Some(seq);
            self.seen = PodSeen::default();
        }
    }

    /// Result of an observation. True if the observed state changed.
    pub(crate) fn observed(&mut self, seq: Seq, result: Result<PodSeen, CallError>, now: Time) -> bool {
        if self.in_flight == Some(seq) {
            self.in_flight = None;
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
            Err(error) => {
                let message = error.message().to_owned();
                let count = self.failed.as_ref().map_or(0, |f| f.0) + 1;
                let wait = Duration::from_millis(500) * 2u32.pow(count.min(6));
                self.failed = Some((count, now + wait, message));
                self.dirty = true;
                false
            }
        }
    }

    /// Number of failed observations and the last error, if there was more than one.
    pub(crate) fn trouble(&self) -> Option<(u32, &str)> {
        let failed = self.failed.as_ref().map(|(count, _, message)| (*count, message.as_str()));
        // A restart of the runtime makes it unavailable for a moment: only three failures in a row count as a problem of this
        // pod.
        let unavailable = self.unavailable.as_ref().filter(|(count, ..)| *count > 2);
        failed.or_else(|| unavailable.map(|(count, _, message)| (count - 1, message.as_str())))
    }

    fn retry_at(&self) -> Option<Time> {
        let failed = self.failed.as_ref().map(|(_, at, _)| *at);
        failed.max(self.unavailable.as_ref().map(|(_, at, _)| *at))
    }

    /// Requests an observation if one is needed and none is in flight.
    pub(crate) fn request(&mut self, uid: &PodUid, seq: &mut Seq, now: Time, out: &mut Vec<Effect>) {
        self.dirty |= self.held.is_some_and(|at| at <= now);
        let wait = self.retry_at();
        if !self.dirty || self.in_flight.is_some() || wait.is_some_and(|at| at > now) {
            return;
        }
        self.dirty = false;
        self.held = None;
        let seq = seq.draw();
        self.in_flight = Some(seq);
        out.push(Effect::Observe { uid: uid.clone(), seq });
    }

    /// When to observe again. A time in the past means that the pod waits for the runtime, whose return steps every pod.
    pub(crate) fn wake(&self, now: Time) -> Option<Time> {
        let again = self.retry_at().filter(|_| self.dirty && self.in_flight.is_none());
        again.into_iter().chain(self.held).filter(|at| *at > now).min()
    }
}
