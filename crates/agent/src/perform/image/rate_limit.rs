//! Rate limit of pulls (`registryPullQPS`, `registryBurst`). Pulls above the rate wait; the Go kubelet fails them.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// A token bucket for all pulls of the node.
#[derive(Debug)]
pub(super) struct PullRateLimiter {
    /// Time between two pulls at the configured rate.
    interval: Duration,
    /// How far a burst may be ahead of the rate.
    burst_time: Duration,
    /// When the next pull would start without bursts.
    next: Mutex<Option<Instant>>,
}

impl PullRateLimiter {
    pub(super) fn new(per_second: u32, burst: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second.max(1);
        Self { interval, burst_time: interval * burst.saturating_sub(1), next: Mutex::new(None) }
    }

    /// Waits until a pull may start.
    pub(super) async fn acquire(&self) {
        sleep_until(self.reserve(Instant::now())).await;
    }

    fn reserve(&self, now: Instant) -> Instant {
        let mut next = self.next.lock().expect("no panic under this lock");
        let scheduled = next.unwrap_or(now).max(now);
        *next = Some(scheduled + self.interval);
        scheduled.checked_sub(self.burst_time).unwrap_or(now).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_starts_at_once_and_the_rest_at_the_rate() {
        let (limiter, begin) = (PullRateLimiter::new(5, 3), Instant::now());
        let mut at = vec![];
        for _ in 0..6 {
            limiter.acquire().await;
            at.push(begin.elapsed().as_millis());
        }
        // Timers have a resolution of 1 ms.
        let expected = [0, 0, 0, 200, 400, 600];
        assert!(at.iter().zip(expected).all(|(at, expected)| at.abs_diff(expected) <= 2), "{at:?}");
        tokio::time::sleep(Duration::from_secs(10)).await;
        let resumed = Instant::now();
        for _ in 0..3 {
            limiter.acquire().await;
        }
        assert!(resumed.elapsed() < Duration::from_millis(5), "the burst is available again after a pause");
    }
}
