//! The write timeout of streaming responses: a connection whose client does not read for too long is closed.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long a streaming response waits for a client that does not read. Stored in the response's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteTimeout {
    /// A single write may take this long.
    After(Duration),
    /// No limit: a terminal may be idle for any time.
    Never,
}

/// Whether the connection's response is a stream, and its write timeout; shared between the connection and its writes. `None`:
/// the response is complete, or not there yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResponseKind(Arc<Mutex<Option<WriteTimeout>>>);

impl ResponseKind {
    pub(crate) fn set(&self, stream: Option<WriteTimeout>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stream;
    }

    fn stream(&self) -> Option<WriteTimeout> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Completes after this time, unless the response is a stream.
    pub(super) async fn expire_after(&self, limit: Duration) {
        sleep(limit).await;
        if self.stream().is_some() {
            std::future::pending::<()>().await;
        }
    }
}

/// A stream whose writes fail when they are blocked for longer than the write timeout.
pub(crate) struct TimedWrites<S> {
    stream: S,
    kind: ResponseKind,
    /// Runs while a write is blocked.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> TimedWrites<S> {
    pub(crate) fn new(stream: S, kind: ResponseKind) -> Self {
        Self { stream, kind, timer: None }
    }

    fn limited<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.timer = None;
            return written;
        }
        let Some(WriteTimeout::After(limit)) = self.kind.stream() else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedWrites<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedWrites<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, data);
        self.limited(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, data);
        self.limited(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.limited(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_blocked_write_times_out_and_a_slow_one_does_not() {
        let (near, mut far) = duplex(8);
        let kind = ResponseKind::default();
        kind.set(Some(WriteTimeout::After(Duration::from_secs(60))));
        let mut near = TimedWrites::new(near, kind.clone());
        let reader = tokio::spawn(async move {
            let mut byte = [0];
            for _ in 0..20 {
                sleep(Duration::from_secs(50)).await;
                far.read_exact(&mut byte).await.unwrap();
            }
            far
        });
        near.write_all(&[0; 28]).await.unwrap();
        let _far = reader.await.unwrap();
        assert_eq!(near.write_all(&[0; 9]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        kind.set(Some(WriteTimeout::Never));
        let mut endless = TimedWrites::new(duplex(1).0, kind);
        assert!(
            tokio::time::timeout(Duration::from_secs(9999), endless.write_all(&[0; 9])).await.is_ok(),
            "the write fails because the peer is gone"
        );
    }
}
