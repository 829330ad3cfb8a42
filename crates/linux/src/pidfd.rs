//! Processes identified by a descriptor, so that a reused pid is never mistaken for the intended process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::time::Timespec;

use crate::clock;

/// A process. The descriptor becomes readable when the process has exited.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Opens the process that has this pid now.
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Opens the process only if it has this start time (see [`start_time`]); otherwise `NotFound`.
    pub fn open_started(pid: u32, started: u64) -> io::Result<Self> {
        let held = Self::open(pid)?;
        // Read after the open: the pid is not reused while the descriptor is open and the process runs.
        if start_time(pid)? != started {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("pid {pid} is another process now")));
        }
        Ok(held)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.0, signal)?)
    }

    /// Sends the signal of this number, 1 to 64: also one without a name.
    #[allow(unsafe_code)]
    pub fn signal_number(&self, number: i32) -> io::Result<()> {
        if !(1..=64).contains(&number) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the number is one of 1 to 64. It is only sent, never handled here, so the C library's reserved ones do no harm.
        self.signal(unsafe { Signal::from_raw_unchecked(number) })
    }

    /// Waits for the exit, at most this long. `true`: it has exited.
    pub fn wait_exit(&self, limit: Duration) -> io::Result<bool> {
        let begin = Instant::now();
        loop {
            let left = limit.saturating_sub(begin.elapsed());
            let left = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut fds, Some(&left)) {
                Ok(ready) => return Ok(ready > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Whether the process has not ended. A zombie has.
    pub fn is_alive(&self) -> bool {
        self.wait_exit(Duration::ZERO).is_ok_and(|ended| !ended)
    }

    /// The descriptor, for callers that poll many.
    pub fn into_fd(self) -> OwnedFd {
        self.0
    }
}

impl From<OwnedFd> for PidFd {
    /// A pidfd that came from elsewhere.
    fn from(pidfd: OwnedFd) -> Self {
        Self(pidfd)
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The start time of the process in clock ticks since boot: together with the pid it identifies a process during one boot.
pub fn start_time(pid: u32) -> io::Result<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat"))?;
    parse_start_time(&stat).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat")))
}

/// When a process with this start time was started, in nanoseconds since 1970. A clock tick is 10 ms.
pub fn started_at_ns(start_time: u64) -> u64 {
    let tick = NANOSECONDS / rustix::param::clock_ticks_per_second().max(1);
    let age = clock::boot_time().saturating_sub(Duration::from_nanos(start_time.saturating_mul(tick)));
    let started = SystemTime::now().checked_sub(age).unwrap_or(UNIX_EPOCH);
    let since = started.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// In a second.
const NANOSECONDS: u64 = 1_000_000_000;

/// Field 22. The command name before it is in parentheses and may itself contain blanks and parentheses.
fn parse_start_time(stat: &[u8]) -> Option<u64> {
    let after_name = stat.iter().rposition(|&b| b == b')')? + 1;
    let rest = std::str::from_utf8(&stat[after_name..]).ok()?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_descriptor_is_readable_after_the_exit() {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let held = PidFd::open(child.id()).unwrap();
        assert!(!held.wait_exit(Duration::from_millis(1)).unwrap());
        held.signal(Signal::KILL).unwrap();
        assert!(held.wait_exit(Duration::from_secs(10)).unwrap());
        child.wait().unwrap();
        assert!(held.signal(Signal::KILL).is_err());
    }

    #[test]
    fn another_start_time_is_another_process() {
        let me = std::process::id();
        let started = start_time(me).unwrap();
        PidFd::open_started(me, started).unwrap();
        assert_eq!(PidFd::open_started(me, started + 1).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(PidFd::open(0).is_err());
    }

    #[test]
    fn a_process_was_started_when_it_was_started() {
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let started = Duration::from_nanos(started_at_ns(start_time(child.id()).unwrap()));
        child.kill().unwrap();
        child.wait().unwrap();
        let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let tick = Duration::from_millis(20);
        assert!(before < started + tick && started < after + tick, "{before:?} {started:?} {after:?}");
    }

    #[test]
    fn a_command_name_with_parentheses_is_parsed() {
        let stat = b"7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 99 1";
        assert_eq!(parse_start_time(stat), Some(4242));
        assert_eq!(parse_start_time(b"7 (a"), None);
    }
}
