//! How a process has ended: read without reaping it, or after someone else has reaped it.

// The pidfd ioctl has no safe wrapper.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitInfo {
    /// As a shell shows it: the exit code, or 128 plus the signal.
    pub code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

/// Waits for the end of a child, blocking. Without `reap` the zombie stays, and its status can be read again by its next parent.
pub fn wait(child: impl AsFd, reap: bool) -> io::Result<ExitInfo> {
    wait_with(child, if reap { 0 } else { libc::WNOWAIT })?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
}

/// As [`wait`], without blocking. `None`: it has not ended.
pub fn poll(child: impl AsFd, reap: bool) -> io::Result<Option<ExitInfo>> {
    wait_with(child, libc::WNOHANG | if reap { 0 } else { libc::WNOWAIT })
}

/// The exit status of a process that need not be a child, nor a zombie any more (6.15 and newer). `None`: it has not been reaped
/// yet, or the kernel does not know.
pub fn recorded(pidfd: impl AsFd) -> io::Result<Option<ExitInfo>> {
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
    // SAFETY: the request names the size of the structure that the pointer refers to; the kernel writes at most that much.
    match unsafe { libc::ioctl(pidfd.as_fd().as_raw_fd(), PIDFD_GET_INFO, &raw mut info) } {
        0 if info.mask & PIDFD_INFO_EXIT != 0 => Ok(Some(from_wait_status(info.exit_code))),
        0 => Ok(None),
        _ => match io::Error::last_os_error() {
            // Older kernels: no such request, or a structure that they do not know.
            e if matches!(e.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => Ok(None),
            e => Err(e),
        },
    }
}

/// Whether the parent of a process has taken its exit status: only then [`recorded`] has it. Others see a zombie until then, which may
/// take seconds if the parent is a pid 1 that looks for zombies now and then.
pub fn is_reaped(pidfd: impl AsFd) -> io::Result<bool> {
    let (pidfd, no_info) = (pidfd.as_fd().as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
    // SAFETY: integers and a null pointer, which the kernel takes for "none"; signal 0 is not sent.
    match unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd, 0, no_info, 0) } {
        0 => Ok(false),
        _ => match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::ESRCH) => Ok(true),
            e => Err(e),
        },
    }
}

fn wait_with(child: impl AsFd, options: i32) -> io::Result<Option<ExitInfo>> {
    let id = libc::id_t::try_from(child.as_fd().as_raw_fd()).map_err(|_| io::ErrorKind::InvalidInput)?;
    loop {
        // SAFETY: all zeros is a valid siginfo_t.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // __WALL: a child that has not executed yet may have another exit signal than SIGCHLD.
        let options = options | libc::WEXITED | libc::__WALL;
        // SAFETY: `info` is valid for writing during the call.
        if unsafe { libc::waitid(libc::P_PIDFD, id, &raw mut info, options) } != 0 {
            match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => continue,
                e => return Err(e),
            }
        }
        // SAFETY: waitid has filled the fields of a child's end, or left them zero.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        if pid == 0 {
            return Ok(None);
        }
        return Ok(Some(match info.si_code {
            libc::CLD_EXITED => ExitInfo { code: status, signal: None },
            _ => ExitInfo { code: 128 + status, signal: Some(status) },
        }));
    }
}

fn from_wait_status(status: i32) -> ExitInfo {
    match status & 0x7f {
        0 => ExitInfo { code: (status >> 8) & 0xff, signal: None },
        signal => ExitInfo { code: 128 + signal, signal: Some(signal) },
    }
}

/// `struct pidfd_info` of 64 bytes, its first version.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup_id: u64,
    pid: u32,
    tgid: u32,
    ppid: u32,
    ids: [u32; 8],
    exit_code: i32,
}

const PIDFD_INFO_EXIT: u64 = 1 << 3;
/// `_IOWR(0xff, 11, struct pidfd_info)` with a size of 64 bytes.
const PIDFD_GET_INFO: libc::c_ulong = (3 << 30) | (64 << 16) | (0xff << 8) | 11;
const _: () = assert!(size_of::<PidfdInfo>() == 64);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pidfd::PidFd;
    use std::process::Command;

    #[test]
    fn a_status_read_without_reaping_can_be_read_again() {
        let mut child = Command::new("sh").args(["-c", "exit 42"]).spawn().unwrap();
        let held = PidFd::open(child.id()).unwrap();
        assert_eq!(wait(&held, false).unwrap(), ExitInfo { code: 42, signal: None });
        assert_eq!(poll(&held, false).unwrap(), Some(ExitInfo { code: 42, signal: None }));
        assert!(!is_reaped(&held).unwrap());
        assert_eq!(child.wait().unwrap().code(), Some(42));
        assert_eq!(poll(&held, true).unwrap_err().raw_os_error(), Some(libc::ECHILD));
        assert!(is_reaped(&held).unwrap());
        // Where the kernel keeps it, it is the same after the reaping.
        if let Some(kept) = recorded(&held).unwrap() {
            assert_eq!(kept, ExitInfo { code: 42, signal: None });
        }
    }

    #[test]
    fn a_running_process_has_no_status_and_a_killed_one_its_signal() {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let held = PidFd::open(child.id()).unwrap();
        let early = poll(&held, true).unwrap();
        child.kill().unwrap();
        assert_eq!(early, None);
        assert_eq!(wait(&held, true).unwrap(), ExitInfo { code: 137, signal: Some(9) });
        assert!(child.wait().is_err());
    }
}
