//! Reads a log to its end and, when following, continues with new lines and across rotations.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use inotify::{EventStream, Inotify, WatchMask};
use podwright_agent::host::PoolKey;
use podwright_linux::beneath::ConfinedDir;
use rustix::fs::OFlags;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::{sleep, timeout};

use super::line::LogLine;
use super::{ContainerLog, LogOptions, LogPath, status_of, tail};

/// The reader of one log response.
pub(super) struct LogReader {
    log: ContainerLog,
    file: Arc<File>,
    /// Offset of the next read.
    offset: u64,
    /// Bytes of an incomplete line.
    partial: Vec<u8>,
    /// The output so far ends with a line feed.
    at_line_start: bool,
    /// Bytes that may still be sent; `None`: no limit.
    remaining: Option<u64>,
    signals: Option<ChangeSignals>,
    /// The file after a rotation. The runtime wrote to the old file until it opened this one, so the old one is read to its end first.
    rotated: Option<File>,
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// The container may write more.
    Open,
    /// The container has terminated: read the rest of the file.
    Ending,
    Done,
}

impl LogReader {
    pub(super) async fn open(log: ContainerLog) -> io::Result<Self> {
        let (path, lines, follow) = (log.path.clone(), log.options.tail, log.options.follow);
        let (file, offset, inotify) = blocking(&log, move || {
            // Watch before reading, so that no change is missed.
            let inotify = follow.then(|| watch_directory(&path).ok()).flatten();
            let file = path.open()?;
            let offset = lines.map_or(Ok(0), |lines| tail::offset_of_last_lines(&file, lines))?;
            Ok((file, offset, inotify))
        })
        .await?;
        let signals = follow.then(|| ChangeSignals::new(inotify, log.feed.subscribe()));
        let remaining = log.options.limit;
        let file = Arc::new(file);
        Ok(Self {
            log,
            file,
            offset,
            partial: Vec::new(),
            at_line_start: true,
            remaining,
            signals,
            rotated: None,
            state: State::Open,
        })
    }

    /// It waits for more at the end of the file.
    #[cfg(feature = "fuzzing")]
    pub(super) fn follows(&self) -> bool {
        self.log.options.follow && self.remaining != Some(0)
    }

    /// The next part of the output; `None` at the end. Nothing follows an error.
    pub(super) async fn next(&mut self) -> Option<io::Result<Bytes>> {
        while self.state != State::Done {
            let chunk = match self.read().await {
                Ok(chunk) => chunk,
                Err(error) => {
                    self.state = State::Done;
                    return Some(Err(error));
                }
            };
            if !chunk.is_empty() {
                let part = self.format(&chunk);
                if self.remaining == Some(0) {
                    self.state = State::Done;
                }
                if !part.is_empty() {
                    return Some(Ok(part.into()));
                }
                continue;
            }
            self.at_end_of_file().await;
        }
        None
    }

    async fn read(&self) -> io::Result<Vec<u8>> {
        let (file, offset) = (Arc::clone(&self.file), self.offset);
        let chunk = blocking(&self.log, move || {
            let mut chunk = vec![0; CHUNK];
            let size = file.read_at(&mut chunk, offset)?;
            chunk.truncate(size);
            Ok(chunk)
        });
        chunk.await
    }

    /// Switches to the next file after a rotation, ends the log of a terminated container, or waits for a change.
    async fn at_end_of_file(&mut self) {
        if self.state == State::Ending || !self.log.options.follow {
            self.state = State::Done;
            return;
        }
        if let Some(rotated) = self.rotated.take() {
            (self.file, self.offset) = (Arc::new(rotated), 0);
            self.partial.clear();
            return;
        }
        self.rotated = self.open_if_rotated().await;
        if self.rotated.is_some() {
            return;
        }
        if !self.is_running() {
            // The runtime may not have written the container's last output yet.
            sleep(LAST_OUTPUT_DELAY).await;
            self.state = State::Ending;
            return;
        }
        if let Some(signals) = &mut self.signals {
            signals.wait().await;
        }
    }

    /// The file that has the name now, if it is not the open one.
    async fn open_if_rotated(&self) -> Option<File> {
        let (path, file) = (self.log.path.clone(), Arc::clone(&self.file));
        let other = blocking(&self.log, move || {
            let other = path.open()?;
            let (a, b) = (file.metadata()?, other.metadata()?);
            Ok(((a.dev(), a.ino()) != (b.dev(), b.ino())).then_some(other))
        });
        other.await.ok().flatten()
    }

    /// The attempt of this log is running.
    fn is_running(&self) -> bool {
        let view = self.log.feed.get(&self.log.view.uid());
        let status = view.as_deref().and_then(|view| status_of(view, &self.log.container));
        status.is_some_and(|status| {
            let running = status.state.as_ref().is_some_and(|state| state.running.is_some());
            running && u32::try_from(status.restart_count) == Ok(self.log.attempt)
        })
    }

    /// Filters and formats the complete lines of a chunk.
    fn format(&mut self, chunk: &[u8]) -> Vec<u8> {
        self.offset += chunk.len() as u64;
        self.partial.extend(chunk);
        let Some(end) = self.partial.iter().rposition(|byte| *byte == b'\n') else {
            // No runtime writes such long lines: drop it.
            if self.partial.len() > LINE_MAX {
                self.partial.clear();
            }
            return Vec::new();
        };
        let lines: Vec<u8> = self.partial.drain(..=end).collect();
        let mut out = Vec::with_capacity(lines.len());
        for raw in lines.split_inclusive(|byte| *byte == b'\n') {
            self.add(raw, &mut out);
        }
        if let Some(remaining) = &mut self.remaining {
            out.truncate(usize::try_from(*remaining).unwrap_or(usize::MAX));
            *remaining -= out.len() as u64;
        }
        out
    }

    fn add(&mut self, raw: &[u8], out: &mut Vec<u8>) {
        let LogOptions { since, timestamps, stream, .. } = &self.log.options;
        let Some(line) = LogLine::parse(raw) else { return };
        if since.is_some_and(|since| line.is_before(since)) || stream.is_some_and(|wanted| wanted != line.stream) {
            return;
        }
        if *timestamps && self.at_line_start {
            out.extend(line.time.as_bytes());
            out.push(b' ');
        }
        out.extend(line.content);
        self.at_line_start = line.content.ends_with(b"\n");
    }
}

/// Changes after which the log is read again: of the files, and of the pod.
struct ChangeSignals {
    files: Option<EventStream<[u8; 1024]>>,
    /// Of [`INOTIFY_PERMITS`], as long as `files` exist.
    _permit: Option<SemaphorePermit<'static>>,
    pods: watch::Receiver<u64>,
}

impl ChangeSignals {
    fn new(inotify: Option<LogWatch>, mut pods: watch::Receiver<u64>) -> Self {
        pods.mark_unchanged();
        let (inotify, permit) = inotify.map(|watch| (watch.inotify, watch.permit)).unzip();
        Self { files: inotify.and_then(|inotify| inotify.into_event_stream([0; 1024]).ok()), _permit: permit, pods }
    }

    async fn wait(&mut self) {
        // Without inotify (too many logs are followed) the file is polled.
        let limit = if self.files.is_some() { SAFETY_POLL } else { POLL_WITHOUT_INOTIFY };
        let files = async {
            match &mut self.files {
                Some(files) => drop(files.next().await),
                None => std::future::pending().await,
            }
        };
        let _ = timeout(limit, async {
            tokio::select! {
                () = files => {}
                _ = self.pods.changed() => {}
            }
        })
        .await;
    }
}

/// The inotify instance of one log.
struct LogWatch {
    inotify: Inotify,
    permit: SemaphorePermit<'static>,
}

/// An inotify watch on the container's log directory, opened without following symlinks.
fn watch_directory(path: &LogPath) -> io::Result<LogWatch> {
    let permit = INOTIFY_PERMITS.try_acquire().map_err(io::Error::other)?;
    let dir = ConfinedDir::open(&path.root)?.open_beneath(&path.dir, OFlags::PATH | OFlags::DIRECTORY)?;
    let inotify = Inotify::init()?;
    let mask = WatchMask::MODIFY | WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::MOVED_FROM;
    inotify.watches().add(format!("/proc/self/fd/{}", dir.as_raw_fd()), mask)?;
    Ok(LogWatch { inotify, permit })
}

/// Runs file IO on threads of the log's pod: a file system that hangs delays the logs of that pod, and all logs together occupy a
/// limited number of threads.
async fn blocking<T: Send + 'static>(
    log: &ContainerLog,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let key = PoolKey::new("reading of container logs", format!("logs of pod {}", log.view.uid()));
    log.pool.run(key, READ_TIMEOUT, work).await.map_err(io::Error::other)?
}

/// The kernel allows 128 instances to all processes of a user (`fs.inotify.max_user_instances`): half of them are left to other
/// programs of root, systemd among them.
static INOTIFY_PERMITS: Semaphore = Semaphore::const_new(64);

/// For one read of a file.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
const CHUNK: usize = 32 << 10;
/// Bytes; runtimes split lines at 16 KiB.
const LINE_MAX: usize = 1 << 20;
/// In case inotify misses a change.
const SAFETY_POLL: Duration = Duration::from_secs(5);
const POLL_WITHOUT_INOTIFY: Duration = Duration::from_millis(500);
/// Between the termination of a container and the end of its log.
const LAST_OUTPUT_DELAY: Duration = Duration::from_millis(100);
