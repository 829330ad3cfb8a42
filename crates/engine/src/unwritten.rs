//! Records that could not be written, as on a full disk. They count in memory and are tried again; until then the status of the runtime
//! says so, since a restart of the agent would find the former state.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The objects whose last record is not on disk, with the error.
#[derive(Debug, Default)]
pub(crate) struct UnwrittenRecords(Mutex<BTreeMap<String, String>>);

impl UnwrittenRecords {
    /// The result of a write: an error, or `None`.
    pub(crate) fn note(&self, object: String, error: Option<String>) {
        match error {
            Some(error) => drop(self.records().insert(object, error)),
            None => self.forget(&object),
        }
    }

    /// The object is gone, and its record with it.
    pub(crate) fn forget(&self, object: &str) {
        self.records().remove(object);
    }

    /// For the status of the runtime; `None`: every record is written.
    pub(crate) fn message(&self) -> Option<String> {
        let records = self.records();
        let (object, error) = records.first_key_value()?;
        let more = match records.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        Some(format!("the record of {object} is not written: {error}{more}. It is tried again every few seconds"))
    }

    fn records(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_one_record_and_counts_the_others() {
        let records = UnwrittenRecords::default();
        assert_eq!(records.message(), None);
        records.note("sandbox b".into(), Some("no space".into()));
        records.note("container a".into(), Some("no space".into()));
        let message = records.message().unwrap();
        assert!(message.starts_with("the record of container a is not written: no space, and 1 more"), "{message}");
        records.note("container a".into(), None);
        records.forget("sandbox b");
        assert_eq!(records.message(), None);
    }
}
