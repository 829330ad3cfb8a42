//! One at a time per key: a second task that wants the same content waits, and then finds it in the store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::OwnedMutexGuard;

use crate::digest::Digest;

/// Locks by digest. A waiter whose predecessor failed tries itself, with its own credentials.
#[derive(Debug, Default)]
pub(crate) struct Flights(Mutex<BTreeMap<Digest, Weak<tokio::sync::Mutex<()>>>>);

impl Flights {
    pub(crate) async fn lock(&self, key: Digest) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock().expect("no panic under this lock");
            locks.retain(|_, lock| lock.strong_count() > 0);
            match locks.get(&key).and_then(Weak::upgrade) {
                Some(lock) => lock,
                None => {
                    let lock = Arc::default();
                    locks.insert(key, Arc::downgrade(&lock));
                    lock
                }
            }
        };
        lock.lock_owned().await
    }
}
