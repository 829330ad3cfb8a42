//! One SPDY connection: reads frames into streams, writes the frames of all streams, and runs a session on them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, split};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{FrameReader, FrameWriter, InFrame, SpdyError};
use crate::streaming::streams::{
    Activity, FrameQueue, OpenedStream, OutFrame, StreamInput, StreamOutput, deliver_chunk,
};

/// Runs `session` on the streams that the client opens. When it returns, what it has sent is delivered and the connection is
/// closed. When the client disconnects or was idle for too long, the session is dropped.
pub(in crate::streaming) async fn serve_spdy<T, S>(
    transport: T,
    streams_max: usize,
    idle: Duration,
    session: impl FnOnce(mpsc::Receiver<OpenedStream>) -> S,
) -> Result<(), SpdyError>
where
    T: AsyncRead + AsyncWrite + Unpin,
    S: Future<Output = ()>,
{
    let (from, to) = split(transport);
    let (frames, queue) = mpsc::channel(QUEUED_FRAMES);
    let (opened, streams) = mpsc::channel(OPENED_STREAMS);
    let activity = Activity::new();
    let mut reader = Reader {
        frames: FrameReader::new(from),
        queue: frames.clone(),
        opened: Some(opened),
        slots: Arc::new(Semaphore::new(streams_max)),
        streams_max,
        streams: HashMap::new(),
        highest: 0,
        activity: activity.clone(),
    };
    let mut writer = FrameWriter::new(to);
    {
        let mut reading = std::pin::pin!(reader.run());
        let mut writing = std::pin::pin!(write_frames(&mut writer, queue, &activity));
        let mut ended = false;
        tokio::select! {
            result = &mut reading => return result,
            result = &mut writing => return result,
            () = activity.idle_for(idle) => return Ok(()),
            () = session(streams) => {}
        }
        // The client may still send, and must be read so that it can read.
        let finish = async {
            // Sent while frames are written: the queue may be full.
            let mut going = std::pin::pin!(frames.send(OutFrame::GoAway));
            let mut gone = false;
            loop {
                tokio::select! {
                    _ = &mut reading, if !ended => ended = true,
                    _ = &mut going, if !gone => gone = true,
                    result = &mut writing => return result,
                }
            }
        };
        timeout(FLUSH_TIMEOUT, finish).await.unwrap_or(Ok(()))?;
    }
    writer.shutdown().await?;
    linger(&mut reader.frames.from).await;
    Ok(())
}

/// Reads and drops what is still coming: closing a socket with unread data resets the connection, and the client would lose what
/// was sent last.
async fn linger(from: &mut (impl AsyncRead + Unpin)) {
    let drain = async {
        let mut buffer = vec![0; 4096];
        while from.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
    };
    let _ = timeout(LINGER_TIMEOUT, drain).await;
}

async fn write_frames<W: AsyncWrite + Unpin>(
    writer: &mut FrameWriter<W>,
    mut queue: mpsc::Receiver<OutFrame>,
    activity: &Activity,
) -> Result<(), SpdyError> {
    while let Some(frame) = queue.recv().await {
        let last = frame == OutFrame::GoAway;
        let used = frame != OutFrame::Heartbeat;
        writer.write(frame).await?;
        if used {
            activity.note();
        }
        if last {
            break;
        }
    }
    Ok(())
}

struct Reader<R> {
    frames: FrameReader<R>,
    /// For replies.
    queue: FrameQueue,
    /// `None` after the session has stopped to take streams.
    opened: Option<mpsc::Sender<OpenedStream>>,
    slots: Arc<Semaphore>,
    streams_max: usize,
    /// Those that were not reset.
    streams: HashMap<u32, ClientHalf>,
    highest: u32,
    activity: Activity,
}

/// A stream as the client sees it.
struct ClientHalf {
    /// `None`: the client has closed its half.
    chunks: Option<mpsc::Sender<Bytes>>,
    /// Cancelled by a reset of the client, also after it has closed its half.
    reset: CancellationToken,
    /// Dead when the session has dropped both halves.
    slot: Weak<OwnedSemaphorePermit>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Until the client disconnects.
    async fn run(&mut self) -> Result<(), SpdyError> {
        while let Some(frame) = self.frames.next().await? {
            self.activity.note();
            match frame {
                InFrame::Open { stream, headers, last } => self.open(stream, headers, last).await?,
                InFrame::Data { stream, data, last } => self.data(stream, data, last).await,
                InFrame::Reset { stream } => self.reset(stream),
                // Even ids would be answers to pings of ours.
                InFrame::Ping(id) if id % 2 == 1 => self.send(OutFrame::Pong(id)).await,
                // The client closes the connection when its streams have ended.
                InFrame::GoAway | InFrame::Ping(_) | InFrame::Ignored => {}
            }
        }
        Ok(())
    }

    async fn open(
        &mut self,
        id: u32,
        headers: std::collections::BTreeMap<String, String>,
        last: bool,
    ) -> Result<(), SpdyError> {
        if id.is_multiple_of(2) || id <= self.highest {
            return Err(SpdyError::StreamId(id));
        }
        self.highest = id;
        if self.streams.len() >= self.streams_max {
            // Streams that the session has dropped.
            self.streams.retain(|_, half| half.slot.strong_count() > 0);
        }
        let slot = Arc::clone(&self.slots).try_acquire_owned().ok().filter(|_| self.streams.len() < self.streams_max);
        let (Some(slot), Some(opened)) = (slot, self.opened.clone()) else {
            self.send(OutFrame::Reset { stream: id, status: REFUSED_STREAM }).await;
            return Ok(());
        };
        let slot = Arc::new(slot);
        let (chunks, input) = StreamInput::channel(Some(Arc::clone(&slot)));
        let reset = CancellationToken::new();
        let chunks = (!last).then_some(chunks);
        self.streams.insert(id, ClientHalf { chunks, reset: reset.clone(), slot: Arc::downgrade(&slot) });
        // The reply comes before everything that the session sends on the stream.
        self.send(OutFrame::Reply { stream: id }).await;
        let output = StreamOutput::new(id, self.queue.clone(), Some(slot));
        if opened.send(OpenedStream { id, headers, input, output, reset }).await.is_err() {
            self.opened = None;
            self.streams.remove(&id);
            self.send(OutFrame::Reset { stream: id, status: REFUSED_STREAM }).await;
        }
        Ok(())
    }

    /// Waits while the stream's reader is slow. Data for a stream that does not exist any more is dropped.
    async fn data(&mut self, id: u32, data: Bytes, last: bool) {
        let Some(half) = self.streams.get_mut(&id) else { return };
        if let Some(chunks) = half.chunks.as_ref().filter(|_| !data.is_empty()) {
            deliver_chunk(chunks, data, &self.queue).await;
        }
        if last {
            half.chunks = None;
        }
    }

    fn reset(&mut self, id: u32) {
        if let Some(half) = self.streams.remove(&id) {
            half.reset.cancel();
        }
    }

    async fn send(&mut self, frame: OutFrame) {
        // Closed: the connection ends.
        let _ = self.queue.send(frame).await;
    }
}

/// Frames of at most 32 KiB that wait for a slow client, for all streams together.
const QUEUED_FRAMES: usize = 8;
/// Streams that the session has not taken yet.
const OPENED_STREAMS: usize = 8;
/// For the client to read what was sent last.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(30);
/// For the client to close its half.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
const REFUSED_STREAM: u32 = 3;
