//! Virtual time: one clock that only the scheduler advances, and the boot and wall clocks that the agent reads.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use podwright_core::model::{Now, Time};

/// The clocks of the host.
#[derive(Clone, Debug)]
pub struct Clock {
    /// Time since the start of the simulation. Never jumps.
    pub now: Duration,
    booted: Duration,
    boots: u32,
    skew: SignedDuration,
}

impl Default for Clock {
    fn default() -> Self {
        // The host was up for a while: a boot clock at zero hides mistakes.
        Self { now: UP_BEFORE, booted: Duration::ZERO, boots: 0, skew: SignedDuration::ZERO }
    }
}

impl Clock {
    /// Boot and wall clock now.
    pub fn read(&self) -> Now {
        Now { boot: self.now - self.booted, wall: self.wall() }
    }

    /// The wall clock, jumps included.
    pub fn wall(&self) -> Timestamp {
        let since = SignedDuration::try_from(self.now).expect("runs are short") + self.skew;
        Timestamp::from_second(EPOCH).and_then(|t| t.checked_add(since)).expect("runs are short")
    }

    /// Wall time in whole seconds, as in API objects.
    pub fn second(&self) -> meta::Time {
        let wall = self.wall();
        meta::Time(Timestamp::from_second(wall.as_second()).unwrap_or(wall))
    }

    /// The kernel's id of this boot.
    pub fn boot_id(&self) -> String {
        format!("boot-{}", self.boots)
    }

    /// Simulation time of a time on the boot clock.
    pub fn at_boot_time(&self, boot: Time) -> Duration {
        self.booted + boot
    }

    /// Sets the wall clock forward or back.
    pub fn jump(&mut self, by: SignedDuration) {
        self.skew = self.skew.checked_add(by).unwrap_or(self.skew);
    }

    /// The boot clock starts again, and the boot id changes.
    pub fn reboot(&mut self) {
        self.boots += 1;
        self.booted = self.now - Duration::from_secs(3);
    }
}

const EPOCH: i64 = 1_800_000_000;
const UP_BEFORE: Duration = Duration::from_secs(1000);
