//! How the processes in containers behave: what a real image would do, as data.

use std::time::Duration;

/// One container's character. A container's `command` names it by its place in the world's list.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// What the nth run does; the last one repeats.
    pub runs: Vec<Run>,
    /// What it does about TERM.
    pub term: Term,
    /// Its postStart hook, if the spec has one.
    pub post_start: Hook,
    /// Its preStop hook, if the spec has one.
    pub pre_stop: Hook,
    /// What its startup probe finds.
    pub startup: Health,
    /// What its readiness probe finds.
    pub readiness: Health,
    /// What its liveness probe finds.
    pub liveness: Health,
}

impl Default for Behaviour {
    fn default() -> Self {
        let instant = Hook::Ends { after: Duration::from_millis(20), well: true };
        Self {
            runs: vec![Run::Forever],
            term: Term::Obeys { after: Duration::from_millis(50), code: 0 },
            post_start: instant,
            pre_stop: instant,
            startup: Health::Good,
            readiness: Health::Good,
            liveness: Health::Good,
        }
    }
}

impl Behaviour {
    /// What this run does; `nth` counts from 0.
    pub fn run(&self, nth: usize) -> Run {
        *self.runs.get(nth).or(self.runs.last()).unwrap_or(&Run::Forever)
    }
}

/// One run of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Run {
    /// Until it is stopped.
    Forever,
    /// It ends by itself.
    Exits {
        /// So long after its start.
        after: Duration,
        /// With this code.
        code: i32,
    },
}

/// An answer to TERM.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Term {
    /// It ends.
    Obeys {
        /// So long after the signal.
        after: Duration,
        /// With this code.
        code: i32,
    },
    /// Only KILL ends it.
    Ignores,
}

/// A lifecycle hook's run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Hook {
    /// It ends.
    Ends {
        /// So long after it began.
        after: Duration,
        /// It succeeded.
        well: bool,
    },
    /// It never ends by itself.
    Hangs,
}

/// What a probe finds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Health {
    /// Always well.
    Good,
    /// Well once it has run so long.
    GoodAfter(Duration),
    /// Not well once it has run so long.
    BadAfter(Duration),
}

impl Health {
    /// The verdict for a container that has run so long.
    pub fn is_good(self, age: Duration) -> bool {
        match self {
            Self::Good => true,
            Self::GoodAfter(after) => age >= after,
            Self::BadAfter(after) => age < after,
        }
    }
}
