//! How often news is told. What others act on, ends and readiness, never waits; of the rest a few are told at once, and in a crowd
//! so many a second: pods that begin in a quick line, what is ordinary in a slow one. Who waits is told with the newest there is
//! then, so that what a pod is only for a moment costs the API server nothing.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::{PodUid, Time};

/// The places, so many at once and one more after so many milliseconds, and who waits for one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct TokenBucket<const MILLIS: u64, const BURST: u32> {
    /// When all places would be free again.
    free_at: Time,
    waiting: VecDeque<PodUid>,
}

impl<const MILLIS: u64, const BURST: u32> TokenBucket<MILLIS, BURST> {
    const INTERVAL: Duration = Duration::from_millis(MILLIS);

    /// Take a place, or get in line.
    pub(super) fn take(&mut self, pod: &PodUid, now: Time) -> bool {
        let free = self.room(now) > 0 && self.waiting.is_empty();
        if free {
            self.free_at = self.free_at.max(now) + Self::INTERVAL;
        } else {
            self.waiting.push_back(pod.clone());
        }
        free
    }

    /// Those whose turn has come; their places are taken.
    pub(super) fn turns(&mut self, now: Time) -> Vec<PodUid> {
        let count = self.room(now).min(self.waiting.len());
        if count > 0 {
            self.free_at = self.free_at.max(now) + Self::INTERVAL * u32::try_from(count).unwrap_or(BURST);
        }
        self.waiting.drain(..count).collect()
    }

    /// It has been told with something that could not wait, or is gone.
    pub(super) fn leave(&mut self, pod: &PodUid) {
        self.waiting.retain(|other| other != pod);
    }

    /// When the next turn is.
    pub(super) fn wake(&self) -> Option<Time> {
        let next = (self.free_at + Self::INTERVAL).saturating_sub(Self::INTERVAL * BURST);
        (!self.waiting.is_empty()).then_some(next)
    }

    fn room(&self, now: Time) -> usize {
        let free = (now + Self::INTERVAL * BURST).saturating_sub(self.free_at.max(now));
        usize::try_from(free.as_millis() / Self::INTERVAL.as_millis()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type TokenBucket = super::TokenBucket<200, 10>;

    const INTERVAL: Duration = TokenBucket::INTERVAL;
    const NOW: Time = Time::from_secs(100);

    fn pod(n: u32) -> PodUid {
        PodUid::from(format!("u{n}").as_str())
    }

    #[test]
    fn a_few_go_at_once_and_a_crowd_in_its_order() {
        let mut pace = TokenBucket::default();
        let at_once = (0..15).filter(|n| pace.take(&pod(*n), NOW)).count();
        assert_eq!(at_once, 10);
        assert_eq!(pace.wake(), Some(NOW + INTERVAL));
        assert_eq!(pace.turns(NOW), []);
        assert_eq!(pace.turns(NOW + INTERVAL), [pod(10)]);
        pace.leave(&pod(11));
        assert_eq!(pace.wake(), Some(NOW + INTERVAL * 2));
        assert_eq!(pace.turns(NOW + INTERVAL * 3), [pod(12), pod(13)]);
        assert!(!pace.take(&pod(20), NOW + INTERVAL * 4), "others were there before");
        assert_eq!(pace.turns(NOW + INTERVAL * 9), [pod(14), pod(20)]);
        assert_eq!(pace.wake(), None);
    }

    #[test]
    fn what_is_not_used_is_not_saved_up() {
        let mut pace = TokenBucket::default();
        let later = NOW + Duration::from_secs(3600);
        assert_eq!((0..30).filter(|n| pace.take(&pod(*n), later)).count(), 10);
    }
}
