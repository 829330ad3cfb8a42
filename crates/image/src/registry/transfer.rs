//! The transfer of one blob into the content store: hashed and written off the workers, continued after a broken connection.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, HeaderValue, RANGE};
use http::{HeaderName, StatusCode};
use podwright_tasks::{Pool, PoolKey};

use super::RegistryError;
use super::client::{Endpoint, RepositorySession};
use super::transport::BodyReader;
use crate::content::{ContentError, ExpectedContent, Ingest};
use crate::manifest::Descriptor;
use crate::reference::ImageReference;
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
        let mut sink = BlobSink::start(self.client.pool(), &self.reference, store, descriptor).await?;
        let mut resumes = 0;
        loop {
            match self.stream(endpoint, descriptor, &mut sink, progress).await {
                Ok(()) => break,
                Err(error) if error.is_transient() && resumes < self.client.options().resumes => {
                    tracing::debug!(image = %self.reference, digest = %descriptor.digest, bytes = sink.received, %error, "transfer interrupted");
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
            Err(RegistryError::Content(ContentError::Digest { expected, actual })) => {
                Err(RegistryError::Digest { url, expected, actual })
            }
            other => other,
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
        // Without a range a header without effect is sent.
        let header = match offset {
            0 => (HeaderName::from_static("accept"), HeaderValue::from_static("*/*")),
            _ => (RANGE, HeaderValue::try_from(format!("bytes={offset}-")).expect("digits are a header")),
        };
        let (url, response) = self.get(endpoint, &format!("blobs/{}", descriptor.digest), header).await?;
        if offset > 0 && response.status() == StatusCode::OK {
            sink.restart().await?;
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
            sink.write(chunk).await?;
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

/// Writes and hashes on threads of the pool, which it holds only while there is something to write: a registry that sends
/// slowly costs no thread. Dropped, it leaves nothing behind.
struct BlobSink {
    pool: Pool,
    key: PoolKey,
    /// `None` after a write failed.
    ingest: Option<Ingest>,
    unwritten: Vec<Bytes>,
    unwritten_bytes: usize,
    /// Bytes that came, written or not.
    received: u64,
}

impl BlobSink {
    async fn start(
        pool: &Pool,
        owner: &ImageReference,
        store: &Arc<ImageStore>,
        descriptor: &Descriptor,
    ) -> Result<Self, RegistryError> {
        let key = PoolKey::new(owner.to_string(), format!("content {}", descriptor.digest));
        let (store, expected) = (Arc::clone(store), ExpectedContent::Exact(descriptor.digest, descriptor.size));
        let ingest = pool.run_to_end(key.clone(), move || store.content().ingest(expected)).await??;
        let (pool, unwritten) = (pool.clone(), vec![]);
        Ok(Self { pool, key, ingest: Some(ingest), unwritten, unwritten_bytes: 0, received: 0 })
    }

    async fn write(&mut self, chunk: Bytes) -> Result<(), RegistryError> {
        self.received += chunk.len() as u64;
        self.unwritten_bytes += chunk.len();
        self.unwritten.push(chunk);
        if self.unwritten_bytes < UNWRITTEN_BYTES_MAX { Ok(()) } else { self.flush().await }
    }

    async fn flush(&mut self) -> Result<(), RegistryError> {
        let chunks = std::mem::take(&mut self.unwritten);
        self.unwritten_bytes = 0;
        self.work(move |ingest| chunks.iter().try_for_each(|chunk| ingest.write(chunk))).await
    }

    /// From the first byte again.
    async fn restart(&mut self) -> Result<(), RegistryError> {
        self.unwritten.clear();
        (self.unwritten_bytes, self.received) = (0, 0);
        self.work(Ingest::restart).await
    }

    /// All bytes are there: verifies and publishes them.
    async fn commit(mut self) -> Result<(), RegistryError> {
        self.flush().await?;
        let Some(ingest) = self.ingest.take() else { return Err(failed_before().into()) };
        self.pool.run_to_end(self.key.clone(), move || ingest.commit()).await??;
        Ok(())
    }

    /// Removes the part.
    async fn abort(mut self) {
        if let Some(ingest) = self.ingest.take() {
            // If no thread is available the closure is dropped, and the part with it.
            let _ = self.pool.run_to_end(self.key.clone(), move || drop(ingest)).await;
        }
    }

    /// Moves the ingest to a thread and back. If the caller goes away meanwhile, the thread drops it.
    async fn work(
        &mut self,
        work: impl FnOnce(&mut Ingest) -> Result<(), ContentError> + Send + 'static,
    ) -> Result<(), RegistryError> {
        let Some(mut ingest) = self.ingest.take() else { return Err(failed_before().into()) };
        let run = move || work(&mut ingest).map(|()| ingest);
        self.ingest = Some(self.pool.run_to_end(self.key.clone(), run).await??);
        Ok(())
    }
}

impl Drop for BlobSink {
    fn drop(&mut self) {
        // Unlinking a large file is slow: not on an asynchronous worker.
        if let (Some(ingest), Ok(runtime)) = (self.ingest.take(), tokio::runtime::Handle::try_current()) {
            drop(runtime.spawn_blocking(move || drop(ingest)));
        }
    }
}

/// A write after a failed one; the first error was reported.
fn failed_before() -> ContentError {
    let source = std::io::Error::other("an earlier write failed");
    crate::durable::DurableFileError { action: "write", path: "content/ingest".into(), source }.into()
}

/// Bytes that are collected before a thread writes them.
const UNWRITTEN_BYTES_MAX: usize = 1 << 20;
const RESUME_DELAY: Duration = Duration::from_millis(100);
const RESUME_DELAY_MAX: Duration = Duration::from_secs(3);
