//! The kernel's reports that memory is short: an eventfd on the usage of a cgroup (v1), or a trigger on memory stalls (PSI).

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::EventfdFlags;

/// Tasks that wait for memory for this part of a second are reported. Without CAP_SYS_RESOURCE a period must be a multiple of two
/// seconds.
const STALL_TRIGGERS: [&[u8]; 2] = [b"some 150000 1000000\0", b"some 300000 2000000\0"];

/// A file that becomes ready when memory is short.
#[derive(Debug)]
pub enum MemoryEvents {
    /// Readable when the usage crosses the threshold.
    Usage {
        /// The event counter.
        counter: OwnedFd,
        /// Open while the threshold is registered.
        _usage: File,
    },
    /// Has exceptional conditions (POLLPRI), at most one per second, while tasks wait for memory.
    Stalls(File),
}

impl MemoryEvents {
    /// Reports when the usage of a v1 memory cgroup crosses `bytes`. The end of this value ends the registration.
    pub fn on_usage(memory_cgroup: &Path, bytes: u64) -> io::Result<Self> {
        let usage = File::open(memory_cgroup.join("memory.usage_in_bytes"))?;
        let counter = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let line = format!("{} {} {bytes}", counter.as_raw_fd(), usage.as_raw_fd());
        OpenOptions::new().write(true).open(memory_cgroup.join("cgroup.event_control"))?.write_all(line.as_bytes())?;
        Ok(Self::Usage { counter, _usage: usage })
    }

    /// Reports when tasks of the host wait for memory. Fails where the kernel has no pressure stall information.
    pub fn on_stalls() -> io::Result<Self> {
        let open = |trigger: &[u8]| {
            let mut file = OpenOptions::new().read(true).write(true).open("/proc/pressure/memory")?;
            file.write_all(trigger)?;
            Ok(Self::Stalls(file))
        };
        open(STALL_TRIGGERS[0]).or_else(|_: io::Error| open(STALL_TRIGGERS[1]))
    }

    /// An event is an exceptional condition, not data to read.
    pub fn is_priority(&self) -> bool {
        matches!(self, Self::Stalls(_))
    }
}

impl AsFd for MemoryEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Usage { counter, .. } => counter.as_fd(),
            Self::Stalls(file) => file.as_fd(),
        }
    }
}

impl AsRawFd for MemoryEvents {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_ready(events: &MemoryEvents, flags: PollFlags, seconds: i64) -> bool {
        let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
        poll(&mut [PollFd::new(events, flags)], Some(&limit)).unwrap() == 1
    }

    /// On v1 a process that uses more memory is reported; the trigger on stalls is accepted by every kernel that has it.
    #[test]
    fn the_kernel_reports_the_usage_of_a_v1_cgroup_and_accepts_a_trigger_on_stalls() {
        if Path::new("/proc/pressure/memory").exists() {
            let stalls = MemoryEvents::on_stalls().unwrap();
            assert!(stalls.is_priority() && !is_ready(&stalls, PollFlags::ERR, 0), "it is registered");
        }
        let dir = Path::new("/sys/fs/cgroup/memory").join(format!("podwright-test-{}", std::process::id()));
        if !Path::new("/sys/fs/cgroup/memory/cgroup.event_control").exists() {
            assert!(MemoryEvents::on_usage(&dir, 1).is_err(), "v2 has no such files");
            return;
        }
        fs::create_dir(&dir).unwrap();
        let events = MemoryEvents::on_usage(&dir, 4 << 20).unwrap();
        assert!(!events.is_priority() && !is_ready(&events, PollFlags::IN, 0));
        let script = format!("echo $$ > {}/cgroup.procs; head -c 16M /dev/zero | tail -c 16M | wc -c", dir.display());
        assert!(Command::new("sh").args(["-c", &script]).output().unwrap().status.success());
        assert!(is_ready(&events, PollFlags::IN, 5));
        drop(events);
        let removed = (0..50).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            fs::remove_dir(&dir).is_ok()
        });
        assert!(removed);
    }
}
