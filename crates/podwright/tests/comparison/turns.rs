//! How many nodes with all pods run at a time: on a busier host, probes and deadlines would decide about statuses.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

pub(crate) struct Turns {
    free: Mutex<u32>,
    freed: Condvar,
}

/// Ends with the drop.
pub(crate) struct Turn<'a>(&'a Turns);

impl Turns {
    pub(crate) const fn new(at_a_time: u32) -> Self {
        Self { free: Mutex::new(at_a_time), freed: Condvar::new() }
    }

    /// Waits for a turn.
    pub(crate) fn take(&self) -> Turn<'_> {
        let mut free = self.free();
        while *free == 0 {
            free = self.freed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        Turn(self)
    }

    fn free(&self) -> MutexGuard<'_, u32> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.free() += 1;
        self.0.freed.notify_one();
    }
}
