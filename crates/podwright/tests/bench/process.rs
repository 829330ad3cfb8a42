//! Counters of a process in /proc.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// Linux: USER_HZ, the same on all supported hosts.
const TICK: Duration = Duration::from_millis(10);

/// User and system time of all threads, those that have ended included.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit_once(')').context("a stat line")?.1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let number = |n: usize| -> Result<u32> { Ok(fields.get(n).context("a field")?.parse()?) };
    Ok(TICK * (number(11)? + number(12)?))
}

/// Context switches by thread, voluntary or not.
pub(crate) fn switches(pid: u32) -> Result<BTreeMap<String, u64>> {
    let mut all = BTreeMap::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        // The thread has ended since the list was read.
        let Ok(status) = fs::read_to_string(thread.path().join("status")) else { continue };
        let count = |key: &str| field(&status, key).unwrap_or_default();
        let name = thread.file_name().to_string_lossy().into_owned();
        all.insert(name, count("voluntary_ctxt_switches:") + count("nonvoluntary_ctxt_switches:"));
    }
    Ok(all)
}

/// The proportional share of a process's resident memory, in KiB; zero if it has ended.
pub(crate) fn pss_kib(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    field(&rollup, "Pss:").unwrap_or_default()
}

/// A number in a file of `/proc/PID` with lines `key: number unit`.
pub(crate) fn field(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}
