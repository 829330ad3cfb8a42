//! How processes ended: recorded first, reaped second.
//!
//! ```text
//!  observe (WNOWAIT) ─▶ OOM kills of the cgroup ─▶ exit file ─▶ reap
//! ```
//! Until the last step the zombie holds the status. A shim that is killed before leaves it to its subreaper, the agent.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

use podwright_linux::exit_info::{self, ExitInfo};

use crate::protocol::ExitReport;

/// Whether the child has exited, without reaping it. `ECHILD`: it is no child of ours.
pub(crate) fn observe(pidfd: BorrowedFd<'_>) -> io::Result<Option<ExitInfo>> {
    exit_info::poll(pidfd, false)
}

/// Reaps a child that has exited.
pub(crate) fn reap(pidfd: BorrowedFd<'_>) -> io::Result<Option<ExitInfo>> {
    exit_info::poll(pidfd, true)
}

/// How a process ended that is no child of ours. `None`: not reaped yet, or a kernel before 6.15.
pub(crate) fn recorded(pidfd: BorrowedFd<'_>) -> Option<ExitInfo> {
    exit_info::recorded(pidfd).ok().flatten()
}

/// Whether the parent of a process has taken its status.
pub(crate) fn is_reaped(pidfd: BorrowedFd<'_>) -> bool {
    exit_info::is_reaped(pidfd).unwrap_or(false)
}

/// For an event and the exit file.
pub(crate) fn report(exit: ExitInfo, finished_at: u64) -> ExitReport {
    let number = |value: i32| u32::try_from(value).unwrap_or_default();
    ExitReport {
        code: number(exit.code),
        signal: exit.signal.map(number).unwrap_or_default(),
        finished_at,
        unknown: false,
    }
}

/// The pid of a child that has exited, without reaping it. All of ours have SIGCHLD as their exit signal: the sibling of a launch
/// helper inherits it, and the kernel gives it to orphans.
pub(crate) fn any_exited() -> Option<u32> {
    wait_pid(libc::P_ALL, 0, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT)
}

/// Reaps a child by its pid, which cannot be reused before.
pub(crate) fn reap_pid(pid: u32) {
    wait_pid(libc::P_PID, pid, libc::WEXITED | libc::WNOHANG | libc::__WALL);
}

/// The number of OOM kills in `memory.oom_control` (v1) or `memory.events.local` (v2). 0 if it cannot be read.
pub(crate) fn oom_kills(counter: &File) -> u64 {
    let mut buffer = [0; 512];
    let length = counter.read_at(&mut buffer, 0).unwrap_or_default();
    parse_oom_kills(&buffer[..length])
}

fn parse_oom_kills(text: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(text);
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
    count.unwrap_or_default()
}

/// rustix does not report which process has exited. An error is `ECHILD`: there are no children.
fn wait_pid(kind: libc::idtype_t, id: u32, options: i32) -> Option<u32> {
    // SAFETY: all zeros is a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `info` outlives the call.
    while unsafe { libc::waitid(kind, id, &raw mut info, options) } != 0 {
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return None;
        }
    }
    // SAFETY: waitid fills the field, or leaves zero if no child has exited.
    u32::try_from(unsafe { info.si_pid() }).ok().filter(|pid| *pid != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use podwright_linux::pidfd::PidFd;
    use std::os::fd::AsFd;
    use std::process::Command;
    use std::time::Duration;

    #[test]
    #[expect(clippy::zombie_processes, reason = "reaped by the function under test")]
    fn the_status_is_observed_before_and_after_reaping() {
        for (script, code, signal) in [("exit 42", 42, 0), ("kill -9 $$", 137, 9), ("exit 0", 0, 0)] {
            let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let pidfd = PidFd::open(child.id()).unwrap();
            assert!(pidfd.wait_exit(Duration::from_secs(20)).unwrap());
            let expected = ExitReport { code, signal, finished_at: 5, unknown: false };
            let observed = observe(pidfd.as_fd()).unwrap().unwrap();
            assert_eq!(report(observed, 5), expected);
            assert_eq!(observe(pidfd.as_fd()).unwrap(), Some(observed), "observing does not reap");
            assert_eq!(reap(pidfd.as_fd()).unwrap(), Some(observed));
            assert_eq!(observe(pidfd.as_fd()).unwrap_err().raw_os_error(), Some(libc::ECHILD));
            // Kernels before 6.15 do not tell.
            if let Some(recorded) = recorded(pidfd.as_fd()) {
                assert_eq!(recorded, observed);
            }
        }
    }

    #[test]
    fn oom_kills_are_counted_in_both_formats() {
        assert_eq!(parse_oom_kills(b"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), 3);
        assert_eq!(parse_oom_kills(b"low 0\nhigh 0\nmax 4\noom 1\noom_kill 1\noom_group_kill 0\n"), 1);
        assert_eq!(parse_oom_kills(b""), 0);
    }
}
