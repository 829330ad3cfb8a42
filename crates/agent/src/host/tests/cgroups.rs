//! Cgroups of pods, in a plain directory and in the host's hierarchy.

use super::*;

#[tokio::test]
async fn cgroups_have_the_pods_limits() {
    let node = HostFixture::new();
    let pod = pod(json!([]));
    node.host.cgroups().create(&pod, LIMIT).await.unwrap();
    let read = |path: &str| fs::read_to_string(node.at("cgroup/test/kubepods").join(path)).unwrap();
    assert_eq!(read("burstable/podu1/cpu.max"), "50000 100000");
    assert_eq!(read("burstable/podu1/memory.max"), "67108864");
    assert_eq!(read("burstable/podu1/pids.max"), "max");
    assert_eq!(read("burstable/podu1/hugetlb.2MB.max"), "4194304");
    assert_eq!(read("burstable/podu1/hugetlb.1GB.max"), "0", "a size that is not requested has the limit 0");
    assert_eq!(read("besteffort/cpu.weight"), "1");
    assert_eq!(read("cpu.weight"), "79");
    let with_request = |uid: &str, cpu: &str| {
        let mut pod = (*pod).clone();
        pod.metadata.uid = Some(uid.into());
        let resources = pod.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap();
        resources.requests = Some([("cpu".to_owned(), Quantity(cpu.into()))].into());
        Arc::new(pod)
    };
    let (one, two) = (with_request("u1", "250m"), with_request("u2", "750m"));
    for pod in [&one, &two, &two] {
        node.host.cgroups().create(pod, LIMIT).await.unwrap();
    }
    assert_eq!(
        read("burstable/cpu.weight"),
        "39",
        "the weight of the class is the sum of its pods' requests: one core"
    );
    assert!(!node.host.cgroups().create(&pod, LIMIT).await.unwrap(), "it existed");
    node.host.cgroups().remove("u1", LIMIT).await.unwrap();
    node.host.cgroups().remove("u1", LIMIT).await.unwrap();
    assert_eq!(read("burstable/cpu.weight"), "30");
    assert!(!node.at("cgroup/test/kubepods/burstable/podu1").exists());
    assert!(node.at("cgroup/test/kubepods/burstable").exists());
}

#[tokio::test]
async fn a_cgroup_that_others_removed_is_restored_before_the_next_container() {
    let node = HostFixture::new();
    let pod = pod(json!([]));
    node.set_up(&pod, &[]).await;
    node.host.cgroups().create(&pod, LIMIT).await.unwrap();
    let group = node.at("cgroup/test/kubepods/burstable/podu1");
    fs::write(group.join("memory.max"), "17").unwrap();
    node.prepare(&pod, 0, &[]).await.unwrap();
    assert_eq!(fs::read_to_string(group.join("memory.max")).unwrap(), "17", "an existing one does not change");
    fs::remove_dir_all(&group).unwrap();
    node.prepare(&pod, 1, &[]).await.unwrap();
    assert_eq!(fs::read_to_string(group.join("memory.max")).unwrap(), "67108864");
}

#[tokio::test]
async fn a_resize_sets_the_given_limits_only_and_memory_in_use_is_read() {
    let node = HostFixture::new();
    let pod = pod(json!([]));
    let change = CgroupChange { cpu_quota_us: Some(70_000), ..CgroupChange::default() };
    assert!(node.host.cgroups().resize(&pod, &change, LIMIT).await.is_err(), "it does not exist");
    node.host.cgroups().create(&pod, LIMIT).await.unwrap();
    let own = node.at("cgroup/test/kubepods/burstable/podu1");
    let read = |file: &str| fs::read_to_string(own.join(file)).unwrap();
    let weight = read("cpu.weight");
    node.host.cgroups().resize(&pod, &change, LIMIT).await.unwrap();
    assert_eq!([read("cpu.max"), read("memory.max"), read("cpu.weight")], ["70000 100000", "67108864", &weight]);
    let change = CgroupChange { cpu_shares: Some(1024), memory: Some(1 << 20), ..CgroupChange::default() };
    node.host.cgroups().resize(&pod, &change, LIMIT).await.unwrap();
    assert_eq!([read("cpu.max"), read("memory.max"), read("cpu.weight")], ["70000 100000", "1048576", "39"]);

    fs::create_dir(own.join("cri-containerd-c1.scope")).unwrap();
    fs::write(own.join("memory.current"), "5\n").unwrap();
    fs::write(own.join("cri-containerd-c1.scope/memory.current"), "3\n").unwrap();
    let containers = [("a".into(), "c1".into()), ("gone".into(), "c2".into())].into();
    let used = node.host.cgroups().memory_use(&pod, containers, LIMIT).await.unwrap();
    assert_eq!((used.pod, used.containers), (Some(5), [("a".into(), 3)].into()));
}

#[tokio::test]
async fn node_allocatable_is_enforced_again_at_every_start() {
    let node = HostFixture::new();
    let read = |path: &str| fs::read_to_string(node.at("cgroup/test/kubepods").join(path)).unwrap();
    node.host.cgroups().enforce_node_allocatable(LIMIT).await.unwrap();
    let held = || [read("memory.max"), read("pids.max"), read("cpu.weight")];
    assert_eq!(held(), ["3221225472", "4000", "79"]);
    fs::write(node.at("cgroup/test/kubepods/memory.max"), "17").unwrap();
    node.host.cgroups().create(&pod(json!([])), LIMIT).await.unwrap();
    assert_eq!(read("memory.max"), "17", "not when a pod is created");
    node.host.cgroups().enforce_node_allocatable(LIMIT).await.unwrap();
    assert_eq!(held(), ["3221225472", "4000", "79"]);
}

#[tokio::test]
async fn real_cgroups_are_killed_and_removed() {
    let name = format!("podwright-test-{}-agent", std::process::id());
    let tree = CgroupTree::detect().unwrap();
    let root = podwright_linux::cgroup::CgroupPath::root().join(&name).unwrap();
    let node = HostFixture::with(tempfile::tempdir().unwrap(), Some(tree.clone()), &name);
    let pod = pod(json!([]));
    let made = node.host.cgroups().create(&pod, LIMIT).await;
    if let Err(e) = made {
        let _ = tree.remove(&root, LIMIT);
        panic!("{e}");
    }
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let mounts = mountinfo::read().unwrap();
    let group = format!("{name}/kubepods/burstable/podu1/cgroup.procs");
    let procs: Vec<_> = mounts.iter().map(|m| m.point.join(&group)).filter(|p| p.exists()).collect();
    procs.iter().for_each(|p| fs::write(p, child.id().to_string()).unwrap());
    let reaper = std::thread::spawn(move || child.wait().unwrap());
    let found = node.host.list_leftovers(LIMIT).await;
    let removed = node.host.cgroups().remove("u1", LIMIT).await;
    tree.kill_all(&root, LIMIT).unwrap();
    tree.remove(&root, LIMIT).unwrap();
    reaper.join().unwrap();
    assert!(!procs.is_empty());
    assert_eq!(found.unwrap(), BTreeSet::from([PodUid::from("u1")]));
    removed.unwrap();
    assert!(procs.iter().all(|p| !p.exists()));
}
