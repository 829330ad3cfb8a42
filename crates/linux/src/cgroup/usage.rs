//! What a cgroup uses: counters and limits, read from its files.
//!
//! Every value is optional: a file may be missing in this version, at the root, or without its controller. A value that is not
//! known is never reported as zero.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

mod v1;
mod v2;

use super::{Bound, CgroupPath, CgroupTree, CgroupVersion};

/// How much of a cgroup is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UsageDetail {
    /// CPU time, memory, swap and memory limits: about five files.
    CpuAndMemory,
    /// Also throttling, shares, pressure, block devices and pids: about twenty files.
    All,
}

/// The usage of a cgroup at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CgroupUsage {
    /// When its directory was made or last gained a child.
    pub modified: Option<SystemTime>,
    /// CPU time.
    pub cpu: CpuUsage,
    /// Memory and swap.
    pub memory: MemoryUsage,
    /// Block devices.
    pub io: IoUsage,
    /// Processes and threads.
    pub pids: PidUsage,
}

/// CPU time since the cgroup was made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuUsage {
    /// Nanoseconds over all CPUs.
    pub usage_ns: Option<u64>,
    /// Nanoseconds in user mode.
    pub user_ns: Option<u64>,
    /// Nanoseconds in the kernel.
    pub system_ns: Option<u64>,
    /// Enforcement periods in which the cgroup was runnable.
    pub periods: Option<u64>,
    /// Periods in which the quota was used up.
    pub throttled_periods: Option<u64>,
    /// Nanoseconds for which it was throttled.
    pub throttled_ns: Option<u64>,
    /// Periods in which more than the quota was used.
    pub burst_periods: Option<u64>,
    /// Nanoseconds used beyond the quota.
    pub burst_ns: Option<u64>,
    /// Relative weight in the unit of v1; from the weight on v2.
    pub shares: Option<u64>,
    /// Microseconds of a period.
    pub period_us: Option<u64>,
    /// Microseconds of CPU per period.
    pub quota_us: Option<Bound>,
    /// Time in which tasks waited for a CPU.
    pub pressure: Option<Pressure>,
}

/// Memory in bytes, and its events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryUsage {
    /// All memory that is charged to the cgroup.
    pub usage: Option<u64>,
    /// The largest usage so far.
    pub max_usage: Option<u64>,
    /// The limit of the cgroup.
    pub limit: Option<Bound>,
    /// The soft limit (v1) or `memory.low` (v2).
    pub reservation: Option<Bound>,
    /// How often the limit was hit.
    pub failures: Option<u64>,
    /// Page cache.
    pub cache: Option<u64>,
    /// Anonymous memory.
    pub rss: Option<u64>,
    /// Files that are mapped.
    pub mapped_file: Option<u64>,
    /// Page cache that was used recently.
    pub active_file: Option<u64>,
    /// Page cache that can be reclaimed first.
    pub inactive_file: Option<u64>,
    /// Memory of the kernel.
    pub kernel: Option<u64>,
    /// Page faults of the cgroup's own tasks.
    pub page_faults: Option<u64>,
    /// Those that read from disk.
    pub major_page_faults: Option<u64>,
    /// Page faults, descendants included.
    pub total_page_faults: Option<u64>,
    /// Those that read from disk.
    pub total_major_page_faults: Option<u64>,
    /// Bytes in swap.
    pub swap: Option<u64>,
    /// The limit of swap alone.
    pub swap_limit: Option<Bound>,
    /// Processes killed for lack of memory.
    pub oom_kills: Option<u64>,
    /// Time in which tasks waited for memory.
    pub pressure: Option<Pressure>,
}

/// Block devices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IoUsage {
    /// By device number (major, minor).
    pub devices: BTreeMap<(u32, u32), DeviceIo>,
    /// Time in which tasks waited for block devices.
    pub pressure: Option<Pressure>,
}

/// The transfers to and from one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceIo {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Read operations.
    pub reads: u64,
    /// Write operations.
    pub writes: u64,
}

/// Processes and threads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PidUsage {
    /// Processes and threads of the cgroup and its descendants.
    pub current: Option<u64>,
    /// Their limit.
    pub max: Option<Bound>,
    /// The processes directly in the cgroup. Empty unless [`UsageDetail::All`] is read.
    pub processes: Vec<u32>,
}

/// Pressure stall information (PSI) of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// Some tasks waited.
    pub some: Stall,
    /// All tasks that were not idle waited.
    pub full: Stall,
}

/// One line of a pressure file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// Percent of the last 10 s.
    pub avg10: f64,
    /// Percent of the last 60 s.
    pub avg60: f64,
    /// Percent of the last 300 s.
    pub avg300: f64,
    /// Microseconds.
    pub total_us: u64,
}

impl CgroupTree {
    /// The usage of a cgroup; `None` if it does not exist.
    pub fn usage(&self, path: &CgroupPath, detail: UsageDetail) -> Option<CgroupUsage> {
        match self.version {
            CgroupVersion::V1 => v1::usage(self, path, detail),
            CgroupVersion::V2 => {
                let dir = path.under(&self.managed().next()?.root);
                dir.is_dir().then(|| v2::usage(&dir, path.is_root(), detail))
            }
        }
    }
}

fn pid_usage(dir: &Path) -> PidUsage {
    let processes = super::read_pids(&dir.join("cgroup.procs")).unwrap_or_default();
    PidUsage { current: number(&dir.join("pids.current")), max: bound(&dir.join("pids.max")), processes }
}

/// The content of a pressure file (Documentation/accounting/psi.rst). CPU pressure of older kernels has no `full` line.
pub fn parse_pressure(text: &str) -> Option<Pressure> {
    let mut pressure = Pressure::default();
    let mut found = false;
    for line in text.lines() {
        let mut fields = line.split_whitespace();
        let target = match fields.next() {
            Some("some") => &mut pressure.some,
            Some("full") => &mut pressure.full,
            _ => continue,
        };
        found = true;
        for (name, value) in fields.filter_map(|field| field.split_once('=')) {
            match name {
                "avg10" => target.avg10 = value.parse().unwrap_or(0.0),
                "avg60" => target.avg60 = value.parse().unwrap_or(0.0),
                "avg300" => target.avg300 = value.parse().unwrap_or(0.0),
                "total" => target.total_us = value.parse().unwrap_or(0),
                _ => {}
            }
        }
    }
    found.then_some(pressure)
}

fn device_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn modified(dir: &Path) -> Option<SystemTime> {
    dir.metadata().ok()?.modified().ok()
}

fn text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn number(path: &Path) -> Option<u64> {
    text(path)?.trim().parse().ok()
}

fn bound(path: &Path) -> Option<Bound> {
    parse_bound(text(path)?.trim())
}

/// `max` (v2), -1 and numbers near 2^63 (v1) are no limits.
fn parse_bound(text: &str) -> Option<Bound> {
    if text == "max" || text == "-1" {
        return Some(Bound::Max);
    }
    text.parse().ok().map(|limit| if limit > UNLIMITED_MIN { Bound::Max } else { Bound::At(limit) })
}

/// Lines of a name and a number.
fn keyed(path: &Path) -> BTreeMap<String, u64> {
    let line = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text(path).unwrap_or_default().lines().filter_map(line).collect()
}

/// Kubernetes: `isMemoryUnlimited`. The kernel rounds the largest limit to a page.
const UNLIMITED_MIN: u64 = 1 << 62;

#[cfg(test)]
mod tests;
