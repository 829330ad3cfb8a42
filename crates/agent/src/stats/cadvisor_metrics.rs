//! `/metrics/cadvisor`: the metrics of cAdvisor that the Go kubelet serves, for the node, the cgroups of QoS classes and pods, and
//! every container. Those that are always zero in a kubelet (load averages, task states, health) and those that need a scan of
//! all processes (descriptors, sockets) are left out.

mod tables;

use jiff::Timestamp;
use podwright_linux::cgroup::{Bound, DeviceIo};

use super::cgroups::{MachineIds, timestamp};
use super::exposition::{self, Family};
use super::sample::{CgroupSample, DiskSample, HostSample, InterfaceSample, Sample};
use tables::{CGROUP_METRICS, DEVICE_METRICS, DISK_METRICS, FS_METRICS, INTERFACE_METRICS, SPEC_METRICS, Table};

/// One cgroup with its labels.
struct Entry<'a> {
    cgroup: &'a CgroupSample,
    started: Option<Timestamp>,
    container: &'a str,
    image: &'a str,
    /// The runtime's id.
    name: &'a str,
    namespace: &'a str,
    pod: &'a str,
    network: &'a [InterfaceSample],
    root: bool,
}

/// The text; `None`: sampling failed, which is itself reported.
pub(super) fn text(sample: Option<&Sample>, machine: &MachineIds) -> String {
    let mut error =
        Family::gauge("container_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise");
    error.add(&[], Some(if sample.is_some() { 0.0 } else { 1.0 }), None);
    let mut families = vec![error];
    if let Some(sample) = sample {
        let entries = entries(sample);
        families.extend(cgroup_families(&entries, &sample.host));
        families.extend(device_families(&entries, &sample.host));
        families.extend(network_families(&entries));
        families.extend(disk_families(sample));
        families.extend(machine_families(&sample.host, machine));
    }
    exposition::text(families)
}

fn entries(sample: &Sample) -> Vec<Entry<'_>> {
    let plain = |cgroup| Entry {
        cgroup,
        started: cgroup.usage.modified.and_then(timestamp),
        container: "",
        image: "",
        name: "",
        namespace: "",
        pod: "",
        network: &[],
        root: false,
    };
    let mut entries = vec![Entry {
        started: sample.host.boot_time,
        network: &sample.host.network,
        root: true,
        ..plain(&sample.root)
    }];
    entries.extend(sample.classes.iter().map(plain));
    for pod in &sample.pods {
        let of_pod = |cgroup| Entry { namespace: &pod.namespace, pod: &pod.name, ..plain(cgroup) };
        entries.extend(pod.cgroup.as_ref().map(|cgroup| Entry { started: Some(pod.started), ..of_pod(cgroup) }));
        let network = pod.network.as_deref().unwrap_or_default();
        let image = sample.host.sandbox_image.as_deref().unwrap_or_default();
        entries.extend(pod.sandbox.as_ref().map(|cgroup| Entry {
            started: Some(pod.started),
            image,
            name: &pod.sandbox_id,
            network,
            ..of_pod(cgroup)
        }));
        entries.extend(pod.containers.iter().filter_map(|container| {
            Some(Entry {
                started: Some(container.created),
                container: &container.name,
                image: &container.image,
                name: &container.id,
                ..of_pod(container.cgroup.as_ref()?)
            })
        }));
    }
    entries
}

impl Entry<'_> {
    /// Calls `add` with the labels, in the order of their names, and these.
    fn labelled<'a>(&'a self, extra: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let mut labels = Vec::with_capacity(6 + extra.len());
        labels.extend([
            ("container", self.container),
            ("id", self.cgroup.path.as_str()),
            ("image", self.image),
            ("name", self.name),
            ("namespace", self.namespace),
            ("pod", self.pod),
        ]);
        labels.extend(extra);
        if !extra.is_empty() {
            labels.sort_unstable();
        }
        labels
    }
}

fn family<T>(table: &Table<T>) -> Family {
    if table.counter { Family::counter(table.name, table.help) } else { Family::gauge(table.name, table.help) }
}

fn cgroup_families(entries: &[Entry<'_>], host: &HostSample) -> Vec<Family> {
    let mut families = vec![];
    for table in CGROUP_METRICS {
        let mut family = family(table);
        for entry in entries {
            family.add(&entry.labelled(&[]), (table.value)(&entry.cgroup.usage), Some(entry.cgroup.at));
        }
        families.push(family);
    }
    for table in SPEC_METRICS {
        let mut family = family(table);
        for entry in entries {
            let of_root = table.name == "container_spec_memory_limit_bytes" && entry.root;
            let value = match of_root {
                true => host.memory_total.map(|bytes| bytes as f64),
                false => (table.value)(&entry.cgroup.usage),
            };
            family.add(&entry.labelled(&[]), value, None);
        }
        families.push(family);
    }
    let mut cpu = Family::counter("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.");
    let mut seen = Family::gauge("container_last_seen", "Last time a container was seen by the exporter");
    let mut start =
        Family::gauge("container_start_time_seconds", "Start time of the container since unix epoch in seconds.");
    let mut faults =
        Family::counter("container_memory_failures_total", "Cumulative count of memory allocation failures.");
    for entry in entries {
        let (usage, at) = (&entry.cgroup.usage, Some(entry.cgroup.at));
        let seconds = usage.cpu.usage_ns.map(|ns| ns as f64 / 1e9);
        cpu.add(&entry.labelled(&[("cpu", "total")]), seconds, at);
        seen.add(&entry.labelled(&[]), Some(entry.cgroup.at.as_second() as f64), at);
        start.add(&entry.labelled(&[]), entry.started.map(|time| time.as_second() as f64), None);
        let memory = &usage.memory;
        for (kind, scope, count) in [
            ("pgfault", "container", memory.page_faults),
            ("pgmajfault", "container", memory.major_page_faults),
            ("pgfault", "hierarchy", memory.total_page_faults),
            ("pgmajfault", "hierarchy", memory.total_major_page_faults),
        ] {
            let labels = entry.labelled(&[("failure_type", kind), ("scope", scope)]);
            faults.add(&labels, count.map(|count| count as f64), at);
        }
    }
    families.extend([cpu, seen, start, faults]);
    families
}

/// The transfers of each cgroup; those of the root are the counters of the devices themselves.
fn device_families(entries: &[Entry<'_>], host: &HostSample) -> Vec<Family> {
    let mut families = vec![];
    for table in DEVICE_METRICS {
        let mut family = family(table);
        for entry in entries {
            let at = Some(entry.cgroup.at);
            if entry.root {
                for (device, disk) in &host.disks {
                    let value = disk.counters.and_then(|counters| tables::disk_operations(table.name, &counters));
                    family.add(&entry.labelled(&[("device", device)]), value, at);
                }
                continue;
            }
            for (number, io) in &entry.cgroup.usage.io.devices {
                let Some(device) = host.devices.get(number) else { continue };
                let device = format!("/dev/{device}");
                family.add(&entry.labelled(&[("device", &device)]), (table.value)(io), at);
            }
        }
        families.push(family);
    }
    families
}

fn network_families(entries: &[Entry<'_>]) -> Vec<Family> {
    let mut families = vec![];
    for table in INTERFACE_METRICS {
        let mut family = family(table);
        for entry in entries {
            for interface in entry.network {
                let labels = entry.labelled(&[("interface", &interface.name)]);
                family.add(&labels, (table.value)(interface), Some(entry.cgroup.at));
            }
        }
        families.push(family);
    }
    families
}

/// The local file systems and their devices, under the id of the root cgroup.
fn disk_families(sample: &Sample) -> Vec<Family> {
    fn add<T>(families: &mut Vec<Family>, tables: &[Table<T>], sample: &Sample, part: fn(&DiskSample) -> Option<&T>) {
        for table in tables {
            let mut family = family(table);
            for (device, disk) in &sample.host.disks {
                let labels = [
                    ("container", ""),
                    ("device", device.as_str()),
                    ("id", "/"),
                    ("image", ""),
                    ("name", ""),
                    ("namespace", ""),
                    ("pod", ""),
                ];
                family.add(&labels, part(disk).and_then(table.value), Some(sample.at));
            }
            families.push(family);
        }
    }
    let mut families = vec![];
    add(&mut families, FS_METRICS, sample, |disk| disk.fs.as_ref());
    add(&mut families, DISK_METRICS, sample, |disk| disk.counters.as_ref());
    families
}

fn machine_families(host: &HostSample, machine: &MachineIds) -> Vec<Family> {
    let labels = [
        ("boot_id", machine.boot_id.as_str()),
        ("machine_id", machine.machine_id.as_str()),
        ("system_uuid", machine.system_uuid.as_str()),
    ];
    let cores = std::thread::available_parallelism().ok().map(|cores| cores.get() as f64);
    let bytes = |value: Option<u64>| value.map(|bytes| bytes as f64);
    let mut families = vec![];
    for (name, help, value) in [
        ("machine_cpu_cores", "Number of logical CPU cores.", cores),
        ("machine_memory_bytes", "Amount of memory installed on the machine.", bytes(host.memory_total)),
        ("machine_swap_bytes", "Amount of swap memory available on the machine.", bytes(host.swap_total)),
    ] {
        let mut family = Family::gauge(name, help);
        family.add(&labels, value, None);
        families.push(family);
    }
    families
}

/// A limit as cAdvisor reports it: zero for none.
fn limit(bound: Option<Bound>) -> Option<f64> {
    Some(match bound? {
        Bound::At(limit) => limit as f64,
        Bound::Max => 0.0,
    })
}

/// A counter of a device.
fn device(count: fn(&DeviceIo) -> u64, io: &DeviceIo) -> Option<f64> {
    Some(count(io) as f64)
}
