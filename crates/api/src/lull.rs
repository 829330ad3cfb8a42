//! A lull between writes that somebody waits for: what nobody waits for is sent then.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// So long nothing must have been written.
const QUIET: Duration = Duration::from_millis(150);

/// When a pod's object was last written to.
#[derive(Debug, Default)]
pub(crate) struct Lull(Mutex<Option<Instant>>);

impl Lull {
    /// Something that matters is being written.
    pub(crate) fn disturb(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Wait for a lull, at most so long.
    pub(crate) async fn wait(&self, most: Duration) {
        let end = Instant::now() + most;
        while let Some(quiet_at) = self.quiet_at()
            && quiet_at > Instant::now()
            && Instant::now() < end
        {
            sleep_until(quiet_at.min(end)).await;
        }
    }

    fn quiet_at(&self) -> Option<Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).map(|at| at + QUIET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_for_a_lull_but_not_for_ever() {
        let lull = std::sync::Arc::new(Lull::default());
        let began = Instant::now();
        lull.wait(Duration::from_secs(1)).await;
        assert_eq!(began.elapsed(), Duration::ZERO, "nobody has written anything");
        lull.disturb();
        lull.wait(Duration::from_secs(1)).await;
        assert_eq!(began.elapsed(), QUIET);
        let writer = std::sync::Arc::clone(&lull);
        tokio::spawn(async move {
            loop {
                writer.disturb();
                tokio::time::sleep(QUIET / 2).await;
            }
        });
        tokio::task::yield_now().await;
        let began = Instant::now();
        lull.wait(Duration::from_secs(1)).await;
        assert!(began.elapsed() >= Duration::from_secs(1) && began.elapsed() < Duration::from_secs(2));
    }
}
