//! The default seccomp profile, as data: the facts of containerd's `contrib/seccomp`.
//!
//! Everything that is not listed fails with EPERM. Some calls depend on their arguments, some on capabilities.

use std::collections::HashSet;

use oci_spec::runtime::{
    Arch, Capability, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompArgBuilder, LinuxSeccompBuilder,
    LinuxSeccompOperator, LinuxSyscall, LinuxSyscallBuilder,
};

/// The profile for a process with this bounding set.
pub(super) fn profile(bounding: Option<&HashSet<Capability>>) -> LinuxSeccomp {
    let has = |capability: Capability| bounding.is_some_and(|set| set.contains(&capability));
    let mut syscalls = vec![allow(&ALWAYS), allow_if("socket", not_equal(AF_VSOCK))];
    syscalls.extend(PERSONALITIES.map(|value| allow_if("personality", equal(value))));
    // Kernels before 4.8 let a traced process change its filtered calls; the engine needs a newer one anyway.
    syscalls.push(allow(&["process_vm_readv", "process_vm_writev", "ptrace"]));
    syscalls.push(allow(ARCH_SPECIFIC));
    for (capability, names) in WITH_CAPABILITY {
        if has(capability) {
            syscalls.push(allow(names));
        }
    }
    if !has(Capability::SysAdmin) {
        // Threads and processes, but no namespaces.
        syscalls.push(allow_if("clone", masked(CLONE_NAMESPACES)));
        // The flags of clone3 are in memory, which a filter can not read: ENOSYS makes programs use clone.
        let clone3 = LinuxSyscallBuilder::default().names(vec!["clone3".to_owned()]);
        let clone3 = clone3.action(LinuxSeccompAction::ScmpActErrno).errno_ret(ENOSYS).build();
        syscalls.push(clone3.expect("complete"));
    }
    LinuxSeccompBuilder::default()
        .default_action(LinuxSeccompAction::ScmpActErrno)
        .architectures(architectures())
        .syscalls(syscalls)
        .build()
        .expect("complete")
}

fn architectures() -> Vec<Arch> {
    if cfg!(target_arch = "aarch64") {
        vec![Arch::ScmpArchArm, Arch::ScmpArchAarch64]
    } else {
        vec![Arch::ScmpArchX86_64, Arch::ScmpArchX86, Arch::ScmpArchX32]
    }
}

fn allow(names: &[&str]) -> LinuxSyscall {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let builder = LinuxSyscallBuilder::default().names(names).action(LinuxSeccompAction::ScmpActAllow);
    builder.build().expect("complete")
}

fn allow_if(name: &str, argument: LinuxSeccompArg) -> LinuxSyscall {
    let builder = LinuxSyscallBuilder::default().names(vec![name.to_owned()]).action(LinuxSeccompAction::ScmpActAllow);
    builder.args(vec![argument]).build().expect("complete")
}

fn equal(value: u64) -> LinuxSeccompArg {
    argument(value, LinuxSeccompOperator::ScmpCmpEq)
}

fn not_equal(value: u64) -> LinuxSeccompArg {
    argument(value, LinuxSeccompOperator::ScmpCmpNe)
}

/// None of these bits is set.
fn masked(mask: u64) -> LinuxSeccompArg {
    let builder = LinuxSeccompArgBuilder::default().index(0_usize).value(mask).value_two(0_u64);
    builder.op(LinuxSeccompOperator::ScmpCmpMaskedEq).build().expect("complete")
}

fn argument(value: u64, op: LinuxSeccompOperator) -> LinuxSeccompArg {
    LinuxSeccompArgBuilder::default().index(0_usize).value(value).op(op).build().expect("complete")
}

/// Sockets to the hypervisor reach services of the host.
const AF_VSOCK: u64 = 40;
const ENOSYS: u32 = 38;
/// PER_LINUX, PER_LINUX32, each with UNAME26, and the question for the present value.
const PERSONALITIES: [u64; 5] = [0x0, 0x8, 0x20000, 0x20008, 0xffff_ffff];
/// CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
const CLONE_NAMESPACES: u64 = 0x7e02_0000;

#[cfg(target_arch = "aarch64")]
const ARCH_SPECIFIC: &[&str] =
    &["arm_fadvise64_64", "arm_sync_file_range", "sync_file_range2", "breakpoint", "cacheflush", "set_tls"];
#[cfg(not(target_arch = "aarch64"))]
const ARCH_SPECIFIC: &[&str] = &["arch_prctl", "modify_ldt"];

const WITH_CAPABILITY: [(Capability, &[&str]); 14] = [
    (Capability::DacReadSearch, &["open_by_handle_at"]),
    (
        Capability::SysAdmin,
        &[
            "bpf",
            "clone",
            "clone3",
            "fanotify_init",
            "fsconfig",
            "fsmount",
            "fsopen",
            "fspick",
            "lookup_dcookie",
            "mount",
            "mount_setattr",
            "move_mount",
            "open_tree",
            "perf_event_open",
            "quotactl",
            "quotactl_fd",
            "setdomainname",
            "sethostname",
            "setns",
            "syslog",
            "umount",
            "umount2",
            "unshare",
        ],
    ),
    (Capability::SysBoot, &["reboot"]),
    (Capability::SysChroot, &["chroot"]),
    (Capability::SysModule, &["delete_module", "init_module", "finit_module"]),
    (Capability::SysPacct, &["acct"]),
    (
        Capability::SysPtrace,
        &["kcmp", "pidfd_getfd", "process_madvise", "process_vm_readv", "process_vm_writev", "ptrace"],
    ),
    (Capability::SysRawio, &["iopl", "ioperm"]),
    (Capability::SysTime, &["settimeofday", "stime", "clock_settime", "clock_settime64"]),
    (Capability::SysTtyConfig, &["vhangup"]),
    (Capability::SysNice, &["get_mempolicy", "mbind", "set_mempolicy", "set_mempolicy_home_node"]),
    (Capability::Syslog, &["syslog"]),
    (Capability::Bpf, &["bpf"]),
    (Capability::Perfmon, &["perf_event_open"]),
];

/// System calls that every container may make.
#[rustfmt::skip]
const ALWAYS: [&str; 352] = [
    "accept", "accept4", "access", "adjtimex", "alarm", "bind", "brk", "cachestat", "capget", "capset", "chdir",
    "chmod", "chown", "chown32", "clock_adjtime", "clock_adjtime64", "clock_getres", "clock_getres_time64",
    "clock_gettime", "clock_gettime64", "clock_nanosleep", "clock_nanosleep_time64", "close", "close_range",
    "connect", "copy_file_range", "creat", "dup", "dup2", "dup3", "epoll_create", "epoll_create1", "epoll_ctl",
    "epoll_ctl_old", "epoll_pwait", "epoll_pwait2", "epoll_wait", "epoll_wait_old", "eventfd", "eventfd2", "execve",
    "execveat", "exit", "exit_group", "faccessat", "faccessat2", "fadvise64", "fadvise64_64", "fallocate",
    "fanotify_mark", "fchdir", "fchmod", "fchmodat", "fchmodat2", "fchown", "fchown32", "fchownat", "fcntl",
    "fcntl64", "fdatasync", "fgetxattr", "flistxattr", "flock", "fork", "fremovexattr", "fsetxattr", "fstat",
    "fstat64", "fstatat64", "fstatfs", "fstatfs64", "fsync", "ftruncate", "ftruncate64", "futex", "futex_requeue",
    "futex_time64", "futex_wait", "futex_waitv", "futex_wake", "futimesat", "getcpu", "getcwd", "getdents",
    "getdents64", "getegid", "getegid32", "geteuid", "geteuid32", "getgid", "getgid32", "getgroups", "getgroups32",
    "getitimer", "getpeername", "getpgid", "getpgrp", "getpid", "getppid", "getpriority", "getrandom", "getresgid",
    "getresgid32", "getresuid", "getresuid32", "getrlimit", "get_robust_list", "getrusage", "getsid", "getsockname",
    "getsockopt", "get_thread_area", "gettid", "gettimeofday", "getuid", "getuid32", "getxattr", "inotify_add_watch",
    "inotify_init", "inotify_init1", "inotify_rm_watch", "io_cancel", "ioctl", "io_destroy", "io_getevents",
    "io_pgetevents", "io_pgetevents_time64", "ioprio_get", "ioprio_set", "io_setup", "io_submit", "ipc", "kill",
    "landlock_add_rule", "landlock_create_ruleset", "landlock_restrict_self", "lchown", "lchown32", "lgetxattr",
    "link", "linkat", "listen", "listxattr", "llistxattr", "_llseek", "lremovexattr", "lseek", "lsetxattr", "lstat",
    "lstat64", "madvise", "membarrier", "memfd_create", "memfd_secret", "mincore", "mkdir", "mkdirat", "mknod",
    "mknodat", "mlock", "mlock2", "mlockall", "map_shadow_stack", "mmap", "mmap2", "mprotect", "mq_getsetattr",
    "mq_notify", "mq_open", "mq_timedreceive", "mq_timedreceive_time64", "mq_timedsend", "mq_timedsend_time64",
    "mq_unlink", "mremap", "msgctl", "msgget", "msgrcv", "msgsnd", "msync", "munlock", "munlockall", "munmap",
    "name_to_handle_at", "nanosleep", "newfstatat", "_newselect", "open", "openat", "openat2", "pause", "pidfd_open",
    "pidfd_send_signal", "pipe", "pipe2", "pkey_alloc", "pkey_free", "pkey_mprotect", "poll", "ppoll",
    "ppoll_time64", "prctl", "pread64", "preadv", "preadv2", "prlimit64", "process_mrelease", "pselect6",
    "pselect6_time64", "pwrite64", "pwritev", "pwritev2", "read", "readahead", "readlink", "readlinkat", "readv",
    "recv", "recvfrom", "recvmmsg", "recvmmsg_time64", "recvmsg", "remap_file_pages", "removexattr", "rename",
    "renameat", "renameat2", "restart_syscall", "rmdir", "rseq", "rt_sigaction", "rt_sigpending", "rt_sigprocmask",
    "rt_sigqueueinfo", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "rt_sigtimedwait_time64",
    "rt_tgsigqueueinfo", "sched_getaffinity", "sched_getattr", "sched_getparam", "sched_get_priority_max",
    "sched_get_priority_min", "sched_getscheduler", "sched_rr_get_interval", "sched_rr_get_interval_time64",
    "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler", "sched_yield", "seccomp", "select",
    "semctl", "semget", "semop", "semtimedop", "semtimedop_time64", "send", "sendfile", "sendfile64", "sendmmsg",
    "sendmsg", "sendto", "setfsgid", "setfsgid32", "setfsuid", "setfsuid32", "setgid", "setgid32", "setgroups",
    "setgroups32", "setitimer", "setpgid", "setpriority", "setregid", "setregid32", "setresgid", "setresgid32",
    "setresuid", "setresuid32", "setreuid", "setreuid32", "setrlimit", "set_robust_list", "setsid", "setsockopt",
    "set_thread_area", "set_tid_address", "setuid", "setuid32", "setxattr", "shmat", "shmctl", "shmdt", "shmget",
    "shutdown", "sigaltstack", "signalfd", "signalfd4", "sigprocmask", "sigreturn", "socketcall", "socketpair",
    "splice", "stat", "stat64", "statfs", "statfs64", "statx", "symlink", "symlinkat", "sync", "sync_file_range",
    "syncfs", "sysinfo", "tee", "tgkill", "time", "timer_create", "timer_delete", "timer_getoverrun",
    "timer_gettime", "timer_gettime64", "timer_settime", "timer_settime64", "timerfd_create", "timerfd_gettime",
    "timerfd_gettime64", "timerfd_settime", "timerfd_settime64", "times", "tkill", "truncate", "truncate64",
    "ugetrlimit", "umask", "uname", "unlink", "unlinkat", "utime", "utimensat", "utimensat_time64", "utimes",
    "vfork", "vmsplice", "wait4", "waitid", "waitpid", "write", "writev",
];
