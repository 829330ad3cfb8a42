//! The listener: HTTP requests with a token are upgraded to SPDY or WebSocket.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::StreamTarget;
use super::handshake::{Handshake, Refused, negotiate};
use super::session::run_session;
use super::token::{PendingRequests, StreamRequest};

type HttpResponse = Response<Full<bytes::Bytes>>;

/// Accepts connections, for ever.
pub(super) async fn serve(listener: TcpListener, pending: Arc<PendingRequests>, target: Arc<dyn StreamTarget>) {
    let sessions = Arc::new(Semaphore::new(SESSIONS_MAX));
    let mut waiting = WaitingConnections::default();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "streaming connection is not accepted");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let connection = Connection {
            pending: Arc::clone(&pending),
            target: Arc::clone(&target),
            sessions: Arc::clone(&sessions),
            evicted: waiting.add(),
        };
        podwright_tasks::spawn("streaming-connection", connection.run(stream));
    }
}

/// Connections that have not shown a token. Every process on the host can make them: when there are too many, the oldest is
/// closed, so that they cannot keep others out.
#[derive(Default)]
struct WaitingConnections(VecDeque<CancellationToken>);

impl WaitingConnections {
    fn add(&mut self) -> CancellationToken {
        self.0.retain(|connection| !connection.is_cancelled());
        if self.0.len() >= WAITING_MAX
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.cancel();
        }
        let connection = CancellationToken::new();
        self.0.push_back(connection.clone());
        connection
    }
}

struct Connection {
    pending: Arc<PendingRequests>,
    target: Arc<dyn StreamTarget>,
    sessions: Arc<Semaphore>,
    /// Cancelled by the listener to close the connection, or by this connection when it waits no more.
    evicted: CancellationToken,
}

/// An upgrade that was accepted.
struct Accepted {
    request: StreamRequest,
    handshake: Handshake,
    upgrade: OnUpgrade,
    _slot: OwnedSemaphorePermit,
}

impl Connection {
    async fn run(self, stream: TcpStream) {
        // Keystrokes are small packets.
        let _ = stream.set_nodelay(true);
        let accepted = Mutex::new(None);
        let service = service_fn(|request| {
            let response = self.answer(request).map_or_else(Refused::into_response, |(response, session)| {
                *accepted.lock().expect("no panic under this lock") = Some(session);
                response
            });
            async { Ok::<_, Infallible>(response) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(REQUEST_TIMEOUT)
            .max_buf_size(HEADER_MAX)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        tokio::select! {
            result = tokio::time::timeout(REQUEST_TIMEOUT, connection) => {
                if let Ok(Err(error)) = result {
                    tracing::debug!(%error, "streaming request failed");
                }
            }
            () = self.evicted.cancelled() => return,
        }
        self.evicted.cancel();
        let Some(accepted) = accepted.into_inner().expect("no panic under this lock") else { return };
        let Accepted { request, handshake, upgrade, _slot } = accepted;
        match tokio::time::timeout(REQUEST_TIMEOUT, upgrade).await {
            Ok(Ok(upgraded)) => run_session(TokioIo::new(upgraded), &*self.target, request, handshake).await,
            Ok(Err(error)) => tracing::debug!(%error, "streaming connection is not upgraded"),
            Err(_) => tracing::debug!("streaming connection is not upgraded in time"),
        }
    }

    fn answer(&self, mut request: Request<Incoming>) -> Result<(HttpResponse, Accepted), Refused> {
        if request.method() != Method::GET && request.method() != Method::POST {
            return Err(Refused::new(StatusCode::METHOD_NOT_ALLOWED, "GET or POST"));
        }
        let not_found = || Refused::new(StatusCode::NOT_FOUND, "404 page not found");
        let path = request.uri().path().strip_prefix('/').and_then(|path| path.split_once('/'));
        let (kind, token) = path.ok_or_else(not_found)?;
        let stream_request = self.pending.take(token, Instant::now()).ok_or_else(not_found)?;
        if stream_request.path() != kind {
            return Err(not_found());
        }
        let (handshake, headers) = negotiate(request.headers(), &stream_request)?;
        let busy = |_| Refused::new(StatusCode::SERVICE_UNAVAILABLE, "too many streaming sessions; try again later");
        let slot = Arc::clone(&self.sessions).try_acquire_owned().map_err(busy)?;
        let upgrade = hyper::upgrade::on(&mut request);
        let accepted = Accepted { request: stream_request, handshake, upgrade, _slot: slot };
        Ok((switching_protocols(headers), accepted))
    }
}

fn switching_protocols(headers: Vec<(HeaderName, HeaderValue)>) -> HttpResponse {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let all: &mut HeaderMap = response.headers_mut();
    all.extend(headers.into_iter().map(|(name, value)| (Some(name), value)));
    all.insert(CONNECTION, HeaderValue::from(UPGRADE));
    response
}

impl Refused {
    fn into_response(self) -> HttpResponse {
        let mut response = Response::new(Full::from(format!("{}\n", self.message)));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        response.headers_mut().extend(self.headers.into_iter().map(|(name, value)| (Some(name), value)));
        response
    }
}

/// Sessions at once. Each has a task and some buffers, its process costs more.
const SESSIONS_MAX: usize = 512;
/// Connections without a token. The clients of the CRI connect at once.
const WAITING_MAX: usize = 64;
/// From the connection to the upgrade.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of the request.
const HEADER_MAX: usize = 16 << 10;
/// Pause after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_waiting_connection_makes_place_for_a_new_one() {
        let mut waiting = WaitingConnections::default();
        let connections: Vec<_> = (0..WAITING_MAX).map(|_| waiting.add()).collect();
        connections[3].cancel();
        let _free = waiting.add();
        assert!(!connections[0].is_cancelled(), "one had ended");
        let _new = waiting.add();
        assert!(connections[0].is_cancelled());
        assert!(!connections[1].is_cancelled());
    }
}
