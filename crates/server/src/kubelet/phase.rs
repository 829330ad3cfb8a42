//! What a connection is doing, and for how long it may.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Shared by a connection, its IO and its requests.
#[derive(Clone, Debug)]
pub(super) struct ConnectionPhase(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    phase: Mutex<Phase>,
    changed: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// No request.
    Idle { since: Instant },
    /// The first bytes of a request have arrived.
    Head { since: Instant },
    /// Requests that are not yet answered completely.
    Busy(usize),
}

/// One request; dropped when its response is sent, or its connection upgraded.
pub(super) struct RequestGuard(ConnectionPhase);

impl ConnectionPhase {
    pub(super) fn new() -> Self {
        // A client that opens a connection has a request.
        let phase = Mutex::new(Phase::Head { since: Instant::now() });
        Self(Arc::new(Shared { phase, changed: Notify::new() }))
    }

    /// A request begins.
    pub(super) fn request(&self) -> RequestGuard {
        let mut phase = self.lock();
        *phase = match *phase {
            Phase::Busy(requests) => Phase::Busy(requests + 1),
            Phase::Idle { .. } | Phase::Head { .. } => Phase::Busy(1),
        };
        self.0.changed.notify_one();
        drop(phase);
        RequestGuard(self.clone())
    }

    fn bytes_read(&self) {
        let mut phase = self.lock();
        if let Phase::Idle { .. } = *phase {
            *phase = Phase::Head { since: Instant::now() };
            self.0.changed.notify_one();
        }
    }

    /// A response that is complete may still be on its way to a slow client. One that reads nothing is closed by the time limit of
    /// writes.
    fn bytes_written(&self) {
        if let Phase::Idle { since } = &mut *self.lock() {
            *since = Instant::now();
            self.0.changed.notify_one();
        }
    }

    /// Completes when the connection was idle for too long, or a request took too long to arrive.
    pub(super) async fn expired(&self) {
        loop {
            let until = match *self.lock() {
                Phase::Idle { since } => Some(since + IDLE_MAX),
                Phase::Head { since } => Some(since + HEAD_MAX),
                Phase::Busy(_) => None,
            };
            let wait = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wait => return,
                () = self.0.changed.notified() => {}
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.0.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut phase = self.0.lock();
        *phase = match *phase {
            Phase::Busy(requests) if requests > 1 => Phase::Busy(requests - 1),
            _ => Phase::Idle { since: Instant::now() },
        };
        self.0.0.changed.notify_one();
    }
}

/// Reports the bytes that arrive and leave. Only for HTTP/1.1: the frames of HTTP/2 are not only requests.
pub(super) struct WatchedIo<S> {
    stream: S,
    phase: Option<ConnectionPhase>,
}

impl<S> WatchedIo<S> {
    pub(super) fn new(stream: S, phase: Option<ConnectionPhase>) -> Self {
        Self { stream, phase }
    }

    fn record_write(&self, written: &Poll<io::Result<usize>>) {
        if let (Some(phase), Poll::Ready(Ok(1..))) = (&self.phase, written) {
            phase.bytes_written();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedIo<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if let Some(phase) = self.phase.as_ref().filter(|_| buf.filled().len() > before) {
            phase.bytes_read();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedIo<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, data);
        self.record_write(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, data);
        self.record_write(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Between two requests.
const IDLE_MAX: Duration = Duration::from_secs(90);
/// For the header of a request.
const HEAD_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn idle_connections_and_slow_headers_expire_and_requests_do_not() {
        let phase = ConnectionPhase::new();
        let expires_within = async |limit: u64| timeout(Duration::from_secs(limit), phase.expired()).await.is_ok();
        assert!(expires_within(6).await, "no request came");
        let first = phase.request();
        let second = phase.request();
        drop(first);
        assert!(!expires_within(100_000).await, "a request is open");
        drop(second);
        assert!(!expires_within(80).await);
        phase.bytes_read();
        phase.bytes_read();
        assert!(!expires_within(4).await);
        assert!(expires_within(2).await, "the rest of the header did not come");
        drop(phase.request());
        assert!(!expires_within(89).await);
        assert!(expires_within(2).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_not_idle_while_a_response_is_written() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let phase = ConnectionPhase::new();
        let (client, server) = tokio::io::duplex(1);
        let (mut client, mut server) = (client, WatchedIo::new(server, Some(phase.clone())));
        // The body is complete, but the client has not read it.
        drop(phase.request());
        let slow = async {
            for _ in 0..4 {
                tokio::time::sleep(Duration::from_secs(50)).await;
                client.read_u8().await.unwrap();
            }
        };
        let written = async {
            server.write_all(b"slow").await.unwrap();
            std::future::pending::<()>().await
        };
        tokio::select! {
            () = slow => {}
            () = written => {}
            () = phase.expired() => panic!("the connection was closed while its response was read"),
        }
        let idle = timeout(Duration::from_secs(100), phase.expired()).await;
        assert!(idle.is_ok(), "afterwards it is idle");
    }
}
