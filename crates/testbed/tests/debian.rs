//! Debian's containerd and registry from the cache, from start to removal.

use std::path::{Path, PathBuf};
use std::process::Command;

use podwright_testbed::{Containerd, Flavor, PASSWORD, Registry, Scratch, USER, image, leftovers};

#[test]
fn a_container_runs_and_leaves_nothing_behind() {
    let scratch = Scratch::new().expect("a scratch");
    let containerd = Containerd::start(&scratch, Flavor::Debian16).expect("containerd starts");
    let output = containerd.ctr_run(image::BUSYBOX, "one", &["sh", "-c", "echo hello; id -u"]).expect("it runs");
    assert_eq!(output, "hello\n0\n");
    assert!(containerd.ctr_run(image::BUSYBOX, "two", &["false"]).is_err(), "the exit code is reported");
    assert_eq!(leftovers(&scratch, &containerd).expect("leftovers"), Vec::<String>::new());
    let (path, name, pid) = (scratch.path(), scratch.name(), containerd.pid());
    drop(containerd);
    drop(scratch);
    assert_gone(&path, &name, pid);
}

#[test]
fn a_container_left_running_is_found_and_removed() {
    let scratch = Scratch::new().expect("a scratch");
    let mut containerd = Containerd::start(&scratch, Flavor::Debian16).expect("containerd starts");
    let cgroup = format!("{}/left", scratch.cgroup_root());
    let root = scratch.path().join("containerd/runc").display().to_string();
    let fifos = scratch.dir("fifos").expect("a directory").display().to_string();
    let arguments =
        ["run", "-d", "--fifo-dir", &fifos, "--cgroup", &cgroup, "--runc-root", &root, image::PAUSE, "left"];
    containerd.ctr(&arguments).expect("it starts");
    containerd.restart().expect("containerd restarts");

    let left = leftovers(&scratch, &containerd).expect("leftovers");
    for kind in ["mount ", "cgroup ", "process ", "container left"] {
        assert!(left.iter().any(|line| line.starts_with(kind)), "{kind}is reported in {left:#?}");
    }
    let (path, name, pid) = (scratch.path(), scratch.name(), containerd.pid());
    drop(containerd);
    drop(scratch);
    assert_gone(&path, &name, pid);
}

#[test]
fn after_a_power_cut_only_the_state_on_disk_remains() {
    let scratch = Scratch::new().expect("a scratch");
    let mut containerd = Containerd::start(&scratch, Flavor::Debian16).expect("containerd starts");
    let cgroup = format!("{}/left", scratch.cgroup_root());
    let root = scratch.path().join("containerd/runc").display().to_string();
    let fifos = scratch.dir("fifos").expect("a directory").display().to_string();
    let arguments =
        ["run", "-d", "--fifo-dir", &fifos, "--cgroup", &cgroup, "--runc-root", &root, image::PAUSE, "left"];
    containerd.ctr(&arguments).expect("it starts");
    containerd.power_cut().expect("cut");
    containerd.start_again().expect("containerd boots again");
    assert_eq!(leftovers(&scratch, &containerd).expect("leftovers"), ["container left"]);
    assert_eq!(containerd.ctr(&["tasks", "ls", "-q"]).expect("listed"), "");
}

#[test]
fn the_leftovers_of_a_killed_run_are_removed_by_the_next() {
    let alone = ["up", "--alone", "--runtime", "debian", "--agent", "none"];
    let up = Command::new(env!("CARGO_BIN_EXE_testbed")).args(alone).output().expect("testbed runs");
    let printed = String::from_utf8(up.stdout).expect("text");
    let value = |name: &str| printed.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    let path = PathBuf::from(value("export TESTBED=").expect("its directory is printed"));
    let name = value("export TESTBED_CGROUP_ROOT=/").expect("its cgroup is printed");
    let pids = std::fs::read_to_string(path.join("pids")).expect("pids are recorded");
    let pid: u32 = pids.split(' ').next().and_then(|pid| pid.parse().ok()).expect("a pid");
    Scratch::sweep();
    assert!(Path::new("/proc").join(pid.to_string()).exists(), "a kept instance survives a sweep");
    // Without the mark it looks like a killed test run: a running containerd whose owner has exited.
    std::fs::remove_file(path.join("keep")).expect("it was kept");
    Scratch::sweep();
    assert_gone(&path, &name, pid);
}

#[test]
fn images_are_pulled_from_a_registry_with_and_without_a_password() {
    let scratch = Scratch::new().expect("a scratch");
    let containerd = Containerd::start(&scratch, Flavor::Debian16).expect("containerd starts");
    let open = Registry::start(&scratch).expect("a registry");
    open.push_all().expect("pushed");
    let private = Registry::start_private(&scratch).expect("a private registry");
    private.push(image::BUSYBOX, "team/busybox:1").expect("pushed");

    let pull = |registry: &Registry, name: &str, credentials: Option<&str>| {
        let reference = format!("{}/{name}", registry.address());
        let mut arguments = vec!["images", "pull", "--plain-http"];
        arguments.extend(credentials.iter().flat_map(|given| ["--user", given]));
        containerd.ctr(&[arguments.as_slice(), &[reference.as_str()]].concat())
    };
    pull(&open, "podwright/busybox:1", None).expect("no credentials needed");
    assert!(pull(&open, "podwright/no-such:1", None).is_err());
    assert!(pull(&private, "team/busybox:1", None).is_err(), "a password is required");
    assert!(pull(&private, "team/busybox:1", Some("puller:wrong")).is_err());
    pull(&private, "team/busybox:1", Some(&format!("{USER}:{PASSWORD}"))).expect("the right password is accepted");
}

fn assert_gone(path: &Path, name: &str, pid: u32) {
    assert!(!path.exists(), "{} is gone", path.display());
    assert!(!Path::new("/sys/class/net").join(name).exists(), "bridge {name} is gone");
    // Orphans stay zombies until the host's init reaps them.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "containerd is gone: {stat}");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    assert!(!mounts.contains(&format!("{}/", path.display())), "no mount is left");
    for hierarchy in std::fs::read_dir("/sys/fs/cgroup").expect("cgroups").flatten() {
        assert!(!hierarchy.path().join(name).exists(), "cgroup {name} is gone from {:?}", hierarchy.path());
    }
}
