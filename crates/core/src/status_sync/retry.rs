//! When something that was refused, or could not be said, is said again.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::{PodStatus, Time, jitter};

/// The first wait for a store that is away; it doubles.
const RETRY: Duration = Duration::from_millis(200);
/// And ends here.
const RETRY_MAX: Duration = Duration::from_secs(10);
/// A store that asks for more patience than this gets this.
const PATIENCE_MAX: Duration = Duration::from_secs(60);
/// What was refused is tried again so late, unless there is something else to say.
const REFUSED: Duration = Duration::from_secs(60);

/// What went wrong for one object.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Retry {
    pub(super) failures: u32,
    pub(super) at: Option<Time>,
    /// This was refused: something else may be said at once.
    pub(super) refused: Option<Arc<PodStatus>>,
    /// People have heard of it.
    pub(super) told: bool,
}

impl Retry {
    pub(super) fn waits(&self, status: &Arc<PodStatus>, now: Time) -> bool {
        let news = self.refused.as_ref().is_some_and(|refused| refused != status);
        self.at.is_some_and(|at| now < at) && !news
    }

    pub(super) fn refuse(&mut self, sent: Option<Arc<PodStatus>>, now: Time) {
        *self = Self { failures: self.failures + 1, at: Some(now + REFUSED), refused: sent, told: true };
    }

    pub(super) fn fail(&mut self, after: Option<Duration>, now: Time, uid: &str) {
        let wait = RETRY * 2u32.pow(self.failures.min(6));
        let wait = wait.min(RETRY_MAX).max(after.unwrap_or_default().min(PATIENCE_MAX));
        self.failures += 1;
        let spread = wait.mul_f64(0.5 * jitter(uid, u64::from(self.failures)));
        self.at = Some(now + wait + spread);
        self.refused = None;
    }

    /// Who was away is there. What it refused, it will refuse again.
    pub(super) fn store_reconnected(&mut self, now: Time) {
        if let Some(at) = self.at.as_mut().filter(|at| **at > now && self.refused.is_none()) {
            (*at, self.failures) = (now, 0);
        }
    }
}
