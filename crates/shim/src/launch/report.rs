//! What a launcher reports to its shim, packet by packet.

use super::{LaunchFailure, LaunchStep};
use crate::plan::ResolvedUser;

/// One packet of the launcher.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Report {
    #[prost(message, optional, tag = "1")]
    pub(super) ready: Option<ResolvedUser>,
    #[prost(message, optional, tag = "2")]
    pub(super) failure: Option<FailureReport>,
    /// The descriptor is that of a helper's sibling. An empty packet would look like the end.
    #[prost(bool, tag = "3")]
    pub(super) sibling: bool,
}

impl Report {
    pub(super) fn sibling() -> Self {
        Self { ready: None, failure: None, sibling: true }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct FailureReport {
    #[prost(enumeration = "LaunchStep", tag = "1")]
    step: i32,
    #[prost(int32, optional, tag = "2")]
    errno: Option<i32>,
    #[prost(string, tag = "3")]
    text: String,
}

impl From<LaunchFailure> for FailureReport {
    fn from(LaunchFailure { step, errno, mut text, .. }: LaunchFailure) -> Self {
        let end = text.floor_char_boundary(TEXT_MAX);
        text.truncate(end);
        Self { step: step.into(), errno, text }
    }
}

impl From<FailureReport> for LaunchFailure {
    fn from(report: FailureReport) -> Self {
        Self { step: report.step(), errno: report.errno, text: report.text, user: None }
    }
}

/// The message of a container's status has at most 4 KiB.
const TEXT_MAX: usize = 4096;
