//! The streams of one connection, whatever its protocol: what the client sends comes in chunks, what it gets goes into one
//! bounded queue of frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What the client sends on one stream. Ends when the client closes or resets the stream.
#[derive(Debug)]
pub(super) struct StreamInput {
    chunks: mpsc::Receiver<Bytes>,
    /// Counts the stream until both halves are dropped.
    _slot: Option<Arc<OwnedSemaphorePermit>>,
}

/// Where data for the client goes.
#[derive(Clone, Debug)]
pub(super) struct StreamOutput {
    stream: u32,
    frames: FrameQueue,
    /// Counts the stream until both halves are dropped.
    _slot: Option<Arc<OwnedSemaphorePermit>>,
}

/// The frames that wait to be written to the connection.
pub(super) type FrameQueue = mpsc::Sender<OutFrame>;

/// A frame for the client.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum OutFrame {
    /// `last` closes our half of the stream.
    Data { stream: u32, data: Bytes, last: bool },
    /// The stream was accepted.
    Reply { stream: u32 },
    /// Ends the stream in both directions.
    Reset { stream: u32, status: u32 },
    /// The response to a ping.
    Pong(u32),
    /// Means nothing to the client and needs no answer; see [`deliver_chunk`].
    Heartbeat,
    /// The last frame of the connection.
    GoAway,
}

/// The connection is closed or is being closed.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("the client has disconnected")]
pub(super) struct Disconnected;

impl StreamInput {
    /// An input, and where the connection puts the client's chunks.
    pub(super) fn channel(slot: Option<Arc<OwnedSemaphorePermit>>) -> (mpsc::Sender<Bytes>, Self) {
        let (sender, chunks) = mpsc::channel(INPUT_CHUNKS);
        (sender, Self { chunks, _slot: slot })
    }

    /// The next chunk; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        self.chunks.recv().await
    }
}

impl StreamOutput {
    pub(super) fn new(stream: u32, frames: FrameQueue, slot: Option<Arc<OwnedSemaphorePermit>>) -> Self {
        Self { stream, frames, _slot: slot }
    }

    /// Waits while the client reads slowly.
    pub(super) async fn write(&self, data: Bytes) -> Result<(), Disconnected> {
        self.send(OutFrame::Data { stream: self.stream, data, last: false }).await
    }

    /// Closes this half of the stream.
    pub(super) async fn finish(&self) -> Result<(), Disconnected> {
        self.send(OutFrame::Data { stream: self.stream, data: Bytes::new(), last: true }).await
    }

    /// Ends the stream in both directions, because of an error.
    pub(super) async fn reset(&self) -> Result<(), Disconnected> {
        self.send(OutFrame::Reset { stream: self.stream, status: RESET_CANCEL }).await
    }

    async fn send(&self, frame: OutFrame) -> Result<(), Disconnected> {
        self.frames.send(frame).await.map_err(|_| Disconnected)
    }
}

/// Gives a chunk of the client to its stream, and waits while the reader of the stream is slow. The connection is not read meanwhile, so
/// that the end of the client would not be seen: it is sent a heartbeat now and then, and the host of a client that has left refuses it.
pub(super) async fn deliver_chunk(chunks: &mpsc::Sender<Bytes>, data: Bytes, frames: &FrameQueue) {
    let mut delivery = std::pin::pin!(chunks.send(data));
    loop {
        tokio::select! {
            biased;
            // Closed: no one reads the stream any more.
            _ = &mut delivery => return,
            // A full queue shows the same: its frames are refused.
            () = tokio::time::sleep(HEARTBEAT_PERIOD) => drop(frames.try_send(OutFrame::Heartbeat)),
        }
    }
}

/// When the connection was last used, in either direction.
#[derive(Clone, Debug)]
pub(super) struct Activity {
    start: Instant,
    last_ms: Arc<AtomicU64>,
}

impl Activity {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), last_ms: Arc::default() }
    }

    pub(super) fn note(&self) {
        let elapsed = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(elapsed, Ordering::Relaxed);
    }

    /// Returns when the connection was not used for `limit`.
    pub(super) async fn idle_for(&self, limit: Duration) {
        loop {
            let until = self.start + Duration::from_millis(self.last_ms.load(Ordering::Relaxed)) + limit;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

/// A stream that a SPDY client has opened.
#[derive(Debug)]
pub(super) struct OpenedStream {
    pub(super) id: u32,
    /// By lower-case name.
    pub(super) headers: std::collections::BTreeMap<String, String>,
    pub(super) input: StreamInput,
    pub(super) output: StreamOutput,
    /// The client has reset the stream.
    pub(super) reset: CancellationToken,
}

/// Chunks of one stream that the process has not read. Then the client's connection is not read either.
const INPUT_CHUNKS: usize = 4;
/// The first one is answered with a reset of the connection, with which the second one fails.
const HEARTBEAT_PERIOD: Duration = Duration::from_secs(2);
/// SPDY: CANCEL.
const RESET_CANCEL: u32 = 5;
