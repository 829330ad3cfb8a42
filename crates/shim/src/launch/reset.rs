//! Steps 1 to 3: inherited state, the host's procfs, cgroups.

// The disposition of signals and close_range have no safe wrappers.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use podwright_linux::namespace::CloneOptions;
use podwright_linux::rlimit::{self, Rlimit};
use podwright_linux::{exit_info, mountinfo};
use rustix::fs::{Mode, OFlags};
use rustix::process::DumpableBehavior;
use rustix::thread::CpuSet;

use super::pending::pid_of;
use super::{LaunchFailure, LaunchStep};
use crate::plan::CgroupMembership;

/// The soft limit of open files that containers get, from the command line of the zygote. Shims and launchers are forks of it.
static OPEN_FILES: AtomicU64 = AtomicU64::new(UNCHANGED);
/// The limit of the shim, which was not raised.
const UNCHANGED: u64 = u64::MAX;

/// Sets the soft limit of open files of all containers that this process and its children launch.
pub(crate) fn set_open_files(limit: u64) {
    OPEN_FILES.store(limit, Ordering::Relaxed);
}

/// Nothing that the shim has changed for itself reaches the container: Rust ignores SIGPIPE, signals are blocked for a signalfd.
/// Processes inside the container must not read our memory or descriptors while we enter it (CVE-2016-9962).
pub(super) fn inherited_state(umask: Option<u32>) -> Result<(), LaunchFailure> {
    let failed = |e: io::Error| LaunchFailure::io(LaunchStep::Process, "reset the state of the process", &e);
    // All zeros: the default disposition, no flags, an empty mask. Not by the C library, which refuses two signals of its own.
    let default = [0_u64; 4];
    for signal in 1..=64 {
        // SAFETY: the structure has the size that the kernel reads; the default disposition runs none of our code. SIGKILL and
        // SIGSTOP are refused, as they cannot be changed.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), std::ptr::null_mut::<u64>(), 8) };
    }
    // SAFETY: an empty set on our stack, read during the call.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        if libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) != 0 {
            return Err(failed(io::Error::last_os_error()));
        }
    }
    rustix::process::umask(Mode::from_raw_mode(umask.unwrap_or(0o022)));
    rustix::process::set_parent_process_death_signal(None).map_err(|e| failed(e.into()))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|e| failed(e.into()))?;
    let mut every = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| every.set(cpu));
    rustix::thread::sched_setaffinity(None, &every).map_err(|e| failed(e.into()))?;
    restore_open_files().map_err(failed)
}

/// Closes every descriptor but the standard streams and these, which `execve` closes. Those that an owner in this process holds are
/// closed too: it must not drop them.
pub(super) fn close_others(kept: &[BorrowedFd<'_>]) -> Result<(), LaunchFailure> {
    let close_range = |first: u32, last: u32, flags: u32| {
        // SAFETY: integers only. The caller uses and drops no owner of a closed descriptor afterwards.
        match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
            0 => Ok(()),
            _ => Err(LaunchFailure::io(LaunchStep::Process, "close_range", &io::Error::last_os_error())),
        }
    };
    close_range(FIRST, u32::MAX, libc::CLOSE_RANGE_CLOEXEC)?;
    let mut numbers: Vec<u32> = kept.iter().map(|fd| fd.as_raw_fd().cast_unsigned()).collect();
    numbers.sort_unstable();
    let mut first = FIRST;
    for number in numbers.into_iter().filter(|number| *number >= FIRST) {
        if first < number {
            close_range(first, number - 1, 0)?;
        }
        first = number + 1;
    }
    close_range(first, u32::MAX, 0)
}

/// After the standard streams.
const FIRST: u32 = 3;

/// The agent has raised its own limit, which the shim keeps: it holds descriptors of every container.
fn restore_open_files() -> io::Result<()> {
    let limit = OPEN_FILES.load(Ordering::Relaxed);
    if limit == UNCHANGED {
        return Ok(());
    }
    let hard = rlimit::get(rlimit::NOFILE)?.hard;
    rlimit::set(rlimit::NOFILE, Rlimit { soft: limit.min(hard), hard }).map(drop)
}

/// The host's `/proc`, verified: the one of the container may be anything (CVE-2019-16884, CVE-2025-52881).
pub(super) fn host_proc() -> Result<OwnedFd, LaunchFailure> {
    let failed = |e: io::Error| LaunchFailure::io(LaunchStep::Process, "open /proc of the host", &e);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = rustix::fs::open(c"/proc", flags, Mode::empty()).map_err(|e| failed(e.into()))?;
    let kind = rustix::fs::fstatfs(&proc).map_err(|e| failed(e.into()))?.f_type;
    if kind != rustix::fs::PROC_SUPER_MAGIC {
        return Err(LaunchFailure::new(LaunchStep::Process, "/proc of the host is not a procfs"));
    }
    Ok(proc)
}

/// The v2 cgroup in which the process starts, if there is one.
pub(super) fn start_cgroup(cgroups: &[CgroupMembership]) -> Result<Option<OwnedFd>, LaunchFailure> {
    let Some(v2) = cgroups.iter().find(|cgroup| cgroup.hierarchy.is_empty()) else { return Ok(None) };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::open(v2.directory.as_str(), flags, Mode::empty()) {
        Ok(open) => Ok(Some(open)),
        Err(e) => Err(LaunchFailure::io(LaunchStep::Cgroup, format!("cgroup {}", v2.directory), &e.into())),
    }
}

/// The v2 cgroup of a process. `None`: there is no v2 tree, or the process has ended.
pub(super) fn present_cgroup(process: BorrowedFd<'_>) -> Option<OwnedFd> {
    let pid = pid_of(process).ok()?;
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let name = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let tree = mountinfo::read().ok()?.into_iter().find(|mount| mount.fstype == "cgroup2")?.point;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = rustix::fs::open(tree.join(name), flags, Mode::empty()).ok()?;
    // The pid was still that of the process.
    exit_info::poll(process, false).is_ok_and(|exit| exit.is_none()).then_some(open)
}

/// Options of a clone that starts in this cgroup.
pub(super) fn clone_into(flags: u64, cgroup: Option<&OwnedFd>) -> CloneOptions<'_> {
    CloneOptions { flags, cgroup: cgroup.map(AsFd::as_fd) }
}

/// Joins the v1 hierarchies; the v2 cgroup was joined by the clone.
pub(super) fn join_cgroups(cgroups: &[CgroupMembership]) -> Result<(), LaunchFailure> {
    for cgroup in cgroups.iter().filter(|cgroup| !cgroup.hierarchy.is_empty()) {
        std::fs::write(format!("{}/cgroup.procs", cgroup.directory), "0")
            .map_err(|e| LaunchFailure::io(LaunchStep::Cgroup, format!("join cgroup {}", cgroup.directory), &e))?;
    }
    Ok(())
}

/// Sets `oom_score_adj`. Without the privilege to lower it, the inherited value is kept: it is the closest one.
pub(super) fn oom_score_adj(proc: &OwnedFd, value: Option<i32>) -> Result<(), LaunchFailure> {
    let Some(value) = value else { return Ok(()) };
    let failed = |e: rustix::io::Errno| LaunchFailure::io(LaunchStep::Process, "set oom_score_adj", &e.into());
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(proc, c"self/oom_score_adj", flags, Mode::empty()).map_err(failed)?;
    match rustix::io::write(&file, value.to_string().as_bytes()) {
        Ok(_) | Err(rustix::io::Errno::ACCESS) => Ok(()),
        Err(e) => Err(failed(e)),
    }
}
