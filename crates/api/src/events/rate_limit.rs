//! Rate limits for events: one for all, one per object.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use podwright_core::model::PodUid;
use tokio::time::Instant;

/// A token bucket: a burst, then a rate per second.
pub(super) struct EventRateLimiter {
    burst: f64,
    per_second: f64,
    tokens: f64,
    refilled_at: Instant,
}

impl EventRateLimiter {
    pub(super) fn new(burst: f64, per_second: f64) -> Self {
        Self { burst, per_second, tokens: burst, refilled_at: Instant::now() }
    }

    /// Takes a token, in advance if there is none; returns the time at which it may be used.
    pub(super) fn take(&mut self, now: Instant) -> Instant {
        self.refill(now);
        self.tokens -= 1.0;
        now + Duration::from_secs_f64((-self.tokens / self.per_second).max(0.0))
    }

    /// Takes a token if there is one.
    fn try_take(&mut self, now: Instant) -> bool {
        self.refill(now);
        let available = self.tokens >= 1.0;
        if available {
            self.tokens -= 1.0;
        }
        available
    }

    fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.refilled_at).as_secs_f64();
        self.tokens = (self.tokens + elapsed * self.per_second).min(self.burst);
        self.refilled_at = self.refilled_at.max(now);
    }
}

/// Limits the events of one object: a burst of 25, then one every five minutes (Kubernetes: EventSourceObjectSpamFilter).
#[derive(Default)]
pub(super) struct EventSpamFilter {
    buckets: BTreeMap<Option<PodUid>, EventRateLimiter>,
    /// Oldest first, for eviction.
    order: VecDeque<Option<PodUid>>,
}

impl EventSpamFilter {
    pub(super) fn allows(&mut self, uid: &Option<PodUid>, now: Instant) -> bool {
        if !self.buckets.contains_key(uid) {
            if self.order.len() >= OBJECTS_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.buckets.remove(&oldest);
            }
            self.order.push_back(uid.clone());
        }
        let new = || EventRateLimiter { refilled_at: now, ..EventRateLimiter::new(BURST, PER_SECOND) };
        self.buckets.entry(uid.clone()).or_insert_with(new).try_take(now)
    }
}

const BURST: f64 = 25.0;
const PER_SECOND: f64 = 1.0 / 300.0;
const OBJECTS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_events_of_one_object_are_limited() {
        let (mut filter, now) = (EventSpamFilter::default(), Instant::now());
        let allowed = (0..100).filter(|_| filter.allows(&Some("a".into()), now)).count();
        assert_eq!(allowed, 25);
        assert!(filter.allows(&Some("b".into()), now));
        assert!(filter.allows(&Some("a".into()), now + Duration::from_secs(301)));
        assert!(!filter.allows(&Some("a".into()), now + Duration::from_secs(302)));
        for n in 0..10_000 {
            filter.allows(&Some(n.to_string().into()), now);
        }
        assert_eq!((filter.buckets.len(), filter.order.len()), (OBJECTS_MAX, OBJECTS_MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_limit_applies_after_the_burst() {
        let now = Instant::now();
        let mut bucket = EventRateLimiter::new(10.0, 5.0);
        let at: Vec<Instant> = (0..20).map(|_| bucket.take(now)).collect();
        assert_eq!(at[9], now);
        assert_eq!(at[19] - now, Duration::from_secs(2));
    }
}
