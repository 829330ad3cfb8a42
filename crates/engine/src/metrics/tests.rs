use std::collections::BTreeSet;

use podwright_linux::cgroup::{Bound, CpuUsage, DeviceIo, IoUsage, MemoryUsage, PidUsage, Pressure, Stall};

use super::*;

fn subject() -> MetricSubject {
    let [pod, namespace, container, id, image] = ["web", "shop", "main", "0a1b", "nginx:1"].map(String::from);
    MetricSubject { pod, namespace, container, id, image }
}

/// Of a container that uses everything.
fn sample() -> MetricSample {
    let stall = |total_us| Stall { total_us, ..Stall::default() };
    let pressure = Some(Pressure { some: stall(5_999_999), full: stall(2_000_000) });
    let number = Some(7);
    MetricSample {
        usage: CgroupUsage {
            modified: None,
            cpu: CpuUsage {
                usage_ns: Some(3_999_999_999),
                user_ns: Some(2_000_000_000),
                system_ns: Some(1_000_000_000),
                throttled_ns: Some(500_000_000),
                quota_us: Some(Bound::At(50_000)),
                periods: number,
                throttled_periods: number,
                burst_periods: number,
                burst_ns: number,
                shares: number,
                period_us: Some(100_000),
                pressure,
            },
            memory: MemoryUsage {
                usage: Some(1000),
                inactive_file: Some(300),
                limit: Some(Bound::At(4096)),
                reservation: Some(Bound::Max),
                swap_limit: Some(Bound::Max),
                page_faults: Some(1),
                major_page_faults: Some(2),
                total_page_faults: Some(3),
                total_major_page_faults: Some(4),
                max_usage: number,
                failures: number,
                cache: number,
                rss: number,
                mapped_file: number,
                active_file: number,
                kernel: number,
                swap: number,
                oom_kills: number,
                pressure,
            },
            io: IoUsage {
                devices: [((8, 0), DeviceIo { read_bytes: 10, write_bytes: 20, reads: 1, writes: 2 })].into(),
                pressure,
            },
            pids: PidUsage { current: Some(5), max: Some(Bound::Max), processes: vec![11, 12] },
        },
        started_at_ns: 1_700_000_000_999_999_999,
        at_ns: 1_700_000_060_000_000_000,
        layer: Some((TreeUsage { bytes: 4096, inodes: 3, complete: true }, 1_700_000_050_000_000_000)),
        file_system: Some(LayerFileSystem { device: "/dev/sda1".into(), size: 99, inodes: 88, inodes_free: 77 }),
        device_names: [((8, 0), "/dev/sda".to_owned())].into(),
    }
}

/// The own labels and the value of each point of a metric.
fn points<'a>(metrics: &'a [v1::Metric], name: &str) -> Vec<(Vec<&'a str>, u64)> {
    let own = |metric: &'a v1::Metric| metric.label_values[BASE_LABELS.len()..].iter().map(String::as_str).collect();
    let named = metrics.iter().filter(|metric| metric.name == name);
    named.map(|metric| (own(metric), metric.value.expect("every point has a value").value)).collect()
}

#[test]
fn every_metric_is_described_once_and_has_the_labels_of_its_description() {
    let described = descriptors();
    let names: BTreeSet<&str> = described.iter().map(|descriptor| descriptor.name.as_str()).collect();
    assert_eq!(names.len(), described.len(), "a name is described twice");
    let interfaces = [InterfaceCounters { name: "eth0".into(), ..InterfaceCounters::default() }];
    let mut metrics = of_container(&sample(), &subject());
    metrics.extend(of_pod(&interfaces, &subject()));
    for metric in &metrics {
        let descriptor = described.iter().find(|descriptor| descriptor.name == metric.name).expect("it is described");
        assert_eq!(descriptor.label_keys.len(), metric.label_values.len(), "{}", metric.name);
        assert_eq!(descriptor.label_keys[..5], BASE_LABELS);
        assert_eq!(metric.label_values[..5], ["web", "shop", "main", "0a1b", "nginx:1"]);
    }
    let given: BTreeSet<&str> = metrics.iter().map(|metric| metric.name.as_str()).collect();
    assert_eq!(given, names, "a container that uses everything has every metric");
}

#[test]
fn values_have_the_units_of_cadvisor() {
    let metrics = of_container(&sample(), &subject());
    for (name, value) in [
        ("container_cpu_usage_seconds_total", 3),
        ("container_cpu_cfs_throttled_seconds_total", 0),
        ("container_memory_working_set_bytes", 700),
        ("container_memory_failcnt", 7),
        ("container_spec_memory_limit_bytes", 4096),
        ("container_spec_memory_swap_limit_bytes", 0),
        ("container_spec_cpu_quota", 50_000),
        ("container_processes", 2),
        ("container_threads", 5),
        ("container_threads_max", 0),
        ("container_start_time_seconds", 1_700_000_000),
        ("container_last_seen", 1_700_000_060),
        ("container_pressure_io_waiting_seconds_total", 5),
        ("container_pressure_io_stalled_seconds_total", 2),
    ] {
        assert_eq!(points(&metrics, name), [(vec![], value)], "{name}");
    }
    assert_eq!(points(&metrics, "container_fs_usage_bytes"), [(vec!["/dev/sda1"], 4096)]);
    assert_eq!(points(&metrics, "container_fs_inodes_free"), [(vec!["/dev/sda1"], 77)]);
    assert_eq!(points(&metrics, "container_fs_writes_bytes_total"), [(vec!["/dev/sda"], 20)]);
    let both = [(vec!["/dev/sda", "8", "0", "Read"], 10), (vec!["/dev/sda", "8", "0", "Write"], 20)];
    assert_eq!(points(&metrics, "container_blkio_device_usage_total"), both);
    let faults = points(&metrics, "container_memory_failures_total");
    assert!(
        faults.contains(&(vec!["pgmajfault", "container"], 2)) && faults.contains(&(vec!["pgfault", "hierarchy"], 3))
    );
    // Only what was measured before the call has a time.
    let timed: Vec<_> = metrics.iter().filter(|metric| metric.timestamp != 0).map(|metric| &metric.name).collect();
    assert_eq!(timed, ["container_fs_usage_bytes"]);
}

#[test]
fn what_is_not_known_is_left_out() {
    let nothing = MetricSample { at_ns: 5_000_000_000, ..MetricSample::default() };
    let metrics = of_container(&nothing, &subject());
    assert_eq!(metrics.iter().map(|metric| metric.name.as_str()).collect::<Vec<_>>(), ["container_last_seen"]);
    let mut unlimited = sample();
    unlimited.usage.cpu.quota_us = Some(Bound::Max);
    assert_eq!(points(&of_container(&unlimited, &subject()), "container_spec_cpu_quota"), []);
    assert_eq!(of_pod(&[], &subject()), []);
}

#[test]
fn the_traffic_of_a_pod_is_that_of_its_interfaces_without_loopback() {
    let interface = |name: &str, rx_bytes| InterfaceCounters {
        name: name.into(),
        rx_bytes,
        rx_packets: 2,
        tx_dropped: 3,
        ..InterfaceCounters::default()
    };
    let metrics = of_pod(&[interface("lo", 1), interface("eth0", 100), interface("net1", 200)], &subject());
    let received = points(&metrics, "container_network_receive_bytes_total");
    assert_eq!(received, [(vec!["eth0"], 100), (vec!["net1"], 200)]);
    assert_eq!(points(&metrics, "container_network_receive_packets_total")[0].1, 2);
    assert_eq!(points(&metrics, "container_network_transmit_packets_dropped_total")[0].1, 3);
}
