//! What the runtime does to a call: rules by pod and call, the first that fits counts; dice for the rest.

use std::time::Duration;

use tokio::time::Instant;

use crate::rng::Rng;

/// What becomes of one call.
#[derive(Clone, Debug, PartialEq)]
pub enum Fate {
    /// It is done and answered.
    Fine,
    /// It fails with these words and had no effect.
    Fails(String),
    /// It fails as if nobody were there, and had no effect: a shim that is gone, say.
    Unavailable,
    /// It is done this much later than usual, whoever still waits.
    Late(Duration),
    /// It hangs until then, and is done then.
    HangsUntil(Instant),
    /// It is done at once, and nobody is told.
    AnswerLost,
    /// It is not done, and said to be.
    Ignored,
    /// It is never done and never answered; the name it reserved stays reserved.
    Never,
    /// It is done, and the answer makes no sense.
    Garbage(Garbage),
}

/// How an answer can make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Garbage {
    /// What a client makes of a message that lacks what it must have.
    Malformed,
    /// Metadata, labels and statuses are missing, ids are empty.
    Missing,
    /// Numbers at the ends of their range, states nobody knows, times before the world.
    Absurd,
    /// Texts without end, entries of strangers.
    Huge,
}

/// Some calls have this fate.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Only calls about this pod.
    pub uid: Option<String>,
    /// Only these calls, in the protocol's spelling; empty: all.
    pub calls: Vec<&'static str>,
    /// So many times; `None`: for ever.
    pub times: Option<u32>,
    /// Not after this.
    pub until: Option<Instant>,
    /// What becomes of them.
    pub fate: Fate,
}

impl Rule {
    /// Every call has this fate.
    pub fn all(fate: Fate) -> Self {
        Self { uid: None, calls: vec![], times: None, until: None, fate }
    }

    /// Only of this pod.
    pub fn of(self, uid: &str) -> Self {
        Self { uid: Some(uid.to_owned()), ..self }
    }

    /// Only these calls.
    pub fn calls(self, calls: &[&'static str]) -> Self {
        Self { calls: calls.to_vec(), ..self }
    }

    /// Only so often.
    pub fn times(self, times: u32) -> Self {
        Self { times: Some(times), ..self }
    }

    /// Only until then.
    pub fn until(self, until: Instant) -> Self {
        Self { until: Some(until), ..self }
    }

    fn fits(&self, call: &str, uid: Option<&str>) -> bool {
        self.times != Some(0)
            && self.until.is_none_or(|until| Instant::now() < until)
            && (self.calls.is_empty() || self.calls.contains(&call))
            && (self.uid.is_none() || self.uid.as_deref() == uid)
    }
}

/// Dice for calls that no rule speaks of, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dice {
    /// It fails and had no effect.
    pub fails: u32,
    /// It hangs up to `late_max`, and is done then.
    pub late: u32,
    /// How long at most.
    pub late_max: Duration,
    /// It is done, and the answer is lost.
    pub answer_lost: u32,
    /// It is neither done nor answered.
    pub never: u32,
}

/// What happens to events on their way, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventFaults {
    /// The runtime has no event stream at all.
    pub absent: bool,
    /// It is lost.
    pub lost: u32,
    /// It comes twice.
    pub doubled: u32,
    /// It comes up to `late_max` late, behind later ones.
    pub late: u32,
    /// How late at most.
    pub late_max: Duration,
}

/// All that is wrong with a runtime now.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    pub(super) rules: Vec<Rule>,
    pub(super) dice: Dice,
    pub(super) events: EventFaults,
}

impl Faults {
    pub(super) fn fate(&mut self, call: &str, uid: Option<&str>, rng: &mut Rng) -> Fate {
        if let Some(rule) = self.rules.iter_mut().find(|rule| rule.fits(call, uid)) {
            if let Some(times) = &mut rule.times {
                *times -= 1;
            }
            return rule.fate.clone();
        }
        let dice = self.dice;
        if call == "PullImage" && rng.chance(dice.never + dice.answer_lost) {
            // A pull has an hour; real runtimes end one that makes no progress.
            return Fate::Fails("no progress".into());
        }
        if rng.chance(dice.fails) {
            return Fate::Fails("the dice say no".into());
        }
        if rng.chance(dice.late) {
            return Fate::Late(rng.millis(1, millis(dice.late_max)));
        }
        if call == "PullImage" {
            return Fate::Fine;
        }
        if rng.chance(dice.answer_lost) {
            return Fate::AnswerLost;
        }
        if rng.chance(dice.never) {
            return Fate::Never;
        }
        Fate::Fine
    }
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
