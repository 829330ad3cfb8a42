//! An HTTP/1.1 server with bounded resources: a maximum number of connections, a time limit on each, one request per connection.
//!
//! Both the address of `--listen` and the local API's socket use it; they differ in listener and handler. A streaming response
//! carries a [`WriteTimeout`] in its extensions, which then replaces the time limit of the connection.

mod response;
mod write_timeout;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use http::header::CONNECTION;
use http::{HeaderValue, Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

pub(crate) use response::{
    HttpResponse, ResponseBody, complete, compressed, json, prometheus_text, respond_and_drain, stream, text, too_many,
    try_frames, try_stream,
};
pub(crate) use write_timeout::{ResponseKind, TimedWrites, WriteTimeout};

/// Accepts connections: a TCP listener, or the local API's socket.
pub(crate) trait ConnectionListener: Send + 'static {
    /// An accepted connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Connections served at the same time.
    const CONNECTIONS_MAX: usize;
    /// What happens with more of them.
    const WHEN_FULL: WhenFull;
    /// The next connection; `None` if its peer was rejected.
    fn next(&self) -> impl Future<Output = io::Result<Option<Self::Stream>>> + Send;
}

/// What an open stream holds until it ends: a permit.
pub(crate) type StreamGuard = Box<dyn Send + Sync>;

/// How a listener treats connections beyond its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenFull {
    /// They wait in the kernel's accept queue. For peers that are trusted and for long streams.
    Wait,
    /// The oldest one is closed. Any local user may open connections and not use them; a request for health, which takes less than a
    /// millisecond, is always served.
    CloseOldest,
}

impl ConnectionListener for TcpListener {
    type Stream = TcpStream;
    const CONNECTIONS_MAX: usize = TCP_CONNECTIONS_MAX;
    const WHEN_FULL: WhenFull = WhenFull::CloseOldest;

    async fn next(&self) -> io::Result<Option<TcpStream>> {
        Ok(Some(self.accept().await?.0))
    }
}

/// Serves until `stop` is cancelled. Open connections then get [`DRAIN_TIMEOUT`] to finish.
pub(crate) async fn serve<L, F, R>(listener: L, handler: F, stop: CancellationToken)
where
    L: ConnectionListener,
    F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
    R: Future<Output = HttpResponse> + Send + 'static,
{
    let mut slots = Slots::new(L::CONNECTIONS_MAX);
    loop {
        if L::WHEN_FULL == WhenFull::Wait {
            slots.wait_for_one().await;
        }
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.next() => match accepted {
                Ok(Some(stream)) => stream,
                Ok(None) => continue,
                Err(error) => {
                    // Mostly EMFILE, which passes when other descriptors are closed.
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            },
        };
        let (permit, closed) = slots.take().await;
        let (handler, stop) = (handler.clone(), stop.clone());
        podwright_tasks::spawn("http-connection", async move {
            let _closed = closed.clone().drop_guard();
            tokio::select! {
                () = serve_connection(stream, handler, stop) => {}
                () = closed.cancelled() => tracing::debug!("connection closed in favour of a newer one"),
            }
            drop(permit);
        });
    }
}

/// The connections of one listener.
struct Slots {
    permits: Arc<Semaphore>,
    max: usize,
    /// Oldest first; cancelled when the connection is closed, or in order to close it.
    open: VecDeque<CancellationToken>,
}

impl Slots {
    fn new(max: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(max)), max, open: VecDeque::new() }
    }

    /// Waits until a connection may be opened.
    async fn wait_for_one(&self) {
        drop(self.permits.acquire().await.expect("never closed"));
    }

    /// A slot for a new connection; closes the oldest one if there is none. The token ends the connection.
    async fn take(&mut self) -> (OwnedSemaphorePermit, CancellationToken) {
        if self.open.len() >= 2 * self.max {
            self.open.retain(|open| !open.is_cancelled());
        }
        if self.permits.available_permits() == 0 {
            while self.open.pop_front().is_some_and(|oldest| {
                let ended = oldest.is_cancelled();
                oldest.cancel();
                ended
            }) {}
        }
        let permit = Arc::clone(&self.permits).acquire_owned().await.expect("never closed");
        let closed = CancellationToken::new();
        self.open.push_back(closed.clone());
        (permit, closed)
    }
}

async fn serve_connection<S, F, R>(stream: S, handler: F, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
    R: Future<Output = HttpResponse> + Send + 'static,
{
    let kind = ResponseKind::default();
    let service_kind = kind.clone();
    let service = service_fn(move |request| {
        let (response, kind) = (catch_panic(handler(request)), service_kind.clone());
        async move {
            let mut response = response.await;
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                // An idle connection would occupy one of the limited slots.
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            kind.set(response.extensions().get::<WriteTimeout>().copied());
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(BUFFER_MAX)
        .serve_connection(TokioIo::new(TimedWrites::new(stream, kind.clone())), service)
        .with_upgrades();
    tokio::select! {
        _ = connection => {}
        // Closes the connection of a client that reads too slowly.
        () = kind.expire_after(CONNECTION_TIMEOUT) => {}
        () = async { stop.cancelled().await; tokio::time::sleep(DRAIN_TIMEOUT).await } => {}
    }
}

/// A panic in a handler fails its own request only.
pub(crate) async fn catch_panic(response: impl Future<Output = HttpResponse>) -> HttpResponse {
    match AssertUnwindSafe(response).catch_unwind().await {
        Ok(response) => response,
        Err(_) => {
            tracing::error!("request handler panicked");
            text(StatusCode::INTERNAL_SERVER_ERROR, "the request handler panicked; see the agent's log")
        }
    }
}

/// For a few monitors and users; each connection holds some kilobytes.
pub(crate) const TCP_CONNECTIONS_MAX: usize = 64;
/// For the request's header.
pub(crate) const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// For the agent to produce a response.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// For the whole connection, slow readers included, unless the response is a stream.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of the request header, and of the write buffer.
const BUFFER_MAX: usize = 16 << 10;
/// For open connections after `stop`.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
