//! The process itself: identity, inherited state, exec, errors.

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use podwright_linux::{exit_info, pty};
use podwright_shim::launch::{ContainerStdio, LaunchStep, PodNamespaces, begin_exec, begin_init};
use podwright_shim::plan::{
    CgroupMembership, ExecPlan, LaunchPlan, PidNamespace, ProcessPlan, ResolvedUser, ResourceLimit, UserPlan,
};
use rustix::process::{Signal, pidfd_send_signal};

use crate::bed::{Bed, bind, failure, field, no_child_is_left, output, run, streams};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("the_init_is_pid_1_with_clean_state_and_only_its_streams", clean_state),
    ("a_user_of_the_image_gets_its_groups_and_home", user_of_the_image),
    ("errors_name_the_subject_and_the_reason", errors),
    ("an_exec_enters_the_container_with_the_same_rights", exec_enters),
    ("limits_and_oom_score_are_applied", limits),
    ("a_terminal_is_the_controlling_one", terminal),
    ("a_process_of_the_host_pid_namespace_sees_the_host", host_pids),
    ("an_exec_starts_in_the_present_cgroup_of_the_init", exec_cgroup),
    ("a_working_directory_is_made_and_entered", working_directory),
];

fn clean_state() {
    let bed = Bed::new();
    let script = "echo pid $$; cat /proc/self/status; ls /proc/self/fd; id -u; cat /proc/1/environ; pwd";
    let ran = run(&bed.plan(script), &PodNamespaces::default()).unwrap();
    let text = &ran.output;
    assert_eq!(ran.exit.code, 0, "{text}");
    assert!(text.starts_with("pid 1\n"), "{text}");
    for (name, expected) in [("SigBlk", 0), ("SigIgn", 0), ("CapInh", 0), ("CapAmb", 0)] {
        assert_eq!(u64::from_str_radix(field(text, name), 16), Ok(expected), "{name}");
    }
    assert_eq!(field(text, "CapEff"), "00000000a80425fb");
    assert_eq!(field(text, "CapBnd"), "00000000a80425fb");
    assert_eq!(field(text, "Umask"), "0022");
    assert_eq!((field(text, "NoNewPrivs"), field(text, "Seccomp")), ("0", "0"));
    // 3 is the directory that ls reads.
    assert!(text.contains("\n0\n1\n2\n3\n0\n"), "descriptors: {text}");
    assert!(text.contains("PATH=/bin\0A=b\0HOME=/root\0"), "{text}");
    assert!(text.ends_with("/\n"), "{text}");
    assert_eq!((ran.launched.uid, ran.launched.gid, &*ran.launched.groups), (0, 0, &[0][..]));
}

fn user_of_the_image() {
    let bed = Bed::new();
    let script = "id -u; id -g; id -G; echo $HOME; echo x > /dev/stdout; grep Cap /proc/self/status";
    let user = UserPlan { user: "web".into(), supplemental_groups: vec![50], groups_policy: 0 };
    let ran = run(&LaunchPlan { user: Some(user), ..bed.plan(script) }, &PodNamespaces::default()).unwrap();
    assert!(ran.output.starts_with("1000\n1001\n1001 29 50\n/tmp\nx\n"), "{}", ran.output);
    // Not root: only the bounding set remains after the execution.
    assert_eq!(field(&ran.output, "CapEff"), "0000000000000000");
    assert_eq!(ran.launched.groups, [29, 50, 1001]);
    assert_eq!(ran.launched.home, "/tmp");
}

fn errors() {
    let bed = Bed::new();
    let with = |change: &dyn Fn(&mut LaunchPlan)| {
        let mut plan = bed.plan("true");
        change(&mut plan);
        failure(&plan)
    };
    let argv = |program: &'static str| {
        move |plan: &mut LaunchPlan| plan.process.as_mut().unwrap().argv = vec![program.as_bytes().to_vec()]
    };
    let found = with(&argv("/foo"));
    assert_eq!((found.step, &*found.text), (LaunchStep::Exec, "exec /foo: no such file or directory"));
    assert_eq!(found.errno, Some(libc::ENOENT));
    let found = with(&argv("nothing"));
    assert_eq!(found.text, "exec: \"nothing\": executable file not found in $PATH");
    let found = with(&argv("/etc/passwd"));
    assert_eq!(found.text, "exec /etc/passwd: permission denied");
    let found = with(&|plan| plan.process.as_mut().unwrap().cwd = "/etc/passwd".into());
    assert_eq!((found.step, &*found.text), (LaunchStep::WorkingDirectory, "chdir /etc/passwd: not a directory"));
    let found = with(&|plan| plan.user.as_mut().unwrap().user = "stranger".into());
    assert_eq!(found.text, "user \"stranger\": not in /etc/passwd of the container");
    let found = with(&|plan| plan.mounts.push(bind("/no/such/source".as_ref(), "/mnt", 0)));
    assert_eq!(found.step, LaunchStep::Source);
    assert_eq!(found.text, "mount source /no/such/source: no such file or directory");
    let found = with(&|plan| plan.rootfs.as_mut().unwrap().directory = "/no/such/root".into());
    assert_eq!((found.step, &*found.text), (LaunchStep::Rootfs, "root: /no/such/root: no such file or directory"));
    let found = with(&|plan| plan.mounts.push(bind("/etc/hostname".as_ref(), "/etc", 0)));
    assert_eq!(found.step, LaunchStep::Mount);
}

fn exec_enters() {
    let bed = Bed::new();
    let plan = bed.plan("sleep 100");
    let (_reader, writer) = std::io::pipe().unwrap();
    let init = begin_init(&plan, &PodNamespaces::default(), streams(writer.into())).unwrap().finish().unwrap();
    let script = "echo $$; id -u; cat /proc/1/cmdline; ls /; cat /proc/self/status; exit 7";
    let mut process = bed.plan(script).process.unwrap();
    process.no_new_privileges = true;
    let user = ResolvedUser { uid: 1000, gid: 1001, groups: vec![1001], home: "/tmp".into() };
    let exec = ExecPlan { process: Some(process), user: Some(user.clone()), ..ExecPlan::default() };
    let (mut reader, writer) = std::io::pipe().unwrap();
    let launched = begin_exec(&exec, init.pidfd.as_fd(), streams(writer.into())).unwrap().finish().unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    let exit = exit_info::wait(&launched.pidfd, true).unwrap();
    let process = ProcessPlan { argv: vec![b"/gone".to_vec()], ..ProcessPlan::default() };
    let missing = ExecPlan { process: Some(process), user: Some(user), ..ExecPlan::default() };
    let (_reader, writer) = std::io::pipe().unwrap();
    let failed = begin_exec(&missing, init.pidfd.as_fd(), streams(writer.into())).unwrap().finish().unwrap_err();
    pidfd_send_signal(&init.pidfd, Signal::KILL).unwrap();
    assert_eq!(exit_info::wait(&init.pidfd, true).unwrap().signal, Some(9));
    assert_eq!(exit.code, 7, "{text}");
    assert!(text.contains("\n1000\nsleep\x00100\0"), "{text}");
    assert!(text.contains("bin\n") && !text.contains("boot\n"), "{text}");
    assert_eq!((field(&text, "NoNewPrivs"), field(&text, "CapBnd")), ("1", "00000000a80425fb"));
    assert_eq!(failed.text, "exec /gone: no such file or directory");
    no_child_is_left();
}

fn limits() {
    let bed = Bed::new();
    let mut plan = bed.plan("ulimit -n; cat /proc/self/oom_score_adj");
    plan.process.as_mut().unwrap().rlimits.push(ResourceLimit { resource: 7, soft: 123, hard: 456 });
    plan.oom_score_adj = Some(777);
    assert_eq!(output(&plan), "123\n777\n");
    plan.oom_score_adj = Some(-998);
    // Lowered if that is allowed here, else as near as possible; never an error.
    let adjusted: i32 = output(&plan).lines().nth(1).unwrap().parse().unwrap();
    let own: i32 = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim().parse().unwrap();
    assert!(adjusted <= own, "{adjusted}");
}

fn terminal() {
    let bed = Bed::new();
    let (master, slave) = pty::open_pair().unwrap();
    let mut plan = bed.plan("test -t 0 && tty; stat -c %t:%T /dev/console; echo tty > /dev/tty; id -u");
    plan.user.as_mut().unwrap().user = "web".into();
    let process = plan.process.as_mut().unwrap();
    (process.terminal, process.terminal_rows, process.terminal_columns) = (true, 33, 99);
    let pending = begin_init(&plan, &PodNamespaces::default(), ContainerStdio::Terminal(slave)).unwrap();
    let launched = pending.finish().unwrap();
    let text = read_terminal(&master);
    assert_eq!(exit_info::wait(&launched.pidfd, true).unwrap().code, 0, "{text}");
    assert!(text.starts_with("/dev/console\r\n88:"), "{text}");
    assert!(text.ends_with("tty\r\n1000\r\n"), "{text}");
    let size = rustix::termios::tcgetwinsize(&master).unwrap();
    assert_eq!((size.ws_row, size.ws_col), (33, 99));
}

fn read_terminal(master: &OwnedFd) -> String {
    let mut text = vec![];
    let mut buffer = [0; 4096];
    // EIO: the last slave is closed.
    while let Ok(length) = rustix::io::read(master, &mut buffer) {
        text.extend(&buffer[..length]);
    }
    String::from_utf8(text).unwrap()
}

fn host_pids() {
    let bed = Bed::new();
    let mut plan = bed.plan("echo $$");
    plan.pid_namespace = PidNamespace::Host.into();
    let ran = run(&plan, &PodNamespaces::default()).unwrap();
    assert_eq!(ran.output, format!("{}\n", ran.launched.pid));
}

fn working_directory() {
    let bed = Bed::new();
    let mut plan = bed.overlay("pwd");
    plan.process.as_mut().unwrap().cwd = "/srv/made/here".into();
    assert_eq!(output(&plan), "/srv/made/here\n");
    assert!(bed.path("upper/srv/made/here").is_dir());
}

/// A cgroup of the v2 tree, which may be the only one or one beside v1.
struct TestCgroup(PathBuf);

impl TestCgroup {
    fn new(parent: &Path, name: &str) -> Self {
        let path = parent.join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn membership(&self) -> CgroupMembership {
        CgroupMembership { hierarchy: String::new(), directory: self.0.to_str().unwrap().to_owned() }
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// An exec of a container whose cgroup has changed meanwhile: removed, or with controllers for cgroups below, which the kernel
/// allows no processes beside.
fn exec_cgroup() {
    let mounts = podwright_linux::mountinfo::read().unwrap();
    let tree = mounts.iter().find(|mount| mount.fstype == "cgroup2").expect("a v2 tree").point.clone();
    let control = tree.join("cgroup.subtree_control");
    let all = fs::read_to_string(tree.join("cgroup.controllers")).unwrap();
    let wanted = all.split_whitespace().find(|name| ["hugetlb", "memory"].contains(name)).expect("a controller");
    let had = fs::read_to_string(&control).unwrap().split_whitespace().any(|name| name == wanted);
    fs::write(&control, format!("+{wanted}")).unwrap();
    let bed = Bed::new();
    let top = TestCgroup::new(&tree, &format!("podwright-launch-{}", std::process::id()));
    fs::write(top.0.join("cgroup.subtree_control"), format!("+{wanted}")).unwrap();
    let (old, new) = (TestCgroup::new(&top.0, "old"), TestCgroup::new(&top.0, "new"));
    let plan = LaunchPlan { cgroups: vec![old.membership()], ..bed.plan("sleep 100") };
    let (_reader, writer) = std::io::pipe().unwrap();
    let init = begin_init(&plan, &PodNamespaces::default(), streams(writer.into())).unwrap().finish().unwrap();
    fs::write(new.0.join("cgroup.procs"), init.pid.to_string()).unwrap();
    let exec = |cgroup: CgroupMembership| {
        let user = Some(ResolvedUser { home: "/".into(), ..ResolvedUser::default() });
        let process = bed.plan("grep ^0:: /proc/self/cgroup").process;
        let plan = ExecPlan { process, user, cgroups: vec![cgroup], ..ExecPlan::default() };
        let (mut reader, writer) = std::io::pipe().unwrap();
        let launched = begin_exec(&plan, init.pidfd.as_fd(), streams(writer.into()))?.finish()?;
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        exit_info::wait(&launched.pidfd, true).unwrap();
        Ok::<_, podwright_shim::launch::LaunchFailure>(text)
    };
    let there = exec(old.membership());
    let busy = exec(top.membership());
    let gone = old.membership();
    drop(old);
    let removed = exec(gone);
    pidfd_send_signal(&init.pidfd, Signal::KILL).unwrap();
    exit_info::wait(&init.pidfd, true).unwrap();
    drop((new, top));
    if !had {
        fs::write(&control, format!("-{wanted}")).unwrap();
    }
    assert!(there.as_ref().is_ok_and(|text| text.ends_with("/old\n")), "{there:?}");
    for (why, result) in [("controllers below", busy), ("removed", removed)] {
        assert!(result.as_ref().is_ok_and(|text| text.ends_with("/new\n")), "{why}: {result:?}");
    }
    no_child_is_left();
}
