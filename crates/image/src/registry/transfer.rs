//! The transfer of one blob into the content store: hashed and written on a blocking thread, continued after a broken connection.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, HeaderValue, RANGE};
use http::{HeaderName, StatusCode};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::RegistryError;
use super::client::{Endpoint, RepositorySession};
use super::transport::BodyReader;
use crate::content::{ContentError, ContentStore, ExpectedContent, Ingest};
use crate::digest::Digest;
use crate::manifest::Descriptor;
use crate::store::ImageStore;

impl RepositorySession {
    /// Fetches a blob into the store. `progress` gets the bytes so far; they may decrease when a host must begin again.
    pub(crate) async fn blob(
        &self,
        store: &Arc<ImageStore>,
        descriptor: &Descriptor,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), RegistryError> {
        let mut attempts = vec![];
        for endpoint in self.endpoints.iter().filter(|endpoint| endpoint.host.pull) {
            match self.blob_from(endpoint, store, descriptor, progress).await {
                Ok(()) => return Ok(()),
                Err(error) if error.is_local() => return Err(error),
                Err(error) => attempts.push(error),
            }
        }
        Err(self.exhausted(attempts, "pull"))
    }

    async fn blob_from(
        &self,
        endpoint: &Endpoint,
        store: &Arc<ImageStore>,
        descriptor: &Descriptor,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), RegistryError> {
        let mut sink = BlobSink::start(Arc::clone(store), descriptor);
        let mut resumes = 0;
        loop {
            match self.stream(endpoint, descriptor, &mut sink, progress).await {
                Ok(()) => break,
                Err(error) if error.is_transient() && resumes < self.client.options().resumes => {
                    tracing::debug!(image = %self.reference, digest = %descriptor.digest, received = sink.received, %error, "transfer interrupted");
                    resumes += 1;
                }
                Err(error) => {
                    // The part is gone before the error is reported.
                    sink.abort().await;
                    return Err(error);
                }
            }
            tokio::time::sleep((RESUME_DELAY * 2_u32.pow(resumes.min(5))).min(RESUME_DELAY_MAX)).await;
        }
        let url = format!("{}/{}/blobs/{}", endpoint.host, self.reference.repository(), descriptor.digest);
        match sink.commit().await {
            Err(ContentError::Digest { expected, actual }) => Err(RegistryError::Digest { url, expected, actual }),
            other => Ok(other?),
        }
    }

    /// One request, from the byte where the last one ended.
    async fn stream(
        &self,
        endpoint: &Endpoint,
        descriptor: &Descriptor,
        sink: &mut BlobSink,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), RegistryError> {
        let (offset, size) = (sink.received, descriptor.size);
        // Without a range the header is one that says nothing new.
        let header = match offset {
            0 => (HeaderName::from_static("accept"), HeaderValue::from_static("*/*")),
            _ => (RANGE, HeaderValue::try_from(format!("bytes={offset}-")).expect("digits are a header")),
        };
        let (url, response) = self.get(endpoint, &format!("blobs/{}", descriptor.digest), header).await?;
        if offset > 0 && response.status() == StatusCode::OK {
            sink.send(SinkMessage::Restart).await?;
            sink.received = 0;
        }
        let total = announced_total(response.headers(), response.status(), sink.received);
        if let Some(announced) = total.filter(|announced| *announced != size) {
            return Err(RegistryError::Size { url, announced, size });
        }
        let mut body = BodyReader::new(&url, response.into_body(), self.client.options().idle_limit);
        while let Some(chunk) = body.chunk().await? {
            let received = sink.received + chunk.len() as u64;
            if received > size {
                return Err(RegistryError::TooLarge { url, max: size });
            }
            sink.send(SinkMessage::Chunk(chunk)).await?;
            sink.received = received;
            progress(received);
        }
        if sink.received == size {
            Ok(())
        } else {
            Err(RegistryError::Truncated { url, received: sink.received, size })
        }
    }
}

/// The whole length that the server announces: a body from another offset than requested counts as another length.
fn announced_total(headers: &HeaderMap, status: StatusCode, offset: u64) -> Option<u64> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    if status == StatusCode::PARTIAL_CONTENT {
        // bytes 5-9/10
        let range = text(CONTENT_RANGE).and_then(|range| range.strip_prefix("bytes "));
        let (span, total) = range.and_then(|range| range.split_once('/'))?;
        let first = span.split_once('-').and_then(|(first, _)| first.parse::<u64>().ok());
        return if first == Some(offset) { total.parse().ok() } else { Some(u64::MAX) };
    }
    text(CONTENT_LENGTH).and_then(|length| length.parse().ok())
}

/// Writes and hashes on a blocking thread. Dropped, it leaves nothing behind.
struct BlobSink {
    /// `None` after the writer failed or was committed.
    messages: Option<mpsc::Sender<SinkMessage>>,
    writer: Option<JoinHandle<Result<(), ContentError>>>,
    /// Bytes sent to the writer.
    received: u64,
}

enum SinkMessage {
    Chunk(Bytes),
    /// From the first byte again.
    Restart,
    /// All bytes are there: verify and publish.
    Commit,
}

impl BlobSink {
    fn start(store: Arc<ImageStore>, descriptor: &Descriptor) -> Self {
        let (messages, receiver) = mpsc::channel(CHUNKS_MAX);
        let (digest, size) = (descriptor.digest, descriptor.size);
        let writer = tokio::task::spawn_blocking(move || write(store.content(), digest, size, receiver));
        Self { messages: Some(messages), writer: Some(writer), received: 0 }
    }

    async fn send(&mut self, message: SinkMessage) -> Result<(), RegistryError> {
        let open = match &self.messages {
            Some(messages) => messages.send(message).await.is_ok(),
            None => false,
        };
        if open { Ok(()) } else { Err(self.failure().await.into()) }
    }

    async fn commit(mut self) -> Result<(), ContentError> {
        if let Some(messages) = self.messages.take() {
            // A writer that is gone reports why below.
            let _ = messages.send(SinkMessage::Commit).await;
        }
        self.result().await
    }

    async fn abort(mut self) {
        self.messages = None;
        // Abandoned on purpose: how the writer ended is of no interest.
        let _ = self.result().await;
    }

    async fn failure(&mut self) -> ContentError {
        self.messages = None;
        self.result().await.err().unwrap_or_else(interrupted)
    }

    async fn result(&mut self) -> Result<(), ContentError> {
        match self.writer.take() {
            Some(writer) => writer.await.unwrap_or_else(|_| Err(interrupted())),
            None => Err(interrupted()),
        }
    }
}

fn write(
    content: &ContentStore,
    digest: Digest,
    size: u64,
    mut messages: mpsc::Receiver<SinkMessage>,
) -> Result<(), ContentError> {
    let mut ingest: Ingest = content.ingest(ExpectedContent::Exact(digest, size))?;
    while let Some(message) = messages.blocking_recv() {
        match message {
            SinkMessage::Chunk(bytes) => ingest.write(&bytes)?,
            SinkMessage::Restart => ingest.restart()?,
            SinkMessage::Commit => return ingest.commit().map(drop),
        }
    }
    // The transfer was abandoned; the ingest removes its file.
    Ok(())
}

/// The writer's thread is gone without a result, which only a panic does.
fn interrupted() -> ContentError {
    let source = std::io::Error::other("the writer stopped");
    crate::durable::DurableFileError { action: "write", path: "content/ingest".into(), source }.into()
}

/// Chunks between network and disk; one has at most what is read from a socket at once.
const CHUNKS_MAX: usize = 16;
const RESUME_DELAY: Duration = Duration::from_millis(100);
const RESUME_DELAY_MAX: Duration = Duration::from_secs(3);
