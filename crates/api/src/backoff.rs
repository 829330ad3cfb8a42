//! Waiting longer after each failure, up to a cap, and never in step with other nodes.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Doubles from `first` to `most`; each wait is spread over its upper half.
#[derive(Debug)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    failures: u32,
    dice: RandomState,
}

impl Backoff {
    /// One that has not failed yet.
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, failures: 0, dice: RandomState::new() }
    }

    /// It worked: the next failure is the first again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// How often it failed since it last worked.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// It failed: how long to wait now.
    pub fn failed(&mut self) -> Duration {
        let whole = self.first.saturating_mul(1u32 << self.failures.min(20)).min(self.most);
        self.failures = self.failures.saturating_add(1);
        // Nodes that lost their server together must not come back together.
        let part = u32::try_from(self.dice.hash_one(self.failures) % 1024).unwrap_or(0);
        whole / 2 + (whole / 2).mul_f64(f64::from(part) / 1024.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_cap_and_start_anew() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
        let waits: Vec<Duration> = (0..40).map(|_| backoff.failed()).collect();
        assert!(waits[0] >= Duration::from_millis(50) && waits[0] <= Duration::from_millis(100), "{waits:?}");
        assert!(waits[3] >= Duration::from_millis(400), "{waits:?}");
        assert!(waits.iter().all(|wait| *wait <= Duration::from_secs(10)), "{waits:?}");
        assert!(waits[39] >= Duration::from_secs(5), "{waits:?}");
        backoff.reset();
        assert!(backoff.failed() <= Duration::from_millis(100));
    }
}
