//! Requests of the agent.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use podwright_linux::scm::Packet;
use rustix::process::{Signal, pidfd_send_signal};

use super::container::ContainerStage;
use super::{PodSupervisor, adoption, execs, launching, streams};
use crate::protocol::{
    AbortLaunch, AckExit, AdoptRefusal, DescriptorKind, Done, Hello, HelloReply, Hold, PROTOCOL, PROTOCOL_MIN,
    ProtocolError, RefusalReason, ReportedContainer, Request, RequestRefusal, StopSignal, StopSignalReply,
    StopSignalResult, answer, decode, event, request, shim_packet,
};

/// The result of a request.
pub(super) enum Reply {
    /// The answer and its descriptors.
    Now(answer::AnswerBody, Vec<OwnedFd>),
    /// Answered when the launch has ended.
    Later,
}

impl Reply {
    fn done() -> Self {
        Self::Now(answer::AnswerBody::Done(Done {}), vec![])
    }
}

/// Who gets the answer to a launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    pub connection: u64,
    pub request: u64,
}

pub(super) fn refuse(reason: RefusalReason, text: impl Into<String>) -> RequestRefusal {
    RequestRefusal { reason: reason.into(), text: text.into() }
}

pub(super) fn refuse_io(subject: &str) -> impl Fn(io::Error) -> RequestRefusal {
    move |error| refuse(RefusalReason::Io, format!("{subject}: {error}"))
}

impl PodSupervisor {
    /// Reads a few packets of a connection. Whatever is wrong with one closes the connection.
    pub(super) fn serve(&mut self, connection: u64) {
        for _ in 0..PACKETS_PER_TURN {
            match self.connections.receive(connection) {
                Ok(Some(packet)) => {
                    if self.handle_packet(connection, packet).is_err() {
                        return self.close_connection(connection);
                    }
                }
                Ok(None) => return,
                Err(_) => return self.close_connection(connection),
            }
        }
    }

    fn handle_packet(&mut self, connection: u64, packet: Packet) -> Result<(), ProtocolError> {
        let request: Request = decode(&packet.bytes)?;
        let asker = Asker { connection, request: request.id };
        check_descriptors(request.body.as_ref(), &packet.fds)?;
        if let Some(request::RequestKind::Hello(hello)) = &request.body {
            return self.hello(asker, hello);
        }
        if !self.connections.is_current(connection) {
            return Err(ProtocolError::Missing("Hello"));
        }
        match request.body {
            Some(request::RequestKind::Adopt(adopt)) => adoption::adopt(self, asker, adopt, packet.fds)?,
            body => {
                let outcome = self.perform(asker, body, packet.fds)?;
                match outcome {
                    Ok(Reply::Now(body, fds)) => self.answer(asker, body, fds),
                    Ok(Reply::Later) => {}
                    Err(refusal) => self.answer(asker, answer::AnswerBody::Refusal(refusal), vec![]),
                }
            }
        }
        Ok(())
    }

    fn perform(
        &mut self,
        asker: Asker,
        body: Option<request::RequestKind>,
        fds: Vec<OwnedFd>,
    ) -> Result<Result<Reply, RequestRefusal>, ProtocolError> {
        use request::RequestKind;
        Ok(match body {
            Some(RequestKind::Setup(_)) => launching::setup(self, plan_of(fds)?),
            Some(RequestKind::Launch(request)) => launching::launch(self, asker, request, plan_of(fds)?),
            Some(RequestKind::Exec(request)) => execs::exec(self, asker, request, plan_of(fds)?),
            Some(RequestKind::AbortLaunch(request)) => self.abort_launch(&request),
            Some(RequestKind::CloseStdin(request)) => self.close_stdin(&request.container),
            Some(RequestKind::ReopenLog(request)) => self.reopen_log(&request.container),
            Some(RequestKind::AckExit(request)) => Ok(self.acknowledge(request)),
            Some(RequestKind::Shutdown(_)) => self.shutdown(),
            Some(RequestKind::StopSignal(request)) => self.stop_signal(&request),
            Some(RequestKind::Attach(request)) => streams::attach(self, &request),
            Some(RequestKind::Hello(_) | RequestKind::Adopt(_)) | None => {
                Err(refuse(RefusalReason::Unsupported, "this shim does not know the request"))
            }
        })
    }

    pub(super) fn answer(&mut self, asker: Asker, body: answer::AnswerBody, fds: Vec<OwnedFd>) {
        if !self.connections.answer(asker.connection, asker.request, body, fds) {
            self.close_connection(asker.connection);
        }
    }

    fn hello(&mut self, asker: Asker, hello: &Hello) -> Result<(), ProtocolError> {
        let protocol = PROTOCOL.min(hello.protocol_max);
        let refusal = if protocol < PROTOCOL_MIN.max(hello.protocol_min) {
            Some(refuse(RefusalReason::Unsupported, format!("the shim supports protocol {PROTOCOL_MIN} to {PROTOCOL}")))
        } else if hello.boot_id != self.boot_id {
            Some(refuse(RefusalReason::Invalid, "the boot id is not that of this host"))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.answer(asker, answer::AnswerBody::Refusal(refusal), vec![]);
            return Err(ProtocolError::Missing("a version that both speak"));
        }
        if let Some(previous) = self.connections.make_current(asker.connection) {
            execs::agent_lost(self, previous);
        }
        self.send_state(asker, protocol, vec![]);
        Ok(())
    }

    /// Answers with the state, and sends copies of all descriptors that a later shim would need.
    pub(super) fn send_state(&mut self, asker: Asker, protocol: u32, refused: Vec<AdoptRefusal>) {
        let holds = holds(self);
        let reply = HelloReply {
            protocol,
            features: vec![],
            boot_id: self.boot_id.clone(),
            pod: self.pod.clone(),
            containers: self.containers.values().map(|container| container.entry()).collect::<Vec<ReportedContainer>>(),
            holds: u32::try_from(holds.len()).unwrap_or(u32::MAX),
            events: u32::try_from(self.events.len()).unwrap_or(u32::MAX),
            refused,
        };
        self.answer(asker, answer::AnswerBody::Hello(reply), vec![]);
        for (container, held) in holds {
            let (kinds, fds) = held.into_iter().map(|(kind, fd)| (i32::from(kind), fd)).unzip();
            let hold = shim_packet::PacketBody::Hold(Hold { container, kinds });
            if !self.connections.send(asker.connection, hold, fds) {
                return self.close_connection(asker.connection);
            }
        }
        for event in self.events.clone() {
            if !self.connections.send(asker.connection, shim_packet::PacketBody::Event(event), vec![]) {
                return self.close_connection(asker.connection);
            }
        }
    }

    fn abort_launch(&mut self, request: &AbortLaunch) -> Result<Reply, RequestRefusal> {
        let key = self.key_of(&request.container)?;
        if launching::give_up_launch(self, key, "the launch was aborted") {
            return Ok(Reply::done());
        }
        Err(refuse(RefusalReason::WrongState, "the container is not being launched"))
    }

    fn close_stdin(&mut self, container: &str) -> Result<Reply, RequestRefusal> {
        let key = self.key_of(container)?;
        self.containers.get_mut(&key).expect("looked up above").request_close_stdin();
        Ok(Reply::done())
    }

    fn reopen_log(&mut self, container: &str) -> Result<Reply, RequestRefusal> {
        let key = self.key_of(container)?;
        let container = self.containers.get_mut(&key).expect("looked up above");
        container.log.reopen().map_err(refuse_io("open the log"))?;
        Ok(Reply::done())
    }

    /// Forgets the event, and with it a container that has exited.
    fn acknowledge(&mut self, request: AckExit) -> Reply {
        if let Some(at) = self.events.iter().position(|event| event.seq == request.seq) {
            let event = self.events.remove(at);
            if let Some(event::EventBody::Exited(exited)) = event.body {
                self.containers.retain(|_, container| container.id != exited.container);
            }
            self.events.shrink_to_fit();
        }
        Reply::done()
    }

    fn shutdown(&mut self) -> Result<Reply, RequestRefusal> {
        if self.containers.values().any(|container| container.is_alive()) || !self.launches.is_empty() {
            return Err(refuse(RefusalReason::WrongState, "a container is running"));
        }
        self.shutdown_requested = true;
        Ok(Reply::done())
    }

    /// At most once per container: the claim is on disk before the signal is sent. A shim that is killed in between has sent
    /// nothing, and the container is killed at the end of its grace period; a second signal could make it exit at once.
    fn stop_signal(&mut self, request: &StopSignal) -> Result<Reply, RequestRefusal> {
        let key = self.key_of(&request.container)?;
        let container = self.containers.get_mut(&key).expect("looked up above");
        let signal = i32::try_from(request.signal).ok().filter(|signal| (1..=64).contains(signal));
        let signal = signal.ok_or_else(|| refuse(RefusalReason::Invalid, format!("signal {}", request.signal)))?;
        let result = match &container.stage {
            ContainerStage::Launching => {
                return Err(refuse(RefusalReason::WrongState, "the container is being launched"));
            }
            ContainerStage::Draining { .. } | ContainerStage::Exited { .. } => StopSignalResult::Gone,
            ContainerStage::Running { .. } if container.stop_signal_sent => StopSignalResult::AlreadySent,
            ContainerStage::Running { pidfd, .. } => {
                let claimed = container.dir.claim_stop_signal();
                let claimed = claimed.map_err(|error| refuse(RefusalReason::Io, error.to_string()))?;
                container.stop_signal_sent = true;
                match claimed.then(|| pidfd_send_signal(pidfd, signal_of(signal))) {
                    None => StopSignalResult::AlreadySent,
                    Some(Ok(())) => StopSignalResult::Sent,
                    Some(Err(_)) => StopSignalResult::Gone,
                }
            }
        };
        Ok(Reply::Now(answer::AnswerBody::StopSignal(StopSignalReply { result: result.into() }), vec![]))
    }

    pub(super) fn key_of(&self, container: &str) -> Result<u64, RequestRefusal> {
        let found = self.containers.iter().find(|(_, known)| known.id == container);
        found.map(|(key, _)| *key).ok_or_else(|| refuse(RefusalReason::NotFound, "no such container"))
    }

    /// Sends an event and keeps it until it is acknowledged.
    pub(super) fn publish(&mut self, body: event::EventBody) {
        if let event::EventBody::LogFailed(new) = &body {
            // One per container is enough: a log that fails again and again must not fill the list.
            let same = |known: &event::EventBody| matches!(known, event::EventBody::LogFailed(old) if old.container == new.container);
            self.events.retain(|event| !event.body.as_ref().is_some_and(same));
        }
        self.next_event += 1;
        let event = crate::protocol::ShimEvent { seq: self.next_event, body: Some(body) };
        self.events.push(event.clone());
        if let Some(current) = self.connections.current()
            && !self.connections.send(current, shim_packet::PacketBody::Event(event), vec![])
        {
            self.close_connection(current);
        }
    }

    pub(super) fn close_connection(&mut self, connection: u64) {
        if self.connections.close(connection) {
            execs::agent_lost(self, connection);
        }
    }
}

/// Copies for a later shim: of the pod (`None`), then of each container.
fn holds(shim: &PodSupervisor) -> Vec<(Option<String>, HeldDescriptors)> {
    let mut holds = vec![];
    let pod = launching::pod_descriptors(shim);
    if !pod.is_empty() {
        holds.push((None, pod));
    }
    for container in shim.containers.values() {
        let ContainerStage::Running { pidfd, .. } = &container.stage else { continue };
        let mut held = copies(DescriptorKind::Pidfd, Some(pidfd));
        held.extend(copies(DescriptorKind::Pty, container.streams.terminal.as_ref()));
        holds.push((Some(container.id.clone()), held));
    }
    holds
}

pub(super) fn drop_late_strangers(shim: &mut PodSupervisor, now: Instant) {
    while let Some((due, connection)) = shim.connections.next_deadline() {
        if due > now {
            return;
        }
        shim.close_connection(connection);
    }
}

/// Descriptors with their meaning.
type HeldDescriptors = Vec<(DescriptorKind, OwnedFd)>;

/// Copies of a descriptor, or none.
pub(super) fn copies(kind: DescriptorKind, fd: Option<&impl std::os::fd::AsFd>) -> HeldDescriptors {
    let copy = fd.and_then(|fd| fd.as_fd().try_clone_to_owned().ok());
    copy.into_iter().map(|fd| (kind, fd)).collect()
}

/// A descriptor that no handler takes would be lost without an error. Requests of a later version may have any.
fn check_descriptors(body: Option<&request::RequestKind>, fds: &[OwnedFd]) -> Result<(), ProtocolError> {
    use request::RequestKind;
    match body {
        None | Some(RequestKind::Setup(_) | RequestKind::Launch(_) | RequestKind::Exec(_) | RequestKind::Adopt(_)) => {
            Ok(())
        }
        Some(_) if fds.is_empty() => Ok(()),
        Some(_) => Err(ProtocolError::Unexpected("descriptors")),
    }
}

fn plan_of(fds: Vec<OwnedFd>) -> Result<OwnedFd, ProtocolError> {
    let [plan] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| ProtocolError::Missing("its plan"))?;
    Ok(plan)
}

#[allow(unsafe_code)]
fn signal_of(number: i32) -> Signal {
    // SAFETY: the number is one of 1 to 64. It is only sent, never handled here, so the C library's reserved ones do no harm.
    unsafe { Signal::from_raw_unchecked(number) }
}

/// A connection that floods leaves time for the containers.
const PACKETS_PER_TURN: usize = 16;
