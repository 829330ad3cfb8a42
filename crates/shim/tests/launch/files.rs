//! What a container sees as files.

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use podwright_linux::exit_info;
use podwright_linux::fsctx::attributes::RDONLY;
use podwright_linux::mount::{Tmpfs, tmpfs, unmount};
use podwright_linux::mountinfo;
use podwright_shim::launch::{PodNamespaces, begin_init};
use podwright_shim::plan::{CgroupMembership, DeviceNode, MountKind, MountPlan, OverlayLayers, Propagation};
use rustix::process::{Signal, pidfd_send_signal};

use crate::bed::{Bed, bind, failure, mount, output, run, streams};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("an_overlay_writes_to_its_upper_directory_and_leaves_no_mount", overlay),
    ("a_read_only_root_cannot_be_written", read_only_root),
    ("binds_have_their_attributes_and_stay_inside_the_root", binds),
    ("a_recursive_read_only_bind_covers_mounts_below", recursive_read_only),
    ("devices_are_those_of_the_plan", devices),
    ("a_missing_source_is_made_only_when_asked", make_source),
    ("the_cgroups_of_the_plan_are_joined_and_shown_read_only", cgroups),
    ("the_v2_cgroup_of_the_plan_is_the_root_of_what_is_shown", cgroup_v2),
    ("nothing_of_the_host_is_mounted_inside", mount_table),
    ("a_part_of_an_image_is_mounted", image_part),
    ("an_overlay_without_added_layers_is_the_same", overlay_by_mount_call),
];

fn overlay() {
    let bed = Bed::new();
    let text = output(&bed.overlay("echo new > /file; cat /file; grep ' / / ' /proc/self/mountinfo"));
    assert!(text.starts_with("new\n"), "{text}");
    assert!(text.contains("- overlay ") && text.contains("volatile"), "{text}");
    assert_eq!(fs::read_to_string(bed.path("upper/file")).unwrap(), "new\n");
    assert!(!bed.path("rootfs/file").exists());
    let mounts = mountinfo::read().unwrap();
    assert!(mountinfo::under(&mounts, bed.dir.path()).is_empty(), "the host's mount table is as before");
}

fn read_only_root() {
    let bed = Bed::new();
    let mut plan = bed.plan("touch /file && echo written; touch /dev/shm/file && echo shm");
    plan.rootfs.as_mut().unwrap().readonly = true;
    let text = output(&plan);
    assert!(text.contains("Read-only file system") && text.ends_with("shm\n"), "{text}");
    assert!(!bed.path("rootfs/file").exists());
}

fn binds() {
    let bed = Bed::new();
    fs::write(bed.path("host/config"), "from the host").unwrap();
    // Links of the image that would lead to the host's own files.
    symlink(bed.path("host"), bed.path("rootfs/escape")).unwrap();
    symlink("/etc", bed.path("rootfs/conf")).unwrap();
    let mut plan = bed.plan("cat /conf/app/config; echo x > /conf/app/config; echo y > /data/new; ls /data");
    plan.mounts.push(bind(&bed.path("host/config"), "/conf/app/config", RDONLY));
    plan.mounts.push(bind(&bed.path("host"), "/data", 0));
    let text = output(&plan);
    assert!(text.starts_with("from the host") && text.contains("Read-only file system"), "{text}");
    assert_eq!(fs::read_to_string(bed.path("host/new")).unwrap(), "y\n");
    assert!(bed.path("rootfs/etc/app/config").exists(), "the target was made inside the root");
    let mut plan = bed.plan("true");
    plan.mounts.push(bind(&bed.path("host"), "/escape/inner", 0));
    assert_eq!(failure(&plan).errno, Some(libc::EEXIST), "a link to nowhere is not followed to the host");
    assert!(!bed.path("host/inner").exists());
}

fn recursive_read_only() {
    let bed = Bed::new();
    let below = bed.path("host/below");
    fs::create_dir(&below).unwrap();
    tmpfs(&below, &Tmpfs { size: None, mode: 0o755 }).unwrap();
    let script = "touch /data/below/file && echo written";
    let mut plain = bed.plan(script);
    plain.mounts.push(bind(&bed.path("host"), "/data", RDONLY));
    let mut recursive = bed.plan(script);
    let covered = MountPlan { recursive_attributes: RDONLY, ..bind(&bed.path("host"), "/data", 0) };
    recursive.mounts.push(MountPlan { propagation: Propagation::Private.into(), ..covered });
    let none = PodNamespaces::default();
    let (plain, recursive) = (run(&plain, &none), run(&recursive, &none));
    unmount(&below).unwrap();
    assert_eq!(plain.unwrap().output, "written\n");
    assert!(recursive.unwrap().output.contains("Read-only file system"));
}

fn devices() {
    let bed = Bed::new();
    let script = "stat -c '%n %t:%T %a' /dev/null /dev/tty /dev/fuse /dev/sub/zero2; ls -l /dev/fd /dev/ptmx";
    let mut plan = bed.plan(script);
    let node =
        |path: &str, major, minor| DeviceNode { path: path.into(), major, minor, mode: 0o640, ..Default::default() };
    plan.devices = vec![node("/dev/fuse", 10, 229), node("/dev/sub/zero2", 1, 5)];
    let text = output(&plan);
    let expected = "/dev/null 1:3 666\n/dev/tty 5:0 666\n/dev/fuse a:e5 640\n/dev/sub/zero2 1:5 640\n";
    assert!(text.starts_with(expected), "{text}");
    assert!(text.contains("/dev/fd -> /proc/self/fd") && text.contains("/dev/ptmx -> pts/ptmx"), "{text}");
    plan.devices = vec![node("/etc/null", 1, 3)];
    assert_eq!(failure(&plan).text, "device /etc/null: not below /dev");
}

fn make_source() {
    let bed = Bed::new();
    let mut plan = bed.plan("ls -d /data");
    let missing = bind(&bed.path("host/a/b"), "/data", 0);
    plan.mounts.push(MountPlan { make_source: true, ..missing });
    assert_eq!(output(&plan), "/data\n");
    assert!(bed.path("host/a/b").is_dir());
}

fn cgroups() {
    let name = format!("podwright-launch-{}", std::process::id());
    let exists = |hierarchy: &&str| fs::exists(format!("/sys/fs/cgroup/{hierarchy}/tasks")).unwrap();
    let found: Vec<&str> = ["pids", "cpu,cpuacct", "cpu"].into_iter().filter(exists).take(2).collect();
    if found.is_empty() {
        println!("  no v1 hierarchies here");
        return;
    }
    let bed = Bed::new();
    let mut plan = bed.plan("cat /proc/self/cgroup; ls /sys/fs/cgroup; touch /sys/fs/cgroup/x");
    for hierarchy in &found {
        let directory = format!("/sys/fs/cgroup/{hierarchy}/{name}");
        fs::create_dir(&directory).unwrap();
        plan.cgroups.push(CgroupMembership { hierarchy: (*hierarchy).into(), directory });
    }
    plan.mounts.push(mount(MountKind::Cgroup, "/sys/fs/cgroup", RDONLY, &[]));
    let ran = run(&plan, &PodNamespaces::default());
    for hierarchy in &found {
        fs::remove_dir(format!("/sys/fs/cgroup/{hierarchy}/{name}")).unwrap();
    }
    let text = ran.unwrap().output;
    for hierarchy in &found {
        let line = text.lines().find(|line| line.split(':').nth(1).is_some_and(|names| names == *hierarchy));
        assert!(line.is_some_and(|line| line.ends_with(&format!(":/{name}"))), "{hierarchy}: {text}");
        assert!(text.contains(&format!("\n{hierarchy}\n")), "{text}");
    }
    assert!(text.contains("Read-only file system"), "{text}");
}

/// On the v2 tree, which may be the only one or one beside v1.
fn cgroup_v2() {
    let mounts = mountinfo::read().unwrap();
    let tree = mounts.iter().find(|mount| mount.fstype == "cgroup2").expect("a v2 tree").point.clone();
    let directory = tree.join(format!("podwright-launch-v2-{}", std::process::id()));
    fs::create_dir(&directory).unwrap();
    let bed = Bed::new();
    let script =
        "grep ^0: /proc/self/cgroup; cat /sys/fs/cgroup/cgroup.procs; mkdir /sys/fs/cgroup/x; touch /go; sleep 100";
    let mut plan = bed.plan(script);
    let directory_text = directory.to_str().unwrap().to_owned();
    plan.cgroups.push(CgroupMembership { hierarchy: String::new(), directory: directory_text });
    plan.new_cgroup_namespace = true;
    plan.mounts.push(mount(MountKind::Cgroup, "/sys/fs/cgroup", RDONLY, &[]));
    let (mut reader, writer) = std::io::pipe().unwrap();
    let started = begin_init(&plan, &PodNamespaces::default(), streams(writer.into())).and_then(|begun| begun.finish());
    let seen = started.as_ref().map(|launched| {
        let until = Instant::now() + Duration::from_secs(30);
        while !bed.path("rootfs/go").exists() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let outside = fs::read_to_string(directory.join("cgroup.procs")).unwrap();
        pidfd_send_signal(&launched.pidfd, Signal::KILL).unwrap();
        exit_info::wait(&launched.pidfd, true).unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        (outside, text, launched.pid)
    });
    fs::remove_dir(&directory).unwrap();
    let (outside, text, pid) = seen.unwrap();
    assert!(outside.lines().any(|line| line == pid.to_string()), "{outside}");
    assert!(text.starts_with("0::/\n") && text.contains("\n1\n"), "its own cgroup is the root: {text}");
    assert!(text.contains("Read-only file system"), "{text}");
}

fn mount_table() {
    let bed = Bed::new();
    let text = output(&bed.plan("cat /proc/self/mountinfo"));
    let points: Vec<&str> = text.lines().map(|line| line.split(' ').nth(4).unwrap()).collect();
    assert_eq!(points.iter().filter(|point| **point == "/").count(), 1, "{text}");
    for point in points.iter().filter(|point| **point != "/") {
        assert!(["/proc", "/dev", "/sys"].iter().any(|top| point.starts_with(top)), "{point} in {text}");
    }
    assert!(!text.contains(" shared:") && !text.contains(" master:"), "everything is private: {text}");
}

fn image_part() {
    let bed = Bed::new();
    fs::create_dir_all(bed.path("layer:two,a/etc/app")).unwrap();
    fs::write(bed.path("layer:two,a/etc/app/conf"), "conf\n").unwrap();
    let before = podwright_linux::mountinfo::read().unwrap().len();
    for by_mount_call in [false, true] {
        let lower = vec![bed.text("layer:two,a"), bed.text("rootfs")];
        let layers = OverlayLayers { lower, by_mount_call, ..OverlayLayers::default() };
        let part = |sub_path: &str, target: &str| MountPlan {
            layers: Some(layers.clone()),
            sub_path: sub_path.into(),
            ..mount(MountKind::Image, target, 0, &[])
        };
        let mut plan = bed.plan("cat /app/conf /whole/etc/app/conf /one; cat /whole/etc/group | wc -l; touch /app/x");
        plan.mounts.extend([part("etc/app", "/app"), part("", "/whole"), part("etc/app/conf", "/one")]);
        let text = run(&plan, &PodNamespaces::default()).unwrap().output;
        assert!(text.starts_with("conf\nconf\nconf\n3\n"), "{text}");
        assert!(text.contains("Read-only file system"), "{text}");
        plan.mounts = vec![part("etc/none", "/app")];
        assert_eq!(failure(&plan).text, "etc/none: not in the image");
    }
    assert_eq!(podwright_linux::mountinfo::read().unwrap().len(), before);
}

/// Kernels before 6.7 mount all layers by one call.
fn overlay_by_mount_call() {
    let bed = Bed::new();
    fs::create_dir_all(bed.path("second/etc")).unwrap();
    fs::write(bed.path("second/etc/passwd"), "root:x:0:0::/second:/bin/sh\n").unwrap();
    let before = podwright_linux::mountinfo::read().unwrap().len();
    let mut plan = bed.overlay("echo $HOME; ls /etc; echo x > /etc/new; pwd");
    let layers = plan.rootfs.as_mut().unwrap().layers.as_mut().unwrap();
    layers.by_mount_call = true;
    layers.lower.insert(0, bed.text("second"));
    assert_eq!(output(&plan), "/second\ngroup\npasswd\n/\n");
    assert_eq!(fs::read_to_string(bed.path("upper/etc/new")).unwrap(), "x\n");
    assert_eq!(podwright_linux::mountinfo::read().unwrap().len(), before);
    let layers = plan.rootfs.as_mut().unwrap().layers.as_mut().unwrap();
    layers.lower = (0..1000).map(|_| bed.text("rootfs")).collect();
    assert_eq!(failure(&plan).text, "root: 1000 layers are more than this kernel takes");
}
