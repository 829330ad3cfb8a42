//! The agent's boot and wall clock on tokio's time, so that they follow paused time; the wall clock can be set.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use podwright_agent::event_loop::Clock;
use podwright_core::model::Now;
use tokio::time::Instant;

/// Clones share the same time.
#[derive(Clone)]
pub struct HarnessClock {
    began: Instant,
    skew: Arc<Mutex<SignedDuration>>,
}

impl HarnessClock {
    /// Clocks of a host that was up for a while: a boot clock at zero hides mistakes.
    pub fn start() -> Self {
        Self { began: Instant::now(), skew: Arc::default() }
    }

    /// Sets the wall clock forward or back.
    pub fn jump(&self, by: SignedDuration) {
        *self.skew.lock().expect("not poisoned") += by;
    }

    /// Wall time.
    pub fn wall(&self) -> Timestamp {
        let since = SignedDuration::try_from(self.began.elapsed()).expect("runs are short");
        let skew = *self.skew.lock().expect("not poisoned");
        Timestamp::from_second(EPOCH).and_then(|t| t.checked_add(since + skew)).expect("runs are short")
    }
}

impl Clock for HarnessClock {
    fn now(&self) -> Now {
        Now { boot: UP_BEFORE + self.began.elapsed(), wall: self.wall() }
    }
}

const EPOCH: i64 = 1_800_000_000;
const UP_BEFORE: Duration = Duration::from_secs(1000);
