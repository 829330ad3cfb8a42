//! The history of one pod: every transition with its cause, in a bounded ring.

use std::collections::VecDeque;

use crate::model::{Now, Transition};

/// Transitions kept per pod: enough for the last restarts of a crash loop.
const KEPT: usize = 64;

/// Of these, this many are journaled with the pod's record.
const JOURNALED: usize = 12;
/// Bytes kept of a cause: a runtime's error may be long.
const CAUSE_MAX: usize = 512;

/// A pod's last transitions, oldest first.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct History {
    lines: VecDeque<Transition>,
    forgotten: u64,
}

impl History {
    pub(crate) fn record(&mut self, at: Now, what: &str, cause: &str) {
        if self.lines.len() == KEPT {
            self.lines.pop_front();
            self.forgotten += 1;
        }
        self.lines.push_back(Transition { at, what: what.to_owned(), cause: bounded(cause).to_owned() });
    }

    /// The history from a former agent's record.
    pub(crate) fn restored(lines: &[Transition]) -> Self {
        Self { lines: lines.iter().cloned().collect(), forgotten: 0 }
    }

    /// The last lines, for the journal.
    pub(crate) fn tail(&self) -> Vec<Transition> {
        self.lines.iter().skip(self.lines.len().saturating_sub(JOURNALED)).cloned().collect()
    }

    /// The lines, oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &Transition> {
        self.lines.iter()
    }

    /// How many older lines are gone.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

/// The beginning of a long error.
pub(super) fn bounded(cause: &str) -> &str {
    &cause[..cause.floor_char_boundary(CAUSE_MAX)]
}
