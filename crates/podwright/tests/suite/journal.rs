//! Reads the journal of a running agent.

use anyhow::{Context, Result};
use podwright_agent::journal::Journal;
use podwright_testbed::Scratch;

/// The pods in the journal, as a restarted agent would find them.
pub(crate) fn pods(scratch: &Scratch) -> Result<Vec<String>> {
    // The agent holds the journal open, so a copy is read.
    let copy = tempfile::tempdir()?;
    std::fs::copy(scratch.root_dir()?.join("journal"), copy.path().join("journal")).context("copy the journal")?;
    let (_journal, records, _) = Journal::open(copy.path())?;
    Ok(records.iter().map(|record| format!("record {:?}", record.uid)).collect())
}
