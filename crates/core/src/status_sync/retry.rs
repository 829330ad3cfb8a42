//! Back-off of failed and refused requests.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::{PodStatus, Time, jitter};

/// First delay when the store is unavailable; it doubles.
const RETRY: Duration = Duration::from_millis(200);
/// Upper bound of the delay.
const RETRY_MAX: Duration = Duration::from_secs(10);
/// Upper bound of a `Retry-After` that the store asks for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// A refused status is sent again after this time, unless the status changes.
const REFUSED: Duration = Duration::from_secs(60);

/// Failures of one object's requests.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ObjectRetry {
    pub(super) failures: u32,
    pub(super) retry_at: Option<Time>,
    /// The refused status; another one may be sent at once.
    pub(super) refused: Option<Arc<PodStatus>>,
    /// An event has been recorded.
    pub(super) reported: bool,
}

impl ObjectRetry {
    pub(super) fn is_delayed(&self, status: &Arc<PodStatus>, now: Time) -> bool {
        let changed = self.refused.as_ref().is_some_and(|refused| refused != status);
        self.retry_at.is_some_and(|at| now < at) && !changed
    }

    pub(super) fn refuse(&mut self, sent: Option<Arc<PodStatus>>, now: Time) {
        *self = Self { failures: self.failures + 1, retry_at: Some(now + REFUSED), refused: sent, reported: true };
    }

    pub(super) fn fail(&mut self, after: Option<Duration>, now: Time, uid: &str) {
        let wait = RETRY * 2u32.pow(self.failures.min(6));
        let wait = wait.min(RETRY_MAX).max(after.unwrap_or_default().min(RETRY_AFTER_MAX));
        self.failures += 1;
        let spread = wait.mul_f64(0.5 * jitter(uid, u64::from(self.failures)));
        self.retry_at = Some(now + wait + spread);
        self.refused = None;
    }

    /// The store is available again. A refused status would be refused again, so its delay stays.
    pub(super) fn store_reconnected(&mut self, now: Time) {
        if let Some(at) = self.retry_at.as_mut().filter(|at| **at > now && self.refused.is_none()) {
            (*at, self.failures) = (now, 0);
        }
    }
}
