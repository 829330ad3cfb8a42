//! How a container ended. The first record of a container is final.

use std::fmt;

/// The end of a container, as its status shows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExitRecord {
    /// The exit code; 128 + signal for a process that a signal ended.
    pub code: i32,
    /// Why it ended.
    pub reason: ExitReason,
    /// For the user; empty if there is nothing to add to the reason.
    pub message: String,
    /// Nanoseconds since 1970.
    pub finished_at_ns: i64,
}

/// The reasons that the CRI status shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExitReason {
    /// Exit code 0.
    Completed,
    /// Another exit code.
    Error,
    /// The kernel killed a process of the container for its memory.
    OomKilled,
    /// The program was never executed.
    StartError,
    /// The process is gone, and its exit status with it.
    Unknown,
}

impl ExitRecord {
    /// A process that was observed to exit. As in containerd, a counted OOM kill decides the reason whatever the code is.
    pub fn of_process(code: i32, oom_killed: bool, finished_at_ns: i64) -> Self {
        let reason = match code {
            _ if oom_killed => ExitReason::OomKilled,
            0 => ExitReason::Completed,
            _ => ExitReason::Error,
        };
        Self { code, reason, message: String::new(), finished_at_ns }
    }

    /// A launch that failed before the program was executed.
    pub(super) fn start_error(message: impl Into<String>, finished_at_ns: i64) -> Self {
        Self { code: 128, reason: ExitReason::StartError, message: message.into(), finished_at_ns }
    }

    /// A process that is gone without a trace.
    pub(super) fn unknown(finished_at_ns: i64) -> Self {
        let message = "the process is gone and its exit status is not known".into();
        Self { code: 255, reason: ExitReason::Unknown, message, finished_at_ns }
    }
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Completed => "Completed",
            Self::Error => "Error",
            Self::OomKilled => "OOMKilled",
            Self::StartError => "StartError",
            Self::Unknown => "Unknown",
        })
    }
}
