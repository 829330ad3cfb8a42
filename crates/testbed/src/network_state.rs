//! The engine's nf_tables table of an instance.

use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cache::Cache;
use crate::command::{output_of, run};

/// The elements of the table's maps: host ports of pods. Empty if there is no such table.
pub(crate) fn map_elements(table: &str) -> Result<Vec<String>> {
    let mut list = nft()?;
    let listed = output_of(list.args(["-j", "list", "table", "inet", table]))?;
    if !listed.status.success() {
        return Ok(Vec::new());
    }
    let listed: Value = serde_json::from_slice(&listed.stdout).context("nft prints JSON")?;
    let objects = listed["nftables"].as_array().context("a list of objects")?;
    let elements = objects.iter().filter_map(|object| object["map"]["elem"].as_array()).flatten();
    Ok(elements.map(Value::to_string).collect())
}

/// Deletes the table if it exists.
pub(crate) fn delete_table(table: &str) {
    let Ok(mut delete) = nft() else { return };
    let exists = nft().and_then(|mut list| run(list.args(["list", "table", "inet", table]))).is_ok();
    if exists && let Err(error) = run(delete.args(["delete", "table", "inet", table])) {
        eprintln!("testbed: delete table {table}: {error:#}");
    }
}

/// Debian's `nft`.
pub(crate) fn nft() -> Result<Command> {
    Ok(Command::new(Cache::find().debian("nft")?))
}
