//! Writes core's inputs, and a checksum of its decisions, to a file on a thread of its own.
//!
//! ```text
//! FILE      the newest part: the whole state of core, then one line per input
//! FILE.1 …  earlier parts; the oldest is removed so that the total stays below the limit
//! ```
//! Each part begins with the state before its first input, so each can be replayed alone. A recording with a gap is useless: a
//! full or slow disk ends it with a warning, and the agent continues. `podwright_core::record` defines the format.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::Duration;

use podwright_core::model::{Event, Now, Out};
use podwright_core::{Node, record};
use tokio::sync::oneshot;

/// The recorder's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct RecorderConfig {
    /// The file of the newest part.
    pub path: PathBuf,
    /// The limit of all parts combined, in bytes.
    pub max_size: u64,
}

/// The event loop's end of the recording.
#[derive(Debug)]
pub struct Recorder {
    /// `None`: the recording has ended.
    jobs: Option<SyncSender<Job>>,
    /// The part is full: the next input begins a new one.
    full: Arc<AtomicBool>,
    /// Closed when the thread ends.
    ended: oneshot::Receiver<()>,
}

enum Job {
    Begin(Box<Node>, Now),
    Step { at: Now, event: Event, out: Out },
    End(&'static str),
}

impl Recorder {
    /// Starts a recording. An existing file becomes the previous part.
    pub fn start(config: RecorderConfig) -> io::Result<Self> {
        let mut file = RecordingFile::open(config)?;
        let (jobs, taken) = sync_channel(JOBS_MAX);
        let full = file.full.clone();
        let (end, ended) = oneshot::channel();
        let run = move || {
            file.run(&taken);
            drop((file, end));
        };
        std::thread::Builder::new().name("recorder".into()).spawn(run)?;
        // The first input begins with the state.
        full.store(true, Ordering::Relaxed);
        Ok(Self { jobs: Some(jobs), full, ended })
    }

    /// Called before an input is handled. Returns the copy for [`Recorder::step`]; `None`: the recording has ended.
    pub fn before(&mut self, node: &Node, event: &Event, now: Now) -> Option<Event> {
        if self.full.swap(false, Ordering::Relaxed) {
            self.send(Job::Begin(Box::new(node.clone()), now));
        }
        self.jobs.is_some().then(|| event.clone())
    }

    /// Records an input and its result.
    pub fn step(&mut self, at: Now, event: Event, out: &Out) {
        self.send(Job::Step { at, event, out: out.clone() });
    }

    /// Ends the recording. Waits for the disk, at most `FINISH_MAX`.
    pub async fn finish(mut self) {
        self.send(Job::End("the agent ended"));
        self.jobs = None;
        let _ = tokio::time::timeout(FINISH_MAX, self.ended).await;
    }

    /// Never blocks the event loop: a full queue ends the recording.
    fn send(&mut self, job: Job) {
        let Some(jobs) = &self.jobs else { return };
        match jobs.try_send(job) {
            Ok(()) => return,
            Err(TrySendError::Full(_)) => tracing::warn!("recording ended, the disk is too slow"),
            // The thread has logged the reason.
            Err(TrySendError::Disconnected(_)) => {}
        }
        self.jobs = None;
    }
}

/// The file being written.
struct RecordingFile {
    config: RecorderConfig,
    file: BufWriter<File>,
    written: u64,
    full: Arc<AtomicBool>,
}

impl RecordingFile {
    fn open(config: RecorderConfig) -> io::Result<Self> {
        shift(&config.path)?;
        let file = create(&config.path)?;
        Ok(Self { config, file, written: 0, full: Arc::default() })
    }

    fn run(&mut self, jobs: &Receiver<Job>) {
        let mut why = "the disk was too slow";
        while let Some(job) = self.next(jobs) {
            if let Job::End(said) = &job {
                why = said;
            } else if let Err(error) = self.take(job) {
                let path = self.config.path.display();
                tracing::warn!(%path, %error, "recording ended, write failed");
                return;
            }
        }
        let _ = record::end(why).map_err(io::Error::other).and_then(|line| self.write(&line));
        let _ = self.file.flush();
    }

    /// Flushes before it waits, so that a killed agent leaves a complete recording.
    fn next(&mut self, jobs: &Receiver<Job>) -> Option<Job> {
        match jobs.try_recv() {
            Ok(job) => Some(job),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => {
                let _ = self.file.flush();
                jobs.recv().ok()
            }
        }
    }

    fn take(&mut self, job: Job) -> io::Result<()> {
        let line = match job {
            Job::Begin(node, at) => {
                if self.written > 0 {
                    self.file.flush()?;
                    shift(&self.config.path)?;
                    self.file = create(&self.config.path)?;
                    self.written = 0;
                }
                record::begin(&node, at)
            }
            Job::Step { at, event, out } => record::step(at, &event, &out),
            Job::End(why) => record::end(why),
        };
        self.write(&line.map_err(io::Error::other)?)
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        let part = self.config.max_size / PARTS;
        let before = self.written;
        self.written += line.len() as u64;
        if self.written > 2 * part {
            return Err(io::Error::other("the state alone exceeds the size limit of the recording: increase it"));
        }
        if before < part && self.written >= part {
            self.full.store(true, Ordering::Relaxed);
        }
        self.file.write_all(line.as_bytes())
    }
}

fn create(path: &Path) -> io::Result<BufWriter<File>> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    Ok(BufWriter::new(file))
}

/// Renames every part to the next number and drops the oldest.
fn shift(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(meta) if !meta.is_file() => return Err(io::Error::other("it exists and is not a regular file")),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    let part = |n: u64| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{n}"));
        PathBuf::from(name)
    };
    for n in (1..OLD_PARTS_MAX).rev() {
        match fs::rename(part(n), part(n + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::rename(path, part(1))
}

/// Inputs queued for the disk.
const JOBS_MAX: usize = 1024;
/// The number of parts besides the newest.
const OLD_PARTS_MAX: u64 = 3;
/// A part is full at this fraction of the limit. One more than the number of parts, because queued inputs are still added to
/// a full part.
const PARTS: u64 = OLD_PARTS_MAX + 2;
/// The maximum wait for the disk when the agent stops.
const FINISH_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
