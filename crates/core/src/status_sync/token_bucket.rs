//! Rate limit of status patches. Terminal phases and changes of readiness are never limited. The rest passes a token bucket: a
//! fast one for pods that start, a slow one for ordinary updates. A pod that waited sends its newest status, so a short-lived
//! intermediate status costs the API server nothing.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::{PodUid, Time};

/// Holds at most `BURST` tokens and gains one every `MILLIS` milliseconds; pods wait in order of arrival.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct TokenBucket<const MILLIS: u64, const BURST: u32> {
    /// When the bucket will be full again.
    full_at: Time,
    waiting: VecDeque<PodUid>,
}

impl<const MILLIS: u64, const BURST: u32> TokenBucket<MILLIS, BURST> {
    const INTERVAL: Duration = Duration::from_millis(MILLIS);

    /// Takes a token, or queues the pod and returns false.
    pub(super) fn acquire(&mut self, pod: &PodUid, now: Time) -> bool {
        let free = self.available(now) > 0 && self.waiting.is_empty();
        if free {
            self.full_at = self.full_at.max(now) + Self::INTERVAL;
        } else {
            self.waiting.push_back(pod.clone());
        }
        free
    }

    /// Takes tokens for the pods at the head of the queue and returns them.
    pub(super) fn grant_due(&mut self, now: Time) -> Vec<PodUid> {
        let count = self.available(now).min(self.waiting.len());
        if count > 0 {
            self.full_at = self.full_at.max(now) + Self::INTERVAL * u32::try_from(count).unwrap_or(BURST);
        }
        self.waiting.drain(..count).collect()
    }

    /// Removes a pod from the queue: an urgent patch was sent, or the object is gone.
    pub(super) fn cancel(&mut self, pod: &PodUid) {
        self.waiting.retain(|other| other != pod);
    }

    /// When the next token is available, if a pod waits.
    pub(super) fn wake(&self) -> Option<Time> {
        let next = (self.full_at + Self::INTERVAL).saturating_sub(Self::INTERVAL * BURST);
        (!self.waiting.is_empty()).then_some(next)
    }

    fn available(&self, now: Time) -> usize {
        let free = (now + Self::INTERVAL * BURST).saturating_sub(self.full_at.max(now));
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
    fn a_burst_passes_and_the_rest_waits_in_order() {
        let mut bucket = TokenBucket::default();
        let at_once = (0..15).filter(|n| bucket.acquire(&pod(*n), NOW)).count();
        assert_eq!(at_once, 10);
        assert_eq!(bucket.wake(), Some(NOW + INTERVAL));
        assert_eq!(bucket.grant_due(NOW), []);
        assert_eq!(bucket.grant_due(NOW + INTERVAL), [pod(10)]);
        bucket.cancel(&pod(11));
        assert_eq!(bucket.wake(), Some(NOW + INTERVAL * 2));
        assert_eq!(bucket.grant_due(NOW + INTERVAL * 3), [pod(12), pod(13)]);
        assert!(!bucket.acquire(&pod(20), NOW + INTERVAL * 4), "other pods wait already");
        assert_eq!(bucket.grant_due(NOW + INTERVAL * 9), [pod(14), pod(20)]);
        assert_eq!(bucket.wake(), None);
    }

    #[test]
    fn unused_tokens_do_not_accumulate_beyond_the_burst() {
        let mut bucket = TokenBucket::default();
        let later = NOW + Duration::from_secs(3600);
        assert_eq!((0..30).filter(|n| bucket.acquire(&pod(*n), later)).count(), 10);
    }
}
