//! The agent's two clocks on tokio's time, so that paused time drives them; the wall clock can be set.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use podwright_agent::event_loop::Clock;
use podwright_core::model::Now;
use tokio::time::Instant;

/// Clones show the same time.
#[derive(Clone)]
pub struct RigClock {
    began: Instant,
    skew: Arc<Mutex<SignedDuration>>,
}

impl RigClock {
    /// Clocks of a machine that was up for a while: a boot clock that reads zero hides mistakes.
    pub fn start() -> Self {
        Self { began: Instant::now(), skew: Arc::default() }
    }

    /// The wall clock is set.
    pub fn jump(&self, by: SignedDuration) {
        *self.skew.lock().expect("nobody panics with it") += by;
    }

    /// The wall clock.
    pub fn wall(&self) -> Timestamp {
        let since = SignedDuration::try_from(self.began.elapsed()).expect("runs are short");
        let skew = *self.skew.lock().expect("nobody panics with it");
        Timestamp::from_second(EPOCH).and_then(|t| t.checked_add(since + skew)).expect("runs are short")
    }
}

impl Clock for RigClock {
    fn now(&self) -> Now {
        Now { boot: UP_BEFORE + self.began.elapsed(), wall: self.wall() }
    }
}

const EPOCH: i64 = 1_800_000_000;
const UP_BEFORE: Duration = Duration::from_secs(1000);
