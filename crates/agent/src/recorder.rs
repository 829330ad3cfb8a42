//! The flight recorder's hand: writes what core is told, and a checksum of what it decides, off the core's task.
//!
//! ```text
//! FILE      the newest part: the whole state of core, then one line per input
//! FILE.1 …  the parts before, the oldest is dropped: together they never exceed the bound
//! ```
//! Each part begins with the state as of its first input, so each can be replayed alone. A recording with a hole is none: a disk
//! that is full or too slow ends it, with a warning, and the agent goes on. The form is `podwright_core::record`'s.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use podwright_core::model::{Event, Now, Out};
use podwright_core::{Node, record};

/// What to record into.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The newest part.
    pub path: PathBuf,
    /// What all parts may have together, in bytes.
    pub max_size: u64,
}

/// The recording as the loop sees it.
#[derive(Debug)]
pub struct Recorder {
    /// `None`: it has ended.
    jobs: Option<SyncSender<Job>>,
    /// The part is full: the next input begins another.
    full: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

enum Job {
    Begin(Box<Node>, Now),
    Step { at: Now, event: Event, out: Out },
    End(&'static str),
}

impl Recorder {
    /// Begin a recording. One that is there already becomes the part before.
    pub fn start(config: Config) -> io::Result<Self> {
        let mut tape = Tape::open(config)?;
        let (jobs, taken) = sync_channel(JOBS_MAX);
        let full = tape.full.clone();
        let thread = std::thread::Builder::new().name("recorder".into()).spawn(move || tape.run(&taken))?;
        // The first input begins with the state.
        full.store(true, Ordering::Relaxed);
        Ok(Self { jobs: Some(jobs), full, thread: Some(thread) })
    }

    /// An input is about to be handled: what to give to [`Recorder::step`] afterwards. `None`: nothing is recorded any more.
    pub fn before(&mut self, node: &Node, event: &Event, now: Now) -> Option<Event> {
        if self.full.swap(false, Ordering::Relaxed) {
            self.send(Job::Begin(Box::new(node.clone()), now));
        }
        self.jobs.is_some().then(|| event.clone())
    }

    /// The input was handled, and this is what came of it.
    pub fn step(&mut self, at: Now, event: Event, out: &Out) {
        self.send(Job::Step { at, event, out: out.clone() });
    }

    /// Nothing more is recorded. Waits for the disk, but not for long.
    pub async fn finish(mut self) {
        self.send(Job::End("the agent ended"));
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let joined = tokio::task::spawn_blocking(move || thread.join());
            let _ = tokio::time::timeout(FINISH_MAX, joined).await;
        }
    }

    /// The core's task never waits: a queue that is full ends the recording.
    fn send(&mut self, job: Job) {
        let Some(jobs) = &self.jobs else { return };
        match jobs.try_send(job) {
            Ok(()) => return,
            Err(TrySendError::Full(_)) => tracing::warn!("the disk is too slow for the recording: it ends here"),
            // Its own thread has said why.
            Err(TrySendError::Disconnected(_)) => {}
        }
        self.jobs = None;
    }
}

/// The file that is written.
struct Tape {
    config: Config,
    file: BufWriter<File>,
    written: u64,
    full: Arc<AtomicBool>,
}

impl Tape {
    fn open(config: Config) -> io::Result<Self> {
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
                tracing::warn!(%path, %error, "the recording can't be written: it ends here");
                return;
            }
        }
        let _ = record::end(why).map_err(io::Error::other).and_then(|line| self.write(&line));
        let _ = self.file.flush();
    }

    /// Before it waits, everything is with the system: an agent that is killed leaves it whole.
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
            return Err(io::Error::other("the state alone is larger than the bound: give it more room"));
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

/// Every part becomes the one before; the oldest goes.
fn shift(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(meta) if !meta.is_file() => return Err(io::Error::other("it is there and is no plain file")),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    let part = |n: u64| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{n}"));
        PathBuf::from(name)
    };
    for n in (1..KEPT).rev() {
        match fs::rename(part(n), part(n + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::rename(path, part(1))
}

/// Inputs on their way to the disk.
const JOBS_MAX: usize = 1024;
/// Parts before the newest.
const KEPT: u64 = 3;
/// A part is full at this share of the bound. One more than there are: what was on its way when it was full still goes in.
const PARTS: u64 = KEPT + 2;
/// The end of the agent does not wait longer for the disk.
const FINISH_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
