//! What both agents report about resources: the keys of the summary, names and labels of metrics, and the size of values.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// The responses of one agent.
pub(crate) struct Reported {
    pub(crate) summary: Value,
    pub(crate) few: Value,
    pub(crate) resource: String,
    pub(crate) cadvisor: String,
    pub(crate) probes: String,
}

/// A pod with and a pod without limits, a volume, a log and a probe.
pub(crate) fn pods() -> [(&'static str, Value); 2] {
    let script = "dd if=/dev/zero of=/scratch/f bs=1M count=2; echo hello; while :; do sleep 1; done";
    let busy = json!({
        "name": "busy", "image": podwright_testbed::image::BUSYBOX, "command": ["sh", "-c", script],
        "resources": {"limits": {"cpu": "100m", "memory": "64Mi"}, "requests": {"cpu": "50m", "memory": "32Mi"}},
        "livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 2},
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    });
    let idle = json!({
        "name": "idle", "image": podwright_testbed::image::BUSYBOX,
        "command": ["sh", "-c", "while :; do sleep 1; done"],
    });
    let busy = json!({"terminationGracePeriodSeconds": 1, "containers": [busy], "volumes": [{"name": "scratch", "emptyDir": {}}]});
    let idle = json!({"terminationGracePeriodSeconds": 1, "containers": [idle], "hostNetwork": true});
    [("busy", busy), ("idle", idle)]
}

/// Every key of the summary: `pods.busy-node.containers.busy.cpu.time`.
fn keys(value: &Value, path: &str, found: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| keys(value, &format!("{path}.{name}"), found)),
        Value::Array(items) => {
            for item in items {
                let name = item["name"].as_str().or(item["podRef"]["name"].as_str()).unwrap_or("?");
                keys(item, &format!("{path}.{name}"), found);
            }
        }
        leaf => drop(found.insert(path.to_owned(), leaf.clone())),
    }
}

/// Names of metrics with the names of their labels.
fn shape(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (name, rest) = line.split_once(['{', ' ']).expect("a name and a value");
        let labels = if line.as_bytes()[name.len()] == b'{' { rest.rsplit_once('}').expect("labels").0 } else { "" };
        let labels = labels.split(',').filter_map(|label| label.split_once('=')).map(|(name, _)| name.to_owned());
        found.entry(name.to_owned()).or_default().extend(labels);
    }
    found
}

/// Fails unless both have the same form, but for what is listed below, and values of the same size.
pub(crate) fn assert_same(ours: &Reported, theirs: &Reported) {
    let mut wrong = vec![];
    for (page, ours, theirs) in [("summary", &ours.summary, &theirs.summary), ("few", &ours.few, &theirs.few)] {
        let (mut mine, mut other) = (BTreeMap::new(), BTreeMap::new());
        keys(ours, "", &mut mine);
        keys(theirs, "", &mut other);
        let accepted = |key: &str, list: &[(&str, &str)]| list.iter().any(|(part, _)| key.contains(part));
        wrong.extend(
            other
                .keys()
                .filter(|key| !mine.contains_key(*key) && !accepted(key, ONLY_THEIRS))
                .map(|key| format!("{page}: only theirs: {key}")),
        );
        wrong.extend(
            mine.keys()
                .filter(|key| !other.contains_key(*key) && !accepted(key, ONLY_OURS))
                .map(|key| format!("{page}: only ours: {key}")),
        );
        for (key, value) in &mine {
            let (Some(a), Some(b)) = (value.as_f64(), other.get(key).and_then(Value::as_f64)) else { continue };
            let Some((_, factor)) = COMPARED_VALUES.iter().find(|(part, _)| key.ends_with(part)) else { continue };
            if a > b * factor || b > a * factor {
                wrong.push(format!("{page}: {key}: {a} and {b}"));
            }
        }
    }
    for (page, ours, theirs, left_out) in [
        ("resource", &ours.resource, &theirs.resource, &[][..]),
        ("probes", &ours.probes, &theirs.probes, &[][..]),
        ("cadvisor", &ours.cadvisor, &theirs.cadvisor, LEFT_OUT),
    ] {
        let (ours, theirs) = (shape(ours), shape(theirs));
        for (name, labels) in &theirs {
            match ours.get(name) {
                None if left_out.iter().any(|prefix| name.starts_with(prefix)) => {}
                None => wrong.push(format!("{page}: only theirs: {name}")),
                Some(own) if own != labels => wrong.push(format!("{page}: {name}: labels {own:?} and {labels:?}")),
                Some(_) => {}
            }
        }
        let new = ours.keys().filter(|name| !theirs.contains_key(*name) && !IO_OF_CGROUPS.contains(&name.as_str()));
        wrong.extend(new.map(|name| format!("{page}: only ours: {name}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const ONLY_THEIRS: &[(&str, &str)] = &[
    (".psi.", "zero on cgroup v1, where the kernel has no pressure of cgroups"),
    ("idle.memory.availableBytes", "zero from containerd for a container without a limit"),
    (".swap.swapAvailableBytes", "zero from containerd on cgroup v1"),
    (BRIDGES.0, BRIDGES.1),
];
const ONLY_OURS: &[(&str, &str)] = &[
    (".network.", "their cAdvisor finds no containerd at its usual address, hence no network of pods"),
    (".process_stats.", "for the same reason"),
    (".systemContainers.kubelet", "only with kubeletCgroups"),
    (BRIDGES.0, BRIDGES.1),
];
const BRIDGES: (&str, &str) = (".node.network.interfaces.pw", "the bridges of other tests come and go");
/// Ends of keys, and the factor that values may differ by: the pods are not the same ones, and the host is shared.
const COMPARED_VALUES: &[(&str, f64)] = &[
    // Less than a MiB: the kernel charges memory in batches.
    ("containers.busy.memory.workingSetBytes", 4.0),
    ("containers.idle.memory.workingSetBytes", 4.0),
    ("containers.busy.memory.availableBytes", 1.1),
    ("containers.busy.rootfs.usedBytes", 1.1),
    ("containers.busy.rootfs.inodesUsed", 1.1),
    ("containers.busy.logs.usedBytes", 1.1),
    ("containers.busy.logs.inodesUsed", 1.1),
    ("volume.scratch.usedBytes", 1.1),
    ("volume.scratch.inodesUsed", 1.1),
    ("busy-node.ephemeral-storage.usedBytes", 1.1),
    ("busy-node.ephemeral-storage.inodesUsed", 1.1),
    (".node.fs.capacityBytes", 1.1),
    (".node.fs.inodes", 1.1),
    (".node.runtime.imageFs.usedBytes", 1.1),
    (".node.runtime.imageFs.capacityBytes", 1.1),
    (".node.memory.workingSetBytes", 2.0),
    (".node.rlimit.maxpid", 1.1),
    (".node.cpu.usageCoreNanoSeconds", 1.1),
];
/// Metrics that are constant in a kubelet, need a scan of all processes, or describe rare hardware.
const LEFT_OUT: &[&str] = &[
    "cadvisor_version_info",
    "container_cpu_load_",
    "container_file_descriptors",
    "container_health_state",
    "container_sockets",
    "container_tasks_state",
    "container_ulimits_soft",
    "container_blkio_device_usage_total",
    "machine_cpu_books",
    "machine_cpu_drawers",
    "machine_cpu_physical_cores",
    "machine_cpu_sockets",
    "machine_nvm_",
    "machine_scrape_error",
];
/// Present once a container has read or written a block device.
const IO_OF_CGROUPS: [&str; 2] = ["container_fs_reads_bytes_total", "container_fs_writes_bytes_total"];
