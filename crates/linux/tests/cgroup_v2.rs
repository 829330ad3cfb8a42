//! The whole cgroup v2 tree, in a VM: needs root, and nothing else may use the tree.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use podwright_linux::cgroup::{
    Bound, CgroupError, CgroupPath, CgroupResources, CgroupTree, CgroupVersion, CpuQuota, DeviceKind, DeviceRule,
};
use podwright_linux::mountinfo;

const LIMIT: Duration = Duration::from_secs(30);

struct Group {
    tree: CgroupTree,
    path: CgroupPath,
    dir: String,
}

impl Group {
    fn new(name: &str) -> Self {
        let tree = CgroupTree::detect().expect("a cgroup file system is mounted");
        assert_eq!(tree.version(), CgroupVersion::V2, "these tests are for cgroup v2");
        let mounts = mountinfo::read().unwrap();
        let root = mounts.iter().find(|m| m.fstype == "cgroup2").unwrap().point.display().to_string();
        let name = format!("podwright-test-{}-{name}", std::process::id());
        let path = CgroupPath::root().join(&name).unwrap();
        Self { tree, path, dir: format!("{root}/{name}") }
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(format!("{}/{file}", self.dir)).unwrap().trim().to_owned()
    }

    fn spawn_in(&self, below: &str, script: &str) -> Child {
        let procs = format!("{}/{below}/cgroup.procs", self.dir);
        // The shell enters the cgroup itself, so that all its children start there.
        Command::new("sh").arg("-c").arg(format!("echo $$ > {procs} && {script}")).spawn().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.tree.kill_all(&self.path, LIMIT);
        let _ = self.tree.remove(&self.path, LIMIT);
    }
}

fn wait_for(what: &str, mut check: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if check() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what}: not within 30 s");
}

#[test]
fn limits_are_in_force_and_children_can_have_limits_too() {
    let group = Group::new("limits");
    let pod = group.path.join("burstable").unwrap().join("pod1").unwrap();
    let limits = CgroupResources {
        cpu_shares: Some(1024),
        cpu_quota: Some(CpuQuota { quota: Bound::At(50_000), period: Duration::from_millis(100) }),
        memory: Some(Bound::At(64 << 20)),
        pids: Some(Bound::At(100)),
        ..CgroupResources::default()
    };
    group.tree.create(&pod, &limits).unwrap();
    assert!(group.tree.exists(&pod));
    assert_eq!(group.read("burstable/pod1/cpu.weight"), "39");
    assert_eq!(group.read("burstable/pod1/cpu.max"), "50000 100000");
    assert_eq!(group.read("burstable/pod1/memory.max"), "67108864");
    assert_eq!(group.read("burstable/pod1/pids.max"), "100");
    // A container's cgroup below the pod's.
    group.tree.create(&pod.join("container").unwrap(), &limits).unwrap();
    assert!(group.read("burstable/pod1/cgroup.subtree_control").contains("memory"));
    let open = CgroupResources {
        cpu_quota: Some(CpuQuota { quota: Bound::Max, period: Duration::from_millis(100) }),
        memory: Some(Bound::Max),
        ..CgroupResources::default()
    };
    group.tree.apply(&pod, &open).unwrap();
    assert_eq!(group.read("burstable/pod1/cpu.max"), "max 100000");
    assert_eq!(group.read("burstable/pod1/memory.max"), "max");
    group.tree.remove(&group.path, LIMIT).unwrap();
    assert!(!Path::new(&group.dir).exists());
}

#[test]
fn a_forking_cgroup_is_killed_completely() {
    let group = Group::new("kill");
    let pod = group.path.join("pod1").unwrap();
    group.tree.create(&pod, &CgroupResources::default()).unwrap();
    let mut parent = group.spawn_in("pod1", "while true; do sleep 1000 & sleep 0.05; done");
    wait_for("children", || group.tree.procs(&group.path).unwrap().len() > 3);
    let busy = group.tree.remove(&group.path, Duration::from_millis(20)).unwrap_err();
    assert!(matches!(busy, CgroupError::Busy { .. }), "{busy}");
    let reaper = std::thread::spawn(move || parent.wait().unwrap());
    group.tree.kill_all(&group.path, LIMIT).unwrap();
    reaper.join().unwrap();
    assert!(group.read("cgroup.events").contains("populated 0"));
    group.tree.remove(&group.path, LIMIT).unwrap();
    assert!(!Path::new(&group.dir).exists());
}

#[test]
fn pids_max_limits_forks() {
    let group = Group::new("pids");
    let pod = group.path.join("pod1").unwrap();
    group.tree.create(&pod, &CgroupResources { pids: Some(Bound::At(3)), ..CgroupResources::default() }).unwrap();
    let mut shell = group.spawn_in("pod1", "for i in 1 2 3 4 5 6; do sleep 1000 & done; wait");
    wait_for("the limit to be hit", || group.read("pod1/pids.events").split(' ').nth(1) != Some("0"));
    assert!(group.tree.procs(&pod).unwrap().len() <= 3);
    let reaper = std::thread::spawn(move || shell.wait().unwrap());
    group.tree.kill_all(&group.path, LIMIT).unwrap();
    reaper.join().unwrap();
}

#[test]
fn device_rules_are_enforced_and_replaced() {
    let group = Group::new("devices");
    let pod = group.path.join("pod1").unwrap();
    group.tree.create(&pod, &CgroupResources::default()).unwrap();
    let null = DeviceRule { kind: DeviceKind::Char, major: Some(1), minor: Some(3), ..DeviceRule::everything(true) };
    let reads = |device: &str| group.spawn_in("pod1", &format!("head -c 1 {device}")).wait().unwrap().success();
    assert!(reads("/dev/zero") && reads("/dev/null"));
    group.tree.set_devices(&pod, &[DeviceRule::everything(false), null]).unwrap();
    assert!(!reads("/dev/zero") && reads("/dev/null"));
    group.tree.set_devices(&pod, &[DeviceRule::everything(true)]).unwrap();
    assert!(reads("/dev/zero") && reads("/dev/null"), "the first rules are gone");
}
