//! Why a call failed, and what may be done about it.

use serde::{Deserialize, Serialize};

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallError {
    /// It failed, and will not have an effect later.
    Failed {
        /// The reason users see: `ErrImagePull`, `CreateContainerConfigError`, `FailedMount`, …; `None`: the default of the call.
        reason: Option<String>,
        /// The error in full.
        message: String,
    },
    /// It may have had its effect, or may have it later: its deadline passed, or its answer was lost.
    InDoubt {
        /// As in [`CallError::Failed`].
        reason: Option<String>,
        /// The error in full.
        message: String,
    },
    /// The connection to the runtime was lost during the call: the call is in doubt, and the runtime is unavailable.
    ConnectionLost {
        /// The transport's error.
        message: String,
    },
    /// The runtime does not answer, and the call was never sent or has no effect. Not a problem of this pod.
    Unavailable {
        /// The transport's error.
        message: String,
    },
    /// The runtime still works on an earlier call of the same kind, usually one that a former agent process sent.
    Busy {
        /// The runtime's error.
        message: String,
    },
    /// It ended because of [`super::Effect::Cancel`].
    Cancelled,
}

/// When a failed call may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// After a backoff.
    AfterBackoff,
    /// After a short delay: the runtime is about to finish an earlier call.
    Soon,
    /// When the runtime is available again.
    WhenRuntimeReturns,
    /// When an observation has shown whether it took effect.
    AfterObservation,
    /// Never: it is not wanted any more.
    Never,
}

impl CallError {
    /// A failure without a reason of its own.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed { reason: None, message: message.into() }
    }

    /// A failure with the reason that users see.
    pub fn with_reason(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Failed { reason: Some(reason.into()), message: message.into() }
    }

    /// The error in full.
    pub fn message(&self) -> &str {
        match self {
            Self::Failed { message, .. }
            | Self::InDoubt { message, .. }
            | Self::ConnectionLost { message }
            | Self::Unavailable { message }
            | Self::Busy { message } => message,
            Self::Cancelled => "cancelled",
        }
    }

    /// The reason users see, if the failure has one of its own.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Failed { reason, .. } | Self::InDoubt { reason, .. } => reason.as_deref(),
            _ => None,
        }
    }

    /// The same error with another message.
    pub fn map_message(mut self, f: impl FnOnce(&str) -> String) -> Self {
        match &mut self {
            Self::Failed { message, .. }
            | Self::InDoubt { message, .. }
            | Self::ConnectionLost { message }
            | Self::Unavailable { message }
            | Self::Busy { message } => *message = f(message),
            Self::Cancelled => {}
        }
        self
    }

    /// When the call may be sent again.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Failed { .. } => Retry::AfterBackoff,
            Self::InDoubt { .. } | Self::ConnectionLost { .. } => Retry::AfterObservation,
            Self::Unavailable { .. } => Retry::WhenRuntimeReturns,
            Self::Busy { .. } => Retry::Soon,
            Self::Cancelled => Retry::Never,
        }
    }

    /// It may have had its effect, or may have it later.
    pub fn in_doubt(&self) -> bool {
        self.retry() == Retry::AfterObservation
    }

    /// The runtime itself does not answer.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::ConnectionLost { .. } | Self::Unavailable { .. })
    }

    /// It ended because of [`super::Effect::Cancel`].
    pub fn is_cancelled(&self) -> bool {
        *self == Self::Cancelled
    }

    /// It will not have an effect later.
    pub(crate) fn is_definite(&self) -> bool {
        matches!(self, Self::Failed { .. } | Self::Cancelled)
    }
}
