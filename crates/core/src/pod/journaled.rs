//! The record of a pod, and whether it differs from the journal's copy.
//!
//! It can be read by all code and changed only through the methods here, which mark it as unsaved.

use std::ops::Deref;

use crate::model::{ContainerMemory, Life, Name, PodRecord, Transition};

/// A pod's record with its dirty mark.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Journaled {
    record: PodRecord,
    unsaved: bool,
}

impl Journaled {
    /// A record that the journal does not have yet.
    pub(super) fn new(record: PodRecord) -> Self {
        Self { record, unsaved: true }
    }

    /// A record as the journal has it.
    pub(super) fn restored(record: PodRecord) -> Self {
        Self { record, unsaved: false }
    }

    /// Sets one field. True if that changed it.
    pub(super) fn set<T: PartialEq>(&mut self, field: impl FnOnce(&mut PodRecord) -> &mut T, value: T) -> bool {
        let field = field(&mut self.record);
        let changed = *field != value;
        if changed {
            *field = value;
            self.unsaved = true;
        }
        changed
    }

    /// Changes what is remembered of one container.
    pub(super) fn edit_container(&mut self, name: &Name, edit: impl FnOnce(&mut ContainerMemory)) {
        let memory = self.record.containers.entry(name.clone()).or_default();
        let before = memory.clone();
        edit(memory);
        self.unsaved |= *memory != before;
    }

    /// Moves the pod forward in its life. `transition` returns whether it changed something.
    pub(super) fn change_life(&mut self, transition: impl FnOnce(&mut Life) -> bool) {
        self.unsaved |= transition(&mut self.record.life);
    }

    /// The record to journal, if it changed since the last call. `history` is stored in it.
    pub(super) fn take_unsaved(&mut self, history: impl FnOnce() -> Vec<Transition>) -> Option<Box<PodRecord>> {
        if !std::mem::take(&mut self.unsaved) {
            return None;
        }
        self.record.history = history();
        Some(Box::new(self.record.clone()))
    }
}

impl Deref for Journaled {
    type Target = PodRecord;

    fn deref(&self) -> &PodRecord {
        &self.record
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::{Pod, Source};

    #[test]
    fn only_a_change_makes_it_unsaved() {
        let record = PodRecord::new("u".into(), Source::File, Arc::new(Pod::default()), jiff::Timestamp::UNIX_EPOCH);
        let mut journaled = Journaled::restored(record);
        journaled.set(|r| &mut r.sandbox_attempts, 0);
        journaled.edit_container(&"c".into(), |memory| memory.created = false);
        journaled.change_life(|_| false);
        assert_eq!(journaled.take_unsaved(Vec::new), None);
        journaled.edit_container(&"c".into(), |memory| memory.created = true);
        assert!(journaled.take_unsaved(Vec::new).is_some());
        assert!(journaled.set(|r| &mut r.sandbox_attempts, 2));
        assert!(journaled.take_unsaved(Vec::new).is_some_and(|record| record.sandbox_attempts == 2));
        assert_eq!(journaled.take_unsaved(Vec::new), None, "it was taken");
    }
}
