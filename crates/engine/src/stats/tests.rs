use podwright_tasks::PoolLimits;

use super::*;

const LIMIT: Duration = Duration::from_secs(30);

fn stats(cgroups: CgroupTree) -> Arc<EngineStats> {
    EngineStats::new(cgroups, Pool::new(PoolLimits::default()), "/var/lib/podwright".into())
}

fn attributes(id: &str) -> v1::ContainerAttributes {
    v1::ContainerAttributes { id: id.into(), ..Default::default() }
}

fn value(number: Option<v1::UInt64Value>) -> u64 {
    number.expect("it is known").value
}

fn container(id: &str, cgroup: &str, upper: &std::path::Path) -> MeasuredContainer {
    MeasuredContainer { id: id.into(), cgroup: CgroupPath::parse(cgroup).unwrap(), upper: upper.to_owned() }
}

#[tokio::test]
async fn a_container_on_cgroup_v2_shows_its_counters_limits_and_pressure() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("cgroup");
    std::fs::create_dir_all(root.join("pod/c1")).unwrap();
    let tree = CgroupTree::plain_v2(&root, &["cpu", "memory", "pids", "io"]).unwrap();
    for (file, text) in [
        ("cpu.stat", "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n"),
        (
            "cpu.pressure",
            "some avg10=1.50 avg60=2.00 avg300=3.00 total=77\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
        ),
        ("memory.current", "10485760\n"),
        ("memory.max", "20971520\n"),
        ("memory.stat", "anon 4194304\nfile 6291456\ninactive_file 2097152\npgfault 300\npgmajfault 2\n"),
        ("memory.swap.current", "4096\n"),
        ("memory.swap.max", "max\n"),
        ("pids.current", "7\n"),
    ] {
        std::fs::write(root.join("pod/c1").join(file), text).unwrap();
    }
    let stats = stats(tree);
    let shown = stats.container(attributes("c1"), &container("c1", "/pod/c1", dir.path()), LIMIT).await.unwrap();
    let (cpu, memory, swap) = (shown.cpu.unwrap(), shown.memory.unwrap(), shown.swap.unwrap());
    assert_eq!(value(cpu.usage_core_nano_seconds), 2_500_000_000);
    assert_eq!(cpu.usage_nano_cores, None, "one point is no rate");
    assert_eq!(cpu.psi.unwrap().some.unwrap().total, 77_000);
    assert_eq!((value(memory.working_set_bytes), value(memory.available_bytes)), (8 << 20, 12 << 20));
    assert_eq!((value(memory.usage_bytes), value(memory.rss_bytes)), (10 << 20, 4 << 20));
    assert_eq!((value(memory.page_faults), value(memory.major_page_faults)), (300, 2));
    assert_eq!((value(swap.swap_usage_bytes), swap.swap_available_bytes), (4096, None));
    assert_eq!(shown.writable_layer, None, "it was not measured yet");

    let gone = stats.container(attributes("c2"), &container("c2", "/pod/c2", dir.path()), LIMIT).await.unwrap();
    assert_eq!((gone.cpu, gone.memory), (None, None), "a container without a cgroup has no usage, not zero");

    std::fs::write(root.join("pod/pids.current"), "9\n").unwrap();
    let pod = MeasuredPod { cgroup: Some(CgroupPath::parse("/pod").unwrap()), netns: None };
    let attributes = v1::PodSandboxAttributes { id: "p".into(), ..Default::default() };
    let shown = stats.pod(attributes, &pod, vec![gone], LIMIT).await.unwrap().linux.unwrap();
    assert_eq!(value(shown.process.unwrap().process_count), 9);
    assert_eq!(shown.network, None, "the traffic of the host is not the pod's");
    assert_eq!(shown.containers.len(), 1);
}

#[tokio::test]
async fn the_cgroup_of_this_process_is_read_on_this_host() {
    let tree = CgroupTree::detect().unwrap();
    let stats = stats(tree);
    let root = container("root", "/", std::path::Path::new("/tmp"));
    let shown = stats.container(attributes("root"), &root, LIMIT).await.unwrap();
    assert!(value(shown.cpu.expect("the root has a CPU counter").usage_core_nano_seconds) > 0);
}

#[tokio::test]
async fn the_collector_measures_cpu_and_writable_layers_and_forgets_containers() {
    let dir = tempfile::tempdir().unwrap();
    let (root, upper) = (dir.path().join("cgroup"), dir.path().join("upper"));
    std::fs::create_dir_all(root.join("c1")).unwrap();
    std::fs::create_dir_all(&upper).unwrap();
    std::fs::write(upper.join("file"), vec![1; 100_000]).unwrap();
    std::fs::hard_link(upper.join("file"), upper.join("again")).unwrap();
    std::fs::write(root.join("c1/cpu.stat"), "usage_usec 1000\n").unwrap();
    let stats = stats(CgroupTree::plain_v2(&root, &["cpu", "memory"]).unwrap());
    let measured = container("c1", "/c1", &upper);
    let absent = container("c2", "/c2", &dir.path().join("absent"));
    stats.collect_once(vec![measured.clone(), absent.clone()]).await;
    let shown = stats.container(attributes("c1"), &measured, LIMIT).await.unwrap();
    let layer = shown.writable_layer.unwrap();
    assert_eq!(value(layer.inodes_used), 2, "the directory, and the file once");
    assert!((100_000..200_000).contains(&value(layer.used_bytes)), "{layer:?}");
    assert_eq!(layer.fs_id.unwrap().mountpoint, "/var/lib/podwright");
    assert_eq!(stats.writable_usage().bytes, value(layer.used_bytes));
    let sample = stats.sample(&measured, 5, None).unwrap();
    assert_eq!((sample.started_at_ns, sample.layer.unwrap().0.bytes), (5, value(layer.used_bytes)));
    assert_eq!(sample.usage.cpu.usage_ns, Some(1_000_000));
    assert!(stats.sample(&absent, 5, None).is_none(), "a container without a cgroup does not run");
    assert_eq!(stats.container(attributes("c2"), &absent, LIMIT).await.unwrap().writable_layer, None);
    stats.collect_once(vec![]).await;
    assert_eq!(stats.writable_usage().bytes, 0);
}

#[test]
fn the_file_system_of_the_layers_is_known_with_its_device() {
    let dir = tempfile::tempdir().unwrap();
    let tree = CgroupTree::plain_v2(dir.path(), &["cpu"]).unwrap();
    let of = |root: &Path| EngineStats::new(tree.clone(), Pool::default(), root.into()).layer_file_system();
    let disk = of(dir.path()).unwrap();
    assert!(disk.size > 0 && disk.inodes_free <= disk.inodes, "{disk:?}");
    assert!(disk.device.is_empty() || Path::new(&disk.device).exists(), "{disk:?}");
    assert_eq!(of(&dir.path().join("absent")), None);
    assert_eq!(block_device((0, 0)), None, "no block device has this number");
}

#[test]
fn the_rate_is_that_of_the_last_two_points() {
    let (measurements, begin) = (Measurements::default(), Instant::now());
    let add = |seconds: u64, usage: Option<u64>| measurements.add_cpu("c", usage, begin + Duration::from_secs(seconds));
    assert_eq!(add(0, Some(1_000)), None);
    assert_eq!(add(10, Some(5_000_001_000)), Some(500_000_000));
    assert_eq!(measurements.of("c").nano_cores, Some(500_000_000));
    assert_eq!(add(10, Some(9_000_000_000)), Some(500_000_000), "too soon for a new rate");
    assert_eq!(add(20, Some(7)), None, "the counter began again");
    assert_eq!(add(30, Some(10_000_000_007)), Some(1_000_000_000));
    assert_eq!(add(40, None), None);
    assert_eq!(measurements.of("c").nano_cores, None, "it does not run any more");
}

#[test]
fn an_incomplete_walk_does_not_make_a_layer_smaller() {
    let (measurements, now) = (Measurements::default(), Instant::now());
    let walked = |bytes, complete| {
        measurements.add_walk("c", Some(TreeUsage { bytes, inodes: 1, complete }), now, now);
        measurements.of("c").layer.map(|(layer, _)| (layer.bytes, layer.complete))
    };
    assert_eq!(walked(5, false), Some((5, false)), "there is nothing better");
    assert_eq!(walked(100, true), Some((100, true)));
    assert_eq!(walked(3, false), Some((100, false)));
    assert_eq!(walked(300, false), Some((300, false)), "a higher lower bound counts");
    assert_eq!(walked(4, false), Some((100, false)));
    assert_eq!(walked(4, true), Some((4, true)));
    assert_eq!(walked(2, false), Some((4, false)));
}

#[test]
fn a_slow_tree_is_measured_less_often_and_the_longest_waiting_first() {
    let (measurements, begin) = (Measurements::default(), Instant::now());
    let at = |seconds| begin + Duration::from_secs(seconds);
    let containers = ["slow", "new", "quick"].map(|id| container(id, "/", std::path::Path::new("/")));
    let usage = Some(TreeUsage { bytes: 1, inodes: 1, complete: true });
    measurements.add_walk("slow", usage, at(0), at(2));
    measurements.add_walk("quick", usage, at(2), at(2));
    let due = |seconds| {
        let due = measurements.due(&containers, at(seconds));
        due.iter().map(|container| container.id.as_str()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(due(3), "new quick");
    assert_eq!(due(39), "new quick");
    assert_eq!(due(40), "new quick slow");
}

#[test]
fn the_default_interface_is_not_listed_twice() {
    let counters =
        |name: &str, rx_bytes| podwright_net::InterfaceCounters { name: name.into(), rx_bytes, ..Default::default() };
    let shown = messages::network(&[counters("lo", 5), counters("net1", 6), counters("eth0", 7)], 1);
    let default = shown.default_interface.unwrap();
    assert_eq!((default.name.as_str(), value(default.rx_bytes)), ("eth0", 7));
    assert_eq!(shown.interfaces.iter().map(|i| i.name.as_str()).collect::<Vec<_>>(), ["net1"]);
}
