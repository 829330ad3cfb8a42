//! Output to logs and clients, input from clients.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use jiff::Timestamp;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

use super::PodSupervisor;
use super::container::{AttachedClient, ContainerStage, SupervisedContainer};
use super::poller::{PollSource, WatchedDescriptor};
use super::requests::{Reply, refuse};
use crate::log_writer::OutputStream;
use crate::protocol::{Attach, AttachStream, Done, LogFailed, RefusalReason, RequestRefusal, answer, event};

/// Reads a stream into the log, at most [`TURN_BYTES`], so that a flood of one container leaves time for the others.
pub(super) fn read_output(shim: &mut PodSupervisor, key: u64, stream: OutputStream) {
    let Some(container) = shim.containers.get_mut(&key) else { return };
    let (mut taken, mut failed, mut ended) = (0, None, false);
    // Allocated while data flows only, and no larger than what waits: the allocator keeps what was once used.
    let waiting = output(container, stream).and_then(|source| rustix::io::ioctl_fionread(source).ok());
    let waiting = waiting.and_then(|count| usize::try_from(count).ok()).unwrap_or(READ_BYTES);
    let mut buffer = vec![0; waiting.clamp(READ_BYTES_MIN, READ_BYTES)];
    while taken < TURN_BYTES {
        let Some(source) = output(container, stream) else { break };
        match rustix::io::read(source, &mut buffer) {
            Ok(0) => ended = true,
            Ok(count) => {
                taken += count;
                failed = failed.or(container.log.append(stream, &buffer[..count], Timestamp::now()).err());
                container.send_to_clients(stream, &buffer[..count]);
                continue;
            }
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => {}
            // A terminal without a process.
            Err(_) => ended = true,
        }
        break;
    }
    if ended {
        failed = failed.or(container.end_output(stream));
    }
    if let Some(error) = failed {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        let body = event::EventBody::LogFailed(LogFailed { container: container.id.clone(), errno });
        shim.publish(body);
    }
    finish_drained(shim, key);
}

/// The exit becomes an event when the output has ended.
pub(super) fn finish_drained(shim: &mut PodSupervisor, key: u64) {
    let now = Instant::now();
    let Some(container) = shim.containers.get_mut(&key) else { return };
    let drained = container.is_drained();
    let ContainerStage::Draining { process, exited, until } = &container.stage else { return };
    if !drained && now < *until {
        return;
    }
    let (process, exited) = (*process, exited.clone());
    for stream in [OutputStream::Stdout, OutputStream::Stderr] {
        container.end_output(stream);
    }
    container.clients.clear();
    container.streams = super::container::ContainerStreams::default();
    container.stage = ContainerStage::Exited { process };
    shim.publish(event::EventBody::Exited(exited));
}

pub(super) fn attach(shim: &mut PodSupervisor, request: &Attach) -> Result<Reply, RequestRefusal> {
    let key = shim.key_of(&request.container)?;
    let poller = shim.poller.clone();
    let container = shim.containers.get_mut(&key).expect("looked up above");
    if !container.is_alive() {
        return Err(refuse(RefusalReason::WrongState, "the container has exited"));
    }
    if request.streams.is_empty() || container.clients.len() + request.streams.len() > CLIENTS_MAX {
        return Err(refuse(RefusalReason::TooMany, "no stream, or too many clients"));
    }
    let mut theirs = vec![];
    for (n, stream) in request.streams.iter().enumerate() {
        let stream = AttachStream::try_from(*stream)
            .map_err(|_| refuse(RefusalReason::Invalid, format!("stream {stream} is unknown")))?;
        if request.streams[..n].contains(&stream.into()) {
            return Err(refuse(RefusalReason::Invalid, "a stream was named twice"));
        }
        container.check_stream(stream)?;
        let id = shim.next_key;
        shim.next_key += 1;
        let (ours, end) = stream_pair().map_err(|error| refuse(RefusalReason::Io, error.to_string()))?;
        let flags = if stream == AttachStream::Stdin { INPUT_FLAGS } else { EventFlags::empty() };
        let socket = poller
            .watch(ours, PollSource::Client(key, id), flags)
            .map_err(|error| refuse(RefusalReason::Io, error.to_string()))?;
        container.clients.insert(id, AttachedClient { socket, stream });
        theirs.push(end);
    }
    Ok(Reply::Now(answer::AnswerBody::Done(Done {}), theirs))
}

pub(super) fn client_ready(shim: &mut PodSupervisor, key: u64, id: u64) {
    let Some(container) = shim.containers.get_mut(&key) else { return };
    let Some(client) = container.clients.get(&id) else { return };
    if client.stream == AttachStream::Stdin {
        container.read_client(id);
    } else {
        // Only the end of the connection is reported.
        container.clients.remove(&id);
    }
}

/// The container takes input again.
pub(super) fn input_ready(shim: &mut PodSupervisor, key: u64, flags: EventFlags) {
    let Some(container) = shim.containers.get_mut(&key) else { return };
    if flags.intersects(EventFlags::ERR) && container.streams.stdin.is_some() {
        container.close_stdin();
    } else if flags.contains(EventFlags::OUT) {
        container.write_input();
    }
}

impl SupervisedContainer {
    fn check_stream(&self, stream: AttachStream) -> Result<(), RequestRefusal> {
        let there = match stream {
            AttachStream::Stdin => self.stdio.stdin && self.streams.input().is_some() && !self.streams.closing_stdin,
            AttachStream::Stdout => true,
            AttachStream::Stderr => !self.stdio.terminal,
        };
        there.then_some(()).ok_or_else(|| refuse(RefusalReason::WrongState, format!("{stream:?} is not connected")))
    }

    /// A client that does not read is dropped: its buffer is that of the socket.
    fn send_to_clients(&mut self, stream: OutputStream, bytes: &[u8]) {
        let wanted = match stream {
            OutputStream::Stdout => AttachStream::Stdout,
            OutputStream::Stderr => AttachStream::Stderr,
        };
        self.clients.retain(|_, client| {
            let sent = || send(&client.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            client.stream != wanted || sent() == Ok(bytes.len())
        });
    }

    fn end_output(&mut self, stream: OutputStream) -> Option<io::Error> {
        match stream {
            OutputStream::Stdout => {
                self.streams.stdout = None;
                self.streams.terminal = None;
            }
            OutputStream::Stderr => self.streams.stderr = None,
        }
        self.log.end(stream, Timestamp::now()).err()
    }

    /// Reads a client as far as the container takes it: a container that does not read its input stops the client, nothing else.
    fn read_client(&mut self, id: u64) {
        if !self.streams.pending_input.is_empty() {
            return;
        }
        let Some(client) = self.clients.get(&id) else { return };
        let mut buffer = vec![0; INPUT_BYTES];
        match recv(&client.socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => self.client_left(id),
            Ok((_, count)) => {
                buffer.truncate(count);
                self.streams.pending_input = buffer;
                self.write_input();
            }
            Err(Errno::AGAIN | Errno::INTR) => client.socket.set(INPUT_FLAGS),
            Err(_) => self.client_left(id),
        }
    }

    fn write_input(&mut self) {
        while !self.streams.pending_input.is_empty() {
            let Some(input) = self.streams.input() else { return self.close_stdin() };
            match rustix::io::write(input, &self.streams.pending_input) {
                Ok(count) => drop(self.streams.pending_input.drain(..count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return self.await_input(true),
                Err(_) => return self.close_stdin(),
            }
        }
        self.streams.pending_input = vec![];
        self.await_input(false);
        for client in self.clients.values().filter(|client| client.stream == AttachStream::Stdin) {
            client.socket.set(INPUT_FLAGS);
        }
        if self.streams.closing_stdin {
            self.close_stdin();
        }
    }

    /// Whether to wait until the container takes input. Clients are read again after that.
    fn await_input(&self, wait: bool) {
        let output = if wait { EventFlags::OUT } else { EventFlags::empty() };
        if let Some(stdin) = &self.streams.stdin {
            stdin.set(output);
        } else if let Some(terminal) = &self.streams.terminal {
            terminal.set(EventFlags::IN | output);
        }
    }

    fn client_left(&mut self, id: u64) {
        self.clients.remove(&id);
        if self.stdio.stdin_once && !self.stdio.terminal {
            self.request_close_stdin();
        }
    }

    /// Closes standard input when what clients have sent was taken.
    pub(super) fn request_close_stdin(&mut self) {
        self.streams.closing_stdin = true;
        if self.streams.pending_input.is_empty() {
            self.close_stdin();
        }
    }

    fn close_stdin(&mut self) {
        self.streams.pending_input = vec![];
        self.streams.stdin = None;
        self.clients.retain(|_, client| client.stream != AttachStream::Stdin);
    }
}

fn output(container: &SupervisedContainer, stream: OutputStream) -> Option<&WatchedDescriptor> {
    match stream {
        OutputStream::Stdout => container.streams.stdout.as_ref().or(container.streams.terminal.as_ref()),
        OutputStream::Stderr => container.streams.stderr.as_ref(),
    }
}

fn stream_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The limit of the host is small; without the right to exceed it the socket keeps the default.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size_force(&ours, CLIENT_BYTES);
    Ok((ours, theirs))
}

/// One event at a time: neither input nor the end of a client is reported again before its last input was taken.
const INPUT_FLAGS: EventFlags = EventFlags::IN.union(EventFlags::ONESHOT);
/// One read of output, when little or nothing waits.
const READ_BYTES_MIN: usize = 4 << 10;
/// One read of output, at most.
const READ_BYTES: usize = 64 << 10;
/// What one stream gets per turn of the loop.
const TURN_BYTES: usize = 1 << 20;
/// One read of a client's input, and so the most that waits for a container.
const INPUT_BYTES: usize = 16 << 10;
/// Output that waits for a client.
const CLIENT_BYTES: usize = 1 << 20;
/// Streams of clients per container.
const CLIENTS_MAX: usize = 32;
