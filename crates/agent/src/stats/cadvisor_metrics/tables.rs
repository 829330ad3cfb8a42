//! The metrics with one value per cgroup, device, interface or file system: name, help and where the value comes from. Texts are
//! those of cAdvisor (metrics/prometheus.go).

use podwright_linux::cgroup::{Bound, CgroupUsage, DeviceIo};

use super::{device, limit};
use crate::stats::sample::{FsSample, InterfaceSample};
use crate::stats::summary::working_set;

/// One metric of a `T`.
pub(super) struct Table<T> {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    /// It only grows.
    pub(super) counter: bool,
    pub(super) value: fn(&T) -> Option<f64>,
}

const fn counter<T>(name: &'static str, help: &'static str, value: fn(&T) -> Option<f64>) -> Table<T> {
    Table { name, help, counter: true, value }
}

const fn gauge<T>(name: &'static str, help: &'static str, value: fn(&T) -> Option<f64>) -> Table<T> {
    Table { name, help, counter: false, value }
}

fn number(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

fn seconds(nanoseconds: Option<u64>) -> Option<f64> {
    nanoseconds.map(|ns| ns as f64 / 1e9)
}

/// Microseconds of pressure in seconds.
fn stalled(microseconds: Option<u64>) -> Option<f64> {
    microseconds.map(|us| us as f64 / 1e6)
}

/// Throttling is reported only for cgroups with a quota.
fn with_quota(usage: &CgroupUsage, value: Option<f64>) -> Option<f64> {
    value.filter(|_| matches!(usage.cpu.quota_us, Some(Bound::At(_))))
}

/// The operations of a device in the counters of /proc/diskstats, under the name of the metric of cgroups.
pub(super) fn disk_operations(name: &str, counters: &[u64; 11]) -> Option<f64> {
    match name {
        "container_fs_reads_total" => Some(counters[0] as f64),
        "container_fs_writes_total" => Some(counters[4] as f64),
        _ => None,
    }
}

/// Of every cgroup, with the time of the sample.
pub(super) const CGROUP_METRICS: &[Table<CgroupUsage>] = &[
    counter("container_cpu_user_seconds_total", "Cumulative user cpu time consumed in seconds.", |u| {
        seconds(u.cpu.user_ns)
    }),
    counter("container_cpu_system_seconds_total", "Cumulative system cpu time consumed in seconds.", |u| {
        seconds(u.cpu.system_ns)
    }),
    counter("container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals.", |u| {
        with_quota(u, number(u.cpu.periods))
    }),
    counter("container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals.", |u| {
        with_quota(u, number(u.cpu.throttled_periods))
    }),
    counter(
        "container_cpu_cfs_throttled_seconds_total",
        "Total time duration the container has been throttled.",
        |u| with_quota(u, seconds(u.cpu.throttled_ns)),
    ),
    counter("container_cpu_cfs_burst_periods_total", "Number of periods when burst occurs.", |u| {
        with_quota(u, number(u.cpu.burst_periods))
    }),
    counter("container_cpu_cfs_burst_seconds_total", "Total time duration the container has been bursted.", |u| {
        with_quota(u, seconds(u.cpu.burst_ns))
    }),
    gauge("container_memory_cache", "Number of bytes of page cache memory.", |u| number(u.memory.cache)),
    gauge("container_memory_rss", "Size of RSS in bytes.", |u| number(u.memory.rss)),
    gauge("container_memory_kernel_usage", "Size of kernel memory allocated in bytes.", |u| number(u.memory.kernel)),
    gauge("container_memory_mapped_file", "Size of memory mapped files in bytes.", |u| number(u.memory.mapped_file)),
    gauge("container_memory_swap", "Container swap usage in bytes.", |u| number(u.memory.swap)),
    counter("container_memory_failcnt", "Number of memory usage hits limits", |u| number(u.memory.failures)),
    gauge(
        "container_memory_usage_bytes",
        "Current memory usage in bytes, including all memory regardless of when it was accessed",
        |u| number(u.memory.usage),
    ),
    gauge("container_memory_max_usage_bytes", "Maximum memory usage recorded in bytes", |u| number(u.memory.max_usage)),
    gauge("container_memory_working_set_bytes", "Current working set in bytes.", |u| number(working_set(&u.memory))),
    gauge("container_memory_total_active_file_bytes", "Current total active file in bytes.", |u| {
        number(u.memory.active_file)
    }),
    gauge("container_memory_total_inactive_file_bytes", "Current total inactive file in bytes.", |u| {
        number(u.memory.inactive_file)
    }),
    gauge("container_processes", "Number of processes running inside the container.", |u| {
        number(u64::try_from(u.pids.processes.len()).ok())
    }),
    gauge("container_threads", "Number of threads running inside the container", |u| number(u.pids.current)),
    gauge(
        "container_threads_max",
        "Maximum number of threads allowed inside the container, infinity if value is zero",
        |u| limit(u.pids.max),
    ),
    counter("container_oom_events_total", "Count of out of memory events observed for the container", |u| {
        number(u.memory.oom_kills)
    }),
    counter(
        "container_pressure_cpu_stalled_seconds_total",
        "Total time duration no tasks in the container could make progress due to CPU congestion.",
        |u| stalled(u.cpu.pressure.map(|p| p.full.total_us)),
    ),
    counter(
        "container_pressure_cpu_waiting_seconds_total",
        "Total time duration tasks in the container have waited due to CPU congestion.",
        |u| stalled(u.cpu.pressure.map(|p| p.some.total_us)),
    ),
    counter(
        "container_pressure_memory_stalled_seconds_total",
        "Total time duration no tasks in the container could make progress due to memory congestion.",
        |u| stalled(u.memory.pressure.map(|p| p.full.total_us)),
    ),
    counter(
        "container_pressure_memory_waiting_seconds_total",
        "Total time duration tasks in the container have waited due to memory congestion.",
        |u| stalled(u.memory.pressure.map(|p| p.some.total_us)),
    ),
    counter(
        "container_pressure_io_stalled_seconds_total",
        "Total time duration no tasks in the container could make progress due to IO congestion.",
        |u| stalled(u.io.pressure.map(|p| p.full.total_us)),
    ),
    counter(
        "container_pressure_io_waiting_seconds_total",
        "Total time duration tasks in the container have waited due to IO congestion.",
        |u| stalled(u.io.pressure.map(|p| p.some.total_us)),
    ),
];

/// Limits of every cgroup, without a time.
pub(super) const SPEC_METRICS: &[Table<CgroupUsage>] = &[
    gauge("container_spec_cpu_period", "CPU period of the container.", |u| number(u.cpu.period_us)),
    gauge("container_spec_cpu_quota", "CPU quota of the container.", |u| with_quota(u, limit(u.cpu.quota_us))),
    gauge("container_spec_cpu_shares", "CPU share of the container.", |u| number(u.cpu.shares)),
    gauge("container_spec_memory_limit_bytes", "Memory limit for the container.", |u| limit(u.memory.limit)),
    gauge("container_spec_memory_reservation_limit_bytes", "Memory reservation limit for the container.", |u| {
        limit(u.memory.reservation)
    }),
    gauge("container_spec_memory_swap_limit_bytes", "Memory swap limit for the container.", |u| {
        limit(u.memory.swap_limit)
    }),
];

/// Of every cgroup and block device.
pub(super) const DEVICE_METRICS: &[Table<DeviceIo>] = &[
    counter("container_fs_reads_bytes_total", "Cumulative count of bytes read", |io| device(|io| io.read_bytes, io)),
    counter("container_fs_reads_total", "Cumulative count of reads completed", |io| device(|io| io.reads, io)),
    counter("container_fs_writes_bytes_total", "Cumulative count of bytes written", |io| {
        device(|io| io.write_bytes, io)
    }),
    counter("container_fs_writes_total", "Cumulative count of writes completed", |io| device(|io| io.writes, io)),
];

/// Of every network interface.
pub(super) const INTERFACE_METRICS: &[Table<InterfaceSample>] = &[
    counter("container_network_receive_bytes_total", "Cumulative count of bytes received", |i| Some(i.rx_bytes as f64)),
    counter("container_network_receive_errors_total", "Cumulative count of errors encountered while receiving", |i| {
        Some(i.rx_errors as f64)
    }),
    counter(
        "container_network_receive_packets_dropped_total",
        "Cumulative count of packets dropped while receiving",
        |i| Some(i.rx_dropped as f64),
    ),
    counter("container_network_receive_packets_total", "Cumulative count of packets received", |i| {
        Some(i.rx_packets as f64)
    }),
    counter("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", |i| {
        Some(i.tx_bytes as f64)
    }),
    counter(
        "container_network_transmit_errors_total",
        "Cumulative count of errors encountered while transmitting",
        |i| Some(i.tx_errors as f64),
    ),
    counter(
        "container_network_transmit_packets_dropped_total",
        "Cumulative count of packets dropped while transmitting",
        |i| Some(i.tx_dropped as f64),
    ),
    counter("container_network_transmit_packets_total", "Cumulative count of packets transmitted", |i| {
        Some(i.tx_packets as f64)
    }),
];

/// Of every local file system.
pub(super) const FS_METRICS: &[Table<FsSample>] = &[
    gauge("container_fs_inodes_free", "Number of available Inodes", |fs| Some(fs.inodes_free as f64)),
    gauge("container_fs_inodes_total", "Number of Inodes", |fs| Some(fs.inodes as f64)),
    gauge(
        "container_fs_limit_bytes",
        "Number of bytes that can be consumed by the container on this filesystem.",
        |fs| Some(fs.capacity as f64),
    ),
    gauge("container_fs_usage_bytes", "Number of bytes that are consumed by the container on this filesystem.", |fs| {
        Some(fs.used as f64)
    }),
];

/// Of every device of a local file system: the counters of /proc/diskstats.
pub(super) const DISK_METRICS: &[Table<[u64; 11]>] = &[
    counter("container_fs_reads_merged_total", "Cumulative count of reads merged", |c| Some(c[1] as f64)),
    counter("container_fs_sector_reads_total", "Cumulative count of sector reads completed", |c| Some(c[2] as f64)),
    counter("container_fs_read_seconds_total", "Cumulative count of seconds spent reading", |c| {
        Some(c[3] as f64 / 1e3)
    }),
    counter("container_fs_writes_merged_total", "Cumulative count of writes merged", |c| Some(c[5] as f64)),
    counter("container_fs_sector_writes_total", "Cumulative count of sector writes completed", |c| Some(c[6] as f64)),
    counter("container_fs_write_seconds_total", "Cumulative count of seconds spent writing", |c| {
        Some(c[7] as f64 / 1e3)
    }),
    gauge("container_fs_io_current", "Number of I/Os currently in progress", |c| Some(c[8] as f64)),
    counter("container_fs_io_time_seconds_total", "Cumulative count of seconds spent doing I/Os", |c| {
        Some(c[9] as f64 / 1e3)
    }),
    counter("container_fs_io_time_weighted_seconds_total", "Cumulative weighted I/O time in seconds", |c| {
        Some(c[10] as f64 / 1e3)
    }),
];
