//! One client on its upgraded connection, from the first stream to the end.

use std::time::Duration;

use podwright_tasks::error_chain;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use super::StreamTarget;
use super::handshake::Handshake;
use super::port_forward::{forward_channels, forward_pairs};
use super::remote_command::{ClientStreams, CommandProtocol, RequestedStreams, readable_channels, run_command};
use super::spdy::serve_spdy;
use super::streams::OpenedStream;
use super::token::StreamRequest;
use super::websocket::{ChannelCodec, accept, is_disconnect, pump_tunnel, serve_channels};

/// Runs the session and closes the connection.
pub(super) async fn run_session<T: AsyncRead + AsyncWrite + Unpin>(
    transport: T,
    target: &dyn StreamTarget,
    request: StreamRequest,
    handshake: Handshake,
) {
    tracing::debug!(url = request.path(), protocol = ?handshake, "streaming session started");
    match handshake {
        Handshake::SpdyCommand(protocol) => spdy_command(transport, target, request, protocol).await,
        Handshake::WebSocketCommand(codec, protocol) => {
            websocket_command(transport, target, request, codec, protocol).await;
        }
        Handshake::SpdyPortForward => spdy_port_forward(transport, target, &request).await,
        Handshake::TunneledPortForward => {
            let socket = accept(transport).await;
            let (ours, theirs) = tokio::io::duplex(TUNNEL_BUFFER);
            let (_, pumped) = tokio::join!(spdy_port_forward(ours, target, &request), pump_tunnel(socket, theirs));
            log_websocket_error(pumped);
        }
        Handshake::WebSocketPortForward(codec) => websocket_port_forward(transport, target, &request, codec).await,
    }
}

async fn spdy_command<T: AsyncRead + AsyncWrite + Unpin>(
    transport: T,
    target: &dyn StreamTarget,
    request: StreamRequest,
    protocol: CommandProtocol,
) {
    let Some(requested) = requested_streams(&request) else { return };
    let session = async |mut opened: mpsc::Receiver<OpenedStream>| {
        let client = ClientStreams::of_spdy(&mut opened, requested, protocol).await;
        // Streams that the client opens from now on are refused.
        drop(opened);
        match client {
            Some(client) => run_command(target, request, client).await,
            None => tracing::debug!("client has not opened its streams in time"),
        }
    };
    log_spdy_error(serve_spdy(transport, COMMAND_STREAMS_MAX, IDLE_TIMEOUT, session).await);
}

async fn websocket_command<T: AsyncRead + AsyncWrite + Unpin>(
    transport: T,
    target: &dyn StreamTarget,
    request: StreamRequest,
    codec: ChannelCodec,
    protocol: CommandProtocol,
) {
    let Some(requested) = requested_streams(&request) else { return };
    let session = async |channels| {
        let client = ClientStreams::of_channels(channels, requested, protocol).await;
        run_command(target, request, client).await;
    };
    let socket = accept(transport).await;
    log_websocket_error(serve_channels(socket, codec, &readable_channels(requested), IDLE_TIMEOUT, session).await);
}

async fn spdy_port_forward<T: AsyncRead + AsyncWrite + Unpin>(
    transport: T,
    target: &dyn StreamTarget,
    request: &StreamRequest,
) {
    let StreamRequest::PortForward(request) = request else { return };
    let session = async |opened| forward_pairs(target, &request.pod_sandbox_id, opened).await;
    log_spdy_error(serve_spdy(transport, FORWARD_STREAMS_MAX, IDLE_TIMEOUT, session).await);
}

async fn websocket_port_forward<T: AsyncRead + AsyncWrite + Unpin>(
    transport: T,
    target: &dyn StreamTarget,
    request: &StreamRequest,
    codec: ChannelCodec,
) {
    let StreamRequest::PortForward(request) = request else { return };
    // The request was checked when its URL was made.
    let ports: Vec<u16> = request.port.iter().filter_map(|port| u16::try_from(*port).ok()).collect();
    let readable: Vec<bool> = ports.iter().flat_map(|_| [true, false]).collect();
    let session = async |channels| forward_channels(target, &request.pod_sandbox_id, &ports, channels).await;
    let socket = accept(transport).await;
    log_websocket_error(serve_channels(socket, codec, &readable, IDLE_TIMEOUT, session).await);
}

/// `None` for a port-forward.
fn requested_streams(request: &StreamRequest) -> Option<RequestedStreams> {
    match request {
        StreamRequest::Exec(r) => {
            Some(RequestedStreams { stdin: r.stdin, stdout: r.stdout, stderr: r.stderr, tty: r.tty })
        }
        StreamRequest::Attach(r) => {
            Some(RequestedStreams { stdin: r.stdin, stdout: r.stdout, stderr: r.stderr, tty: r.tty })
        }
        StreamRequest::PortForward(_) => None,
    }
}

fn log_spdy_error(result: Result<(), super::spdy::SpdyError>) {
    if let Err(error) = result {
        tracing::debug!(error = error_chain(&error), "streaming session ended");
    }
}

fn log_websocket_error(result: Result<(), tokio_tungstenite::tungstenite::Error>) {
    if let Err(error) = result
        && !is_disconnect(&error)
    {
        tracing::debug!(error = error_chain(&error), "streaming session ended");
    }
}

/// cri-streaming: `StreamIdleTimeout`.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4 * 3600);
/// Five are used.
const COMMAND_STREAMS_MAX: usize = 8;
/// Two per forwarded connection.
const FORWARD_STREAMS_MAX: usize = 512;
/// Bytes between the WebSocket and SPDY, per direction.
const TUNNEL_BUFFER: usize = 64 << 10;
