//! Packets with descriptors between processes of this host (`SOCK_SEQPACKET`, `SCM_RIGHTS`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, chmodat, unlinkat};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recv, recvmsg, sendmsg, socketpair,
};

/// Descriptors in one packet, at most.
pub const DESCRIPTORS_MAX: usize = 32;

/// Bytes in one packet, at most, where sender and receiver are not the same version of one program.
pub(crate) const PACKET_BYTES_MAX: usize = 64 << 10;

/// A received packet.
#[derive(Debug)]
pub struct Packet {
    /// At most `PACKET_BYTES_MAX`, never empty.
    pub bytes: Vec<u8>,
    /// At most [`DESCRIPTORS_MAX`], closed by `execve`.
    pub fds: Vec<OwnedFd>,
}

/// Two connected packet sockets, closed by `execve`.
pub fn packet_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// A nonblocking packet socket that listens at `name` in an open directory, mode 0600. A file of this name is replaced.
pub fn listen(dir: BorrowedFd<'_>, name: &str, backlog: i32) -> io::Result<OwnedFd> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let socket = nonblocking()?;
    rustix::net::bind(&socket, &address(dir, name)?)?;
    chmodat(dir, name, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
    rustix::net::listen(&socket, backlog)?;
    Ok(socket)
}

/// Connects to the packet socket `name` in an open directory. The connection is nonblocking; a full backlog is `WouldBlock`.
pub fn connect(dir: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let socket = nonblocking()?;
    rustix::net::connect(&socket, &address(dir, name)?)?;
    Ok(socket)
}

/// The uid of the process that connected or made the pair (`SO_PEERCRED`).
pub fn peer_uid(socket: impl AsFd) -> io::Result<u32> {
    Ok(rustix::net::sockopt::socket_peercred(socket)?.uid.as_raw())
}

/// A pidfd of the process that listens, connected or made the pair (`SO_PEERPIDFD`, Linux 6.5): never of another one that has its pid now.
#[allow(unsafe_code)]
pub fn peer_pidfd(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut pidfd: libc::c_int = -1;
    let mut length = libc::socklen_t::try_from(size_of::<libc::c_int>()).expect("four bytes");
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: both pointers are of locals that live until the call returns, and `length` is the size of the first.
    let result = unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERPIDFD, (&raw mut pidfd).cast(), &raw mut length)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if pidfd < 0 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: the kernel has made the descriptor for this call; nothing else owns it. It is closed by `execve`, as every pidfd.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
}

/// Sends one packet. Never raises SIGPIPE. `WouldBlock`: a nonblocking socket is full, nothing was sent.
pub fn send(socket: impl AsFd, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // The buffer is padded and could take one more than the receiver's.
    if descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one packet"));
    }
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)), "the buffer takes DESCRIPTORS_MAX");
    }
    loop {
        match sendmsg(&socket, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL) {
            Ok(sent) if sent == packet.len() => return Ok(()),
            Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Receives one packet: its length in `buffer` and its descriptors, which are closed by `execve`. `None`: the peer has closed. A
/// packet that does not fit is an error; an empty packet looks like the end, so none may be sent.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    // The buffer is padded, so that one more than allowed can fit.
    let cut = received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    if cut || descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a packet larger than allowed"));
    }
    Ok((received.bytes > 0).then_some((received.bytes, descriptors)))
}

/// As [`receive`], for packets of at most `PACKET_BYTES_MAX`, with memory for just this packet: a process that waits keeps no
/// buffer. After `InvalidData` the connection is no longer usable.
pub fn receive_packet(socket: impl AsFd) -> io::Result<Option<Packet>> {
    let length = loop {
        match recv(&socket, &mut [0u8; 0], RecvFlags::PEEK | RecvFlags::TRUNC) {
            Ok((_, length)) => break length,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    if length > PACKET_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a packet of {length} bytes")));
    }
    let mut bytes = vec![0; length];
    let received = receive(socket, &mut bytes)?;
    Ok(received.map(|(length, fds)| {
        bytes.truncate(length);
        Packet { bytes, fds }
    }))
}

fn nonblocking() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Through the descriptor of the directory, because `sun_path` has 108 bytes.
fn address(dir: BorrowedFd<'_>, name: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_packet_carries_its_descriptors() {
        let (one, other) = packet_pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        send(&one, b"take it", &[writer.as_fd()]).unwrap();
        drop(writer);
        let mut buffer = [0; 64];
        let (length, descriptors) = receive(&other, &mut buffer).unwrap().unwrap();
        assert_eq!((&buffer[..length], descriptors.len()), (&b"take it"[..], 1));
        let mut file = std::fs::File::from(descriptors.into_iter().next().unwrap());
        file.write_all(b"x").unwrap();
        drop(file);
        let mut read = String::new();
        reader.read_to_string(&mut read).unwrap();
        assert_eq!(read, "x");
        drop(one);
        assert!(receive(&other, &mut buffer).unwrap().is_none());
    }

    #[test]
    fn the_peer_of_a_connection_is_known_by_its_pidfd() {
        let (one, _other) = packet_pair().unwrap();
        let pidfd = match peer_pidfd(&one) {
            Ok(pidfd) => pidfd,
            // Before Linux 6.5.
            Err(error) => return assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT)),
        };
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).unwrap();
        let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")).map(|pid| pid.trim().parse::<u32>().unwrap());
        assert_eq!(pid, Some(std::process::id()));
        assert!(peer_pidfd(std::io::stdin()).is_err(), "no socket");
    }

    #[test]
    fn a_packet_that_does_not_fit_is_an_error_and_so_are_too_many_descriptors() {
        let (one, other) = packet_pair().unwrap();
        send(&one, &[7; 100], &[]).unwrap();
        assert_eq!(receive(&other, &mut [0; 10]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let many = vec![one.as_fd(); DESCRIPTORS_MAX + 1];
        assert!(send(&one, b"x", &many).is_err());
    }

    #[test]
    fn packets_over_the_limits_are_refused_without_leaving_descriptors_open() {
        let (a, b) = packet_pair().unwrap();
        send(&a, &vec![7; PACKET_BYTES_MAX], &[]).unwrap();
        assert_eq!(receive_packet(&b).unwrap().unwrap().bytes, vec![7; PACKET_BYTES_MAX]);
        send(&a, &vec![7; PACKET_BYTES_MAX + 1], &[]).unwrap();
        assert_eq!(receive_packet(&b).unwrap_err().kind(), io::ErrorKind::InvalidData);

        let (a, b) = packet_pair().unwrap();
        let before = open_descriptors();
        for count in [DESCRIPTORS_MAX + 1, DESCRIPTORS_MAX + 8] {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX + 8))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let fds = vec![a.as_fd(); count];
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            sendmsg(&a, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
            assert_eq!(receive_packet(&b).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        // Other tests of the process open a few at the same time.
        assert!(open_descriptors() < before + DESCRIPTORS_MAX, "a refused packet leaves descriptors open");
    }

    #[test]
    fn a_socket_in_a_deep_directory_is_reachable_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let fd = File::open(&deep).unwrap();
        drop(listen(fd.as_fd(), "shim.sock", 4).unwrap());
        let listener = listen(fd.as_fd(), "shim.sock", 4).unwrap();
        assert_eq!(std::fs::metadata(deep.join("shim.sock")).unwrap().permissions().mode() & 0o777, 0o600);
        let client = connect(fd.as_fd(), "shim.sock").unwrap();
        let server = rustix::net::accept(&listener).unwrap();
        assert_eq!(peer_uid(&server).unwrap(), rustix::process::getuid().as_raw());
        assert_eq!(receive_packet(&client).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        send(&client, b"hello", &[]).unwrap();
        assert_eq!(receive_packet(&server).unwrap().unwrap().bytes, b"hello");
    }

    fn open_descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }
}
