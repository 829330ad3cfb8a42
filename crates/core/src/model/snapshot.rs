//! A pod as clients see it.

use std::sync::Arc;

use jiff::Timestamp;

use super::{Cause, Pod, PodRecord, PodStatus, PodUid, Source};

/// The part of a pod's record that clients see.
#[derive(Clone, Debug, PartialEq)]
pub struct PodSnapshot {
    /// UID of the pod.
    pub uid: PodUid,
    /// Metadata and spec. Its status is that of the source, if any.
    pub pod: Arc<Pod>,
    /// The status published last; `None`: there is none yet.
    pub status: Option<Arc<PodStatus>>,
    /// The source of the pod.
    pub source: Source,
    /// The file or URL of its manifest.
    pub origin: Option<Arc<str>>,
    /// When the agent first observed the pod.
    pub first_seen: Timestamp,
    /// deletionTimestamp and deletionGracePeriodSeconds of a pod that is being removed.
    pub deletion: Option<(Timestamp, i64)>,
}

impl PodSnapshot {
    /// The snapshot of a record.
    pub fn of(record: &PodRecord) -> Self {
        Self {
            uid: record.uid.clone(),
            pod: Arc::clone(&record.pod),
            status: record.status.clone().map(Arc::new),
            source: record.source,
            origin: record.origin.as_deref().map(Arc::from),
            first_seen: record.first_seen,
            deletion: deletion(record),
        }
    }
}

fn deletion(record: &PodRecord) -> Option<(Timestamp, i64)> {
    let removed = |cause| matches!(cause, Cause::Deleted | Cause::Removed | Cause::Orphan);
    let ending = record.termination().filter(|e| e.deleted || removed(e.cause))?;
    Some((ending.deadline.wall, i64::try_from(ending.grace.as_secs()).unwrap_or(i64::MAX)))
}
