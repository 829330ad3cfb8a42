//! Port-forward: pairs of a data and an error stream, each pair one connection to a port of the sandbox.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream as StdTcpStream;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::StreamTarget;
use super::streams::{OpenedStream, StreamInput, StreamOutput};
use super::websocket::Channels;

/// Forwards every pair of streams that a SPDY client opens, until it disconnects.
pub(super) async fn forward_pairs(
    target: &dyn StreamTarget,
    sandbox_id: &str,
    mut opened: mpsc::Receiver<OpenedStream>,
) {
    let mut incomplete: BTreeMap<String, HalfPair> = BTreeMap::new();
    let mut running = FuturesUnordered::new();
    loop {
        let oldest = incomplete.values().map(|half| half.since + STREAM_CREATION_TIMEOUT).min();
        tokio::select! {
            stream = opened.recv() => {
                let Some(stream) = stream else { return };
                if let Some(pair) = take_pair(&mut incomplete, stream).await {
                    running.push(forward_pair(target, sandbox_id, pair));
                }
            }
            () = sleep_until(oldest) => {
                let late = |half: &HalfPair| half.since + STREAM_CREATION_TIMEOUT <= Instant::now();
                for (request, half) in incomplete.extract_if(.., |_, half| late(half)) {
                    tracing::debug!(stream = request, "second stream of a port-forward has not come");
                    half.stream.fail("timed out waiting for streams").await;
                }
            }
            Some(()) = running.next() => {}
        }
    }
}

/// The first stream of a pair.
struct HalfPair {
    stream: ForwardStream,
    since: Instant,
}

struct ForwardStream {
    stream: OpenedStream,
    port: u16,
    /// The data stream; else the error stream.
    is_data: bool,
}

struct Pair {
    data: ForwardStream,
    error: ForwardStream,
}

/// Finds the other stream of the same request. `None`: it has not come yet, or the stream was refused.
async fn take_pair(incomplete: &mut BTreeMap<String, HalfPair>, stream: OpenedStream) -> Option<Pair> {
    let kind = stream.headers.get("streamtype").map(String::as_str);
    let port = stream.headers.get("port").and_then(|port| port.parse().ok()).filter(|port| *port > 0);
    let is_data = match kind {
        Some("data") => true,
        Some("error") => false,
        _ => return refuse(stream).await,
    };
    let Some(port) = port else { return refuse(stream).await };
    // Old clients send no request id; their two streams have consecutive ids, the error stream first.
    let old_id = if is_data { stream.id.wrapping_sub(2) } else { stream.id };
    let request = stream.headers.get("requestid").cloned().unwrap_or_else(|| old_id.to_string());
    let stream = ForwardStream { stream, port, is_data };
    match incomplete.remove(&request) {
        None => {
            incomplete.insert(request, HalfPair { stream, since: Instant::now() });
            None
        }
        Some(first) if first.stream.is_data == is_data => {
            stream.fail("the request has a stream of this type already").await;
            incomplete.insert(request, first);
            None
        }
        Some(HalfPair { stream: first, .. }) => {
            let (data, error) = if is_data { (stream, first) } else { (first, stream) };
            Some(Pair { data, error })
        }
    }
}

async fn refuse(stream: OpenedStream) -> Option<Pair> {
    tracing::debug!(stream = ?stream.headers, "invalid port-forward stream");
    let _ = stream.output.reset().await;
    None
}

impl ForwardStream {
    async fn fail(self, message: &str) {
        if !self.is_data {
            let _ = self.stream.output.write(Bytes::copy_from_slice(message.as_bytes())).await;
        }
        let _ = self.stream.output.reset().await;
    }
}

async fn forward_pair(target: &dyn StreamTarget, sandbox_id: &str, pair: Pair) {
    let Pair { data, error } = pair;
    let OpenedStream { input, output, reset, .. } = data.stream;
    let forwarded = tokio::select! {
        forwarded = forward(target, sandbox_id, data.port, input, &output) => forwarded,
        // The client is not interested any more; dropping the socket closes it.
        () = reset.cancelled() => return,
        () = error.stream.reset.cancelled() => return,
    };
    match forwarded {
        Ok(()) => {
            let _ = output.finish().await;
            let _ = error.stream.output.finish().await;
        }
        Err(message) => {
            let message = format!("error forwarding port {} to pod {sandbox_id}: {message}", data.port);
            tracing::debug!(sandbox_id, error = message, "port-forward failed");
            let _ = error.stream.output.write(message.into()).await;
            let _ = error.stream.output.finish().await;
            let _ = output.reset().await;
        }
    }
}

/// Forwards each requested port of a WebSocket client on two channels, data and error. The first message on both is the port.
pub(super) async fn forward_channels(target: &dyn StreamTarget, sandbox_id: &str, ports: &[u16], channels: Channels) {
    let mut outputs = channels.outputs.into_iter();
    let mut inputs = channels.inputs.into_iter().step_by(2);
    let mut running = FuturesUnordered::new();
    for &port in ports {
        let (Some(data), Some(error)) = (outputs.next(), outputs.next()) else { return };
        let Some(Some(input)) = inputs.next() else { return };
        let announced = Bytes::copy_from_slice(&port.to_le_bytes());
        if data.write(announced.clone()).await.is_err() || error.write(announced).await.is_err() {
            return;
        }
        running.push(async move {
            if let Err(message) = forward(target, sandbox_id, port, input, &data).await {
                let message = format!("error forwarding port {port} to pod {sandbox_id}: {message}");
                let _ = error.write(message.into()).await;
            }
        });
    }
    while running.next().await.is_some() {}
}

/// Why a port could not be forwarded; the client reads it.
#[derive(Debug, thiserror::Error)]
enum ForwardError {
    #[error("the connection was not made in time")]
    Late,
    #[error("{}", .0.message)]
    Connect(podwright_cri::CriError),
    #[error("use the connection: {0}")]
    Socket(#[from] io::Error),
}

async fn forward(
    target: &dyn StreamTarget,
    sandbox_id: &str,
    port: u16,
    mut input: StreamInput,
    output: &StreamOutput,
) -> Result<(), ForwardError> {
    let connected = timeout(CONNECT_TIMEOUT, target.port_forward(sandbox_id, port)).await;
    let socket = connected.map_err(|_| ForwardError::Late)?.map_err(ForwardError::Connect)?;
    let socket = StdTcpStream::from(socket);
    socket.set_nonblocking(true)?;
    let (mut from, mut to) = TcpStream::from_std(socket)?.into_split();
    let to_pod = async {
        while let Some(chunk) = input.next().await {
            if to.write_all(&chunk).await.is_err() {
                break;
            }
        }
        // A half-close of the client reaches the pod; the answer may still come.
        let _ = to.shutdown().await;
    };
    let to_client = async {
        loop {
            let mut chunk = bytes::BytesMut::with_capacity(CHUNK);
            match from.read_buf(&mut chunk).await {
                Ok(0) => return Ok(()),
                Ok(_) if output.write(chunk.freeze()).await.is_ok() => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    };
    let mut to_pod = std::pin::pin!(to_pod);
    let mut to_client = std::pin::pin!(to_client);
    tokio::select! {
        result = &mut to_client => {
            let _ = timeout(CLOSE_TIMEOUT, to_pod).await;
            result?;
        }
        () = &mut to_pod => to_client.await?,
    }
    Ok(())
}

async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// cri-streaming: `DefaultStreamCreationTimeout`.
const STREAM_CREATION_TIMEOUT: Duration = Duration::from_secs(30);
/// To a port of the same host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// For data of the client after the pod has closed its half (containerd: one second too).
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
const CHUNK: usize = 32 << 10;
