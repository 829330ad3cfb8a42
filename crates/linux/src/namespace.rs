//! Processes in new namespaces (`clone3`), and moves into existing ones.

// clone3 has no safe wrapper: the child goes on with a copy of the caller's memory.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `CLONE_NEW*` flags and others of `clone3`, as the kernel numbers them.
pub mod flags {
    /// Mounts.
    pub const NEWNS: u64 = 0x0002_0000;
    /// cgroup root.
    pub const NEWCGROUP: u64 = 0x0200_0000;
    /// Host name.
    pub const NEWUTS: u64 = 0x0400_0000;
    /// System V IPC, message queues.
    pub const NEWIPC: u64 = 0x0800_0000;
    /// Users, groups, capabilities.
    pub const NEWUSER: u64 = 0x1000_0000;
    /// Processes.
    pub const NEWPID: u64 = 0x2000_0000;
    /// Network.
    pub const NEWNET: u64 = 0x4000_0000;
    /// The child is a sibling of the caller, not its child.
    pub const PARENT: u64 = 0x0000_8000;
}

/// What a new process is made with.
#[derive(Clone, Copy, Debug, Default)]
pub struct CloneOptions<'fd> {
    /// [`flags`]; a pidfd is always made.
    pub flags: u64,
    /// Start in this cgroup (v2 only).
    pub cgroup: Option<BorrowedFd<'fd>>,
}

/// In which of the two processes `clone3` has returned.
#[derive(Debug)]
pub enum Cloned {
    /// The new one.
    Child,
    /// The caller.
    Parent {
        /// The child, in the caller's PID namespace.
        pid: u32,
        /// The child.
        pidfd: OwnedFd,
    },
}

/// Makes a process; the child has a copy of the caller's memory and descriptors.
///
/// # Safety
/// The caller has exactly one thread: in the child, locks that other threads held (malloc's, stdio's) would stay locked forever.
/// See [`single_threaded`].
pub unsafe fn clone3(options: &CloneOptions<'_>) -> io::Result<Cloned> {
    let mut pidfd: i32 = -1;
    let sibling = options.flags & flags::PARENT != 0;
    let mut args = CloneArgs {
        flags: options.flags | CLONE_PIDFD,
        pidfd: &raw mut pidfd as u64,
        // A sibling inherits the caller's signal; the kernel refuses another.
        exit_signal: if sibling { 0 } else { libc::SIGCHLD as u64 },
        ..CloneArgs::default()
    };
    if let Some(cgroup) = options.cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = u64::try_from(cgroup.as_raw_fd()).map_err(|_| io::ErrorKind::InvalidInput)?;
    }
    // SAFETY: `args` has the size that is passed and lives until the call returns; without CLONE_VM the child works on a copy of
    // the stack; the caller promises to have one thread.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<CloneArgs>()) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Cloned::Child),
        pid => {
            // SAFETY: the kernel has stored a new descriptor, which no one else owns.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Cloned::Parent { pid: u32::try_from(pid).map_err(|_| io::ErrorKind::InvalidData)?, pidfd })
        }
    }
}

/// Whether this process has one thread. Needs `/proc` of the own PID namespace.
pub fn single_threaded() -> io::Result<bool> {
    // The directory has a link per thread besides its own two.
    Ok(rustix::fs::stat("/proc/self/task")?.st_nlink == 3)
}

/// Enters the namespace of a descriptor, or those of a process (a pidfd with several [`flags`], all or none).
pub fn enter(of: impl AsFd, kinds: u64) -> io::Result<()> {
    let kinds = i32::try_from(kinds).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: integers only; the descriptor is open during the call. The memory of the process is not touched.
    match unsafe { libc::setns(of.as_fd().as_raw_fd(), kinds) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Leaves namespaces for new ones.
pub fn unshare(kinds: u64) -> io::Result<()> {
    let kinds = i32::try_from(kinds).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: an integer only; none of the flags shares or unshares memory or descriptors.
    match unsafe { libc::unshare(kinds) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The user namespace that a namespace belongs to; of a user namespace, its parent. `ENOTTY`: the descriptor is no namespace; `EPERM`: the
/// owner is not below the caller's user namespace.
pub fn owner(of: impl AsFd) -> io::Result<OwnedFd> {
    // SAFETY: the request has no argument; the descriptor is open during the call.
    match unsafe { libc::ioctl(of.as_fd().as_raw_fd(), NS_GET_USERNS) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the kernel has returned a new descriptor, which no one else owns.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// Ends this process at once, without destructors or buffers of the process it was cloned from.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit ends the process; nothing after it runs.
    unsafe { libc::_exit(code) }
}

/// `struct clone_args` of 88 bytes (5.7 and newer).
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

const NS_GET_USERNS: libc::Ioctl = 0xb701;
const CLONE_PIDFD: u64 = 0x1000;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit_info;

    #[test]
    fn a_clone_in_a_pid_namespace_is_its_first_process() {
        // SAFETY: the test harness has threads, but the child makes system calls only and allocates nothing.
        let cloned = unsafe { clone3(&CloneOptions { flags: flags::NEWPID, cgroup: None }) }.unwrap();
        let Cloned::Parent { pidfd, .. } = cloned else {
            exit_now(if rustix::process::getpid().as_raw_nonzero().get() == 1 { 42 } else { 1 })
        };
        assert_eq!(exit_info::wait(&pidfd, true).unwrap().code, 42);
    }

    #[test]
    fn namespaces_are_entered_by_pidfd() {
        // SAFETY: as above: system calls only.
        let cloned = unsafe { clone3(&CloneOptions { flags: flags::NEWUTS, cgroup: None }) }.unwrap();
        let Cloned::Parent { pid, pidfd } = cloned else {
            loop {
                let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 });
            }
        };
        let theirs = std::fs::read_link(format!("/proc/{pid}/ns/uts")).unwrap();
        let own = std::thread::spawn({
            let pidfd = pidfd.try_clone().unwrap();
            move || enter(&pidfd, flags::NEWUTS).map(|()| std::fs::read_link("/proc/thread-self/ns/uts").unwrap())
        });
        let own = own.join().unwrap();
        rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL).unwrap();
        assert_eq!(exit_info::wait(&pidfd, true).unwrap().signal, Some(9));
        assert_eq!(own.unwrap(), theirs);
        assert_ne!(theirs, std::fs::read_link("/proc/self/ns/uts").unwrap());
    }
}
