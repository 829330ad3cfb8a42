//! A pod whose handling may have ended the process.

use serde::{Deserialize, Serialize};

use super::{PodUid, Time};

/// Work on a pod that ran when the agent died.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InterruptedWork {
    /// UID of the pod.
    pub uid: PodUid,
    /// The kind of work.
    pub work: String,
    /// When this piece of it began, by a clock of that process.
    pub began: Time,
    /// It ran where it may wait for a disk or another host.
    pub blocking: bool,
}

/// A pod, and the work in which the agent died.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspect {
    /// UID of the pod.
    pub uid: PodUid,
    /// The kind of work.
    pub work: String,
    /// Deaths of the agent in this work.
    pub deaths: u32,
    /// Its quarantines so far.
    #[serde(default)]
    pub quarantines: u32,
    /// Since the last of these deaths an agent has done this work to its end.
    #[serde(default)]
    pub completed: bool,
    /// Deaths of the agent in other work only, after it had completed this one.
    #[serde(default)]
    pub elsewhere: u32,
    /// The start after the last one, since boot.
    pub died: Time,
    /// The end of the quarantine, since boot; `None`: it is not in quarantine, as after a first death or when its spec was changed.
    pub until: Option<Time>,
}

impl Suspect {
    /// It is in quarantine at this time.
    pub fn is_quarantined(&self, now: Time) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}
