//! Namespaces of pods: shared by their containers, with users of their own.

use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use podwright_linux::exit_info;
use podwright_shim::launch::{LaunchStep, PodNamespaces, begin_exec, begin_init, setup_pod};
use podwright_shim::plan::{ExecPlan, IdMapping, LaunchPlan, MountPlan, PidNamespace, ResolvedUser, SetupPlan, Sysctl};
use rustix::process::{Signal, pidfd_send_signal};

use crate::bed::{Bed, bind, no_child_is_left, run, streams};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("containers_of_a_pod_share_its_host_name_and_sysctls", shared_namespaces),
    ("a_sysctl_of_the_node_is_refused", foreign_sysctl),
    ("containers_of_a_shared_pid_namespace_see_the_pause_process", shared_pids),
    ("root_of_a_user_namespace_is_another_user_on_the_host", user_namespace),
    ("an_exec_enters_the_user_namespace", user_namespace_exec),
    ("a_shared_pid_namespace_works_in_a_user_namespace", user_namespace_with_pause),
];

fn setup(change: impl FnOnce(&mut SetupPlan)) -> PodNamespaces {
    let mut plan = SetupPlan {
        new_network: true,
        new_ipc: true,
        new_uts: true,
        hostname: "pod-a".into(),
        sysctls: vec![Sysctl { name: "net.ipv4.ip_unprivileged_port_start".into(), value: "7".into() }],
        ..SetupPlan::default()
    };
    change(&mut plan);
    setup_pod(&plan).unwrap()
}

fn shared_namespaces() {
    let bed = Bed::new();
    let namespaces = setup(|plan| plan.sysctls.push(Sysctl { name: "kernel.shmmax".into(), value: "4242".into() }));
    let script =
        "hostname; cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shmmax; ls /sys/class/net";
    for _ in 0..2 {
        assert_eq!(run(&bed.plan(script), &namespaces).unwrap().output, "pod-a\n7\n4242\nlo\n");
    }
    assert!(namespaces.user.is_none() && namespaces.pid.is_none());
}

fn foreign_sysctl() {
    let set = |name: &str| {
        let sysctls = vec![Sysctl { name: name.into(), value: "1".into() }];
        setup_pod(&SetupPlan { new_network: true, sysctls, ..SetupPlan::default() }).unwrap_err()
    };
    let found = set("vm.overcommit_memory");
    assert_eq!(found.step, LaunchStep::Sysctl);
    assert_eq!(found.text, "sysctl vm.overcommit_memory: it does not belong to a namespace of the pod");
    assert_eq!(set("net.no.such").text, "sysctl net.no.such=1: no such file or directory");
    no_child_is_left();
}

fn shared_pids() {
    let bed = Bed::new();
    let namespaces = setup(|plan| plan.pause = true);
    let mut plan = bed.plan("cat /proc/1/comm; echo $$; ls /proc/1/root | wc -l; id -u");
    plan.pid_namespace = PidNamespace::Joined.into();
    let (first, second) = (run(&plan, &namespaces), run(&plan, &namespaces));
    let pause = namespaces.pause.as_ref().unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", pause.pid)).unwrap();
    let open = fs::read_dir(format!("/proc/{}/fd", pause.pid)).unwrap().count();
    let root = fs::read_dir(format!("/proc/{}/root/", pause.pid)).unwrap().count();
    end(&namespaces);
    let (first, second) = (first.unwrap().output, second.unwrap().output);
    assert!(first.starts_with("pause\n2\n") && first.ends_with("\n0\n"), "{first}");
    assert!(second.starts_with("pause\n"), "{second}");
    assert_eq!((open, root), (0, 0), "neither descriptors nor files of the host");
    assert!(status.contains("CapEff:\t0000000000000000") && status.contains("Uid:\t65535"), "{status}");
}

/// Ends the pause process.
fn end(namespaces: &PodNamespaces) {
    let pause = namespaces.pause.as_ref().unwrap();
    pidfd_send_signal(&pause.pidfd, Signal::KILL).unwrap();
    assert_eq!(exit_info::wait(&pause.pidfd, true).unwrap().signal, Some(9));
}

const HOST_ID: u32 = 1_000_000;

fn mapped(plan: LaunchPlan) -> LaunchPlan {
    LaunchPlan { uid_mappings: maps(), gid_mappings: maps(), ..plan }
}

fn maps() -> Vec<IdMapping> {
    vec![IdMapping { container: 0, host: HOST_ID, size: 65536 }]
}

fn with_user(plan: &mut SetupPlan) {
    (plan.uid_mappings, plan.gid_mappings) = (maps(), maps());
}

/// The directories that the engine makes: the mapped root owns those that it writes to, and can pass none above them.
fn mapped_bed() -> Bed {
    let bed = Bed::new();
    fs::set_permissions(bed.dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    for name in ["upper", "work"] {
        chown(bed.path(name), Some(HOST_ID), Some(HOST_ID)).unwrap();
    }
    bed
}

fn user_namespace() {
    let bed = mapped_bed();
    fs::write(bed.path("host/secret"), "s").unwrap();
    let namespaces = setup(with_user);
    let script = "id -u; stat -c %u:%g /bin/busybox /data/secret; stat -c %t:%T /dev/null; echo x > /file1; \
                  cat /proc/self/uid_map; hostname; cat /proc/sys/net/ipv4/ip_unprivileged_port_start; \
                  cat /proc/timer_list | wc -c; echo 1 > /proc/sys/kernel/domainname; echo $$";
    let mut plan = mapped(bed.overlay(script));
    plan.mounts.push(MountPlan { idmapped: true, ..bind(&bed.path("host"), "/data", 0) });
    let text = run(&plan, &namespaces).unwrap().output;
    let begin = "0\n0:0\n0:0\n1:3\n         0    1000000      65536\npod-a\n7\n0\n";
    assert!(text.starts_with(begin), "{text}");
    assert!(text.contains("Read-only file system") && text.ends_with("\n1\n"), "{text}");
    assert_eq!(fs::metadata(bed.path("upper/file1")).unwrap().uid(), HOST_ID);
    no_child_is_left();
}

fn user_namespace_exec() {
    let bed = mapped_bed();
    let namespaces = setup(with_user);
    let (_reader, writer) = std::io::pipe().unwrap();
    let plan = mapped(bed.overlay("sleep 100"));
    let init = begin_init(&plan, &namespaces, streams(writer.into())).unwrap().finish().unwrap();
    let exec = ExecPlan {
        process: bed.plan("id -u; cat /proc/self/uid_map; touch /etc/made").process,
        user: Some(ResolvedUser { uid: 1000, gid: 1001, groups: vec![], home: String::new() }),
        uid_mappings: maps(),
        gid_mappings: maps(),
        ..ExecPlan::default()
    };
    let (mut reader, writer) = std::io::pipe().unwrap();
    let launched = begin_exec(&exec, init.pidfd.as_fd(), streams(writer.into())).unwrap().finish();
    let text = launched.map(|launched| {
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        exit_info::wait(&launched.pidfd, true).unwrap();
        text
    });
    pidfd_send_signal(&init.pidfd, Signal::KILL).unwrap();
    exit_info::wait(&init.pidfd, true).unwrap();
    let text = text.unwrap();
    assert!(text.starts_with("1000\n         0    1000000      65536\n"), "{text}");
    assert!(text.contains("Permission denied"), "{text}");
    no_child_is_left();
}

fn user_namespace_with_pause() {
    let bed = mapped_bed();
    let namespaces = setup(|plan| {
        with_user(plan);
        plan.pause = true;
    });
    let mut plan = mapped(bed.overlay("cat /proc/1/comm; id -u"));
    plan.pid_namespace = PidNamespace::Joined.into();
    let ran = run(&plan, &namespaces);
    let pid = namespaces.pause.as_ref().unwrap().pid;
    let map = fs::read_to_string(format!("/proc/{pid}/uid_map")).unwrap();
    end(&namespaces);
    assert_eq!(ran.unwrap().output, "pause\n0\n");
    assert_eq!(map.split_whitespace().nth(1), Some("1000000"), "{map}");
}
