//! Results of reviews, for a limited time. Keys are hashes: neither tokens nor users are stored.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::time::Instant;

/// The hash of a token, or of a review.
pub(super) type ReviewKey = [u8; 32];

/// At most [`ENTRIES_MAX`] results; the least recently used are dropped.
pub(super) struct ReviewCache<V>(Mutex<Entries<V>>);

struct Entries<V> {
    by_key: HashMap<ReviewKey, Entry<V>>,
    uses: u64,
}

struct Entry<V> {
    value: V,
    until: Instant,
    used: u64,
}

impl<V: Clone> ReviewCache<V> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Entries { by_key: HashMap::new(), uses: 0 }))
    }

    pub(super) fn get(&self, key: &ReviewKey) -> Option<V> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.uses += 1;
        let used = entries.uses;
        let entry = entries.by_key.get_mut(key).filter(|entry| entry.until > Instant::now())?;
        entry.used = used;
        Some(entry.value.clone())
    }

    /// Not kept if the time is zero.
    pub(super) fn put(&self, key: ReviewKey, value: V, keep: Duration) {
        if keep.is_zero() {
            return;
        }
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.uses += 1;
        let (used, now) = (entries.uses, Instant::now());
        if entries.by_key.len() >= ENTRIES_MAX {
            entries.by_key.retain(|_, entry| entry.until > now);
        }
        if entries.by_key.len() >= ENTRIES_MAX {
            let mut uses: Vec<u64> = entries.by_key.values().map(|entry| entry.used).collect();
            // An eighth at once, so that a full cache is not searched with every insertion.
            let (_, oldest, _) = uses.select_nth_unstable(ENTRIES_MAX / 8);
            let oldest = *oldest;
            entries.by_key.retain(|_, entry| entry.used > oldest);
        }
        entries.by_key.insert(key, Entry { value, until: now + keep, used });
    }
}

/// The key of these bytes.
pub(super) fn review_key(bytes: &[u8]) -> ReviewKey {
    Sha256::digest(bytes).into()
}

/// Kubernetes: the size of the webhook authorizer's cache.
const ENTRIES_MAX: usize = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn results_expire_and_the_least_recently_used_are_dropped() {
        let cache = ReviewCache::new();
        let key = |n: usize| review_key(&n.to_le_bytes());
        cache.put(key(0), 'a', Duration::from_secs(120));
        cache.put(key(1), 'b', Duration::ZERO);
        assert_eq!((cache.get(&key(0)), cache.get(&key(1))), (Some('a'), None));
        tokio::time::advance(Duration::from_secs(121)).await;
        assert_eq!(cache.get(&key(0)), None);
        for n in 0..ENTRIES_MAX + 10 {
            cache.put(key(n), 'c', Duration::from_secs(120));
            assert!(cache.get(&key(0)).is_some(), "it is used all the time");
        }
        assert!(cache.get(&key(1)).is_none() && cache.get(&key(ENTRIES_MAX)).is_some());
        assert!(cache.0.lock().unwrap().by_key.len() <= ENTRIES_MAX);
    }
}
