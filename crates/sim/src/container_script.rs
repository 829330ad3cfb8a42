//! What the process of a container does: the part of a real image, as data.

use std::time::Duration;

/// What one container's process does. A container's `command` is the index of its script in `Runtime::scripts`.
#[derive(Clone, Debug)]
pub struct ContainerScript {
    /// What the nth run does; the last one repeats.
    pub runs: Vec<Run>,
    /// What it does on TERM.
    pub on_term: OnTerm,
    /// The postStart hook, if the spec has one.
    pub post_start: HookScript,
    /// The preStop hook, if the spec has one.
    pub pre_stop: HookScript,
    /// The result of its startup probe.
    pub startup: Health,
    /// The result of its readiness probe.
    pub readiness: Health,
    /// The result of its liveness probe.
    pub liveness: Health,
}

impl Default for ContainerScript {
    fn default() -> Self {
        let instant = HookScript::Completes { after: Duration::from_millis(20), succeeds: true };
        Self {
            runs: vec![Run::Forever],
            on_term: OnTerm::Exits { after: Duration::from_millis(50), code: 0 },
            post_start: instant,
            pre_stop: instant,
            startup: Health::Healthy,
            readiness: Health::Healthy,
            liveness: Health::Healthy,
        }
    }
}

impl ContainerScript {
    /// What this run does; `nth` counts from 0.
    pub fn run(&self, nth: usize) -> Run {
        *self.runs.get(nth).or(self.runs.last()).unwrap_or(&Run::Forever)
    }
}

/// One run of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Run {
    /// It runs until it is stopped.
    Forever,
    /// It exits without a signal.
    Exits {
        /// Time after its start.
        after: Duration,
        /// Exit code.
        code: i32,
    },
}

/// The reaction of a process to TERM.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OnTerm {
    /// It exits.
    Exits {
        /// Time after the signal.
        after: Duration,
        /// Exit code.
        code: i32,
    },
    /// Only KILL ends it.
    Ignores,
}

/// A lifecycle hook's run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HookScript {
    /// It returns.
    Completes {
        /// Time after its start.
        after: Duration,
        /// Exit code 0.
        succeeds: bool,
    },
    /// It never returns.
    Hangs,
}

/// The result of a probe, by the age of the process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Health {
    /// Always healthy.
    Healthy,
    /// Healthy from this age on.
    HealthyAfter(Duration),
    /// Unhealthy from this age on.
    UnhealthyAfter(Duration),
}

impl Health {
    /// The result for a process of this age.
    pub fn is_healthy(self, age: Duration) -> bool {
        match self {
            Self::Healthy => true,
            Self::HealthyAfter(after) => age >= after,
            Self::UnhealthyAfter(after) => age < after,
        }
    }
}
