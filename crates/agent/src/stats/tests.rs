//! A sampler on plain cgroup files and a fake runtime.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use podwright_core::model::{DiskLayout, Pod, PodReading, PodRecord, PodSnapshot, PodUid, Source};
use podwright_cri::labels::Owner;
use podwright_cri::{Code, CriError, v1};
use podwright_linux::cgroup::{CgroupTree, UsageDetail};
use serde_json::{Value, json};

use super::cgroups::MachineIds;
use super::disk_usage::DiskUsage;
use super::sampler::{Sampler, SamplerConfig};
use crate::feed::PodFeed;
use crate::host::tests::hung::HungMount;
use crate::host::{Allocatable, Host, HostConfig, HostPaths, NodeAllocatable, Pool};
use crate::perform::fakes::{FakeRuntime, Step};
use crate::pod_spec::volume_host_path;

struct TestNode {
    dir: tempfile::TempDir,
    runtime: Arc<FakeRuntime>,
    feed: Arc<PodFeed>,
    paths: HostPaths,
    sampler: Arc<Sampler>,
}

const PSI: &str = "some avg10=1.50 avg60=0.20 avg300=0.00 total=77\nfull avg10=0.10 avg60=0.00 avg300=0.00 total=33\n";

impl TestNode {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("cgroup")).unwrap();
        fs::create_dir(at("root")).unwrap();
        let tree = CgroupTree::plain_v2(&at("cgroup"), &["cpu", "memory", "pids"]).unwrap();
        let paths = HostPaths {
            root_dir: at("root"),
            pod_logs_dir: at("logs"),
            container_logs_dir: at("links"),
            cgroup_root: "/".into(),
        };
        let (runtime, feed, pool) = (Arc::new(FakeRuntime::default()), Arc::new(PodFeed::default()), Pool::default());
        let host = Host::new(host_config(&paths, dir.path()), Some(tree), pool.clone());
        let sampler = Arc::new(Sampler::new(SamplerConfig {
            node: "node".into(),
            machine: MachineIds { boot_id: "b".into(), machine_id: "m".into(), system_uuid: "s".into() },
            runtime: runtime.clone(),
            images: runtime.clone(),
            feed: feed.clone(),
            paths: paths.clone(),
            cgroups: host.cgroups().clone(),
            volume_period: Some(Duration::from_secs(60)),
            pool,
        }));
        let node = Self { dir, runtime, feed, paths, sampler };
        node.cgroup("", 5_000_000, 900_000);
        node.cgroup("kubepods", 2_000_000, 500_000);
        node
    }

    /// Writes the files of a cgroup: CPU in microseconds, memory in bytes.
    fn cgroup(&self, path: &str, usage_usec: u64, memory: u64) {
        let dir = self.dir.path().join("cgroup").join(path);
        fs::create_dir_all(&dir).unwrap();
        let stat = format!("anon {}\nfile {}\ninactive_file 1000\npgfault 7\npgmajfault 1\n", memory / 2, memory / 2);
        for (name, content) in [
            (
                "cpu.stat",
                format!(
                    "usage_usec {usage_usec}\nuser_usec 5\nsystem_usec 5\nnr_periods 4\nnr_throttled 1\nthrottled_usec 9\n"
                ),
            ),
            ("cpu.max", "10000 100000\n".into()),
            ("cpu.pressure", PSI.into()),
            ("memory.current", memory.to_string()),
            ("memory.max", "67108864\n".into()),
            ("memory.stat", stat),
            ("memory.swap.current", "0\n".into()),
            ("memory.swap.max", "max\n".into()),
            ("pids.current", "3\n".into()),
            ("pids.max", "max\n".into()),
            ("cgroup.procs", format!("{}\n", std::process::id())),
        ] {
            fs::write(dir.join(name), content).unwrap();
        }
    }

    fn publish(&self, pod: Pod) -> Arc<Pod> {
        let pod = Arc::new(pod);
        let uid = PodUid::from(pod.metadata.uid.as_deref().unwrap());
        let status = serde_json::from_value(json!({"phase": "Running"})).unwrap();
        let record = PodRecord::new(uid, Source::Api, pod.clone(), jiff::Timestamp::UNIX_EPOCH);
        self.feed.publish(&PodSnapshot::of(&PodRecord { status: Some(status), ..record }));
        pod
    }

    /// A best-effort pod with a sandbox, and containers with or without a cgroup.
    fn run_pod(&self, uid: &str, containers: &[(&str, bool)]) -> Arc<Pod> {
        let pod = self.publish(pod(uid, json!([{"name": "scratch", "emptyDir": {}}])));
        let owner = |container| Owner { name: uid, namespace: "ns", uid, container }.to_labels();
        let group = format!("kubepods/besteffort/pod{uid}");
        self.cgroup(&group, 1_000_000, 300_000);
        self.cgroup(&format!("{group}/sandbox-{uid}"), 1000, 3000);
        self.runtime.sandboxes.lock().unwrap().push(v1::PodSandbox {
            id: format!("sandbox-{uid}"),
            labels: owner(None),
            created_at: 1_700_000_000_000_000_000,
            ..Default::default()
        });
        for (name, has_cgroup) in containers {
            let id = format!("{name}-of-{uid}");
            if *has_cgroup {
                self.cgroup(&format!("{group}/{id}"), 500_000, 200_000);
            }
            let image = v1::ImageSpec { image: "busybox:1".into(), ..Default::default() };
            self.runtime.containers.lock().unwrap().push(v1::Container {
                id,
                pod_sandbox_id: format!("sandbox-{uid}"),
                labels: owner(Some(name)),
                image: Some(image),
                created_at: 1_700_000_001_500_000_000,
                state: v1::ContainerState::ContainerRunning.into(),
                ..Default::default()
            });
        }
        pod
    }

    fn write(&self, path: &Path, size: usize) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![1; size]).unwrap();
    }

    async fn summary(&self, only_cpu_and_memory: bool) -> Value {
        serde_json::from_slice(&self.sampler.summary(only_cpu_and_memory).await.unwrap()).unwrap()
    }
}

fn pod(uid: &str, volumes: Value) -> Pod {
    let containers = json!([{"name": "c"}, {"name": "lost"}]);
    serde_json::from_value(json!({
        "metadata": {"uid": uid, "name": uid, "namespace": "ns"},
        "spec": {"containers": containers, "volumes": volumes},
    }))
    .unwrap()
}

fn host_config(paths: &HostPaths, dir: &Path) -> HostConfig {
    HostConfig {
        paths: paths.clone(),
        node_name: "node".into(),
        hostname_label: None,
        host_ips: vec![],
        cluster_domain: String::new(),
        allocatable: Allocatable { cpu_millis: 2000, memory: 1 << 30, ephemeral_storage: 1 << 30 },
        node_allocatable: NodeAllocatable { cpu_millis: 2000, memory: 3 << 30, pids: 4000 },
        pod_pids_limit: None,
        cpu_cfs_quota: true,
        cpu_cfs_period: Duration::from_millis(100),
        huge_page_sizes: vec![],
        hosts_file: dir.join("hosts"),
    }
}

#[tokio::test]
async fn a_pod_cannot_hide_its_disk_usage_in_deep_directories() {
    let node = TestNode::new();
    let web = node.run_pod("web", &[("c", true)]);
    let deep = volume_host_path(&node.paths, &web, "scratch").unwrap().join("d/".repeat(200));
    node.write(&deep.join("file"), 64 << 10);
    tokio::spawn(Arc::clone(&node.sampler).measure_disks());
    let pod = &node.summary(false).await["pods"][0];
    assert!(pod["ephemeral-storage"]["usedBytes"].as_u64() > Some(64 << 10), "{pod:#}");
    assert_eq!(pod["volume"][0]["inodesUsed"], 202, "{pod:#}");
}

#[tokio::test]
async fn a_pod_does_not_gain_from_a_volume_that_can_no_longer_be_measured() {
    let node = TestNode::new();
    let web = node.run_pod("web", &[("c", true)]);
    let volume = volume_host_path(&node.paths, &web, "scratch").unwrap();
    node.write(&volume.join("file"), 64 << 10);
    tokio::spawn(Arc::clone(&node.sampler).measure_disks());
    let used = async || {
        let pods = node.sampler.read_node(PodReading::Fresh).await.pods.unwrap();
        pods[&PodUid::from("web")].ephemeral_storage
    };
    let before = used().await;
    assert!(before > Some(64 << 10), "{before:?}");
    fs::remove_dir_all(&volume).unwrap();
    fs::write(&volume, "not a directory").unwrap();
    assert_eq!(used().await, before, "limits and ranks use what was known");
    let pod = &node.summary(false).await["pods"][0];
    assert_eq!(pod.get("ephemeral-storage"), None, "a part of the sum is no usage: {pod:#}");
}

#[tokio::test]
async fn the_summary_has_the_values_of_cgroups_files_and_the_runtime() {
    let node = TestNode::new();
    let web = node.run_pod("web", &[("c", true), ("lost", false)]);
    node.write(&volume_host_path(&node.paths, &web, "scratch").unwrap().join("file"), 64 << 10);
    node.write(&node.paths.container_logs(&web, "c").join("0.log"), 8 << 10);
    node.write(&node.paths.etc_hosts("web"), 100);
    tokio::spawn(Arc::clone(&node.sampler).measure_disks());

    let summary = node.summary(false).await;
    let root = &summary["node"];
    assert_eq!((&root["nodeName"], &root["cpu"]["usageCoreNanoSeconds"]), (&json!("node"), &json!(5_000_000_000u64)));
    assert_eq!(root["memory"]["workingSetBytes"], 899_000, "anon and file without the inactive part");
    assert!(root["memory"]["availableBytes"].as_u64() > Some(1 << 24), "the limit is the memory of the host: {root:#}");
    assert!(root["fs"]["capacityBytes"].as_u64() > Some(0) && root["rlimit"]["curproc"].as_u64() > Some(1), "{root:#}");
    let all_pods = root["systemContainers"].as_array().unwrap().iter().find(|c| c["name"] == "pods").unwrap();
    assert_eq!(all_pods["cpu"]["usageCoreNanoSeconds"], 2_000_000_000u64);

    let pod = &summary["pods"][0];
    assert_eq!(pod["podRef"], json!({"name": "web", "namespace": "ns", "uid": "web"}));
    assert_eq!(
        (&pod["startTime"], &pod["process_stats"]),
        (&json!("2023-11-14T22:13:20Z"), &json!({"process_count": 3}))
    );
    assert_eq!(pod["cpu"]["psi"]["some"], json!({"total": 77, "avg10": 1.5, "avg60": 0.2, "avg300": 0.0}));
    assert_eq!(pod["cpu"].get("usageNanoCores"), None, "there is no rate after one sample");
    assert_eq!(pod["memory"]["availableBytes"], (64 << 20) - 299_000);
    assert_eq!(pod["swap"]["swapUsageBytes"], 0);
    assert_eq!(pod["swap"].get("swapAvailableBytes"), None);
    let volume = &pod["volume"][0];
    assert_eq!((&volume["name"], &volume["inodesUsed"]), (&json!("scratch"), &json!(2)));
    let used = volume["usedBytes"].as_u64().unwrap();
    assert!((64 << 10..80 << 10).contains(&used), "{volume:#}");
    assert_eq!(pod["ephemeral-storage"]["usedBytes"], used + (8 << 10) + 4096, "volume, log and etc-hosts: {pod:#}");
    let containers = pod["containers"].as_array().unwrap();
    assert_eq!((&containers[0]["name"], &containers[0]["logs"]["usedBytes"]), (&json!("c"), &json!(8 << 10)));
    assert_eq!(containers[0]["memory"]["workingSetBytes"], 199_000);
    assert_eq!((containers[1].get("cpu"), containers[1].get("memory")), (None, None), "unknown is absent");

    let few = node.summary(true).await;
    assert_eq!(few["pods"][0]["containers"][0]["memory"]["workingSetBytes"], 199_000);
    for (value, keys) in
        [(&few["node"], ["fs", "network", "rlimit"]), (&few["pods"][0], ["volume", "io", "ephemeral-storage"])]
    {
        assert!(keys.iter().all(|key| value.get(key).is_none()), "only CPU and memory: {value:#}");
    }
}

#[tokio::test]
async fn metrics_have_the_names_and_labels_of_the_go_kubelet() {
    let node = TestNode::new();
    node.run_pod("web", &[("c", true), ("lost", false)]);
    let text = node.sampler.resource_metrics().await;
    for start in [
        "node_cpu_usage_seconds_total 5 1",
        "node_memory_working_set_bytes 899000 1",
        "pod_cpu_usage_seconds_total{namespace=\"ns\",pod=\"web\"} 1 1",
        "pod_memory_working_set_bytes{namespace=\"ns\",pod=\"web\"} 299000 1",
        "container_cpu_usage_seconds_total{container=\"c\",namespace=\"ns\",pod=\"web\"} 0.5 1",
        "container_memory_working_set_bytes{container=\"c\",namespace=\"ns\",pod=\"web\"} 199000 1",
        "container_start_time_seconds{container=\"c\",namespace=\"ns\",pod=\"web\"} 1700000001.5",
        "resource_scrape_error 0",
    ] {
        assert!(text.lines().any(|line| line.starts_with(start)), "{start} is not in\n{text}");
    }
    assert!(!text.contains("lost"), "a container without values would make metrics-server drop the pod:\n{text}");

    let text = node.sampler.cadvisor_metrics().await;
    let id = "/kubepods/besteffort/podweb/c-of-web";
    let labels = format!("id=\"{id}\",image=\"busybox:1\",name=\"c-of-web\",namespace=\"ns\",pod=\"web\"");
    for start in [
        format!("container_cpu_usage_seconds_total{{container=\"c\",cpu=\"total\",{labels}}} 0.5 1"),
        format!("container_cpu_cfs_throttled_seconds_total{{container=\"c\",{labels}}} 0.000009 1"),
        format!("container_spec_memory_limit_bytes{{container=\"c\",{labels}}} 67108864"),
        format!("container_memory_failures_total{{container=\"c\",failure_type=\"pgfault\",{labels},scope=\"hierarchy\"}} 7 1"),
        format!("container_pressure_cpu_waiting_seconds_total{{container=\"c\",{labels}}} 0.000077 1"),
        "container_memory_rss{container=\"\",id=\"/kubepods/besteffort/podweb\",image=\"\",name=\"\",namespace=\"ns\",pod=\"web\"} 150000 1".into(),
        "container_memory_usage_bytes{container=\"\",id=\"/\",image=\"\",name=\"\",namespace=\"\",pod=\"\"} 900000 1".into(),
        "machine_cpu_cores{boot_id=\"b\",machine_id=\"m\",system_uuid=\"s\"} ".into(),
        "container_scrape_error 0".into(),
    ] {
        assert!(text.lines().any(|line| line.starts_with(&start)), "{start} is not in\n{text}");
    }
}

#[tokio::test]
async fn requests_share_a_sample_and_a_silent_runtime_is_reported() {
    let node = TestNode::new();
    node.run_pod("web", &[("c", true)]);
    let lists = || node.runtime.calls().iter().filter(|call| call.starts_with("ListPodSandbox")).count();
    let (a, b, c) = tokio::join!(node.summary(true), node.summary(true), node.sampler.resource_metrics());
    assert_eq!((lists(), a == b, c.contains("resource_scrape_error 0")), (1, true, true));
    node.summary(false).await;
    node.sampler.cadvisor_metrics().await;
    node.summary(true).await;
    assert_eq!(lists(), 2, "a complete sample serves every page");

    let silent = TestNode::new();
    let refused = || Step::Fail(CriError::new(Code::Unavailable, "ListPodSandbox", "no connection"));
    silent.runtime.next("ListPodSandbox", refused());
    let error = silent.sampler.summary(true).await.unwrap_err().to_string();
    assert!(error.starts_with("failed to list pod stats: ") && error.contains("no connection"), "{error}");
    silent.runtime.next("ListPodSandbox", refused());
    assert!(silent.sampler.resource_metrics().await.contains("resource_scrape_error 1"));
    assert!(silent.sampler.resource_metrics().await.contains("resource_scrape_error 0"), "failures are not kept");
}

#[tokio::test]
async fn a_hanging_volume_makes_only_its_own_size_unknown() {
    let node = TestNode::new();
    let disk =
        Arc::new(DiskUsage::new(node.feed.clone(), node.paths.clone(), Pool::default(), Some(Duration::from_secs(60))));
    let mut hung = vec![];
    for uid in ["a-hangs", "b-hangs"] {
        let affected = node.publish(pod(uid, json!([{"name": "scratch", "emptyDir": {}}])));
        hung.push(HungMount::new(&volume_host_path(&node.paths, &affected, "scratch").unwrap()));
    }
    for uid in ["c", "d"] {
        let well = node.publish(pod(uid, json!([{"name": "scratch", "emptyDir": {}}])));
        node.write(&volume_host_path(&node.paths, &well, "scratch").unwrap().join("file"), 4096);
    }
    tokio::spawn(Arc::clone(&disk).watch());
    let wanted: BTreeSet<PodUid> = ["c".into(), "d".into()].into();
    let begun = Instant::now();
    let found = loop {
        let found = disk.request(&wanted).await;
        if found.len() == 2 {
            break found;
        }
        assert!(begun.elapsed() < Duration::from_secs(15), "{found:?}");
    };
    assert!(found.values().all(|disk| disk.volumes.len() == 1), "{found:?}");
    drop(hung);
}

#[tokio::test]
async fn an_image_file_system_that_cannot_be_read_is_still_another_one() {
    let layout = async |node: &TestNode| node.sampler.read_node(PodReading::None).await.layout;
    assert_eq!(layout(&TestNode::new()).await, None, "it was never read");
    let (node, images) = (TestNode::new(), tempfile::tempdir_in("/dev/shm").unwrap());
    *node.runtime.image_fs.lock().unwrap() = Some(images.path().display().to_string());
    assert_eq!(layout(&node).await, Some(DiskLayout::SeparateImages));
    drop(images);
    assert_eq!(layout(&node).await, Some(DiskLayout::SeparateImages));
}

#[tokio::test]
async fn rates_need_two_samples_and_limits_a_bound() {
    let node = TestNode::new();
    node.run_pod("web", &[("c", true)]);
    let first = node.sampler.sample(UsageDetail::CpuAndMemory).await.unwrap();
    assert_eq!(first.pods[0].cgroup.as_ref().unwrap().nano_cores, None);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    node.cgroup("kubepods/besteffort/podweb", 2_000_000, 300_000);
    let second = node.sampler.sample(UsageDetail::All).await.unwrap();
    let rate = second.pods[0].cgroup.as_ref().unwrap().nano_cores.unwrap();
    assert!((300_000_000..1_000_000_000).contains(&rate), "a second of CPU in a bit more than a second: {rate}");
}

#[tokio::test]
async fn the_usage_is_that_of_the_last_second_if_nothing_was_sampled_before() {
    let node = TestNode::new();
    node.run_pod("web", &[("c", true)]);
    node.run_pod("starting", &[("no-cgroup", false)]);
    let busy = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        node.cgroup("kubepods/besteffort/podweb/c-of-web", 1_000_000, 200_000);
    };
    let (usage, ()) = tokio::join!(node.sampler.usage(), busy);
    let usage = usage.unwrap();
    assert!((1..10).contains(&usage.window.as_secs()), "{usage:?}");
    let [pod] = usage.pods.as_slice() else { panic!("a value that is not known is left out: {usage:?}") };
    let [(name, container)] = pod.containers.as_slice() else { panic!("{usage:?}") };
    assert_eq!((pod.namespace.as_str(), pod.name.as_str(), name.as_str()), ("ns", "web", "c"));
    assert_eq!(container.memory, 199_000, "without inactive page cache");
    let cpu = container.cpu_nano_cores;
    assert!((100_000_000..=500_000_000).contains(&cpu), "half a second of CPU in a bit more than a second: {cpu}");
    assert!(usage.node.is_some());
    let calls = node.runtime.calls().len();
    assert_eq!(node.sampler.usage().await.unwrap(), usage);
    assert_eq!(node.runtime.calls().len(), calls, "the last sample is used again");
}
