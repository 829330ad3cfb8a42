//! A netlink socket: requests out, answers in.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use super::NetlinkError;
use super::attr::{NetlinkMessage, messages};

/// `NLM_F_REQUEST`.
pub(crate) const REQUEST: u16 = 0x01;
/// `NLM_F_ACK`: an answer also on success.
pub(crate) const ACK: u16 = 0x04;
/// `NLM_F_EXCL`: fail if it exists.
pub(crate) const EXCL: u16 = 0x200;
/// `NLM_F_CREATE`.
pub(crate) const CREATE: u16 = 0x400;
/// `NLM_F_APPEND`.
pub(crate) const APPEND: u16 = 0x800;
/// `NLM_F_ROOT | NLM_F_MATCH`.
pub(crate) const DUMP: u16 = 0x300;

/// `NLM_F_DUMP_INTR`: the objects changed during the dump.
const DUMP_INTERRUPTED: u16 = 0x10;
/// `NLMSG_ERROR`, also the acknowledgement.
const ERROR: u16 = 2;
/// `NLMSG_DONE`, the end of a dump.
const DONE: u16 = 3;
/// The kernel sends at most 32 KiB per datagram of a dump; an error repeats the refused message, which is smaller.
const BUFFER_LEN: usize = 64 * 1024;
/// The kernel answers within the system call that sends; a wait this long means that the answer was lost.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// Dumps repeated because the objects changed meanwhile; the last one is taken as it is.
const DUMPS_MAX: usize = 4;

/// A message of a dump: its type and its body.
pub(crate) type DumpMessage = (u16, Vec<u8>);

/// A socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct NetlinkSocket {
    fd: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl NetlinkSocket {
    /// `None` as protocol is `NETLINK_ROUTE`.
    pub(crate) fn open(protocol: Option<Protocol>) -> Result<Self, NetlinkError> {
        let open = || -> Result<OwnedFd, Errno> {
            let fd = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
            rustix::net::bind(&fd, &SocketAddrNetlink::new(0, 0))?;
            sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(ANSWER_DEADLINE))?;
            Ok(fd)
        };
        let fd = open().map_err(|e| NetlinkError::Socket { operation: "open", source: e.into() })?;
        Ok(NetlinkSocket { fd, sequence: 0, buffer: vec![0; BUFFER_LEN] })
    }

    /// The number for the next message.
    pub(crate) fn next_sequence(&mut self) -> u32 {
        self.sequence += 1;
        self.sequence
    }

    /// Sends one or more messages in one datagram.
    pub(crate) fn send(&self, bytes: &[u8]) -> Result<(), NetlinkError> {
        let kernel = SocketAddrNetlink::new(0, 0);
        match rustix::io::retry_on_intr(|| rustix::net::sendto(&self.fd, bytes, SendFlags::empty(), &kernel)) {
            Ok(_) => Ok(()),
            Err(e) => Err(NetlinkError::Socket { operation: "send", source: e.into() }),
        }
    }

    /// Sends a request that is acknowledged (`last` is its sequence number) and collects what it returns.
    pub(crate) fn request(
        &mut self,
        operation: &str,
        last: u32,
        bytes: &[u8],
    ) -> Result<Vec<DumpMessage>, NetlinkError> {
        self.send(bytes)?;
        let mut answers = vec![];
        self.receive(operation, |frame| match frame.kind {
            ERROR => match error_code(frame.body) {
                None => Err(NetlinkError::Malformed { operation: operation.to_owned() }),
                Some(0) => Ok(frame.sequence == last),
                Some(code) => Err(refused(operation.to_owned(), 0, code)),
            },
            DONE => Ok(true),
            kind => {
                answers.push((kind, frame.body.to_vec()));
                Ok(false)
            }
        })?;
        Ok(answers)
    }

    /// Sends a dump request, made by `build` for a sequence number, and repeats it while the kernel reports that the dump is inconsistent.
    pub(crate) fn dump(
        &mut self,
        operation: &str,
        build: impl Fn(u32) -> Vec<u8>,
    ) -> Result<Vec<DumpMessage>, NetlinkError> {
        for attempt in 1.. {
            let sequence = self.next_sequence();
            self.send(&build(sequence))?;
            let (mut answers, mut interrupted) = (vec![], false);
            self.receive(operation, |frame| {
                if frame.sequence != sequence {
                    return Ok(false);
                }
                interrupted |= frame.flags & DUMP_INTERRUPTED != 0;
                match frame.kind {
                    DONE | ERROR => match error_code(frame.body) {
                        None | Some(0) => Ok(true),
                        Some(code) => Err(refused(operation.to_owned(), 0, code)),
                    },
                    kind => {
                        answers.push((kind, frame.body.to_vec()));
                        Ok(false)
                    }
                }
            })?;
            if !interrupted || attempt == DUMPS_MAX {
                return Ok(answers);
            }
        }
        unreachable!("the loop returns at its last attempt")
    }

    /// Hands each message to `each` until it returns `true`.
    pub(crate) fn receive(
        &mut self,
        operation: &str,
        mut each: impl FnMut(NetlinkMessage<'_>) -> Result<bool, NetlinkError>,
    ) -> Result<(), NetlinkError> {
        loop {
            let received =
                rustix::io::retry_on_intr(|| rustix::net::recvfrom(&self.fd, &mut self.buffer[..], RecvFlags::TRUNC));
            let (filled, length, sender) =
                received.map_err(|e| NetlinkError::Socket { operation: "receive", source: e.into() })?;
            if length > filled {
                return Err(NetlinkError::Malformed { operation: operation.to_owned() });
            }
            // A process with CAP_NET_ADMIN may send to any netlink socket; only the kernel has port 0.
            let kernel = sender.and_then(|s| SocketAddrNetlink::try_from(s).ok()).is_some_and(|s| s.pid() == 0);
            if !kernel {
                continue;
            }
            for frame in messages(&self.buffer[..length]) {
                if each(frame)? {
                    return Ok(());
                }
            }
        }
    }
}

/// The code of an error or of the end of a dump: 0 or a negative errno.
pub(crate) fn error_code(body: &[u8]) -> Option<i32> {
    Some(i32::from_ne_bytes(body.get(..4)?.try_into().ok()?))
}

/// Whether a message is an error or an acknowledgement.
pub(crate) fn is_error(frame: &NetlinkMessage<'_>) -> bool {
    frame.kind == ERROR
}

/// The error for a code of the kernel.
pub(crate) fn refused(operation: String, position: usize, code: i32) -> NetlinkError {
    NetlinkError::Refused { operation, position, source: io::Error::from_raw_os_error(code.wrapping_neg()) }
}
