//! Pseudo terminals.

// The ioctls of terminals have no safe wrappers.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fstat, fstatfs, makedev, open, openat};

/// Opens a new pty: master and slave, closed by `execve`. The slave is opened through its master, not by a name.
pub fn open_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    pair(open(c"/dev/ptmx", MASTER_FLAGS, Mode::empty())?)
}

/// As [`open_pair`], of the devpts at `/dev/pts` of this mount namespace: there the slave has a name. `proc` is a procfs. Nothing but
/// a devpts is opened, whatever a container has put there.
pub fn open_named_pair(proc: impl AsFd) -> io::Result<(OwnedFd, OwnedFd)> {
    let place = open(c"/dev/pts/ptmx", OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let is_multiplexer = fstat(&place)?.st_rdev == makedev(5, 2);
    if !is_multiplexer || fstatfs(&place)?.f_type != DEVPTS_SUPER_MAGIC {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "/dev/pts is not a devpts"));
    }
    pair(openat(proc, format!("self/fd/{}", place.as_raw_fd()), MASTER_FLAGS, Mode::empty())?)
}

/// The slave of a new master.
fn pair(master: OwnedFd) -> io::Result<(OwnedFd, OwnedFd)> {
    let unlocked: libc::c_int = 0;
    // SAFETY: the request reads one int, which lives until the call returns.
    if unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlocked) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let slave = open_slave(&master)?;
    Ok((master, slave))
}

/// Opens the slave of an open master, closed by `execve`; not by a name.
pub fn open_slave(master: impl AsFd) -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: the request takes open flags as an integer and returns a descriptor.
    let slave = unsafe { libc::ioctl(master.as_fd().as_raw_fd(), libc::TIOCGPTPEER, flags) };
    if slave < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor; no one else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(slave) })
}

/// Makes this terminal the controlling one. The caller is the leader of a session without a terminal.
pub fn make_controlling(terminal: impl AsFd) -> io::Result<()> {
    // SAFETY: the request takes an integer: 0, do not steal the terminal of another session.
    match unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCSCTTY, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets the size of a terminal, by either side.
pub fn resize(terminal: impl AsFd, rows: u16, columns: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the request reads one winsize, which lives until the call returns.
    match unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCSWINSZ, &raw const size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

const MASTER_FLAGS: OFlags = OFlags::RDWR.union(OFlags::NOCTTY).union(OFlags::CLOEXEC);
/// Of linux/magic.h.
const DEVPTS_SUPER_MAGIC: i64 = 0x1cd1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_are_connected_and_have_a_size() {
        let (master, slave) = open_pair().unwrap();
        resize(&master, 24, 80).unwrap();
        let seen = rustix::termios::tcgetwinsize(&slave).unwrap();
        assert_eq!((seen.ws_row, seen.ws_col), (24, 80));
        rustix::io::write(&slave, b"hello").unwrap();
        let mut buffer = [0; 16];
        assert_eq!(rustix::io::read(&master, &mut buffer).unwrap(), 5);
        // A terminal that leads no session of ours is refused as controlling one.
        assert!(make_controlling(&master).is_err());
    }

    #[test]
    fn the_slave_of_a_named_pair_has_a_name() {
        let proc = open(c"/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let (master, slave) = open_named_pair(proc).unwrap();
        let name = rustix::termios::ttyname(&slave, vec![]).unwrap();
        assert!(name.to_str().unwrap().starts_with("/dev/pts/"), "{name:?}");
        rustix::io::write(&slave, b"hello").unwrap();
        assert_eq!(rustix::io::read(&master, &mut [0; 16]).unwrap(), 5);
    }
}
