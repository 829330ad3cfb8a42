//! Reads v1: a directory per controller.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::super::{Bound, CgroupPath, CgroupTree};
use super::{CgroupUsage, CpuUsage, DeviceIo, MemoryUsage, UsageDetail};
use super::{bound, device_number, keyed, modified, number, pid_usage, text};

pub(super) fn usage(tree: &CgroupTree, path: &CgroupPath, detail: UsageDetail) -> Option<CgroupUsage> {
    let all = detail == UsageDetail::All;
    let dir = |controller| hierarchy_dir(tree, path, controller).filter(|dir| dir.is_dir());
    let (memory, acct) = (dir("memory"), dir("cpuacct"));
    let anchor = acct.clone().or_else(|| memory.clone())?;
    let mut usage = CgroupUsage { modified: modified(&anchor), ..CgroupUsage::default() };
    if let Some(acct) = acct {
        usage.cpu.usage_ns = number(&acct.join("cpuacct.usage"));
        if all {
            let stat = keyed(&acct.join("cpuacct.stat"));
            let ticks = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
            usage.cpu.user_ns = stat.get("user").map(|n| n * ticks);
            usage.cpu.system_ns = stat.get("system").map(|n| n * ticks);
        }
    }
    if let Some(cpu) = dir("cpu").filter(|_| all) {
        read_cpu(&cpu, &mut usage.cpu);
    }
    if let Some(memory) = memory {
        usage.memory = read_memory(&memory, all);
    }
    if let Some(blkio) = dir("blkio").filter(|_| all) {
        usage.io.devices = read_io(&blkio);
    }
    if let Some(pids) = dir("pids").filter(|_| all) {
        usage.pids = pid_usage(&pids);
    }
    Some(usage)
}

/// The directory of a cgroup in the hierarchy of a v1 controller.
fn hierarchy_dir(tree: &CgroupTree, path: &CgroupPath, controller: &str) -> Option<PathBuf> {
    let hierarchy = tree.hierarchies.iter().find(|h| h.controllers.contains(controller))?;
    Some(path.under(&hierarchy.root))
}

fn read_cpu(dir: &Path, cpu: &mut CpuUsage) {
    let stat = keyed(&dir.join("cpu.stat"));
    cpu.periods = stat.get("nr_periods").copied();
    cpu.throttled_periods = stat.get("nr_throttled").copied();
    cpu.throttled_ns = stat.get("throttled_time").copied();
    cpu.burst_periods = stat.get("nr_bursts").copied();
    cpu.burst_ns = stat.get("burst_time").copied();
    cpu.shares = number(&dir.join("cpu.shares"));
    cpu.period_us = number(&dir.join("cpu.cfs_period_us"));
    cpu.quota_us = bound(&dir.join("cpu.cfs_quota_us"));
}

fn read_memory(dir: &Path, all: bool) -> MemoryUsage {
    let stat = keyed(&dir.join("memory.stat"));
    let get = |name: &str| stat.get(name).copied();
    let limit = bound(&dir.join("memory.limit_in_bytes"));
    let mut memory = MemoryUsage {
        usage: number(&dir.join("memory.usage_in_bytes")),
        limit,
        cache: get("total_cache"),
        rss: get("total_rss"),
        mapped_file: get("total_mapped_file"),
        active_file: get("total_active_file"),
        inactive_file: get("total_inactive_file"),
        page_faults: get("pgfault"),
        major_page_faults: get("pgmajfault"),
        total_page_faults: get("total_pgfault"),
        total_major_page_faults: get("total_pgmajfault"),
        swap: get("total_swap"),
        swap_limit: swap_limit(bound(&dir.join("memory.memsw.limit_in_bytes")), limit),
        ..MemoryUsage::default()
    };
    if all {
        memory.max_usage = number(&dir.join("memory.max_usage_in_bytes"));
        memory.reservation = bound(&dir.join("memory.soft_limit_in_bytes"));
        memory.failures = number(&dir.join("memory.failcnt"));
        memory.kernel = number(&dir.join("memory.kmem.usage_in_bytes"));
        memory.oom_kills = keyed(&dir.join("memory.oom_control")).get("oom_kill").copied();
    }
    memory
}

/// v1 limits memory and swap together.
fn swap_limit(both: Option<Bound>, memory: Option<Bound>) -> Option<Bound> {
    Some(match (both?, memory?) {
        (Bound::At(both), Bound::At(memory)) => Bound::At(both.saturating_sub(memory)),
        _ => Bound::Max,
    })
}

fn read_io(dir: &Path) -> BTreeMap<(u32, u32), DeviceIo> {
    let mut devices: BTreeMap<(u32, u32), DeviceIo> = BTreeMap::new();
    let mut file = |name: &str, store: fn(&mut DeviceIo, &str, u64)| {
        for line in text(&dir.join(name)).unwrap_or_default().lines() {
            // `8:0 Read 4096`; the last line is a total without a device.
            let mut fields = line.split_whitespace();
            let (Some(device), Some(operation), Some(count)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            if let (Some(device), Ok(count)) = (device_number(device), count.parse()) {
                store(devices.entry(device).or_default(), operation, count);
            }
        }
    };
    file("blkio.throttle.io_service_bytes_recursive", |io, operation, count| match operation {
        "Read" => io.read_bytes = count,
        "Write" => io.write_bytes = count,
        _ => {}
    });
    file("blkio.throttle.io_serviced_recursive", |io, operation, count| match operation {
        "Read" => io.reads = count,
        "Write" => io.writes = count,
        _ => {}
    });
    devices
}
