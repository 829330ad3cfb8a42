//! Who does not read is not waited for: a connection whose writes stand still for too long ends.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long an answer that goes on waits for a reader who does not read. Part of the answer's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stall(pub(crate) Option<Duration>);

/// What a connection is held to, as its answer says; shared between the connection and its writes.
#[derive(Clone, Debug, Default)]
pub(super) struct Patience(Arc<AtomicU64>);

/// The answer is an ordinary one.
const SHORT: u64 = 0;
/// The answer goes on, and may stand still for ever: a terminal.
const ENDLESS: u64 = u64::MAX;

impl Patience {
    pub(super) fn set(&self, stall: Option<Stall>) {
        let word = match stall {
            None => SHORT,
            Some(Stall(None)) => ENDLESS,
            Some(Stall(Some(limit))) => u64::try_from(limit.as_millis()).unwrap_or(ENDLESS).max(1),
        };
        self.0.store(word, Ordering::Relaxed);
    }

    /// Comes after this time, unless the answer goes on.
    pub(super) async fn out_after(&self, limit: Duration) {
        sleep(limit).await;
        if self.0.load(Ordering::Relaxed) != SHORT {
            std::future::pending::<()>().await;
        }
    }

    fn stall(&self) -> Option<Duration> {
        match self.0.load(Ordering::Relaxed) {
            SHORT | ENDLESS => None,
            millis => Some(Duration::from_millis(millis)),
        }
    }
}

/// A stream whose writes fail when they stand still for too long.
pub(super) struct Limited<S> {
    stream: S,
    patience: Patience,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Limited<S> {
    pub(super) fn new(stream: S, patience: Patience) -> Self {
        Self { stream, patience, waiting: None }
    }

    fn limited<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let Some(limit) = self.patience.stall() else { return Poll::Pending };
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Limited<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Limited<S> {
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
    async fn a_write_that_stands_still_fails_and_one_that_moves_does_not() {
        let (near, mut far) = duplex(8);
        let patience = Patience::default();
        patience.set(Some(Stall(Some(Duration::from_secs(60)))));
        let mut near = Limited::new(near, patience.clone());
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
        patience.set(Some(Stall(None)));
        let mut endless = Limited::new(duplex(1).0, patience);
        assert!(
            tokio::time::timeout(Duration::from_secs(9999), endless.write_all(&[0; 9])).await.is_ok(),
            "its peer is gone"
        );
    }
}
