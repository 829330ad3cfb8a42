//! Metrics of a container, from its cgroup and its writable layer.

use podwright_linux::cgroup::{Bound, DeviceIo, Pressure, Stall};

use super::{Family, LayerFileSystem, MetricSample, Point, labelled, one};

type Container = Family<MetricSample>;

pub(super) const FAMILIES: &[Container] = &[
    Family::gauge("container_last_seen", "When the container was measured, in seconds since 1970.", |s| {
        one(since_1970(s.at_ns))
    }),
    Family::gauge("container_start_time_seconds", "When the container was started, in seconds since 1970.", |s| {
        one(since_1970(s.started_at_ns))
    }),
    // CPU.
    Family::counter("container_cpu_usage_seconds_total", "CPU time, in seconds.", |s| {
        one(seconds(s.usage.cpu.usage_ns))
    }),
    Family::counter("container_cpu_user_seconds_total", "CPU time in user mode, in seconds.", |s| {
        one(seconds(s.usage.cpu.user_ns))
    }),
    Family::counter("container_cpu_system_seconds_total", "CPU time in the kernel, in seconds.", |s| {
        one(seconds(s.usage.cpu.system_ns))
    }),
    Family::counter("container_cpu_cfs_periods_total", "Enforcement periods of the CPU limit.", |s| {
        one(s.usage.cpu.periods)
    }),
    Family::counter("container_cpu_cfs_throttled_periods_total", "Periods in which the CPU limit was reached.", |s| {
        one(s.usage.cpu.throttled_periods)
    }),
    Family::counter("container_cpu_cfs_throttled_seconds_total", "Time held back by the CPU limit, in seconds.", |s| {
        one(seconds(s.usage.cpu.throttled_ns))
    }),
    // Memory.
    memory("container_memory_usage_bytes", "All memory that is charged to the container.", |s| {
        one(s.usage.memory.usage)
    }),
    memory("container_memory_working_set_bytes", "Memory without file pages that can be reclaimed first.", |s| {
        let memory = &s.usage.memory;
        one(memory.usage.map(|used| used.saturating_sub(memory.inactive_file.unwrap_or(0))))
    }),
    memory("container_memory_max_usage_bytes", "The largest memory usage so far.", |s| one(s.usage.memory.max_usage)),
    memory("container_memory_cache", "Page cache, in bytes.", |s| one(s.usage.memory.cache)),
    memory("container_memory_rss", "Anonymous memory, in bytes.", |s| one(s.usage.memory.rss)),
    memory("container_memory_mapped_file", "Files that are mapped, in bytes.", |s| one(s.usage.memory.mapped_file)),
    memory("container_memory_kernel_usage", "Memory of the kernel, in bytes.", |s| one(s.usage.memory.kernel)),
    memory("container_memory_swap", "Bytes in swap.", |s| one(s.usage.memory.swap)),
    memory("container_memory_total_active_file_bytes", "Page cache that was used recently.", |s| {
        one(s.usage.memory.active_file)
    }),
    memory("container_memory_total_inactive_file_bytes", "Page cache that can be reclaimed first.", |s| {
        one(s.usage.memory.inactive_file)
    }),
    Family::counter("container_memory_failcnt", "How often the memory limit was hit.", |s| {
        one(s.usage.memory.failures)
    }),
    Family::counter("container_memory_failures_total", "Page faults, by type and by what they include.", page_faults)
        .labelled(&["failure_type", "scope"]),
    Family::counter("container_oom_events_total", "Processes that were killed for lack of memory.", |s| {
        one(s.usage.memory.oom_kills)
    }),
    // The writable layer and block devices.
    layer("container_fs_usage_bytes", "Bytes of the writable layer.", |s| {
        let usage = s.layer.map(|(usage, at)| (usage.bytes, at));
        of_layer(s, usage)
    }),
    layer("container_fs_limit_bytes", "Size of the file system of the writable layer.", |s| {
        of_disk(s, |disk| disk.size)
    }),
    layer("container_fs_inodes_total", "Inodes of that file system.", |s| of_disk(s, |disk| disk.inodes)),
    layer("container_fs_inodes_free", "Its inodes that are free.", |s| of_disk(s, |disk| disk.inodes_free)),
    transfers("container_fs_reads_bytes_total", "Bytes read from a block device.", |s| devices(s, |io| io.read_bytes)),
    transfers("container_fs_reads_total", "Reads from a block device.", |s| devices(s, |io| io.reads)),
    transfers("container_fs_writes_bytes_total", "Bytes written to a block device.", |s| {
        devices(s, |io| io.write_bytes)
    }),
    transfers("container_fs_writes_total", "Writes to a block device.", |s| devices(s, |io| io.writes)),
    Family::counter(
        "container_blkio_device_usage_total",
        "Bytes read from and written to a block device.",
        block_devices,
    )
    .labelled(&["device", "major", "minor", "operation"]),
    // Processes.
    Family::gauge("container_processes", "Processes of the container.", |s| {
        one(s.usage.pids.current.and_then(|_| u64::try_from(s.usage.pids.processes.len()).ok()))
    }),
    Family::gauge("container_threads", "Threads of the container.", |s| one(s.usage.pids.current)),
    Family::gauge("container_threads_max", "How many threads it may have; 0: any number.", |s| {
        one(limit(s.usage.pids.max))
    }),
    // Limits.
    Family::gauge("container_spec_cpu_period", "Enforcement period of the CPU limit, in microseconds.", |s| {
        one(s.usage.cpu.period_us)
    }),
    Family::gauge("container_spec_cpu_quota", "CPU time per period, in microseconds; absent: no limit.", |s| {
        one(limit(s.usage.cpu.quota_us).filter(|quota| *quota > 0))
    }),
    Family::gauge("container_spec_cpu_shares", "Relative weight of its CPU time.", |s| one(s.usage.cpu.shares)),
    Family::gauge("container_spec_memory_limit_bytes", "Memory limit; 0: none.", |s| one(limit(s.usage.memory.limit))),
    Family::gauge("container_spec_memory_reservation_limit_bytes", "Memory that is protected; 0: none.", |s| {
        one(limit(s.usage.memory.reservation))
    }),
    Family::gauge("container_spec_memory_swap_limit_bytes", "Swap limit; 0: none.", |s| {
        one(limit(s.usage.memory.swap_limit))
    }),
    // Pressure.
    waits("container_pressure_cpu_waiting_seconds_total", "Time in which tasks waited for a CPU.", |s| {
        stalled(s.usage.cpu.pressure, |pressure| pressure.some)
    }),
    waits("container_pressure_cpu_stalled_seconds_total", "Time in which all tasks waited for a CPU.", |s| {
        stalled(s.usage.cpu.pressure, |pressure| pressure.full)
    }),
    waits("container_pressure_memory_waiting_seconds_total", "Time in which tasks waited for memory.", |s| {
        stalled(s.usage.memory.pressure, |pressure| pressure.some)
    }),
    waits("container_pressure_memory_stalled_seconds_total", "Time in which all tasks waited for memory.", |s| {
        stalled(s.usage.memory.pressure, |pressure| pressure.full)
    }),
    waits("container_pressure_io_waiting_seconds_total", "Time in which tasks waited for block devices.", |s| {
        stalled(s.usage.io.pressure, |pressure| pressure.some)
    }),
    waits("container_pressure_io_stalled_seconds_total", "Time in which all tasks waited for block devices.", |s| {
        stalled(s.usage.io.pressure, |pressure| pressure.full)
    }),
];

const fn memory(name: &'static str, help: &'static str, points: fn(&MetricSample) -> Vec<Point>) -> Container {
    Family::gauge(name, help, points)
}

const fn layer(name: &'static str, help: &'static str, points: fn(&MetricSample) -> Vec<Point>) -> Container {
    Family::gauge(name, help, points).labelled(&["device"])
}

const fn transfers(name: &'static str, help: &'static str, points: fn(&MetricSample) -> Vec<Point>) -> Container {
    Family::counter(name, help, points).labelled(&["device"])
}

const fn waits(name: &'static str, help: &'static str, points: fn(&MetricSample) -> Vec<Point>) -> Container {
    Family::counter(name, help, points)
}

/// Those of the container alone, and with the cgroups below it.
fn page_faults(sample: &MetricSample) -> Vec<Point> {
    let memory = &sample.usage.memory;
    let points = [
        labelled(["pgfault", "container"], memory.page_faults),
        labelled(["pgmajfault", "container"], memory.major_page_faults),
        labelled(["pgfault", "hierarchy"], memory.total_page_faults),
        labelled(["pgmajfault", "hierarchy"], memory.total_major_page_faults),
    ];
    points.into_iter().flatten().collect()
}

fn of_layer(sample: &MetricSample, value: Option<(u64, i64)>) -> Vec<Point> {
    let device = sample.file_system.as_ref().map(|disk| disk.device.clone()).unwrap_or_default();
    let point = value.map(|(value, measured_at_ns)| Point { labels: vec![device], value, measured_at_ns });
    point.into_iter().collect()
}

fn of_disk(sample: &MetricSample, value: fn(&LayerFileSystem) -> u64) -> Vec<Point> {
    of_layer(sample, sample.file_system.as_ref().map(|disk| (value(disk), 0)))
}

fn devices(sample: &MetricSample, value: fn(&DeviceIo) -> u64) -> Vec<Point> {
    let all = sample.usage.io.devices.iter();
    all.filter_map(|(number, io)| labelled([device(sample, *number)], Some(value(io)))).collect()
}

fn block_devices(sample: &MetricSample) -> Vec<Point> {
    let all = sample.usage.io.devices.iter();
    let both = all.flat_map(|(number, io)| {
        let (major, minor) = (number.0.to_string(), number.1.to_string());
        let name = device(sample, *number);
        [("Read", io.read_bytes), ("Write", io.write_bytes)]
            .map(|(operation, bytes)| labelled([name, &major, &minor, operation], Some(bytes)))
    });
    both.flatten().collect()
}

fn device(sample: &MetricSample, number: (u32, u32)) -> &str {
    sample.device_names.get(&number).map(String::as_str).unwrap_or_default()
}

fn stalled(pressure: Option<Pressure>, part: fn(Pressure) -> Stall) -> Vec<Point> {
    one(pressure.map(|pressure| part(pressure).total_us / 1_000_000))
}

fn seconds(ns: Option<u64>) -> Option<u64> {
    ns.map(|ns| ns / 1_000_000_000)
}

/// `None`: it has not happened.
fn since_1970(ns: i64) -> Option<u64> {
    seconds(u64::try_from(ns).ok().filter(|ns| *ns > 0))
}

/// cAdvisor: no limit is 0.
fn limit(bound: Option<Bound>) -> Option<u64> {
    bound.map(|bound| match bound {
        Bound::At(limit) => limit,
        Bound::Max => 0,
    })
}
