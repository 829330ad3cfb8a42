//! Time is an argument. `boot` drives deadlines within a boot; `wall` is what the API and a later boot see.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A moment on the boot clock.
pub type Time = Duration;

/// The moment at which an event is handled, on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Now {
    /// Time since boot, suspended time included: deadlines, backoffs, periods.
    pub boot: Time,
    /// The wall clock, which may jump: what statuses and other machines see.
    pub wall: Timestamp,
}

/// A deadline that outlives the agent: after a reboot of the host it has passed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedTime {
    /// The kernel's boot id when it was written.
    pub boot_id: String,
    /// The moment on that boot's clock.
    pub boot: Time,
    /// The same moment on the wall clock, for users.
    pub wall: Timestamp,
}

impl SavedTime {
    /// The moment on the clock of this boot; zero if it was another boot.
    pub fn resume(&self, boot_id: &str) -> Time {
        if self.boot_id == boot_id { self.boot } else { Time::ZERO }
    }
}

/// A point in the order of calls and observations; core draws it from one counter for the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Seq(pub u64);

impl Seq {
    /// Draw the next number.
    pub fn draw(&mut self) -> Seq {
        self.0 += 1;
        *self
    }
}
