//! On trees of plain files, and on the host's v1 hierarchies under a unique name.

use std::fs;
use std::process::{Child, Command};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn limits() -> CgroupResources {
    CgroupResources {
        cpu_shares: Some(512),
        cpu_quota: Some(CpuQuota { quota: Bound::At(50_000), period: Duration::from_millis(100) }),
        memory: Some(Bound::At(64 << 20)),
        pids: Some(Bound::At(100)),
        huge_pages: [("2MB".to_owned(), 4 << 20)].into(),
    }
}

fn path(text: &str) -> CgroupPath {
    CgroupPath::parse(text).unwrap()
}

#[test]
fn names_that_lead_out_of_the_tree_are_refused() {
    for bad in ["a/../b", "..", "a/./b", "a\0b", "a\nb"] {
        assert!(CgroupPath::parse(bad).is_err(), "{bad:?}");
    }
    assert_eq!(path("//a/b/").to_string(), "/a/b");
    assert!(CgroupPath::root().join("a/b").is_err());
}

#[test]
fn shares_are_converted_to_weights() {
    for (shares, weight) in [
        (0, 1),
        (2, 1),
        (102, 4),
        (512, 20),
        (1024, 39),
        (100_000, 3815),
        (262_144, 10_000),
        (300_000, 10_000),
        (u64::MAX, 10_000),
    ] {
        assert_eq!(cpu_weight(shares), weight, "{shares}");
    }
}

#[test]
fn v2_files() {
    let dir = tempfile::tempdir().unwrap();
    let tree = CgroupTree::plain_v2(dir.path(), &["cpu", "memory", "pids", "hugetlb", "rdma"]).unwrap();
    tree.create(&path("/kubepods/burstable/pod1"), &limits()).unwrap();
    let file = |p: &str| fs::read_to_string(dir.path().join(p)).unwrap();
    for parent in ["", "kubepods/", "kubepods/burstable/"] {
        assert_eq!(file(&format!("{parent}cgroup.subtree_control")), "+cpu +memory +pids +hugetlb");
    }
    let pod = "kubepods/burstable/pod1";
    assert!(!dir.path().join(pod).join("cgroup.subtree_control").exists());
    assert_eq!(file(&format!("{pod}/cpu.weight")), "20");
    assert_eq!(file(&format!("{pod}/cpu.max")), "50000 100000");
    assert_eq!(file(&format!("{pod}/memory.max")), "67108864");
    assert_eq!(file(&format!("{pod}/pids.max")), "100");
    assert_eq!(file(&format!("{pod}/hugetlb.2MB.max")), "4194304");

    let more = CgroupResources { memory: Some(Bound::Max), ..CgroupResources::default() };
    tree.apply(&path(pod), &more).unwrap();
    assert_eq!(file(&format!("{pod}/memory.max")), "max");
    assert_eq!(file(&format!("{pod}/pids.max")), "100");

    assert_eq!(tree.children(&path("/kubepods/burstable")).unwrap(), BTreeSet::from(["pod1".into()]));
    tree.remove(&path("/kubepods/burstable"), SECOND).unwrap();
    assert!(tree.exists(&path("/kubepods")) && !tree.exists(&path("/kubepods/burstable")));
    assert!(tree.children(&path("/kubepods/burstable")).unwrap().is_empty());
}

#[test]
fn swap_limits_are_detected_by_their_files() {
    let dir = tempfile::tempdir().unwrap();
    let tree = CgroupTree::plain_v2(dir.path(), &["cpu", "memory", "pids"]).unwrap();
    tree.create(&path("/kubepods"), &CgroupResources::default()).unwrap();
    assert!(!tree.limits_swap());
    fs::write(dir.path().join("kubepods/memory.swap.max"), "max").unwrap();
    assert!(tree.limits_swap());
    let old = tempfile::tempdir().unwrap();
    let tree = CgroupTree::plain_v1(old.path(), &["cpu", "memory"]).unwrap();
    assert!(!tree.limits_swap());
    fs::write(old.path().join("memory/memory.memsw.limit_in_bytes"), "0").unwrap();
    assert!(tree.limits_swap());
}

#[test]
fn huge_page_limits_are_ignored_without_the_controller() {
    let dir = tempfile::tempdir().unwrap();
    let tree = CgroupTree::plain_v2(dir.path(), &["cpu", "memory", "pids"]).unwrap();
    tree.create(&path("/pod1"), &limits()).unwrap();
    assert!(dir.path().join("pod1/pids.max").exists() && !dir.path().join("pod1/hugetlb.2MB.max").exists());
    let old = tempfile::tempdir().unwrap();
    let tree = CgroupTree::plain_v1(old.path(), &["cpu", "memory", "pids"]).unwrap();
    tree.create(&path("/pod1"), &limits()).unwrap();
}

#[test]
fn v2_without_a_needed_controller_says_which() {
    let dir = tempfile::tempdir().unwrap();
    let tree = CgroupTree::plain_v2(dir.path(), &["cpu", "pids"]).unwrap();
    let e = tree.create(&path("/kubepods"), &CgroupResources::default()).unwrap_err();
    assert!(matches!(&e, CgroupError::MissingController { controller, .. } if controller == "memory"), "{e}");
    assert!(!dir.path().join("kubepods").exists());
}

#[test]
fn v1_files_with_controllers_mounted_together() {
    let dir = tempfile::tempdir().unwrap();
    let tree = CgroupTree::plain_v1(dir.path(), &["cpu,cpuacct", "cpuset", "memory", "pids", "hugetlb"]).unwrap();
    fs::write(dir.path().join("cpuset/cpuset.cpus"), "0-3\n").unwrap();
    fs::write(dir.path().join("cpuset/cpuset.mems"), "0\n").unwrap();
    tree.create(&path("/kubepods/pod1"), &limits()).unwrap();
    let file = |p: &str| fs::read_to_string(dir.path().join(p)).unwrap();
    assert_eq!(file("cpu,cpuacct/kubepods/pod1/cpu.shares"), "512");
    assert_eq!(file("cpu,cpuacct/kubepods/pod1/cpu.cfs_quota_us"), "50000");
    assert_eq!(file("cpu,cpuacct/kubepods/pod1/cpu.cfs_period_us"), "100000");
    assert_eq!(file("cpuset/kubepods/cpuset.cpus"), "0-3");
    assert_eq!(file("cpuset/kubepods/pod1/cpuset.mems"), "0");
    assert_eq!(file("memory/kubepods/pod1/memory.limit_in_bytes"), "67108864");
    assert_eq!(file("pids/kubepods/pod1/pids.max"), "100");
    assert_eq!(file("hugetlb/kubepods/pod1/hugetlb.2MB.limit_in_bytes"), "4194304");
    assert!(tree.exists(&path("/kubepods/pod1")));
    fs::remove_file(dir.path().join("memory/kubepods/pod1/memory.limit_in_bytes")).unwrap();
    fs::remove_dir(dir.path().join("memory/kubepods/pod1")).unwrap();
    assert!(!tree.exists(&path("/kubepods/pod1")), "one hierarchy lacks it");
    assert_eq!(tree.children(&path("/kubepods")).unwrap().len(), 1, "the others have it");
}

#[test]
fn v1_without_the_hierarchy_of_a_limit_says_which() {
    let dir = tempfile::tempdir().unwrap();
    let tree = CgroupTree::plain_v1(dir.path(), &["cpu"]).unwrap();
    let e = tree.create(&path("/x"), &limits()).unwrap_err();
    assert!(matches!(&e, CgroupError::MissingController { controller, .. } if controller == "memory"), "{e}");
    tree.create(&path("/y"), &CgroupResources { cpu_shares: Some(2), ..CgroupResources::default() }).unwrap();
}

/// A cgroup of the host that is removed when the test ends.
struct RealGroup {
    tree: CgroupTree,
    path: CgroupPath,
}

impl RealGroup {
    fn new(name: &str) -> Self {
        let path = CgroupPath::root().join(&format!("podwright-test-{}-{name}", std::process::id())).unwrap();
        Self { tree: CgroupTree::detect().unwrap(), path }
    }

    fn read(&self, controller: &str, below: &str, file: &str) -> Option<String> {
        let hierarchy = self.tree.hierarchies.iter().find(|h| h.controllers.contains(controller))?;
        Some(fs::read_to_string(self.path.under(&hierarchy.root).join(below).join(file)).unwrap().trim().into())
    }

    fn put(&self, below: &str, child: &Child) {
        for hierarchy in self.tree.managed() {
            let dir = self.path.under(&hierarchy.root).join(below);
            fs::write(dir.join("cgroup.procs"), child.id().to_string()).unwrap();
        }
    }
}

impl Drop for RealGroup {
    fn drop(&mut self) {
        let _ = self.tree.kill_all(&self.path, 5 * SECOND);
        let _ = self.tree.remove(&self.path, 5 * SECOND);
    }
}

/// The host's tree is used if it is v1; the v2 tree is tested in a VM (`tests/cgroup_v2.rs`). Skipped tests are recorded where
/// `hack/timed` finds them.
fn machine_is_v1(test: &str) -> bool {
    let v1 = CgroupTree::detect().unwrap().version() == CgroupVersion::V1;
    if let (false, Some(list)) = (v1, std::env::var_os("PODWRIGHT_SKIPPED")) {
        let mut list = fs::File::options().append(true).create(true).open(list).unwrap();
        io::Write::write_all(&mut list, format!("{test}: this host has cgroup v2\n").as_bytes()).unwrap();
    }
    v1
}

#[test]
fn real_v1_limits_are_in_force_and_all_goes() {
    if !machine_is_v1("real_v1_limits_are_in_force_and_all_goes") {
        return;
    }
    let group = RealGroup::new("limits");
    let pod = group.path.join("burstable").unwrap().join("pod1").unwrap();
    group.tree.create(&pod, &limits()).unwrap();
    assert!(group.tree.exists(&pod));
    let read = |controller, file| group.read(controller, "burstable/pod1", file).unwrap();
    assert_eq!(read("cpu", "cpu.shares"), "512");
    assert_eq!(read("cpu", "cpu.cfs_quota_us"), "50000");
    assert_eq!(read("memory", "memory.limit_in_bytes"), "67108864");
    assert_eq!(read("pids", "pids.max"), "100");
    assert!(!read("cpuset", "cpuset.cpus").is_empty());
    // Smaller period and quota than before, then no quota: each order of the two writes is needed once.
    for (quota, period, seen) in
        [(Bound::At(5_000), 10, "5000"), (Bound::At(900_000), 1000, "900000"), (Bound::Max, 100, "-1")]
    {
        let cpu_quota = Some(CpuQuota { quota, period: Duration::from_millis(period) });
        group.tree.apply(&pod, &CgroupResources { cpu_quota, ..CgroupResources::default() }).unwrap();
        assert_eq!(read("cpu", "cpu.cfs_quota_us"), seen);
    }
    group.tree.create(&pod, &limits()).unwrap();
    group.tree.remove(&group.path, SECOND).unwrap();
    assert!(!group.tree.exists(&group.path));
    group.tree.remove(&group.path, SECOND).unwrap();
}

#[test]
fn real_v1_processes_are_killed_even_frozen_ones() {
    if !machine_is_v1("real_v1_processes_are_killed_even_frozen_ones") {
        return;
    }
    let group = RealGroup::new("kill");
    let inner = group.path.join("pod1").unwrap().join("container").unwrap();
    group.tree.create(&inner, &CgroupResources::default()).unwrap();
    let mut children: Vec<Child> = (0..2).map(|_| Command::new("sleep").arg("1000").spawn().unwrap()).collect();
    group.put("pod1/container", &children[0]);
    group.put("pod1", &children[1]);
    let freezer = group.tree.hierarchies.iter().find(|h| h.controllers.contains("freezer")).unwrap();
    fs::write(inner.under(&freezer.root).join("freezer.state"), "FROZEN").unwrap();
    let pids: BTreeSet<u32> = children.iter().map(Child::id).collect();
    assert_eq!(group.tree.procs(&group.path).unwrap(), pids);

    let busy = group.tree.remove(&group.path, Duration::from_millis(20)).unwrap_err();
    assert!(matches!(&busy, CgroupError::Busy { pids, .. } if !pids.is_empty()), "{busy}");

    // A killed child stays in its cgroup until its parent, this test, reaps it: so a thread reaps it.
    let reaper = std::thread::spawn(move || children.iter_mut().all(|c| c.wait().is_ok()));
    group.tree.kill_all(&group.path, 10 * SECOND).unwrap();
    assert!(reaper.join().unwrap());
    group.tree.remove(&group.path, 10 * SECOND).unwrap();
    assert!(!group.tree.exists(&group.path));
}
