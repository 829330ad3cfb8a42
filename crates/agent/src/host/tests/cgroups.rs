//! Cgroups of pods, on a plain tree and on the machine's own.

use super::*;

#[tokio::test]
async fn cgroups_have_the_pods_limits() {
    let bed = Bed::new();
    let pod = pod(json!([]));
    bed.host.cgroups().create(&pod, LIMIT).await.unwrap();
    let read = |path: &str| fs::read_to_string(bed.at("cgroup/test/kubepods").join(path)).unwrap();
    assert_eq!(read("burstable/podu1/cpu.max"), "50000 100000");
    assert_eq!(read("burstable/podu1/memory.max"), "67108864");
    assert_eq!(read("burstable/podu1/pids.max"), "max");
    assert_eq!(read("burstable/podu1/hugetlb.2MB.max"), "4194304");
    assert_eq!(read("burstable/podu1/hugetlb.1GB.max"), "0", "who asks for none gets none");
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
        bed.host.cgroups().create(pod, LIMIT).await.unwrap();
    }
    assert_eq!(read("burstable/cpu.weight"), "39", "the class weighs what its pods ask for: one core");
    assert!(!bed.host.cgroups().create(&pod, LIMIT).await.unwrap(), "it was there");
    bed.host.cgroups().remove("u1", LIMIT).await.unwrap();
    bed.host.cgroups().remove("u1", LIMIT).await.unwrap();
    assert_eq!(read("burstable/cpu.weight"), "30");
    assert!(!bed.at("cgroup/test/kubepods/burstable/podu1").exists());
    assert!(bed.at("cgroup/test/kubepods/burstable").exists());
}

#[tokio::test]
async fn all_pods_together_are_held_anew_at_every_start() {
    let bed = Bed::new();
    let read = |path: &str| fs::read_to_string(bed.at("cgroup/test/kubepods").join(path)).unwrap();
    bed.host.cgroups().enforce_node_allocatable(LIMIT).await.unwrap();
    let held = || [read("memory.max"), read("pids.max"), read("cpu.weight")];
    assert_eq!(held(), ["3221225472", "4000", "79"]);
    fs::write(bed.at("cgroup/test/kubepods/memory.max"), "17").unwrap();
    bed.host.cgroups().create(&pod(json!([])), LIMIT).await.unwrap();
    assert_eq!(read("memory.max"), "17", "not with each pod");
    bed.host.cgroups().enforce_node_allocatable(LIMIT).await.unwrap();
    assert_eq!(held(), ["3221225472", "4000", "79"]);
}

#[tokio::test]
async fn real_cgroups_are_killed_and_removed() {
    let name = format!("podwright-test-{}-agent", std::process::id());
    let tree = CgroupTree::detect().unwrap();
    let root = podwright_linux::cgroup::CgroupPath::root().join(&name).unwrap();
    let bed = Bed::with(tempfile::tempdir().unwrap(), Some(tree.clone()), &name);
    let pod = pod(json!([]));
    let made = bed.host.cgroups().create(&pod, LIMIT).await;
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
    let found = bed.host.list_leftovers(LIMIT).await;
    let removed = bed.host.cgroups().remove("u1", LIMIT).await;
    tree.kill_all(&root, LIMIT).unwrap();
    tree.remove(&root, LIMIT).unwrap();
    reaper.join().unwrap();
    assert!(!procs.is_empty());
    assert_eq!(found.unwrap(), BTreeSet::from([PodUid::from("u1")]));
    removed.unwrap();
    assert!(procs.iter().all(|p| !p.exists()));
}
