//! Connections of agents. The newest one with a valid `Hello` is current; only it may send requests and gets events.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use podwright_linux::scm::{self, Packet};
use rustix::event::epoll::EventFlags;

use super::poller::{PollSource, Poller, WatchedDescriptor};
use crate::protocol::{RequestAnswer, ShimPacket, answer, encode, shim_packet};

/// All connections.
#[derive(Debug)]
pub(super) struct Connections {
    poller: Rc<Poller>,
    open: BTreeMap<u64, AgentConnection>,
    current: Option<u64>,
    next: u64,
}

#[derive(Debug)]
struct AgentConnection {
    socket: WatchedDescriptor,
    /// Packets that did not fit into the socket.
    outbox: VecDeque<Outgoing>,
    /// `Hello` must come before; `None`: it came.
    hello_until: Option<Instant>,
}

#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Connections {
    pub(super) fn new(poller: Rc<Poller>) -> Self {
        Self { poller, open: BTreeMap::new(), current: None, next: 0 }
    }

    /// Adds a connection of a process of root. Others, and too many, are closed.
    pub(super) fn add(&mut self, socket: OwnedFd, now: Instant) -> io::Result<()> {
        let strangers = self.open.values().filter(|connection| connection.hello_until.is_some()).count();
        if scm::peer_uid(&socket)? != 0 || strangers >= STRANGERS_MAX {
            return Ok(());
        }
        rustix::io::ioctl_fionbio(&socket, true)?;
        let id = self.next;
        self.next += 1;
        let socket = self.poller.watch(socket, PollSource::Connection(id), EventFlags::IN)?;
        let connection = AgentConnection { socket, outbox: VecDeque::new(), hello_until: Some(now + HELLO_LIMIT) };
        self.open.insert(id, connection);
        Ok(())
    }

    /// The next packet. `Err`: the connection must be closed. `None`: nothing to read.
    pub(super) fn receive(&self, id: u64) -> io::Result<Option<Packet>> {
        let Some(connection) = self.open.get(&id) else { return Ok(None) };
        match scm::receive_packet(&connection.socket) {
            Ok(Some(packet)) => Ok(Some(packet)),
            Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn is_current(&self, id: u64) -> bool {
        self.current == Some(id)
    }

    pub(super) fn current(&self) -> Option<u64> {
        self.current
    }

    /// A valid `Hello` came. Returns the connection that was current before, now closed.
    pub(super) fn make_current(&mut self, id: u64) -> Option<u64> {
        if let Some(connection) = self.open.get_mut(&id) {
            connection.hello_until = None;
        }
        let previous = self.current.replace(id).filter(|previous| *previous != id);
        if let Some(previous) = previous {
            self.open.remove(&previous);
        }
        previous
    }

    /// Closes a connection. `true`: it was current.
    pub(super) fn close(&mut self, id: u64) -> bool {
        self.open.remove(&id);
        let was_current = self.is_current(id);
        if was_current {
            self.current = None;
        }
        was_current
    }

    /// Sends an answer. `false`: the connection does not take it and must be closed.
    pub(super) fn answer(&mut self, id: u64, request: u64, body: answer::AnswerBody, fds: Vec<OwnedFd>) -> bool {
        self.send(id, shim_packet::PacketBody::Answer(RequestAnswer { id: request, body: Some(body) }), fds)
    }

    /// Sends a packet, now or when the agent has read others. `false`: the connection must be closed: an agent that does not read
    /// gets everything again after its next `Hello`.
    pub(super) fn send(&mut self, id: u64, body: shim_packet::PacketBody, fds: Vec<OwnedFd>) -> bool {
        let Some(connection) = self.open.get_mut(&id) else { return true };
        if connection.outbox.len() >= OUTBOX_MAX {
            return false;
        }
        connection.outbox.push_back(Outgoing { bytes: encode(&ShimPacket { body: Some(body) }), fds });
        connection.flush()
    }

    /// The socket takes packets again.
    pub(super) fn flush(&mut self, id: u64) -> bool {
        self.open.get_mut(&id).is_none_or(AgentConnection::flush)
    }

    /// The first `Hello` that is due, and whose.
    pub(super) fn next_deadline(&self) -> Option<(Instant, u64)> {
        self.open.iter().filter_map(|(id, connection)| Some((connection.hello_until?, *id))).min()
    }
}

impl AgentConnection {
    fn flush(&mut self) -> bool {
        while let Some(next) = self.outbox.front() {
            let fds: Vec<BorrowedFd<'_>> = next.fds.iter().map(AsFd::as_fd).collect();
            match scm::send(&self.socket, &next.bytes, &fds) {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.socket.set(EventFlags::IN | EventFlags::OUT);
                    return true;
                }
                Err(_) => return false,
            }
        }
        self.outbox.shrink_to_fit();
        self.socket.set(EventFlags::IN);
        true
    }
}

/// Connections without a `Hello`.
const STRANGERS_MAX: usize = 8;
/// An agent sends it at once; a busy host may delay it.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// More than the descriptors and events of the most containers and execs that a shim holds.
const OUTBOX_MAX: usize = 2048;
