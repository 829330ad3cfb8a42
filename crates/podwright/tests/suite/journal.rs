//! What an agent has written down, read without disturbing it.

use anyhow::{Context, Result};
use podwright_agent::journal::Journal;
use podwright_testbed::Scratch;

/// The pods that the journal knows: the same that another agent would find now.
pub(crate) fn pods(scratch: &Scratch) -> Result<Vec<String>> {
    // An open journal belongs to its agent: this is a copy.
    let copy = tempfile::tempdir()?;
    std::fs::copy(scratch.root_dir()?.join("journal"), copy.path().join("journal")).context("copy the journal")?;
    let (_journal, records, _) = Journal::open(copy.path())?;
    Ok(records.iter().map(|record| format!("record {:?}", record.uid)).collect())
}
