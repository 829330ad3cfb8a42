//! Leases: content that is in use by work under way, so that garbage collection does not delete it.
//!
//! They are in memory only. A restarted process has no work under way, and unfinished content is removed at start.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::chain::ChainId;
use crate::digest::Digest;

/// How often each blob and layer is held. A chain id is a digest too, and one map suffices: holding too much is harmless.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leases(Arc<Mutex<BTreeMap<Digest, usize>>>);

/// Holds content until it is dropped.
///
/// A writer first holds the digest and then checks whether the content is there: garbage collection either sees the lease, or has
/// removed the content before the check.
#[derive(Debug)]
pub struct ContentLease {
    leases: Leases,
    held: Vec<Digest>,
}

impl Leases {
    pub(crate) fn lease(&self) -> ContentLease {
        ContentLease { leases: self.clone(), held: vec![] }
    }

    /// What is held; nothing is added while the guard lives.
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<Digest, usize>> {
        self.0.lock().expect("no panic under this lock")
    }
}

impl ContentLease {
    /// Holds a blob, whether it is there yet or not.
    pub fn hold_blob(&mut self, digest: Digest) {
        *self.leases.lock().entry(digest).or_default() += 1;
        self.held.push(digest);
    }

    /// Holds an unpacked layer, whether it is there yet or not.
    pub fn hold_layer(&mut self, chain: ChainId) {
        self.hold_blob(chain.digest());
    }
}

impl Drop for ContentLease {
    fn drop(&mut self) {
        let mut leases = self.leases.lock();
        for digest in &self.held {
            if let Some(count) = leases.get_mut(digest) {
                *count -= 1;
                if *count == 0 {
                    leases.remove(digest);
                }
            }
        }
    }
}
