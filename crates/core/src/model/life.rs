//! The phases of one pod on this node, with the data of each phase.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Cause, SavedTime};

/// The phase of a pod on this node. It only moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Not admitted yet: another pod of its name is still there, or the node has no capacity.
    Waiting,
    /// Being started and kept running (kubelet: SyncPod).
    Syncing,
    /// Its containers are being stopped (kubelet: SyncTerminatingPod).
    Terminating,
    /// Nothing of it runs; its volumes and cgroup are being removed (kubelet: SyncTerminatedPod).
    Terminated,
    /// Only its dead containers and logs may be left.
    Finished,
}

/// A pod's state, with the data that belongs to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Life {
    /// Not admitted yet: nothing was created for it.
    #[default]
    Waiting,
    /// Admitted, and not to be terminated.
    Syncing,
    /// A later request may still shorten the grace period, and with it move the deadline.
    Terminating(Termination),
    /// What was requested decides the status and what is removed.
    Terminated(Termination),
    /// Kept until the pod is forgotten.
    Finished(Termination),
}

/// The termination of a pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Termination {
    /// The first cause.
    pub cause: Cause,
    /// It was admitted before its termination began.
    pub admitted: bool,
    /// Deleted or orphaned since, whatever the first cause: its content is removed once it is terminated.
    pub deleted: bool,
    /// The grace period in force.
    pub grace: Duration,
    /// When the last SIGKILL is due; it only moves earlier.
    pub deadline: SavedTime,
    /// Reason and message of a status with phase Failed, from eviction, admission or `activeDeadlineSeconds`.
    pub status_override: Option<(String, String)>,
    /// It was evicted for a limit of its own, not for the node: it gets no condition `DisruptionTarget`.
    #[serde(default)]
    pub exceeded_limit: bool,
    /// A new instance under the same UID was requested while this one terminates.
    pub restart_requested: bool,
}

impl Life {
    /// The state without its data.
    pub fn state(&self) -> State {
        match self {
            Self::Waiting => State::Waiting,
            Self::Syncing => State::Syncing,
            Self::Terminating(_) => State::Terminating,
            Self::Terminated(_) => State::Terminated,
            Self::Finished(_) => State::Finished,
        }
    }

    /// The termination, from its request on.
    pub fn termination(&self) -> Option<&Termination> {
        match self {
            Self::Waiting | Self::Syncing => None,
            Self::Terminating(t) | Self::Terminated(t) | Self::Finished(t) => Some(t),
        }
    }

    /// It was admitted at some time.
    pub fn was_admitted(&self) -> bool {
        match self {
            Self::Waiting => false,
            Self::Syncing => true,
            Self::Terminating(t) | Self::Terminated(t) | Self::Finished(t) => t.admitted,
        }
    }

    pub(crate) fn termination_mut(&mut self) -> Option<&mut Termination> {
        match self {
            Self::Waiting | Self::Syncing => None,
            Self::Terminating(t) | Self::Terminated(t) | Self::Finished(t) => Some(t),
        }
    }

    /// It is admitted. True if that is new.
    pub(crate) fn admit(&mut self) -> bool {
        let waiting = *self == Self::Waiting;
        if waiting {
            *self = Self::Syncing;
        }
        waiting
    }

    /// The termination begins, or is changed while it is under way. True if something is new.
    pub(crate) fn begin_termination(&mut self, termination: Termination) -> bool {
        if self.state() > State::Terminating || self.termination() == Some(&termination) {
            return false;
        }
        *self = Self::Terminating(termination);
        true
    }

    /// Nothing of the pod runs any more. True if that is new.
    pub(crate) fn terminated(&mut self) -> bool {
        let Self::Terminating(termination) = self else { return false };
        *self = Self::Terminated(termination.clone());
        true
    }

    /// Its volumes and its cgroup are gone. True if that is new.
    pub(crate) fn finished(&mut self) -> bool {
        let Self::Terminated(termination) = self else { return false };
        *self = Self::Finished(termination.clone());
        true
    }
}
