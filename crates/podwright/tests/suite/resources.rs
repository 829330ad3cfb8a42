//! Resource limits in the kernel: cgroups of QoS classes, pods and containers, and OOM scores.

use std::fs;
use std::path::{Path, PathBuf};

use podwright_linux::cgroup::cpu_weight;
use podwright_testbed::{Flavor, TestRuntime};
use serde_json::{Value, json};

use super::{TestNode, container, container_id, one, sleeper};

/// QoS class, pod and expected values: CPU shares, CPU quota in µs per 100 ms, memory.
struct Expected {
    name: &'static str,
    parent: &'static str,
    resources: Value,
    shares: u64,
    quota: Option<u64>,
    memory: Option<u64>,
}

fn pods() -> [Expected; 3] {
    [
        Expected {
            name: "guaranteed",
            parent: "kubepods",
            resources: json!({"limits": {"cpu": "100m", "memory": "64Mi"}}),
            shares: 102,
            quota: Some(10_000),
            memory: Some(64 << 20),
        },
        Expected {
            name: "burstable",
            parent: "kubepods/burstable",
            resources: json!({"requests": {"cpu": "250m", "memory": "32Mi"}, "limits": {"memory": "48Mi"}}),
            shares: 256,
            quota: None,
            memory: Some(48 << 20),
        },
        Expected {
            name: "besteffort",
            parent: "kubepods/besteffort",
            resources: json!({}),
            shares: 2,
            quota: None,
            memory: None,
        },
    ]
}

pub(crate) fn put(node: &TestNode) {
    for pod in pods() {
        let mut spec = one(&sleeper("c"));
        spec["containers"][0]["resources"] = pod.resources;
        node.put(pod.name, &spec);
    }
}

pub(crate) fn check(node: &TestNode) {
    for expected in pods() {
        let pod = node.wait_phase(expected.name, "Running");
        let name = expected.name;
        let class = pod["status"]["qosClass"].as_str().expect("a class").to_lowercase();
        assert_eq!(class, name);
        let uid = pod["metadata"]["uid"].as_str().expect("a uid");
        let id = container_id(container(&pod, "c"));
        let of_pod = format!("{}/{}/pod{uid}", node.scratch.name(), expected.parent);
        let of_container = format!("{of_pod}/{id}");
        for group in [&of_pod, &of_container] {
            assert_eq!(shares(group), kernel_value(expected.shares), "{name}: {group}");
            assert_eq!(quota(group), expected.quota, "{name}: {group}");
            assert_eq!(memory(group), expected.memory, "{name}: {group}");
        }
        assert_eq!(number("pids", &of_pod, "pids.max", "pids.max"), Some(123), "{name}");
        let pid = first_process(&of_container);
        let score: i64 = read(Path::new(&format!("/proc/{pid}/oom_score_adj"))).parse().expect("a number");
        match name {
            "besteffort" => assert_eq!(score, 1000),
            "burstable" => assert!((2..1000).contains(&score), "{score}"),
            // -997 where the host allows it; else as low as the runtime's own score.
            _ => assert!(score == -997 || score == score_of(runtime_pid(node)), "{score}"),
        }
    }
    // The class has the weight of the sum of its pods' requests.
    assert_eq!(shares(&format!("{}/kubepods/burstable", node.scratch.name())), kernel_value(256));
}

/// A process of the runtime itself.
fn runtime_pid(node: &TestNode) -> u32 {
    match &node.runtime {
        TestRuntime::Containerd(containerd) => containerd.pid(),
        TestRuntime::Engine(_) => node.agent.pid(),
    }
}

/// At startup and, with changed reservations, at the next start; also while pods run.
pub(crate) fn the_cgroup_of_all_pods_is_limited_to_node_allocatable(flavor: Flavor) {
    let mut node = TestNode::start(flavor);
    let group = format!("{}/kubepods", node.scratch.name());
    let total = read(Path::new("/proc/meminfo"));
    let total = total
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"))
        .expect("MemTotal is in kB");
    let total = total.parse::<u64>().expect("a number") << 10;
    let held = || number("memory", &group, "memory.limit_in_bytes", "memory.max");
    assert_eq!(held(), Some(total), "before the first pod");
    node.put("held", &one(&sleeper("c")));
    let before = node.wait_phase("held", "Running");
    node.agent.sigterm().expect("it ends");
    let file = node.scratch.path().join("podwright.yaml");
    let mut config: Value = serde_json::from_slice(&fs::read(&file).expect("there")).expect("JSON");
    config["systemReserved"] = json!({"memory": "64Mi", "pid": "1000"});
    fs::write(&file, config.to_string()).expect("written");
    node.agent.start_again().expect("it starts");
    assert_eq!(held(), Some(total - (64 << 20)));
    assert!(number("pids", &group, "pids.max", "pids.max").is_some());
    let after = node.wait_phase("held", "Running");
    assert_eq!(
        container(&after, "c")["containerID"],
        container(&before, "c")["containerID"],
        "a container was touched"
    );
    node.remove_all();
    node.wait_nothing_left();
}

fn score_of(pid: u32) -> i64 {
    read(Path::new(&format!("/proc/{pid}/oom_score_adj"))).parse().expect("a number")
}

/// The host uses only cgroup v2.
fn unified() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

pub(crate) fn kernel_value(shares: u64) -> Option<u64> {
    Some(if unified() { cpu_weight(shares) } else { shares })
}

pub(crate) fn shares(group: &str) -> Option<u64> {
    number("cpu", group, "cpu.shares", "cpu.weight")
}

pub(crate) fn quota(group: &str) -> Option<u64> {
    number("cpu", group, "cpu.cfs_quota_us", "cpu.max")
}

/// `None`: unlimited, which version 1 writes as the largest number of pages.
pub(crate) fn memory(group: &str) -> Option<u64> {
    number("memory", group, "memory.limit_in_bytes", "memory.max").filter(|bytes| *bytes < 1 << 60)
}

fn first_process(group: &str) -> String {
    read(&file("memory", group, "cgroup.procs", "cgroup.procs")).lines().next().expect("a process").to_owned()
}

fn number(controller: &str, group: &str, v1: &str, v2: &str) -> Option<u64> {
    let text = read(&file(controller, group, v1, v2));
    text.split(' ').next().and_then(|word| word.parse().ok())
}

fn file(controller: &str, group: &str, v1: &str, v2: &str) -> PathBuf {
    let root = Path::new("/sys/fs/cgroup");
    if unified() { root.join(group).join(v2) } else { root.join(controller).join(group).join(v1) }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).trim().to_owned()
}
