//! One connection to a shim: a task that sends requests, and passes on what the shim sends.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use podwright_shim::client::{Descriptors, Incoming, RequestPacket, ShimAnswer, ShimClient, ShimClientError};
use podwright_shim::protocol::{HelloReply, ShimEvent, request};
use rustix::process::{Signal, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::ConnectedShim;
use crate::machine::{ContainerId, SandboxId};

/// Why a request to a shim has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ShimCallError {
    #[error("the shim was lost")]
    Lost,
    #[error("the shim has not answered in {0:?}")]
    TimedOut(Duration),
    #[error("prepare the request: {0}")]
    Prepare(Arc<io::Error>),
    #[error("the shim refused: {0}")]
    Refused(String),
    #[error("an unexpected answer of the shim")]
    Unexpected,
}

impl From<io::Error> for ShimCallError {
    fn from(error: io::Error) -> Self {
        Self::Prepare(Arc::new(error))
    }
}

/// What a shim reports, in its order. After `Lost` nothing more comes from this connection.
#[derive(Debug)]
pub(crate) enum ShimReport {
    /// The result of a launch.
    Launch(ContainerId, ShimAnswer),
    /// To be acknowledged once it is recorded.
    Event(ShimEvent),
    /// Copies of descriptors for a later shim; `None`: of the pod.
    Hold(Option<String>, Descriptors),
    /// The connection broke; requests without an answer are lost.
    Lost,
}

/// A report with its origin.
#[derive(Debug)]
pub(crate) struct FromShim {
    pub(crate) sandbox: SandboxId,
    pub(crate) link: ShimLink,
    pub(crate) report: ShimReport,
}

/// A handle to a connection. The connection ends with the last one.
#[derive(Clone, Debug)]
pub(crate) struct ShimLink {
    requests: mpsc::Sender<Outgoing>,
    pidfd: Arc<OwnedFd>,
}

#[derive(Debug)]
struct Outgoing {
    packet: RequestPacket,
    limit: Duration,
    /// Counts from the time when it was queued: a shim that hangs does not read either.
    deadline: Instant,
    reply: Reply,
}

impl Outgoing {
    fn new(packet: RequestPacket, limit: Duration, reply: Reply) -> Self {
        Self { packet, limit, deadline: Instant::now() + limit, reply }
    }
}

/// Where an answer goes.
#[derive(Debug)]
enum Reply {
    Waiter(oneshot::Sender<Result<ShimAnswer, ShimCallError>>),
    /// Among the reports, so that a launch is known before the exit that follows it.
    Launch(ContainerId),
    Ignored,
}

struct Connection {
    sandbox: SandboxId,
    client: AsyncFd<ShimClient>,
    pidfd: Arc<OwnedFd>,
    /// Readable when the process has ended: a launcher that hangs keeps the shim's end of the socket open.
    process: AsyncFd<Arc<OwnedFd>>,
    requests: mpsc::Receiver<Outgoing>,
    reports: mpsc::Sender<FromShim>,
    weak: mpsc::WeakSender<Outgoing>,
    unsent: VecDeque<Outgoing>,
    pending: BTreeMap<u64, (Instant, Duration, Reply)>,
}

impl ShimLink {
    /// Starts the task of a connection.
    pub(crate) fn start(
        sandbox: SandboxId,
        shim: ConnectedShim,
        reports: mpsc::Sender<FromShim>,
    ) -> Result<Self, ShimCallError> {
        let ConnectedShim { client, pidfd } = shim;
        // The client owns its descriptor and never replaces it, as the unsafe successor of this function demands.
        #[allow(deprecated)]
        let client = AsyncFd::new(client)?;
        #[allow(deprecated)]
        let process = AsyncFd::with_interest(Arc::clone(&pidfd), Interest::READABLE)?;
        let (sender, requests) = mpsc::channel(REQUESTS_MAX);
        let weak = sender.downgrade();
        let (unsent, pending) = (VecDeque::new(), BTreeMap::new());
        let held = Arc::clone(&pidfd);
        let connection = Connection { sandbox, client, pidfd: held, process, requests, reports, weak, unsent, pending };
        podwright_tasks::spawn("shim-connection", connection.run());
        Ok(Self { requests: sender, pidfd })
    }

    /// Sends a request and waits for its answer. A refusal is an error.
    pub(crate) async fn call(&self, packet: RequestPacket, limit: Duration) -> Result<ShimAnswer, ShimCallError> {
        let (sender, answer) = oneshot::channel();
        let outgoing = Outgoing::new(packet, limit, Reply::Waiter(sender));
        self.requests.send(outgoing).await.map_err(|_| ShimCallError::Lost)?;
        match answer.await.map_err(|_| ShimCallError::Lost)?? {
            ShimAnswer::Refused(refusal) => Err(ShimCallError::Refused(refusal.text)),
            answer => Ok(answer),
        }
    }

    /// The first request of a connection.
    pub(crate) async fn hello(&self, boot_id: &str) -> Result<HelloReply, ShimCallError> {
        match self.call(RequestPacket::hello(boot_id), HELLO_LIMIT).await? {
            ShimAnswer::State(state) => Ok(state),
            _ => Err(ShimCallError::Unexpected),
        }
    }

    /// Launches a container. The result is a report.
    pub(crate) async fn launch(&self, container: ContainerId, packet: RequestPacket) -> Result<(), ShimCallError> {
        let outgoing = Outgoing::new(packet, LAUNCH_LIMIT, Reply::Launch(container));
        self.requests.send(outgoing).await.map_err(|_| ShimCallError::Lost)
    }

    /// Sends a request whose answer does not matter. A full queue drops it: the caller repeats what has to arrive.
    pub(crate) fn notify(&self, body: request::RequestKind) {
        let packet = RequestPacket::new(body);
        let _ = self.requests.try_send(Outgoing::new(packet, NOTIFY_LIMIT, Reply::Ignored));
    }

    /// A descriptor of the shim's process.
    pub(crate) fn pidfd(&self) -> &Arc<OwnedFd> {
        &self.pidfd
    }

    /// Both are of the same connection.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.requests.same_channel(&other.requests)
    }
}

impl Connection {
    async fn run(mut self) {
        while self.turn().await.is_ok() {}
        // What is still in the queue was never sent.
        self.requests.close();
        self.pending.clear();
        self.unsent.clear();
        self.report(ShimReport::Lost).await;
    }

    /// Waits for one thing and does it. An error ends the connection.
    async fn turn(&mut self) -> Result<(), ShimClientError> {
        let deadline = self.pending.values().map(|(at, ..)| *at).chain(self.unsent.iter().map(|o| o.deadline)).min();
        let until = deadline.unwrap_or_else(|| Instant::now() + IDLE);
        let interest =
            if self.unsent.is_empty() { Interest::READABLE } else { Interest::READABLE | Interest::WRITABLE };
        tokio::select! {
            ready = self.client.ready_mut(interest) => {
                let mut guard = ready.map_err(ShimClientError::Io)?;
                let (readable, writable) = (guard.ready().is_readable(), guard.ready().is_writable());
                let closed = guard.ready().is_read_closed();
                if writable {
                    guard.clear_ready_matching(tokio::io::Ready::WRITABLE);
                }
                let mut incoming = vec![];
                let mut ended = None;
                if readable || closed {
                    // A bounded number at a time; more is found at the next turn because the readiness stays.
                    for _ in 0..PACKETS_PER_TURN {
                        match guard.get_inner_mut().receive() {
                            Ok(Some(next)) => incoming.push(next),
                            Ok(None) => {
                                guard.clear_ready_matching(tokio::io::Ready::READABLE);
                                break;
                            }
                            Err(error) => {
                                ended = Some(error);
                                break;
                            }
                        }
                    }
                }
                drop(guard);
                for next in incoming {
                    self.receive(next).await;
                }
                if let Some(error) = ended {
                    return Err(error);
                }
                self.flush()
            }
            outgoing = self.requests.recv(), if self.unsent.len() < UNSENT_MAX => match outgoing {
                Some(outgoing) => {
                    self.unsent.push_back(outgoing);
                    self.flush()
                }
                // The sandbox is gone.
                None => Err(ShimClientError::Closed),
            },
            () = sleep_until(until) => self.expire(),
            ended = self.process.readable() => {
                drop(ended.map_err(ShimClientError::Io)?);
                self.drain().await
            }
        }
    }

    /// What a shim that has ended still sent, and the end of the connection.
    async fn drain(&mut self) -> Result<(), ShimClientError> {
        while let Some(next) = self.client.get_mut().receive()? {
            self.receive(next).await;
        }
        Err(ShimClientError::Closed)
    }

    fn flush(&mut self) -> Result<(), ShimClientError> {
        while let Some(outgoing) = self.unsent.front() {
            let Some(id) = self.client.get_mut().send(&outgoing.packet)? else { return Ok(()) };
            let Some(Outgoing { limit, deadline, reply, .. }) = self.unsent.pop_front() else { return Ok(()) };
            self.pending.insert(id, (deadline, limit, reply));
        }
        Ok(())
    }

    async fn receive(&mut self, incoming: Incoming) {
        let report = match incoming {
            Incoming::Answer(id, answer) => match self.pending.remove(&id) {
                Some((_, _, Reply::Waiter(waiter))) => {
                    let _ = waiter.send(Ok(answer));
                    return;
                }
                Some((_, _, Reply::Launch(container))) => ShimReport::Launch(container, answer),
                // Its deadline has passed.
                Some((_, _, Reply::Ignored)) | None => return,
            },
            Incoming::Event(event) => ShimReport::Event(event),
            Incoming::Hold { container, descriptors } => ShimReport::Hold(container, descriptors),
        };
        self.report(report).await;
    }

    /// A launch without an answer means that the shim hangs: it is killed, and what follows is the loss of a shim.
    fn expire(&mut self) -> Result<(), ShimClientError> {
        let now = Instant::now();
        let late: Vec<u64> = self.pending.iter().filter(|(_, (at, ..))| *at <= now).map(|(id, _)| *id).collect();
        let late = late.into_iter().filter_map(|id| self.pending.remove(&id));
        let mut late: Vec<(Duration, Reply)> = late.map(|(_, limit, reply)| (limit, reply)).collect();
        let (unsent_late, unsent): (Vec<Outgoing>, VecDeque<Outgoing>) = {
            let all = std::mem::take(&mut self.unsent);
            let (late, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|outgoing| outgoing.deadline <= now);
            (late, others.into())
        };
        self.unsent = unsent;
        late.extend(unsent_late.into_iter().map(|outgoing| (outgoing.limit, outgoing.reply)));
        for (limit, reply) in late {
            match reply {
                Reply::Waiter(waiter) => drop(waiter.send(Err(ShimCallError::TimedOut(limit)))),
                Reply::Launch(container) => {
                    tracing::error!(sandbox_id = %self.sandbox, container_id = %container, "shim hangs, killing it");
                    let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
                    return Err(ShimClientError::TimedOut(limit));
                }
                Reply::Ignored => {}
            }
        }
        Ok(())
    }

    async fn report(&self, report: ShimReport) {
        // Without a sender the sandbox is gone, and with it the interest in its shim.
        let Some(requests) = self.weak.upgrade() else { return };
        let link = ShimLink { requests, pidfd: Arc::clone(&self.pidfd) };
        let _ = self.reports.send(FromShim { sandbox: self.sandbox.clone(), link, report }).await;
    }
}

/// Requests that wait for a shim: a call per container and exec, and their acknowledgements.
const REQUESTS_MAX: usize = 1024;
/// Requests that the socket has no capacity for. The others wait in the queue.
const UNSENT_MAX: usize = 64;
const PACKETS_PER_TURN: usize = 64;
/// A shim answers at once unless its log disk hangs.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
const NOTIFY_LIMIT: Duration = Duration::from_secs(60);
/// The shim's own limit is two minutes.
const LAUNCH_LIMIT: Duration = Duration::from_secs(150);
/// Without a deadline there is nothing to do then.
const IDLE: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use std::process::Command;

    use podwright_linux::pidfd::PidFd;
    use podwright_linux::scm;
    use podwright_shim::protocol::{ShimPacket, shim_packet};
    use prost::Message;

    use super::*;

    #[tokio::test]
    async fn the_end_of_a_shim_is_noticed_although_its_socket_is_open() {
        // The test has the shim's end of the socket, as a launcher that hangs has it.
        let (client, of_launcher) = scm::packet_pair().unwrap();
        let mut process = Command::new("sleep").arg("1000").spawn().unwrap();
        let pidfd = Arc::new(PidFd::open(process.id()).unwrap().into_fd());
        let client = ShimClient::from_socket(client).unwrap();
        let (reports, mut received) = mpsc::channel(4);
        let _link = ShimLink::start(SandboxId("s".into()), ConnectedShim { client, pidfd }, reports).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let event = ShimEvent { seq: 7, body: None };
        let packet = ShimPacket { body: Some(shim_packet::PacketBody::Event(event)) }.encode_to_vec();
        process.kill().unwrap();
        scm::send(&of_launcher, &packet, &[]).unwrap();
        process.wait().unwrap();
        let mut next = async || tokio::time::timeout(Duration::from_secs(10), received.recv()).await.unwrap().unwrap();
        assert!(matches!(next().await.report, ShimReport::Event(ShimEvent { seq: 7, .. })), "what it sent is not lost");
        assert!(matches!(next().await.report, ShimReport::Lost));
    }
}
