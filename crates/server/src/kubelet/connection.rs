//! One connection: the TLS handshake, then HTTP/1.1 or HTTP/2, with the limits on what a client may do.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::connections::ConnectionSlot;
use super::phase::{ConnectionPhase, RequestGuard, WatchedIo};
use super::router;
use super::state::ServerState;
use super::tls::ClientChain;
use crate::serve::{HttpResponse, ResponseBody, ResponseKind, TimedWrites, WriteTimeout, catch_panic};

/// The client of a connection.
pub(super) struct ClientConnection {
    pub(super) peer: SocketAddr,
    pub(super) certificates: ClientChain,
    pub(super) slot: Arc<ConnectionSlot>,
}

/// Serves until the client closes the connection, or it expires.
pub(super) async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    config: Arc<ServerConfig>,
    slot: Arc<ConnectionSlot>,
    state: Arc<ServerState>,
) {
    let _ = stream.set_nodelay(true);
    if let Err(error) = enable_keepalive(&stream) {
        tracing::debug!(address = %peer, %error, "TCP keepalive cannot be enabled");
    }
    let stream = match timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(config).accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(address = %peer, %error, "TLS handshake failed"),
        Err(_) => return tracing::debug!(address = %peer, "TLS handshake took too long"),
    };
    let session = stream.get_ref().1;
    let certificates = session.peer_certificates().unwrap_or_default();
    let certificates = certificates.iter().map(|certificate| certificate.clone().into_owned()).collect();
    let http2 = session.alpn_protocol() == Some(b"h2");
    let client = Arc::new(ClientConnection { peer, certificates: ClientChain::new(certificates), slot });
    let phase = ConnectionPhase::new();
    tokio::select! {
        () = serve_http(stream, http2, client, state, phase.clone()) => {}
        () = phase.expired() => tracing::debug!(address = %peer, "idle connection closed"),
    }
}

/// Enables TCP keepalive: detects a client that vanished without closing, also on an idle terminal, which has no other limit.
fn enable_keepalive(stream: &TcpStream) -> rustix::io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_COUNT)?;
    sockopt::set_socket_keepalive(stream, true)
}

async fn serve_http(
    stream: TlsStream<TcpStream>,
    http2: bool,
    client: Arc<ClientConnection>,
    state: Arc<ServerState>,
    phase: ConnectionPhase,
) {
    let kind = ResponseKind::default();
    kind.set(Some(WriteTimeout::After(WRITE_TIMEOUT)));
    let watched = WatchedIo::new(stream, (!http2).then(|| phase.clone()));
    let io = TokioIo::new(TimedWrites::new(watched, kind.clone()));
    let service = service_fn(move |request: Request<Incoming>| {
        let guard = phase.request();
        let response = catch_panic(router::handle(Arc::clone(&state), Arc::clone(&client), request));
        let kind = kind.clone();
        async move {
            let response: HttpResponse = response.await;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                // A terminal may be idle for any time.
                kind.set(Some(WriteTimeout::Never));
            }
            Ok::<_, Infallible>(response.map(|body| GuardedBody { body, _guard: guard }))
        }
    });
    let served = match http2 {
        true => {
            let mut builder = http2::Builder::new(Spawn);
            builder
                .timer(TokioTimer::new())
                .max_header_list_size(HEAD_BYTES_MAX)
                .max_concurrent_streams(H2_STREAMS_MAX);
            builder.keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT).max_send_buf_size(SEND_BUFFER);
            builder.serve_connection(io, service).await
        }
        false => {
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(None).max_header_size(HEAD_BYTES_MAX as usize);
            builder.serve_connection(io, service).with_upgrades().await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "connection ended with an error");
    }
}

/// The body of a response; its request ends with it.
struct GuardedBody {
    body: ResponseBody,
    _guard: RequestGuard,
}

impl Body for GuardedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Runs the streams of HTTP/2 connections as supervised tasks.
#[derive(Clone, Copy)]
struct Spawn;

impl<F> hyper::rt::Executor<F> for Spawn
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        podwright_tasks::spawn("http2-stream", future);
    }
}

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A client that reads nothing for this long is disconnected.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of the header of a request.
pub(super) const HEAD_BYTES_MAX: u32 = 64 << 10;
/// Requests at once on one connection: the API server sends all of its requests over one.
const H2_STREAMS_MAX: u32 = 128;
/// Bytes per stream.
const SEND_BUFFER: usize = 64 << 10;
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// As Go's net package does for accepted connections: 15 s, 15 s, 9 probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_COUNT: u32 = 9;

#[cfg(test)]
mod tests {
    use rustix::net::sockopt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn accepted_connections_have_keepalive() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        enable_keepalive(&accepted).unwrap();
        assert!(sockopt::socket_keepalive(&accepted).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&accepted), Ok(Duration::from_secs(15)));
        assert_eq!(sockopt::tcp_keepintvl(&accepted), Ok(Duration::from_secs(15)));
        assert_eq!(sockopt::tcp_keepcnt(&accepted), Ok(9));
    }
}
