//! Ends the set-up of volumes that are wanted no more.
//!
//! The thread of a set-up runs on when its call is cancelled or takes too long. It would give the files of a volume, which the next pod
//! uses already, to the group of a pod that is gone, and mount the volume for that pod. So it checks before each step whether it may
//! go on. A call that took too long does not end it: the next attempt finds its work done.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

/// The set-ups whose threads may still run, by UID of the pod and name of the volume. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct SetUps(Arc<Mutex<BTreeMap<(String, String), Cancelled>>>);

/// Whether a set-up must end; shared by all attempts at one volume of a pod.
#[derive(Clone, Debug, Default)]
pub(super) struct Cancelled(Arc<AtomicBool>);

impl Cancelled {
    /// `ECANCELED` if the set-up must end.
    pub(super) fn check(&self) -> rustix::io::Result<()> {
        if self.0.load(Ordering::Relaxed) { Err(Errno::CANCELED) } else { Ok(()) }
    }

    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl SetUps {
    /// An attempt, which is cancelled if it is dropped before its end.
    pub(super) fn begin(&self, uid: &str, volume: &str) -> SetUp {
        let key = (uid.to_owned(), volume.to_owned());
        let cancelled = self.entries().entry(key.clone()).or_default().clone();
        SetUp { set_ups: self.clone(), key, cancelled, has_ended: false }
    }

    /// Ends all attempts at volumes of the pod, those whose calls have ended included.
    pub(super) fn cancel(&self, uid: &str) {
        self.entries().retain(|(of, _), cancelled| {
            let is_other = of != uid;
            if !is_other {
                cancelled.set();
            }
            is_other
        });
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<(String, String), Cancelled>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One attempt at a volume.
#[derive(Debug)]
pub(super) struct SetUp {
    set_ups: SetUps,
    key: (String, String),
    cancelled: Cancelled,
    has_ended: bool,
}

impl SetUp {
    pub(super) fn cancelled(&self) -> Cancelled {
        self.cancelled.clone()
    }

    /// The call has its result; if that is a timeout, the thread goes on.
    pub(super) fn end(mut self) {
        self.has_ended = true;
    }
}

impl Drop for SetUp {
    fn drop(&mut self) {
        if !self.has_ended {
            self.cancelled.set();
            // The next attempt gets its own.
            let mut entries = self.set_ups.entries();
            if entries.get(&self.key).is_some_and(|entry| Arc::ptr_eq(&entry.0, &self.cancelled.0)) {
                entries.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_end_when_their_call_is_dropped_or_their_pod_is_removed() {
        let set_ups = SetUps::default();
        let dropped = set_ups.begin("a", "v");
        let cancelled = dropped.cancelled();
        let other = set_ups.begin("a", "w");
        drop(dropped);
        assert_eq!((cancelled.check(), other.cancelled().check()), (Err(Errno::CANCELED), Ok(())));
        let late = set_ups.begin("a", "v");
        let (late_cancelled, next) = (late.cancelled(), set_ups.begin("b", "v"));
        late.end();
        assert_eq!(late_cancelled.check(), Ok(()), "it took too long, and goes on");
        set_ups.cancel("a");
        assert_eq!((late_cancelled.check(), next.cancelled().check()), (Err(Errno::CANCELED), Ok(())));
        assert_eq!(set_ups.begin("a", "v").cancelled().check(), Ok(()), "a pod that comes back");
    }
}
