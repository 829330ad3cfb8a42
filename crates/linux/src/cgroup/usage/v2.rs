//! Reads v2: one directory.

use std::collections::BTreeMap;
use std::path::Path;

use super::{CgroupUsage, CpuUsage, DeviceIo, MemoryUsage, UsageDetail};
use super::{bound, device_number, keyed, modified, number, parse_bound, parse_pressure, pid_usage, text};

pub(super) fn usage(dir: &Path, root: bool, detail: UsageDetail) -> CgroupUsage {
    let all = detail == UsageDetail::All;
    let stat = keyed(&dir.join("cpu.stat"));
    let micros = |name: &str| stat.get(name).map(|us| us.saturating_mul(1000));
    let mut cpu = CpuUsage { usage_ns: micros("usage_usec"), ..CpuUsage::default() };
    let pressure = |name: &str| text(&dir.join(name)).and_then(|text| parse_pressure(&text));
    cpu.pressure = pressure("cpu.pressure");
    let mut memory = read_memory(dir, root, all);
    memory.pressure = pressure("memory.pressure");
    let mut usage = CgroupUsage { modified: modified(dir), cpu, memory, ..CgroupUsage::default() };
    usage.io.pressure = pressure("io.pressure");
    if all {
        usage.cpu.user_ns = micros("user_usec");
        usage.cpu.system_ns = micros("system_usec");
        usage.cpu.periods = stat.get("nr_periods").copied();
        usage.cpu.throttled_periods = stat.get("nr_throttled").copied();
        usage.cpu.throttled_ns = micros("throttled_usec");
        usage.cpu.burst_periods = stat.get("nr_bursts").copied();
        usage.cpu.burst_ns = micros("burst_usec");
        usage.cpu.shares = number(&dir.join("cpu.weight")).map(shares_of_weight);
        if let Some(max) = text(&dir.join("cpu.max")) {
            let mut fields = max.split_whitespace();
            usage.cpu.quota_us = fields.next().and_then(parse_bound);
            usage.cpu.period_us = fields.next().and_then(|period| period.parse().ok());
        }
        usage.io.devices = read_io(&text(&dir.join("io.stat")).unwrap_or_default());
        usage.pids = pid_usage(dir);
    }
    usage
}

fn read_memory(dir: &Path, root: bool, all: bool) -> MemoryUsage {
    let stat = keyed(&dir.join("memory.stat"));
    let get = |name: &str| stat.get(name).copied();
    // The root has no memory.current (opencontainers/cgroups: `rootStatsFromMeminfo`).
    let of_root = || Some(get("anon")? + get("file")?);
    let mut memory = MemoryUsage {
        usage: if root { of_root() } else { number(&dir.join("memory.current")) },
        limit: bound(&dir.join("memory.max")),
        cache: get("file"),
        rss: get("anon"),
        mapped_file: get("file_mapped"),
        active_file: get("active_file"),
        inactive_file: get("inactive_file"),
        kernel: get("kernel"),
        page_faults: get("pgfault"),
        major_page_faults: get("pgmajfault"),
        total_page_faults: get("pgfault"),
        total_major_page_faults: get("pgmajfault"),
        swap: number(&dir.join("memory.swap.current")),
        swap_limit: bound(&dir.join("memory.swap.max")),
        ..MemoryUsage::default()
    };
    if all {
        let events = keyed(&dir.join("memory.events"));
        memory.failures = events.get("max").copied();
        // The other file includes the cgroups below. Kernels before 5.2 have only that one.
        let local = keyed(&dir.join("memory.events.local"));
        memory.oom_kills = local.get("oom_kill").or_else(|| events.get("oom_kill")).copied();
        memory.max_usage = number(&dir.join("memory.peak"));
        memory.reservation = bound(&dir.join("memory.low"));
    }
    memory
}

/// Lines such as `8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0`.
fn read_io(text: &str) -> BTreeMap<(u32, u32), DeviceIo> {
    let mut devices = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split_whitespace();
        let Some(device) = fields.next().and_then(device_number) else { continue };
        let mut io = DeviceIo::default();
        for (name, value) in fields.filter_map(|field| field.split_once('=')) {
            let Ok(value) = value.parse() else { continue };
            match name {
                "rbytes" => io.read_bytes = value,
                "wbytes" => io.write_bytes = value,
                "rios" => io.reads = value,
                "wios" => io.writes = value,
                _ => {}
            }
        }
        devices.insert(device, io);
    }
    devices
}

/// The v1 shares of a v2 weight: the inverse of `cpu_weight`, as cAdvisor computes it.
fn shares_of_weight(weight: u64) -> u64 {
    2 + (weight.clamp(1, 10_000) - 1) * 262_142 / 9_999
}
