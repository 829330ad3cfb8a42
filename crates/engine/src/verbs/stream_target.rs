//! What the streaming server needs: processes with streams, the streams of containers, connections to ports of pods.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use podwright_cri::{Code, CriError, v1};
use podwright_linux::namespace;
use podwright_shim::client::{Descriptors, RequestPacket, ShimAnswer};
use podwright_shim::protocol::{Attach, AttachStream, DescriptorKind, StdioPlan, request};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::net::TcpSocket;

use super::exec_plan::{ExecAsked, ExecRunning, locate, start};
use super::exec_sync::discard;
use super::{VerbContext, failed, known_sandbox, not_found};
use crate::context::{EngineContext, failure};
use crate::objects::find;
use crate::pod_network;
use crate::streaming::{ExecProcess, ProcessStreams};

/// Starts a process for a client.
pub(crate) async fn exec_streams(calls: VerbContext<'_>, asked: v1::ExecRequest) -> Result<ExecProcess, CriError> {
    let stdio = StdioPlan { terminal: asked.tty, stdin: asked.stdin, stdin_once: false };
    let (stdin, stdout, stderr) = (asked.stdin, asked.stdout, asked.stderr);
    let (container, command) = (asked.container_id, asked.cmd);
    let asked = ExecAsked { call: EXEC, container, command, stdio, deadline: None, sync: false };
    let ExecRunning { descriptors, ended, .. } = start(calls, asked).await?;
    let streams = process_streams(descriptors, [stdin, stdout, stderr]);
    let streams = streams.map_err(|error| CriError::new(Code::Other, EXEC, error.to_string()))?;
    let exit = async {
        let exited = ended.await.map_err(|_| CriError::new(Code::Unavailable, EXEC, "the shim was lost"))?;
        let code = exited.report.map_or(255, |report| report.code);
        Ok(i32::try_from(code).unwrap_or(255))
    };
    Ok(ExecProcess { streams, exit: Box::pin(exit) })
}

/// Output that the client does not want is read and dropped: a closed pipe would end the process.
fn process_streams(descriptors: Descriptors, wanted: [bool; 3]) -> io::Result<ProcessStreams> {
    let [stdin, stdout, stderr] = wanted;
    let mut streams = ProcessStreams::default();
    for (kind, fd) in descriptors {
        match kind {
            DescriptorKind::Pty => return ProcessStreams::of_terminal(fd, stdin, stdout),
            DescriptorKind::Stdin if stdin => streams.stdin = Some(fd),
            DescriptorKind::Stdout if stdout => streams.stdout = Some(fd),
            DescriptorKind::Stderr if stderr => streams.stderr = Some(fd),
            DescriptorKind::Stdout | DescriptorKind::Stderr => discard(fd),
            _ => {}
        }
    }
    Ok(streams)
}

/// Connects to the standard streams of a container.
pub(crate) async fn attach_streams(
    calls: VerbContext<'_>,
    asked: v1::AttachRequest,
) -> Result<ProcessStreams, CriError> {
    let other = |message: String| CriError::new(Code::Other, ATTACH, message);
    let (id, _, link, _) = locate(calls.context, ATTACH, &asked.container_id).await?;
    let (tty, terminal) = {
        let objects = calls.context.objects();
        let entry = objects.containers.get(&id).ok_or_else(|| not_found(ATTACH, "container", &id.0))?;
        (entry.record.config.tty, find(&entry.descriptors, DescriptorKind::Pty))
    };
    let wanted = [
        (asked.stdin, AttachStream::Stdin),
        (asked.stdout, AttachStream::Stdout),
        (asked.stderr && !tty, AttachStream::Stderr),
    ];
    let streams: Vec<AttachStream> = wanted.into_iter().filter(|(wanted, _)| *wanted).map(|(_, s)| s).collect();
    let numbers = streams.iter().map(|stream| i32::from(*stream)).collect();
    let body = request::RequestKind::Attach(Attach { container: id.0, streams: numbers });
    let sockets = match link.call(RequestPacket::new(body), ATTACH_LIMIT).await {
        Ok(ShimAnswer::Done(sockets)) if sockets.len() == streams.len() => sockets,
        Ok(_) => return Err(other("an unexpected answer of the shim".into())),
        Err(error) => return Err(other(error.to_string())),
    };
    let mut attached = ProcessStreams::default();
    for (stream, socket) in streams.into_iter().zip(sockets) {
        match stream {
            AttachStream::Stdin => attached.stdin = Some(socket),
            AttachStream::Stdout => attached.stdout = Some(socket),
            AttachStream::Stderr => attached.stderr = Some(socket),
        }
    }
    let copy = terminal.map(|terminal| terminal.try_clone()).transpose();
    attached.terminal = copy.map_err(|error| other(error.to_string()))?;
    Ok(attached)
}

/// Connects to a port on the loopback interface of a sandbox.
pub(crate) async fn connect_port(calls: VerbContext<'_>, text: &str, port: u16) -> Result<OwnedFd, CriError> {
    let (id, own) = {
        let objects = calls.context.objects();
        let id = known_sandbox(&objects, PORT_FORWARD, text)?;
        let ready = objects.machines.sandbox(&id).is_some_and(|sandbox| sandbox.is_ready());
        let entry = objects.sandboxes.get(&id).filter(|_| ready);
        let entry = entry.ok_or_else(|| CriError::new(Code::Other, PORT_FORWARD, "sandbox is not ready"))?;
        (id.clone(), pod_network::has_own(&entry.record.config))
    };
    let of = id.clone();
    let make = move |context: &EngineContext| -> io::Result<[io::Result<OwnedFd>; 2]> {
        let netns = own.then(|| File::open(context.pins.path(&of.0))).transpose()?;
        // A thread of its own, which ends afterwards: it can not leave the namespace again.
        let thread = std::thread::Builder::new().name("port-forward".into()).spawn(move || {
            if let Some(netns) = netns {
                namespace::enter(&netns, namespace::flags::NEWNET)?;
            }
            Ok([AddressFamily::INET, AddressFamily::INET6].map(unconnected))
        })?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    };
    let made = calls.context.blocking_on(format!("port-forward {id}"), SOCKET_LIMIT, make).await;
    let [v4, v6] = made.map_err(|failure| failed(PORT_FORWARD, &failure))?;
    let connected = match connect(v4, Ipv4Addr::LOCALHOST.into(), port).await {
        // The first error names what users expect.
        Err(error) => connect(v6, Ipv6Addr::LOCALHOST.into(), port).await.map_err(|_| error),
        connected => connected,
    };
    connected.map_err(|error| failed(PORT_FORWARD, &failure(&error)))
}

/// A socket of the namespace of this thread.
fn unconnected(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?)
}

/// A program that does not accept keeps a client waiting. That must not take a thread of the pod, whose other work needs them.
async fn connect(socket: io::Result<OwnedFd>, address: IpAddr, port: u16) -> io::Result<OwnedFd> {
    let connecting = TcpSocket::from_std_stream(TcpStream::from(socket?)).connect(SocketAddr::new(address, port));
    let stream = tokio::time::timeout(CONNECT_TRY, connecting).await.map_err(|_| io::ErrorKind::TimedOut)??;
    Ok(stream.into_std()?.into())
}

const EXEC: &str = "Exec";
const ATTACH: &str = "Attach";
const PORT_FORWARD: &str = "PortForward";
const ATTACH_LIMIT: Duration = Duration::from_secs(30);
const SOCKET_LIMIT: Duration = Duration::from_secs(15);
const CONNECT_TRY: Duration = Duration::from_secs(5);
