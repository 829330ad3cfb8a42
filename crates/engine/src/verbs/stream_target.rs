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

use super::exec_plan::{ExecAsked, ExecRunning, locate, start};
use super::exec_sync::discard;
use super::{VerbContext, failed, known_sandbox, not_found};
use crate::context::EngineContext;
use crate::objects::find;
use crate::pod_network;
use crate::streaming::{ExecProcess, ProcessStreams};

/// Starts a process for a client.
pub(crate) async fn exec_streams(calls: VerbContext<'_>, asked: v1::ExecRequest) -> Result<ExecProcess, CriError> {
    let stdio = StdioPlan { terminal: asked.tty, stdin: asked.stdin, stdin_once: false };
    let (stdin, stdout, stderr) = (asked.stdin, asked.stdout, asked.stderr);
    let (container, command) = (asked.container_id, asked.cmd);
    let asked = ExecAsked { call: EXEC, container, command, stdio, deadline: None, sync: false };
    let ExecRunning { descriptors, ended } = start(calls, asked).await?;
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
    let connect = move |context: &EngineContext| -> io::Result<OwnedFd> {
        let netns = own.then(|| File::open(context.pins.path(&of.0))).transpose()?;
        // A thread of its own, which ends afterwards: it can not leave the namespace again.
        let thread = std::thread::Builder::new().name("port-forward".into()).spawn(move || {
            if let Some(netns) = netns {
                namespace::enter(&netns, namespace::flags::NEWNET)?;
            }
            connect_loopback(port)
        })?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    };
    calls.context.blocking(&id, CONNECT_LIMIT, connect).await.map_err(|failure| failed(PORT_FORWARD, &failure))
}

fn connect_loopback(port: u16) -> io::Result<OwnedFd> {
    let connect = |address: IpAddr| TcpStream::connect_timeout(&SocketAddr::new(address, port), CONNECT_TRY);
    let first = connect(Ipv4Addr::LOCALHOST.into());
    // The first error names what users expect.
    let stream = first.or_else(|error| connect(Ipv6Addr::LOCALHOST.into()).map_err(|_| error))?;
    Ok(stream.into())
}

const EXEC: &str = "Exec";
const ATTACH: &str = "Attach";
const PORT_FORWARD: &str = "PortForward";
const ATTACH_LIMIT: Duration = Duration::from_secs(30);
const CONNECT_LIMIT: Duration = Duration::from_secs(15);
const CONNECT_TRY: Duration = Duration::from_secs(5);
