//! A connection that remembers when bytes were last read or written.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until};

/// A stream with a record of its last byte.
pub(super) struct WatchedStream<S> {
    stream: S,
    last: LastByte,
}

/// The time of the last byte, in either direction.
#[derive(Clone)]
pub(super) struct LastByte(Arc<Mutex<Instant>>);

impl<S> WatchedStream<S> {
    pub(super) fn watch(stream: S) -> (Self, LastByte) {
        let last = LastByte(Arc::new(Mutex::new(Instant::now())));
        (Self { stream, last: last.clone() }, last)
    }
}

impl LastByte {
    fn mark(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Completes when there was no byte for this long; never for `None`.
    pub(super) async fn for_at_least(&self, limit: Option<Duration>) {
        let Some(limit) = limit else { return std::future::pending().await };
        loop {
            let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner) + limit;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_ready() {
            self.last.mark();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, data);
        if written.is_ready() {
            self.last.mark();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::{sleep, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_stream_without_bytes_is_idle() {
        let hour = Duration::from_secs(3600);
        let (near, mut far) = duplex(8);
        let (mut near, idle) = WatchedStream::watch(near);
        for _ in 0..3 {
            sleep(hour / 2).await;
            far.write_all(b"x").await.unwrap();
            near.read_u8().await.unwrap();
        }
        assert!(timeout(hour / 2, idle.for_at_least(Some(hour))).await.is_err(), "bytes came");
        assert!(timeout(hour, idle.for_at_least(Some(hour))).await.is_ok());
        assert!(timeout(hour * 99, idle.for_at_least(None)).await.is_err());
    }
}
