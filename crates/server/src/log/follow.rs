//! Reading a log to its end, and beyond: what is written later, in this file or in the one that takes its name.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use inotify::{EventStream, Inotify, WatchMask};
use podwright_linux::beneath::Root;
use rustix::fs::OFlags;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use super::line::Line;
use super::{Log, Options, Place, status_of, tail};

/// A log that is being read.
pub(super) struct Reader {
    log: Log,
    file: Arc<File>,
    /// Read so far.
    at: u64,
    /// Read, and not yet a whole line.
    rest: Vec<u8>,
    /// What was written last ended a line.
    fresh_line: bool,
    /// Bytes that may still be written.
    left: Option<u64>,
    hints: Option<Hints>,
    /// The file that has the name now. The runtime wrote into the old one until it opened this, so that is read to its end first.
    other: Option<File>,
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// More may come.
    Open,
    /// The container has ended: what is left is read.
    Ending,
    Done,
}

impl Reader {
    pub(super) async fn open(log: Log) -> io::Result<Self> {
        let (place, lines, follow) = (log.place.clone(), log.options.tail, log.options.follow);
        let (file, at, inotify) = blocking(move || {
            // Before the look, so that what comes during it is not missed.
            let inotify = follow.then(|| watched(&place).ok()).flatten();
            let file = place.open()?;
            let at = lines.map_or(Ok(0), |lines| tail::begin(&file, lines))?;
            Ok((file, at, inotify))
        })
        .await?;
        let hints = follow.then(|| Hints::new(inotify, log.feed.subscribe()));
        let left = log.options.limit;
        let file = Arc::new(file);
        Ok(Self { log, file, at, rest: Vec::new(), fresh_line: true, left, hints, other: None, state: State::Open })
    }

    /// The next part, or the end.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        while self.state != State::Done {
            let Ok(chunk) = self.read().await else { return None };
            if !chunk.is_empty() {
                let part = self.shown(&chunk);
                if self.left == Some(0) {
                    self.state = State::Done;
                }
                if !part.is_empty() {
                    return Some(part.into());
                }
                continue;
            }
            self.at_the_end().await;
        }
        None
    }

    async fn read(&self) -> io::Result<Vec<u8>> {
        let (file, at) = (Arc::clone(&self.file), self.at);
        let chunk = blocking(move || {
            let mut chunk = vec![0; CHUNK];
            let size = file.read_at(&mut chunk, at)?;
            chunk.truncate(size);
            Ok(chunk)
        });
        chunk.await
    }

    /// Nothing more at the moment: is there another file, may more come at all?
    async fn at_the_end(&mut self) {
        if self.state == State::Ending || !self.log.options.follow {
            self.state = State::Done;
            return;
        }
        if let Some(other) = self.other.take() {
            (self.file, self.at) = (Arc::new(other), 0);
            self.rest.clear();
            return;
        }
        self.other = self.renamed().await;
        if self.other.is_some() {
            return;
        }
        if !self.runs() {
            // What the container wrote last may be on its way into the file.
            sleep(LAST_WORDS).await;
            self.state = State::Ending;
            return;
        }
        if let Some(hints) = &mut self.hints {
            hints.wait().await;
        }
    }

    /// The file that has the name now, if it is another one.
    async fn renamed(&self) -> Option<File> {
        let (place, file) = (self.log.place.clone(), Arc::clone(&self.file));
        let other = blocking(move || {
            let other = place.open()?;
            let (a, b) = (file.metadata()?, other.metadata()?);
            Ok(((a.dev(), a.ino()) != (b.dev(), b.ino())).then_some(other))
        });
        other.await.ok().flatten()
    }

    /// The attempt whose log this is runs.
    fn runs(&self) -> bool {
        let view = self.log.feed.get(&self.log.view.uid());
        let status = view.as_deref().and_then(|view| status_of(view, &self.log.container));
        status.is_some_and(|status| {
            let running = status.state.as_ref().is_some_and(|state| state.running.is_some());
            running && u32::try_from(status.restart_count) == Ok(self.log.attempt)
        })
    }

    /// The part of a chunk that is wanted, as it is wanted.
    fn shown(&mut self, chunk: &[u8]) -> Vec<u8> {
        self.at += chunk.len() as u64;
        self.rest.extend(chunk);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            // No runtime writes such lines.
            if self.rest.len() > LINE_MAX {
                self.rest.clear();
            }
            return Vec::new();
        };
        let lines: Vec<u8> = self.rest.drain(..=end).collect();
        let mut out = Vec::with_capacity(lines.len());
        for raw in lines.split_inclusive(|byte| *byte == b'\n') {
            self.add(raw, &mut out);
        }
        if let Some(left) = &mut self.left {
            out.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= out.len() as u64;
        }
        out
    }

    fn add(&mut self, raw: &[u8], out: &mut Vec<u8>) {
        let Options { since, timestamps, stream, .. } = &self.log.options;
        let Some(line) = Line::read(raw) else { return };
        if since.is_some_and(|since| line.is_before(since)) || stream.is_some_and(|wanted| wanted != line.stream) {
            return;
        }
        if *timestamps && self.fresh_line {
            out.extend(line.time.as_bytes());
            out.push(b' ');
        }
        out.extend(line.words);
        self.fresh_line = line.words.ends_with(b"\n");
    }
}

/// What may be a reason to look again.
struct Hints {
    files: Option<EventStream<[u8; 1024]>>,
    pods: watch::Receiver<u64>,
}

impl Hints {
    fn new(inotify: Option<Inotify>, mut pods: watch::Receiver<u64>) -> Self {
        pods.mark_unchanged();
        Self { files: inotify.and_then(|inotify| inotify.into_event_stream([0; 1024]).ok()), pods }
    }

    async fn wait(&mut self) {
        // Whoever has no more watches to give is looked after by time.
        let limit = if self.files.is_some() { LOOK_EVERY } else { LOOK_BLIND };
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

/// A watch on the container's directory, wherever it is.
fn watched(place: &Place) -> io::Result<Inotify> {
    let dir = Root::open(&place.root)?.open_beneath(&place.dir, OFlags::PATH | OFlags::DIRECTORY)?;
    let inotify = Inotify::init()?;
    let mask = WatchMask::MODIFY | WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::MOVED_FROM;
    inotify.watches().add(format!("/proc/self/fd/{}", dir.as_raw_fd()), mask)?;
    Ok(inotify)
}

/// File work of all logs together: a disk that hangs takes these threads and no more.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    static THREADS: Semaphore = Semaphore::const_new(THREADS_MAX);
    let one = THREADS.acquire().await.map_err(io::Error::other)?;
    let held = move || {
        let _one = one;
        work()
    };
    tokio::task::spawn_blocking(held).await.map_err(io::Error::other)?
}

const THREADS_MAX: usize = 4;
const CHUNK: usize = 32 << 10;
/// Runtimes cut lines at 16 KiB.
const LINE_MAX: usize = 1 << 20;
/// A safety net: what is written is told by the kernel.
const LOOK_EVERY: Duration = Duration::from_secs(5);
const LOOK_BLIND: Duration = Duration::from_millis(500);
/// Between the end of a container and the end of its log.
const LAST_WORDS: Duration = Duration::from_millis(100);
