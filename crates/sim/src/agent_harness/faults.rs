//! How the fake runtime reacts to a call: rules by pod and call, of which the first match counts, and random faults for the rest.

use std::time::Duration;

use tokio::time::Instant;

use crate::rng::Rng;

/// The reaction of the runtime to one call.
#[derive(Clone, Debug, PartialEq)]
pub enum Reaction {
    /// It takes effect and is answered.
    Succeeds,
    /// It fails with this message and has no effect.
    Fails(String),
    /// It fails with Unavailable and has no effect, as when a shim is gone.
    Unavailable,
    /// It takes effect this much later, also if the caller gave up.
    Late(Duration),
    /// It takes effect at that time.
    HangsUntil(Instant),
    /// It takes effect at once, and the answer is lost.
    AnswerLost,
    /// It has no effect, and the answer says success.
    Ignored,
    /// It has no effect and no answer; the name it reserved stays reserved.
    Never,
    /// It takes effect, and the answer is corrupt.
    Corrupt(Corruption),
}

/// How an answer is corrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corruption {
    /// The client can't decode the message.
    Malformed,
    /// Metadata, labels and statuses are missing, ids are empty.
    MissingFields,
    /// Numbers at the limits of their type, unknown states, negative times.
    OutOfRange,
    /// Very long strings, entries of unknown pods.
    Oversized,
}

/// The reaction to some calls.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Only calls about this pod.
    pub uid: Option<String>,
    /// Only these calls, by their CRI name; empty: all.
    pub calls: Vec<&'static str>,
    /// How often; `None`: always.
    pub times: Option<u32>,
    /// Not after this time.
    pub until: Option<Instant>,
    /// What the runtime does.
    pub reaction: Reaction,
}

impl Rule {
    /// For every call.
    pub fn all(reaction: Reaction) -> Self {
        Self { uid: None, calls: vec![], times: None, until: None, reaction }
    }

    /// Only for calls about this pod.
    pub fn for_pod(self, uid: &str) -> Self {
        Self { uid: Some(uid.to_owned()), ..self }
    }

    /// Only these calls.
    pub fn calls(self, calls: &[&'static str]) -> Self {
        Self { calls: calls.to_vec(), ..self }
    }

    /// Only this many times.
    pub fn times(self, times: u32) -> Self {
        Self { times: Some(times), ..self }
    }

    /// Only until this time.
    pub fn until(self, until: Instant) -> Self {
        Self { until: Some(until), ..self }
    }

    fn matches(&self, call: &str, uid: Option<&str>) -> bool {
        self.times != Some(0)
            && self.until.is_none_or(|until| Instant::now() < until)
            && (self.calls.is_empty() || self.calls.contains(&call))
            && (self.uid.is_none() || self.uid.as_deref() == uid)
    }
}

/// Random faults of calls that no rule matches, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultRates {
    /// It fails and has no effect.
    pub fails: u32,
    /// It takes effect up to `late_max` later.
    pub late: u32,
    /// The longest delay.
    pub late_max: Duration,
    /// It takes effect, and the answer is lost.
    pub answer_lost: u32,
    /// It has no effect and no answer.
    pub never: u32,
}

/// Random faults of the event stream, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventFaults {
    /// The runtime has no event stream at all.
    pub absent: bool,
    /// An event is lost.
    pub lost: u32,
    /// An event comes twice.
    pub doubled: u32,
    /// An event comes up to `late_max` late, after later events.
    pub late: u32,
    /// The longest delay.
    pub late_max: Duration,
}

/// All faults of the runtime.
#[derive(Clone, Debug, Default)]
pub(super) struct RuntimeFaults {
    pub(super) rules: Vec<Rule>,
    pub(super) rates: FaultRates,
    pub(super) events: EventFaults,
}

impl RuntimeFaults {
    pub(super) fn reaction(&mut self, call: &str, uid: Option<&str>, rng: &mut Rng) -> Reaction {
        if let Some(rule) = self.rules.iter_mut().find(|rule| rule.matches(call, uid)) {
            if let Some(times) = &mut rule.times {
                *times -= 1;
            }
            return rule.reaction.clone();
        }
        let rates = self.rates;
        if call == "PullImage" && rng.chance(rates.never + rates.answer_lost) {
            // A pull may take an hour; real runtimes cancel one that makes no progress.
            return Reaction::Fails("no progress".into());
        }
        if rng.chance(rates.fails) {
            return Reaction::Fails("random failure".into());
        }
        if rng.chance(rates.late) {
            return Reaction::Late(rng.millis(1, millis(rates.late_max)));
        }
        if call == "PullImage" {
            return Reaction::Succeeds;
        }
        if rng.chance(rates.answer_lost) {
            return Reaction::AnswerLost;
        }
        if rng.chance(rates.never) {
            return Reaction::Never;
        }
        Reaction::Succeeds
    }
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
