//! What images say of themselves, kept for the moment between "is it here" and "make a container of it".

use std::collections::VecDeque;
use std::sync::Mutex;

use podwright_core::model::ImageFacts;

/// As many different images may be used at the same time before one is asked for twice.
const KEPT: usize = 64;

/// By id, which is the hash of what the image says: facts under it never change.
#[derive(Debug, Default)]
pub(super) struct KnownImages(Mutex<VecDeque<ImageFacts>>);

impl KnownImages {
    /// The newest stays longest.
    pub(super) fn keep(&self, facts: &ImageFacts) {
        let mut kept = self.0.lock().expect("nobody panics with it");
        if kept.iter().any(|known| known.id == facts.id) {
            return;
        }
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(facts.clone());
    }

    pub(super) fn get(&self, id: &str) -> Option<ImageFacts> {
        let kept = self.0.lock().expect("nobody panics with it");
        kept.iter().find(|known| known.id == id).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_too_many_is_forgotten() {
        let known = KnownImages::default();
        for n in 0..=KEPT {
            known.keep(&ImageFacts { id: format!("sha256:{n}"), uid: Some(7), username: String::new() });
        }
        assert_eq!(known.get("sha256:0"), None);
        assert_eq!(known.get("sha256:1").and_then(|facts| facts.uid), Some(7));
    }
}
