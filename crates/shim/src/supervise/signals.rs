//! Signals as a descriptor.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

/// Signals that the event loop has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    pub child: bool,
    pub terminate: bool,
}

/// Blocks SIGCHLD and SIGTERM and makes them readable; ignores SIGPIPE, SIGHUP and SIGINT. Launchers reset all of this.
pub(super) fn open() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before its use, and outlives the calls; SIG_IGN and SIG_DFL are valid handlers.
    unsafe {
        for signal in [libc::SIGPIPE, libc::SIGHUP, libc::SIGINT] {
            libc::signal(signal, libc::SIG_IGN);
        }
        // The zygote ignores it, which would reap our children without us.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Reads what has arrived.
pub(super) fn receive(signals: impl AsFd) -> Received {
    let mut received = Received::default();
    let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
    while let Ok(count) = rustix::io::read(&signals, &mut info) {
        if count != info.len() {
            break;
        }
        // The first field is the number of the signal.
        match i32::from_ne_bytes([info[0], info[1], info[2], info[3]]) {
            libc::SIGCHLD => received.child = true,
            libc::SIGTERM => received.terminate = true,
            _ => {}
        }
    }
    received
}
