//! Image facts, cached between ImageStatus and CreateContainer.

use std::collections::VecDeque;
use std::sync::Mutex;

use podwright_core::model::ImageFacts;

/// Number of cached images; a pod that starts while more are in use costs a second ImageStatus call.
const ENTRIES_MAX: usize = 64;

/// Facts by image id. The id is the hash of the image configuration, so the facts of an id never change.
#[derive(Debug, Default)]
pub(super) struct KnownImages(Mutex<VecDeque<ImageFacts>>);

impl KnownImages {
    /// Adds an entry; the oldest one is dropped at the limit.
    pub(super) fn insert(&self, facts: &ImageFacts) {
        let mut entries = self.0.lock().expect("no panic under this lock");
        if entries.iter().any(|known| known.id == facts.id) {
            return;
        }
        if entries.len() == ENTRIES_MAX {
            entries.pop_front();
        }
        entries.push_back(facts.clone());
    }

    pub(super) fn get(&self, id: &str) -> Option<ImageFacts> {
        let entries = self.0.lock().expect("no panic under this lock");
        entries.iter().find(|known| known.id == id).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_entry_is_dropped_at_the_limit() {
        let known = KnownImages::default();
        for n in 0..=ENTRIES_MAX {
            known.insert(&ImageFacts { id: format!("sha256:{n}"), uid: Some(7), username: String::new() });
        }
        assert_eq!(known.get("sha256:0"), None);
        assert_eq!(known.get("sha256:1").and_then(|facts| facts.uid), Some(7));
    }
}
