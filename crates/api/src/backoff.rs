//! Exponential back-off with a cap, and jitter so that nodes do not retry in step.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Doubles from `first` to `max`; each delay is spread over its upper half.
#[derive(Debug)]
pub(crate) struct RetryBackoff {
    first: Duration,
    max: Duration,
    failures: u32,
    random: RandomState,
}

impl RetryBackoff {
    pub(crate) fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, failures: 0, random: RandomState::new() }
    }

    /// Records a success: the next failure waits `first` again.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Consecutive failures since the last success.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// Records a failure and returns the delay before the next attempt.
    pub(crate) fn failed(&mut self) -> Duration {
        let full = self.first.saturating_mul(1u32 << self.failures.min(20)).min(self.max);
        self.failures = self.failures.saturating_add(1);
        // Nodes that lost their server at the same moment must not reconnect at the same moment.
        let jitter = u32::try_from(self.random.hash_one(self.failures) % 1024).unwrap_or(0);
        full / 2 + (full / 2).mul_f64(f64::from(jitter) / 1024.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_the_cap_and_start_over_after_a_success() {
        let mut backoff = RetryBackoff::new(Duration::from_millis(100), Duration::from_secs(10));
        let delays: Vec<Duration> = (0..40).map(|_| backoff.failed()).collect();
        assert!(delays[0] >= Duration::from_millis(50) && delays[0] <= Duration::from_millis(100), "{delays:?}");
        assert!(delays[3] >= Duration::from_millis(400), "{delays:?}");
        assert!(delays.iter().all(|delay| *delay <= Duration::from_secs(10)), "{delays:?}");
        assert!(delays[39] >= Duration::from_secs(5), "{delays:?}");
        backoff.reset();
        assert!(backoff.failed() <= Duration::from_millis(100));
    }
}
