//! How many pulls may begin in a second (`registryPullQPS`, `registryBurst`). What comes too soon waits; the Go kubelet fails it.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The pace of one node.
#[derive(Debug)]
pub(super) struct Pace {
    /// Between two pulls, in the long run.
    apart: Duration,
    /// How far ahead of that pace a burst may be.
    ahead: Duration,
    /// When the next pull would begin at an even pace.
    next: Mutex<Option<Instant>>,
}

impl Pace {
    pub(super) fn new(per_second: u32, burst: u32) -> Self {
        let apart = Duration::from_secs(1) / per_second.max(1);
        Self { apart, ahead: apart * burst.saturating_sub(1), next: Mutex::new(None) }
    }

    /// Wait for one's turn.
    pub(super) async fn turn(&self) {
        sleep_until(self.draw(Instant::now())).await;
    }

    fn draw(&self, now: Instant) -> Instant {
        let mut next = self.next.lock().expect("nobody panics with it");
        let even = next.unwrap_or(now).max(now);
        *next = Some(even + self.apart);
        even.checked_sub(self.ahead).unwrap_or(now).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_goes_at_once_and_the_rest_at_the_pace() {
        let (pace, begin) = (Pace::new(5, 3), Instant::now());
        let mut at = vec![];
        for _ in 0..6 {
            pace.turn().await;
            at.push(begin.elapsed().as_millis());
        }
        // Timers count whole milliseconds.
        let expected = [0, 0, 0, 200, 400, 600];
        assert!(at.iter().zip(expected).all(|(at, expected)| at.abs_diff(expected) <= 2), "{at:?}");
        tokio::time::sleep(Duration::from_secs(10)).await;
        let rested = Instant::now();
        for _ in 0..3 {
            pace.turn().await;
        }
        assert!(rested.elapsed() < Duration::from_millis(5), "a rest earns the burst again");
    }
}
