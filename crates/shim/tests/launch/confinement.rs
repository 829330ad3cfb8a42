//! What a container cannot do.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use podwright_linux::exit_info;
use podwright_linux::fsctx::attributes::RDONLY;
use podwright_linux::seccomp_bpf::{SeccompAction, SeccompProfile, SeccompRule, compile, to_bytes};
use podwright_shim::launch::{LaunchStep, Launched, PodNamespaces, begin_exec, begin_init, setup_pod};
use podwright_shim::plan::{Capabilities, ExecPlan, LaunchPlan, PidNamespace, ProcessPlan, ResolvedUser, SetupPlan};
use rustix::process::{Signal, pidfd_send_signal};

use crate::bed::{Bed, DEFAULT_CAPABILITIES, bind, failure, field, no_child_is_left, output, run, streams};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("masked_paths_are_empty_and_read_only_paths_refuse_writes", masks),
    ("a_link_in_place_of_proc_is_refused", linked_proc),
    ("a_masked_path_that_is_a_link_is_refused", linked_mask),
    ("a_seccomp_filter_is_installed_with_and_without_no_new_privileges", seccomp),
    ("a_process_without_capabilities_has_none", no_capabilities),
    ("a_program_is_not_found_through_a_descriptor_of_the_launcher", leaked_descriptor),
    ("a_launch_without_a_namespace_that_it_needs_is_refused", needed_namespaces),
    ("a_container_that_may_trace_finds_no_file_of_the_host_at_an_exec", traced_exec),
    ("a_container_that_may_trace_finds_no_file_of_the_host_at_the_start_of_another", traced_init),
    ("a_working_directory_behind_a_descriptor_of_the_launcher_is_refused", leaked_directory),
    ("a_link_that_appears_during_the_mounts_does_not_lead_out_of_the_root", swapped_target),
    ("a_target_that_is_a_link_into_proc_does_not_reach_the_host", linked_mtab),
    ("ambient_capabilities_reach_a_user_that_is_not_root", ambient),
];

fn masks() {
    let bed = Bed::new();
    let script = "cat /proc/cpuinfo | wc -c; cat /proc/timer_list | wc -c; ls /sys/kernel | wc -l; \
                  echo 1 > /proc/sys/kernel/domainname; stat -c %t:%T /proc/cpuinfo; cat /etc/passwd | wc -c; touch /etc/new";
    let mut plan = bed.plan(script);
    plan.masked_paths.extend(["/etc/passwd", "/proc/cpuinfo", "/sys/kernel", "/proc/not/there"].map(String::from));
    plan.readonly_paths.push("/etc".into());
    let text = run(&plan, &PodNamespaces::default()).unwrap().output;
    assert!(text.starts_with("0\n0\n0\n"), "{text}");
    assert_eq!(text.matches("Read-only file system").count(), 2, "{text}");
    assert!(text.contains("\n1:3\n0\n"), "{text}");
}

fn linked_proc() {
    let bed = Bed::new();
    symlink("/tmp", bed.path("rootfs/proc")).unwrap();
    let found = failure(&bed.plan("true"));
    assert_eq!((found.step, found.errno), (LaunchStep::Mount, Some(libc::ELOOP)), "{found:?}");
}

fn linked_mask() {
    let bed = Bed::new();
    symlink("/proc", bed.path("rootfs/link")).unwrap();
    let mut plan = bed.plan("true");
    plan.masked_paths.push("/link/kcore".into());
    let found = failure(&plan);
    assert_eq!((found.step, found.errno), (LaunchStep::Mask, Some(libc::ELOOP)), "{found:?}");
}

fn seccomp() {
    let bed = Bed::new();
    let names = vec!["mkdir".into(), "mkdirat".into()];
    let rule = SeccompRule { names, action: SeccompAction::Errno(99), conditions: vec![] };
    let profile = SeccompProfile { default_action: SeccompAction::Allow, architectures: vec![], rules: vec![rule] };
    for no_new_privileges in [true, false] {
        let mut plan = bed.plan("grep -E 'NoNewPrivs|Seccomp:' /proc/self/status; mkdir /tmp/new");
        let process = plan.process.as_mut().unwrap();
        process.no_new_privileges = no_new_privileges;
        process.seccomp = to_bytes(&compile(&profile).unwrap());
        plan.user.as_mut().unwrap().user = "web".into();
        let text = run(&plan, &PodNamespaces::default()).unwrap().output;
        assert_eq!(field(&text, "Seccomp"), "2");
        assert_eq!(field(&text, "NoNewPrivs"), if no_new_privileges { "1" } else { "0" });
        assert!(text.contains("Cannot assign requested address"), "the filter's error: {text}");
    }
    let mut plan = bed.plan("true");
    plan.process.as_mut().unwrap().seccomp = vec![0; 8];
    assert_eq!(failure(&plan).step, LaunchStep::Seccomp);
}

fn no_capabilities() {
    let bed = Bed::new();
    let mut plan = bed.plan("cat /proc/self/status");
    plan.process.as_mut().unwrap().capabilities = None;
    let text = output(&plan);
    for set in SETS {
        assert_eq!(field(&text, set), "0000000000000000", "{set}");
    }
}

fn ambient() {
    let bed = Bed::new();
    let mut plan = bed.plan("cat /proc/self/status");
    plan.user.as_mut().unwrap().user = "web".into();
    let net = 1 << 10;
    let all = Capabilities { bounding: net, effective: net, permitted: net, inheritable: net, ambient: net };
    plan.process.as_mut().unwrap().capabilities = Some(all);
    let text = output(&plan);
    for set in SETS {
        assert_eq!(field(&text, set), "0000000000000400", "{set}");
    }
}

fn needed_namespaces() {
    let bed = Bed::new();
    let plan = bed.plan("true");
    for (plan, name) in [
        (LaunchPlan { needs_network: true, ..plan.clone() }, "network"),
        (LaunchPlan { needs_ipc: true, ..plan.clone() }, "IPC"),
        (LaunchPlan { needs_uts: true, ..plan }, "UTS"),
    ] {
        let found = failure(&plan);
        assert_eq!((found.step, found.text), (LaunchStep::Plan, format!("launch plan: no {name} namespace")));
    }
}

/// CVE-2024-21626: `execve` resolves the path of the program before it closes descriptors that are only marked.
fn leaked_descriptor() {
    let bed = Bed::new();
    fs::copy(bed.path("rootfs/bin/busybox"), bed.path("host/escape")).unwrap();
    let host = File::open(bed.path("host")).unwrap();
    let mut paths = vec![format!("/proc/self/fd/{}", host.as_raw_fd())];
    paths.extend((3..40).map(|number| format!("/proc/self/fd/{number}/../../../..{}", bed.text("host"))));
    let attack = |mut process: ProcessPlan, path: &str| {
        process.argv = vec![b"escape".to_vec()];
        process.env = vec![format!("PATH={path}").into_bytes()];
        process
    };
    let init = bed.plan("sleep 100");
    let (_reader, writer) = std::io::pipe().unwrap();
    let running = begin_init(&init, &PodNamespaces::default(), streams(writer.into())).unwrap().finish().unwrap();
    let mut found = vec![];
    for path in &paths {
        for no_new_privileges in [true, false] {
            let process = ProcessPlan { no_new_privileges, ..attack(init.process.clone().unwrap(), path) };
            let (_reader, writer) = std::io::pipe().unwrap();
            let plan = LaunchPlan { process: Some(process.clone()), ..init.clone() };
            found.push(begin_init(&plan, &PodNamespaces::default(), streams(writer.into())).unwrap().finish());
            let plan = ExecPlan { process: Some(process), user: Some(ResolvedUser::default()), ..ExecPlan::default() };
            let (_reader, writer) = std::io::pipe().unwrap();
            found.push(begin_exec(&plan, running.pidfd.as_fd(), streams(writer.into())).unwrap().finish());
        }
    }
    // A zombie in the PID namespace would keep its init from ending.
    for launched in found.iter().flatten() {
        exit_info::wait(&launched.pidfd, true).unwrap();
    }
    pidfd_send_signal(&running.pidfd, Signal::KILL).unwrap();
    exit_info::wait(&running.pidfd, true).unwrap();
    for result in found {
        let failure = result.expect_err("the program is outside of the container");
        assert_eq!(failure.text, "exec: \"escape\": executable file not found in $PATH");
    }
    no_child_is_left();
}

/// A container with CAP_SYS_PTRACE that looks for files of the host behind every process that it sees. Without a user namespace its
/// right holds for launchers too, whether they are dumpable or not (CVE-2016-9962).
struct Tracer {
    bed: Bed,
    running: Launched,
}

impl Tracer {
    fn start(namespaces: &PodNamespaces, change: impl FnOnce(&mut LaunchPlan)) -> Self {
        let bed = Bed::new();
        fs::write(bed.path("host/secret"), "s").unwrap();
        let secret = bed.text("host/secret");
        let up = "../".repeat(12);
        // Descriptors that are the host's root, its proc, or a directory anywhere on it; root and working directory.
        let script = format!(
            "look() {{ while :; do for d in /proc/[0-9]*/fd/* /proc/[0-9]*/root /proc/[0-9]*/cwd; do \
               for way in {secret} /1/root{secret} /{up}{secret}; do [ -e $d$way ] && echo $d$way >> /tmp/escaped; done; \
             done; echo >> /tmp/rounds; done; }}; look & look & look"
        );
        let mut plan = bed.plan(&script);
        let trace = Capabilities { bounding: TRACE, effective: TRACE, permitted: TRACE, inheritable: 0, ambient: 0 };
        plan.process.as_mut().unwrap().capabilities = Some(trace);
        change(&mut plan);
        let (_reader, writer) = std::io::pipe().unwrap();
        let running = begin_init(&plan, namespaces, streams(writer.into())).unwrap().finish().unwrap();
        let tracer = Self { bed, running };
        let begun = Instant::now();
        while tracer.rounds() < 10 && begun.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        tracer
    }

    fn rounds(&self) -> usize {
        fs::read(self.bed.path("rootfs/tmp/rounds")).map_or(0, |text| text.len())
    }

    /// Ends it; it has found nothing.
    fn end(self) {
        pidfd_send_signal(&self.running.pidfd, Signal::KILL).unwrap();
        exit_info::wait(&self.running.pidfd, true).unwrap();
        assert!(self.rounds() > 50, "the container has looked {} times", self.rounds());
        let escaped = fs::read_to_string(self.bed.path("rootfs/tmp/escaped")).unwrap_or_default();
        assert!(escaped.is_empty(), "{} times: {:?}", escaped.lines().count(), escaped.lines().next());
    }
}

fn traced_exec() {
    let tracer = Tracer::start(&PodNamespaces::default(), |_| {});
    let mut failures = vec![];
    for _ in 0..200 {
        let process = tracer.bed.plan("true").process;
        let plan = ExecPlan { process, user: Some(ResolvedUser::default()), ..ExecPlan::default() };
        let (_reader, writer) = std::io::pipe().unwrap();
        match begin_exec(&plan, tracer.running.pidfd.as_fd(), streams(writer.into())).unwrap().finish() {
            Ok(launched) => drop(exit_info::wait(&launched.pidfd, true).unwrap()),
            Err(failure) => failures.push(failure),
        }
    }
    tracer.end();
    assert!(failures.is_empty(), "{failures:?}");
}

/// As [`traced_exec`], for the start of another container in the same PID namespace.
fn traced_init() {
    let namespaces = setup_pod(&SetupPlan { pause: true, ..SetupPlan::default() }).unwrap();
    let join = |plan: &mut LaunchPlan| plan.pid_namespace = PidNamespace::Joined.into();
    let tracer = Tracer::start(&namespaces, join);
    let bed = Bed::new();
    let mut plan = bed.plan("cat /proc/1/comm; cat /proc/timer_list | wc -c");
    join(&mut plan);
    plan.rootfs.as_mut().unwrap().readonly = true;
    let outputs: Vec<_> = (0..100).map(|_| run(&plan, &namespaces).map(|ran| ran.output)).collect();
    // Those that still look end with the namespace.
    let pause = namespaces.pause.as_ref().unwrap();
    pidfd_send_signal(&pause.pidfd, Signal::KILL).unwrap();
    tracer.end();
    exit_info::wait(&pause.pidfd, true).unwrap();
    no_child_is_left();
    let expected = |output: &Result<String, _>| output.as_ref().is_ok_and(|text| text == "pause\n0\n");
    assert!(outputs.iter().all(expected), "{:?}", outputs.iter().find(|output| !expected(output)));
}

/// The default ones and CAP_SYS_PTRACE.
const TRACE: u64 = DEFAULT_CAPABILITIES | 1 << 19;

/// CVE-2024-21626, the other half: the working directory of init and exec.
fn leaked_directory() {
    let bed = Bed::new();
    let host = File::open(bed.path("host")).unwrap();
    let init = bed.plan("sleep 100");
    let (_reader, writer) = std::io::pipe().unwrap();
    let running = begin_init(&init, &PodNamespaces::default(), streams(writer.into())).unwrap().finish().unwrap();
    let mut escaped = vec![];
    for number in 3..40 {
        for cwd in [format!("/proc/self/fd/{number}"), format!("/proc/thread-self/fd/{number}/..")] {
            let process = ProcessPlan { cwd, ..init.process.clone().unwrap() };
            let (_reader, writer) = std::io::pipe().unwrap();
            let plan = ExecPlan { process: Some(process), user: Some(ResolvedUser::default()), ..ExecPlan::default() };
            escaped.extend(begin_exec(&plan, running.pidfd.as_fd(), streams(writer.into())).unwrap().finish());
        }
    }
    for launched in &escaped {
        pidfd_send_signal(&launched.pidfd, Signal::KILL).unwrap();
        exit_info::wait(&launched.pidfd, true).unwrap();
    }
    pidfd_send_signal(&running.pidfd, Signal::KILL).unwrap();
    exit_info::wait(&running.pidfd, true).unwrap();
    assert!(escaped.is_empty(), "{escaped:?}");
    let mut plan = init;
    plan.process.as_mut().unwrap().cwd = format!("/proc/self/fd/{}", host.as_raw_fd());
    assert_eq!(failure(&plan).step, LaunchStep::WorkingDirectory);
}

/// CVE-2021-30465: a volume that another container writes to holds the target of the next mount, and changes under the launcher.
fn swapped_target() {
    let bed = Bed::new();
    let (volume, outside) = (bed.path("volume"), bed.path("outside"));
    fs::create_dir_all(volume.join("target")).unwrap();
    fs::create_dir(&outside).unwrap();
    let script = format!(
        "cd {}; while :; do mv target aside; ln -s ../../../../../../../..{} target; rm target; mv aside target; done",
        volume.display(),
        outside.display()
    );
    let mut attacker =
        std::process::Command::new("sh").args(["-c", &script]).stderr(std::process::Stdio::null()).spawn();
    let attacker = attacker.as_mut().unwrap();
    // Without a look at the entries, which change under the container, too.
    let mut plan = bed.plan("test -d /volume");
    plan.mounts.push(bind(&volume, "/volume", 0));
    plan.mounts.push(bind(&bed.path("host"), "/volume/target/made", 0));
    let mut results = vec![];
    for _ in 0..60 {
        results.push(run(&plan, &PodNamespaces::default()).map(|ran| ran.exit.code));
    }
    attacker.kill().unwrap();
    attacker.wait().unwrap();
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "nothing is made outside of the root");
    assert!(results.iter().flatten().all(|code| *code == 0), "{results:?}");
    let refused = results.iter().filter_map(|result| result.as_ref().err());
    assert!(refused.clone().all(|failure| failure.step == LaunchStep::Mount), "{:?}", refused.collect::<Vec<_>>());
    no_child_is_left();
}

/// As `/etc/mtab` of many images: the target is a link into the container's own proc.
fn linked_mtab() {
    let bed = Bed::new();
    fs::write(bed.path("host/file"), "from the host\n").unwrap();
    for (link, allowed) in [("/proc/mounts", true), ("/proc/self/root/etc/mtab", false), ("/proc/1/cwd/mtab", false)] {
        let _ = fs::remove_file(bed.path("rootfs/etc/mtab"));
        symlink(link, bed.path("rootfs/etc/mtab")).unwrap();
        let mut plan = bed.plan("cat /etc/mtab; cat /proc/self/mountinfo | wc -l");
        plan.mounts.push(bind(&bed.path("host/file"), "/etc/mtab", RDONLY));
        let before = fs::read("/proc/self/mountinfo").unwrap();
        match run(&plan, &PodNamespaces::default()) {
            Ok(ran) => assert!(allowed && ran.output.contains('\n'), "{link}: {}", ran.output),
            Err(failure) => assert!(!allowed && failure.errno == Some(libc::ELOOP), "{link}: {failure:?}"),
        }
        assert_eq!(fs::read("/proc/self/mountinfo").unwrap(), before, "the mounts of the host are as before");
    }
    no_child_is_left();
}

const SETS: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
