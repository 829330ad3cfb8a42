//! How many events may be sent: over all, and of one object.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use podwright_core::model::PodUid;
use tokio::time::Instant;

/// So many at once, and so many a second.
pub(super) struct Bucket {
    most: f64,
    per_second: f64,
    level: f64,
    at: Instant,
}

impl Bucket {
    pub(super) fn new(most: f64, per_second: f64) -> Self {
        Self { most, per_second, level: most, at: Instant::now() }
    }

    /// Take one out: the moment from which on it may be used.
    pub(super) fn take(&mut self, now: Instant) -> Instant {
        self.refill(now);
        self.level -= 1.0;
        now + Duration::from_secs_f64((-self.level / self.per_second).max(0.0))
    }

    /// Take one out if there is one.
    fn try_take(&mut self, now: Instant) -> bool {
        self.refill(now);
        let there = self.level >= 1.0;
        if there {
            self.level -= 1.0;
        }
        there
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.level = (self.level + passed * self.per_second).min(self.most);
        self.at = self.at.max(now);
    }
}

/// What one object may send: 25 at once, then one every five minutes, as with the kubelet.
#[derive(Default)]
pub(super) struct Spam {
    objects: BTreeMap<PodUid, Bucket>,
    order: VecDeque<PodUid>,
}

impl Spam {
    pub(super) fn allows(&mut self, uid: &PodUid, now: Instant) -> bool {
        if !self.objects.contains_key(uid) {
            if self.order.len() >= OBJECTS_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.objects.remove(&oldest);
            }
            self.order.push_back(uid.clone());
        }
        let new = || Bucket { at: now, ..Bucket::new(BURST, PER_SECOND) };
        self.objects.entry(uid.clone()).or_insert_with(new).try_take(now)
    }
}

const BURST: f64 = 25.0;
const PER_SECOND: f64 = 1.0 / 300.0;
const OBJECTS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_object_may_not_flood() {
        let (mut spam, now) = (Spam::default(), Instant::now());
        let allowed = (0..100).filter(|_| spam.allows(&"a".into(), now)).count();
        assert_eq!(allowed, 25);
        assert!(spam.allows(&"b".into(), now));
        assert!(spam.allows(&"a".into(), now + Duration::from_secs(301)));
        assert!(!spam.allows(&"a".into(), now + Duration::from_secs(302)));
        for n in 0..10_000 {
            spam.allows(&n.to_string().into(), now);
        }
        assert_eq!((spam.objects.len(), spam.order.len()), (OBJECTS_MAX, OBJECTS_MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_holds_after_the_burst() {
        let now = Instant::now();
        let mut bucket = Bucket::new(10.0, 5.0);
        let at: Vec<Instant> = (0..20).map(|_| bucket.take(now)).collect();
        assert_eq!(at[9], now);
        assert_eq!(at[19] - now, Duration::from_secs(2));
    }
}
