//! The agent's half of a connection to a shim.
//!
//! Nothing here waits, except [`ShimClient::call`] and [`ShimClient::wait`]: the descriptor is nonblocking, for an event loop to
//! wait for. Answers come in any order, between them events and copies of descriptors.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use podwright_linux::scm;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::plan::{ExecPlan, LaunchPlan, SetupPlan};
use crate::protocol::{
    Adopt, DescriptorKind, ExecRequest, ExecStarted, Hello, HelloReply, LaunchFailed, LaunchReply, LaunchRequest,
    PROTOCOL, PROTOCOL_MIN, ProcessIdentity, ProtocolError, Request, RequestAnswer, RequestRefusal, SOCKET_NAME,
    SetupRequest, ShimEvent, ShimPacket, StopSignalResult, answer, decode, encode, request, sealed_memfd, shim_packet,
};

/// Descriptors with their meaning.
pub type Descriptors = Vec<(DescriptorKind, OwnedFd)>;

/// Why a connection cannot be used any more. Connect again: the shim repeats what was not acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum ShimClientError {
    /// The shim has ended, or serves a newer connection.
    #[error("the shim has closed the connection")]
    Closed,
    /// The socket failed.
    #[error("use the connection to the shim")]
    Io(#[source] io::Error),
    /// The shim sent something that it must not send.
    #[error("a packet of the shim")]
    Protocol(#[from] ProtocolError),
    /// No answer in time.
    #[error("the shim has not answered in {0:?}")]
    TimedOut(Duration),
}

/// A request, ready to be sent.
#[derive(Debug)]
pub struct RequestPacket {
    body: request::RequestKind,
    fds: Vec<OwnedFd>,
}

/// What a shim sends.
#[derive(Debug)]
pub enum Incoming {
    /// To the request of this number.
    Answer(u64, ShimAnswer),
    /// Acknowledge it when it is recorded.
    Event(ShimEvent),
    /// Copies to keep for a later shim.
    Hold {
        /// `None`: they are the pod's.
        container: Option<String>,
        /// Namespaces, pidfds, pty masters.
        descriptors: Descriptors,
    },
}

/// The answer to a request.
#[derive(Debug)]
pub enum ShimAnswer {
    /// Done. To `Attach`: a stream socket for each stream.
    Done(Vec<OwnedFd>),
    /// Nothing was done.
    Refused(RequestRefusal),
    /// To `Hello` and `Adopt`.
    State(HelloReply),
    /// To `Setup`.
    Setup {
        /// The pid 1 of a shared PID namespace.
        pause: Option<ProcessIdentity>,
        /// Namespaces, and the pidfd of the pause process.
        descriptors: Descriptors,
    },
    /// To `Launch`.
    Launched {
        /// Process and user.
        reply: LaunchReply,
        /// Of the init.
        pidfd: OwnedFd,
        /// The master of its terminal.
        pty: Option<OwnedFd>,
    },
    /// To `Setup`, `Launch` and `Exec`.
    LaunchFailed(LaunchFailed),
    /// To `StopSignal`.
    StopSignal(StopSignalResult),
    /// To `Exec`.
    ExecStarted {
        /// Id and pid.
        started: ExecStarted,
        /// Pidfd, and pipe ends or a pty master.
        descriptors: Descriptors,
    },
}

/// A connection to a shim.
#[derive(Debug)]
pub struct ShimClient {
    socket: OwnedFd,
    next: u64,
    /// What came while [`ShimClient::call`] waited for its answer. Bounded by what a shim holds, as it is not asked meanwhile.
    backlog: VecDeque<Incoming>,
}

impl RequestPacket {
    /// A request without descriptors.
    pub fn new(body: request::RequestKind) -> Self {
        Self { body, fds: vec![] }
    }

    /// The first request of a connection.
    pub fn hello(boot_id: &str) -> Self {
        let boot_id = boot_id.trim().to_owned();
        let hello = Hello { protocol_min: PROTOCOL_MIN, protocol_max: PROTOCOL, features: vec![], boot_id };
        Self::new(request::RequestKind::Hello(hello))
    }

    /// Makes the namespaces of the pod.
    pub fn setup(plan: &SetupPlan) -> io::Result<Self> {
        Ok(Self { body: request::RequestKind::Setup(SetupRequest {}), fds: vec![sealed_memfd(plan)?] })
    }

    /// Starts a container.
    pub fn launch(request: LaunchRequest, plan: &LaunchPlan) -> io::Result<Self> {
        Ok(Self { body: request::RequestKind::Launch(request), fds: vec![sealed_memfd(plan)?] })
    }

    /// Starts a process in a container.
    pub fn exec(request: ExecRequest, plan: &ExecPlan) -> io::Result<Self> {
        Ok(Self { body: request::RequestKind::Exec(request), fds: vec![sealed_memfd(plan)?] })
    }

    /// Gives a new shim what a lost one had. `fds` are those of the pod, then those of each container. At most
    /// [`scm::DESCRIPTORS_MAX`] per request.
    pub fn adopt(adopt: Adopt, fds: Vec<OwnedFd>) -> Self {
        Self { body: request::RequestKind::Adopt(adopt), fds }
    }
}

impl ShimClient {
    /// Connects to the shim of the pod with this run directory.
    pub fn connect(pod_dir: BorrowedFd<'_>) -> io::Result<Self> {
        Self::from_socket(scm::connect(pod_dir, SOCKET_NAME)?)
    }

    /// Uses the first connection of a shim that was just forked.
    pub fn from_socket(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self { socket, next: 0, backlog: VecDeque::new() })
    }

    /// Sends a request; its answer will have the returned number. `None`: the socket is full, wait until it is writable.
    pub fn send(&mut self, packet: &RequestPacket) -> Result<Option<u64>, ShimClientError> {
        let id = self.next + 1;
        let bytes = encode(&Request { id, body: Some(packet.body.clone()) });
        let fds: Vec<BorrowedFd<'_>> = packet.fds.iter().map(AsFd::as_fd).collect();
        match scm::send(&self.socket, &bytes, &fds) {
            Ok(()) => {
                self.next = id;
                Ok(Some(id))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(closed_or(error)),
        }
    }

    /// What came next. `None`: nothing yet, wait until the socket is readable.
    pub fn receive(&mut self) -> Result<Option<Incoming>, ShimClientError> {
        match self.backlog.pop_front() {
            Some(incoming) => Ok(Some(incoming)),
            None => self.receive_packet(),
        }
    }

    /// Sends a request and waits for its answer; what else comes is kept for [`ShimClient::receive`].
    pub fn call(&mut self, packet: &RequestPacket, limit: Duration) -> Result<ShimAnswer, ShimClientError> {
        let until = Instant::now() + limit;
        let id = loop {
            match self.send(packet)? {
                Some(id) => break id,
                None => self.poll(PollFlags::OUT, until, limit)?,
            }
        };
        loop {
            match self.receive_packet()? {
                Some(Incoming::Answer(of, answer)) if of == id => return Ok(answer),
                Some(other) => self.backlog.push_back(other),
                None => self.poll(PollFlags::IN, until, limit)?,
            }
        }
    }

    /// Waits for what comes next.
    pub fn wait(&mut self, limit: Duration) -> Result<Incoming, ShimClientError> {
        let until = Instant::now() + limit;
        loop {
            match self.receive()? {
                Some(incoming) => return Ok(incoming),
                None => self.poll(PollFlags::IN, until, limit)?,
            }
        }
    }

    /// A packet of a later version, which this one does not know, is skipped.
    fn receive_packet(&mut self) -> Result<Option<Incoming>, ShimClientError> {
        loop {
            let packet = match scm::receive_packet(&self.socket) {
                Ok(Some(packet)) => packet,
                Ok(None) => return Err(ShimClientError::Closed),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(closed_or(error)),
            };
            let message: ShimPacket = decode(&packet.bytes)?;
            return Ok(Some(match message.body {
                Some(shim_packet::PacketBody::Answer(answer)) => {
                    Incoming::Answer(answer.id, typed(answer, packet.fds)?)
                }
                Some(shim_packet::PacketBody::Event(event)) => Incoming::Event(without(event, &packet.fds)?),
                Some(shim_packet::PacketBody::Hold(hold)) => {
                    Incoming::Hold { container: hold.container, descriptors: descriptors(&hold.kinds, packet.fds)? }
                }
                None => continue,
            }));
        }
    }

    fn poll(&self, flags: PollFlags, until: Instant, limit: Duration) -> Result<(), ShimClientError> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ShimClientError::TimedOut(limit));
        }
        let left = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(&self.socket, flags)], Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(ShimClientError::Io(error.into())),
        }
    }
}

impl AsFd for ShimClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for ShimClient {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

fn typed(answer: RequestAnswer, fds: Vec<OwnedFd>) -> Result<ShimAnswer, ProtocolError> {
    use answer::AnswerBody;
    let fds = match &answer.body {
        Some(
            AnswerBody::Refusal(_) | AnswerBody::Hello(_) | AnswerBody::LaunchFailed(_) | AnswerBody::StopSignal(_),
        ) => without(vec![], &fds)?,
        _ => fds,
    };
    Ok(match answer.body.ok_or(ProtocolError::Missing("an answer that this version knows"))? {
        AnswerBody::Done(_) => ShimAnswer::Done(fds),
        AnswerBody::Refusal(refusal) => ShimAnswer::Refused(refusal),
        AnswerBody::Hello(reply) => ShimAnswer::State(reply),
        AnswerBody::Setup(reply) => {
            ShimAnswer::Setup { pause: reply.pause, descriptors: descriptors(&reply.kinds, fds)? }
        }
        AnswerBody::Launched(reply) => {
            let mut fds = fds.into_iter();
            let pidfd = fds.next().ok_or(ProtocolError::Missing("its pidfd"))?;
            let pty = fds.next();
            without(ShimAnswer::Launched { reply, pidfd, pty }, fds.as_slice())?
        }
        AnswerBody::LaunchFailed(failed) => ShimAnswer::LaunchFailed(failed),
        AnswerBody::StopSignal(reply) => ShimAnswer::StopSignal(
            reply.result.try_into().map_err(|_| ProtocolError::Missing("a result that this version knows"))?,
        ),
        AnswerBody::ExecStarted(started) => {
            let descriptors = descriptors(&started.kinds, fds)?;
            ShimAnswer::ExecStarted { started, descriptors }
        }
    })
}

/// For what has no descriptors, or no more of them.
fn without<T>(value: T, left: &[OwnedFd]) -> Result<T, ProtocolError> {
    if left.is_empty() { Ok(value) } else { Err(ProtocolError::Unexpected("descriptors")) }
}

/// Kinds of a later version are left out.
fn descriptors(kinds: &[i32], fds: Vec<OwnedFd>) -> Result<Descriptors, ProtocolError> {
    if kinds.len() != fds.len() {
        return Err(ProtocolError::Missing("its descriptors"));
    }
    let known = |(kind, fd): (&i32, OwnedFd)| Some((DescriptorKind::try_from(*kind).ok()?, fd));
    Ok(kinds.iter().zip(fds).filter_map(known).collect())
}

fn closed_or(error: io::Error) -> ShimClientError {
    match error.raw_os_error() {
        Some(libc::EPIPE | libc::ECONNRESET) => ShimClientError::Closed,
        _ => ShimClientError::Io(error),
    }
}
