//! `podwright port-forward`: ports of this host that lead to ports of a pod.
//!
//! ```text
//!  local client ─▶ listener ─▶ one request to the agent per connection ─▶ SPDY: a data and an error stream ─▶ port in the sandbox
//! ```
//! Each connection has a request of its own: a client that reads slowly does not block the others, and connections made after a
//! restart of the agent or of the pod work again.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::sleep;

use super::spdy::{self, Sender, SpdyFrame, StreamId};
use super::upgrade::upgrade;
use super::{Client, ClientError, find, pod_path, print};
use crate::cli::{ListenAddress, PodPort, PortForwardFlags, PortPair, pod_name};
use crate::print::plain;

const PROTOCOL: &str = "portforward.k8s.io";
/// Forwarded connections at once; more wait to be accepted. The agent serves 200 streams for all commands.
const CONNECTIONS_MAX: usize = 100;
/// Before the next attempt after an error such as too many open files.
const ACCEPT_DELAY: Duration = Duration::from_millis(200);
/// Bytes of the error stream.
const ERROR_MAX: usize = 4096;
/// Pings of the server that are not answered yet.
const PONGS_MAX: usize = 16;

/// Forwards until it is interrupted, or the pod does not exist any more.
pub(super) async fn run(flags: &PortForwardFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    let pod = find(&client, flags.namespace(), pod_name(&flags.pod)?).await?;
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("unknown");
    if phase != "Running" {
        let message = format!("unable to forward port because pod is not running. Current status={phase}");
        return Err(ClientError::Refused { code: 400, message });
    }
    let mut bound = vec![];
    for pair in &flags.ports {
        let remote = remote_port(&pod, &pair.remote)?;
        bound.extend(bind(&flags.address, pair, remote).await?.into_iter().map(|listener| (listener, remote)));
    }
    let target = Arc::new(ForwardTarget {
        client,
        path: format!("{}/portforward", pod_path(&pod)),
        permits: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
    });
    let (ended, mut end) = mpsc::channel(1);
    for (listener, remote) in bound {
        let local = listener.local_addr().map_err(|error| target.client.failed(error))?;
        print(&format!("Forwarding from {local} -> {remote}\n"));
        podwright_tasks::spawn("port-forward", accept(listener, remote, Arc::clone(&target), ended.clone()));
    }
    match end.recv().await {
        Some(error) => Err(error),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// What all connections lead to.
struct ForwardTarget {
    client: Client,
    path: String,
    permits: Arc<Semaphore>,
}

fn remote_port(pod: &Pod, port: &PodPort) -> Result<u16, ClientError> {
    let name = match port {
        PodPort::Number(port) => return Ok(*port),
        PodPort::Named(name) => name,
    };
    let spec = pod.spec.iter();
    let containers = spec.flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let found =
        ports.find(|port| port.name.as_deref() == Some(name)).and_then(|port| u16::try_from(port.container_port).ok());
    let pod = pod.metadata.name.as_deref().unwrap_or_default();
    found.ok_or_else(|| ClientError::Usage(format!("no container of pod {pod:?} has a port named {name:?}")))
}

/// Listens on every address. Of the two loopback addresses one is enough: a host may have no IPv6.
async fn bind(addresses: &[ListenAddress], pair: &PortPair, remote: u16) -> Result<Vec<TcpListener>, ClientError> {
    let mut listeners: Vec<TcpListener> = vec![];
    let mut port = pair.local.unwrap_or(remote);
    for address in addresses {
        let (mut failed, mut bound) = (None, false);
        for ip in address.all() {
            match TcpListener::bind((ip, port)).await {
                Ok(listener) => {
                    // A free port is chosen once, and used for the other addresses too.
                    port = listener.local_addr().map_or(port, |local| local.port());
                    listeners.push(listener);
                    bound = true;
                }
                Err(error) => failed = Some(cannot_listen(ip, port, &error)),
            }
        }
        if let (false, Some(error)) = (bound, failed) {
            return Err(error);
        }
    }
    Ok(listeners)
}

fn cannot_listen(ip: IpAddr, port: u16, error: &io::Error) -> ClientError {
    let fix = match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!(": use another local port, as in {}:REMOTE, or :REMOTE for any", port.wrapping_add(1).max(1024))
        }
        _ => String::new(),
    };
    ClientError::Refused { code: 409, message: format!("cannot listen on {}: {error}{fix}", SocketAddr::new(ip, port)) }
}

async fn accept(listener: TcpListener, remote: u16, target: Arc<ForwardTarget>, ended: mpsc::Sender<ClientError>) {
    let local = listener.local_addr().map_or(0, |local| local.port());
    loop {
        let permit = Arc::clone(&target.permits).acquire_owned().await;
        let (stream, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                eprintln!("podwright: accept a connection on port {local}: {error}");
                sleep(ACCEPT_DELAY).await;
                continue;
            }
        };
        print(&format!("Handling connection for {local}\n"));
        let (target, ended) = (Arc::clone(&target), ended.clone());
        podwright_tasks::spawn("port-forward-connection", async move {
            let _permit = permit;
            match forward(&target, stream, remote).await {
                Err(error) if error.is_not_found() => _ = ended.try_send(error),
                Err(error) => eprintln!("podwright: {error}"),
                Ok(Some(message)) => eprintln!("podwright: {message}"),
                Ok(None) => {}
            }
        });
    }
}

/// Forwards one connection to its end. The result is the error that the runtime reports.
async fn forward(target: &ForwardTarget, local: TcpStream, remote: u16) -> Result<Option<String>, ClientError> {
    let _ = local.set_nodelay(true);
    let io = upgrade(&target.client, &target.path, PROTOCOL).await?;
    copy(io, local, remote).await.map_err(|error| target.client.failed(error))
}

async fn copy(
    io: impl AsyncRead + AsyncWrite,
    local: impl AsyncRead + AsyncWrite,
    remote: u16,
) -> io::Result<Option<String>> {
    let (from, to) = tokio::io::split(io);
    let (local_reads, local_writes) = tokio::io::split(local);
    let mut to = Sender::new(to);
    let port = remote.to_string();
    let headers = |kind| [("streamtype", kind), ("port", port.as_str()), ("requestid", "0")];
    let error = to.open_with(&headers("error")).await?;
    to.data(error, &[], true).await?;
    let data = to.open_with(&headers("data")).await?;
    let (pongs, pings) = mpsc::channel(PONGS_MAX);
    let receiving = receive(from, local_writes, (data, error), pongs);
    tokio::pin!(receiving);
    tokio::select! {
        received = &mut receiving => received,
        sent = send(to, local_reads, data, pings) => match sent {
            Ok(LocalClientGone) => Ok(None),
            // The server does not read any more; its reason may still come.
            Err(_) => receiving.await,
        },
    }
}

/// The local client has reset its connection: it does not read the answer either.
struct LocalClientGone;

/// Sends what the local client writes, to the end; then only answers pings.
async fn send<W: AsyncWrite + Unpin>(
    mut to: Sender<W>,
    mut local: impl AsyncRead + Unpin,
    data: StreamId,
    mut pings: mpsc::Receiver<u32>,
) -> io::Result<LocalClientGone> {
    let (mut chunk, mut open) = (vec![0; spdy::CHUNK], true);
    loop {
        tokio::select! {
            Some(id) = pings.recv() => to.pong(id).await?,
            read = local.read(&mut chunk), if open => {
                let Ok(read) = read else { return Ok(LocalClientGone) };
                to.data(data, &chunk[..read], read == 0).await?;
                open = read > 0;
            }
            else => return Ok(LocalClientGone),
        }
    }
}

/// Writes what the pod sends, until one of both ends closes.
async fn receive(
    mut from: impl AsyncRead + Unpin,
    mut local: impl AsyncWrite + Unpin,
    (data, error): (StreamId, StreamId),
    pongs: mpsc::Sender<u32>,
) -> io::Result<Option<String>> {
    let (mut message, mut data_ended, mut error_ended) = (Vec::new(), false, false);
    while !(data_ended && error_ended) {
        match spdy::receive(&mut from).await? {
            Some(SpdyFrame::Data { stream, data: bytes, last }) if stream == data => {
                // A local client that has closed its end is no error.
                if local.write_all(&bytes).await.is_err() {
                    return Ok(None);
                }
                if last {
                    data_ended = true;
                    let _ = local.shutdown().await;
                }
            }
            Some(SpdyFrame::Data { stream, data: bytes, last }) if stream == error => {
                let room = ERROR_MAX.saturating_sub(message.len());
                message.extend_from_slice(&bytes[..bytes.len().min(room)]);
                error_ended |= last;
            }
            Some(SpdyFrame::Reset { stream }) if stream == data => data_ended = true,
            Some(SpdyFrame::Reset { stream }) if stream == error => error_ended = true,
            Some(SpdyFrame::Ping(id)) => _ = pongs.try_send(id),
            Some(SpdyFrame::Data { .. } | SpdyFrame::Reset { .. } | SpdyFrame::Other) => {}
            Some(SpdyFrame::GoAway) | None => break,
        }
    }
    Ok((!message.is_empty()).then(|| plain(&String::from_utf8_lossy(&message))))
}
