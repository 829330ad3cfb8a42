//! Stops a shim at a chosen system call, as a debugger does.
#![allow(unsafe_code)]

use std::io;

use crate::pod::{LIMIT, pid};
use rustix::process::{Signal, kill_process};

/// Kills a shim when it is about to reap: on entry to a `waitid` without `WNOWAIT`. `begin` runs once the shim is traced.
pub(crate) fn kill_before_reaping(shim: u32, begin: impl FnOnce()) {
    let shim_pid = libc::pid_t::try_from(shim).unwrap();
    // SAFETY: the request has no pointers; the options are a number.
    let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, shim_pid, 0, libc::PTRACE_O_TRACESYSGOOD) };
    assert_eq!(seized, 0, "trace the shim: {}", io::Error::last_os_error());
    // SAFETY: as above.
    assert_eq!(unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, shim_pid, 0, 0) }, 0);
    wait(shim_pid);
    begin();
    let until = std::time::Instant::now() + LIMIT;
    let mut signal = 0;
    loop {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SYSCALL, shim_pid, 0, signal) }, 0);
        let status = wait(shim_pid);
        assert!(libc::WIFSTOPPED(status), "the shim has ended: {status:#x}");
        let stop = libc::WSTOPSIG(status);
        signal = if stop == libc::SIGTRAP | 0x80 || status >> 16 != 0 { 0 } else { stop };
        if stop == libc::SIGTRAP | 0x80 && is_about_to_reap(shim_pid) {
            break;
        }
        assert!(std::time::Instant::now() < until, "the shim does not reap");
    }
    kill_process(pid(shim), Signal::KILL).unwrap();
    wait(shim_pid);
}

fn is_about_to_reap(shim: libc::pid_t) -> bool {
    // SAFETY: all zeros is a valid value.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: the kernel writes at most `size` bytes to `info`.
    let length = unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, shim, size, &raw mut info) };
    assert!(length > 0, "{}", io::Error::last_os_error());
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return false;
    }
    // SAFETY: at an entry, this is the member that the kernel has filled.
    let entry = unsafe { info.u.entry };
    entry.nr == u64::try_from(libc::SYS_waitid).unwrap() && entry.args[3] & u64::try_from(libc::WNOWAIT).unwrap() == 0
}

fn wait(shim: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let waited = unsafe { libc::waitpid(shim, &raw mut status, libc::__WALL) };
    assert_eq!(waited, shim, "{}", io::Error::last_os_error());
    status
}
