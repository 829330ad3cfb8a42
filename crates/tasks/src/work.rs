//! Which pod the agent works on at this moment, recorded where the next process finds it.
//!
//! ```text
//!  <run dir>/work    256 bytes: 1 for each watched work that was completed
//!                    512 bytes per slot: free (0), in use (1) or in use on a thread for blocking work (2) · begin, in ms since the
//!                    log was opened (8 bytes) · length (2 bytes) · UID, 0, kind of work, 0, namespace/name
//! ```
//!
//! A mark is set while a thread runs code for the pod: during each poll of a call's future, and while a closure of the pool that
//! it started runs. It is not set while a call waits for the runtime or a disk timer, so a process that is killed while it is
//! idle leaves none, and one that ran out of memory or hung leaves the mark of the work that caused it.
//!
//! One `pwrite` sets a mark and one clears it, without a sync: the page cache outlives the process. Nothing has to survive the loss
//! of power, which is no fault of a pod.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// The marks of one process.
#[derive(Debug)]
pub struct WorkLog {
    file: File,
    opened: Instant,
    slots: Mutex<Slots>,
}

/// The file is written under their lock: after the close nothing is.
#[derive(Debug)]
struct Slots {
    free: Vec<u16>,
    closed: bool,
    /// See [`WorkLog::watch`]; UID, kind of work and place of each that was not completed yet.
    watched: Vec<(String, String, u8)>,
}

/// Work for one pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkLabel {
    /// UID of the pod.
    pub uid: String,
    /// The kind of work, such as `CreateContainer`: the same for every attempt.
    pub work: String,
    /// Namespace and name of the pod; may be empty.
    pub pod: String,
}

/// Work that a process did not end before it died.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftWork {
    /// The pod and the kind of work.
    pub label: WorkLabel,
    /// When it began, after the start of that process.
    pub began: Duration,
    /// It ran on a thread for blocking work, where it may have waited for a disk or another host.
    pub blocking: bool,
}

/// What a process has left in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Work that it did not end before it died.
    pub work: Vec<LeftWork>,
    /// Work that it watched and completed, by its place in the list.
    pub completed: Vec<usize>,
}

/// Work that is marked in the log whenever it runs.
#[derive(Clone, Debug)]
pub struct Work {
    log: Arc<WorkLog>,
    label: Arc<WorkLabel>,
}

thread_local! {
    /// What this thread works on.
    static CURRENT: RefCell<Option<Work>> = const { RefCell::new(None) };
}

impl WorkLog {
    /// Opens the log, and returns what the former process has left in it, which is cleared.
    pub fn open(path: &Path) -> io::Result<(Arc<Self>, Left)> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let mut bytes = vec![0; WATCHED_MAX + SLOT_BYTES * usize::from(SLOTS_MAX)];
        let read = read_all(&file, &mut bytes)?;
        let (completed, slots) = bytes[..read].split_at(read.min(WATCHED_MAX));
        let completed = completed.iter().enumerate().filter(|(_, byte)| **byte == 1).map(|(place, _)| place).collect();
        let left = Left { work: slots.chunks(SLOT_BYTES).filter_map(parse).collect(), completed };
        file.set_len(0)?;
        let slots = Slots { free: (0..SLOTS_MAX).rev().collect(), closed: false, watched: vec![] };
        Ok((Arc::new(Self { file, opened: Instant::now(), slots: Mutex::new(slots) }), left))
    }

    /// Work of this kind for this pod.
    pub fn work(self: &Arc<Self>, label: WorkLabel) -> Work {
        Work { log: Arc::clone(self), label: Arc::new(label) }
    }

    /// From now on the log shows which work of this list, by UID and kind, was done to its end at least once.
    pub fn watch(&self, work: impl IntoIterator<Item = (String, String)>) {
        let places = 0..=u8::MAX;
        self.slots().watched = work.into_iter().zip(places).map(|((uid, work), place)| (uid, work, place)).collect();
    }

    fn completed(&self, label: &WorkLabel) {
        let mut slots = self.slots();
        let is_it = |(uid, work, _): &(String, String, u8)| *uid == label.uid && *work == label.work;
        if let Some(found) = slots.watched.iter().position(is_it)
            && !slots.closed
        {
            let (_, _, place) = slots.watched.swap_remove(found);
            let _ = self.file.write_all_at(&[1], u64::from(place));
        }
    }

    /// The process exits normally: work that still runs is not the reason.
    pub fn close(&self) {
        let mut slots = self.slots();
        slots.closed = true;
        if let Err(error) = self.file.set_len(WATCHED_MAX as u64) {
            tracing::warn!(%error, "marks of unfinished work not cleared");
        }
    }

    /// Marks work until the returned mark is dropped, which completes it. Without a free slot, after the close, or if the file
    /// cannot be written, it is not marked.
    pub fn mark(self: &Arc<Self>, label: &WorkLabel) -> Mark {
        let completes = self.slots().watched.iter().any(|(uid, _, _)| *uid == label.uid).then(|| label.clone());
        let mut mark = self.mark_on(label, false);
        mark.completes = completes;
        mark
    }

    fn mark_on(self: &Arc<Self>, label: &WorkLabel, blocking: bool) -> Mark {
        let text = format(label, self.opened.elapsed(), blocking);
        let mut slots = self.slots();
        let slot = if slots.closed { None } else { slots.free.pop() };
        if let Some(slot) = slot {
            // After a failed write this work is not marked, which only disables the protection.
            let _ = self.file.write_all_at(&text, offset(slot));
            abort_by_test(label);
        }
        drop(slots);
        Mark { log: Arc::clone(self), slot, completes: None }
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().expect("no panic under this lock")
    }
}

/// Work that runs now.
#[derive(Debug)]
pub struct Mark {
    log: Arc<WorkLog>,
    slot: Option<u16>,
    /// Watched work, of which this mark is the whole.
    completes: Option<WorkLabel>,
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some(label) = &self.completes {
            self.log.completed(label);
        }
        if let Some(slot) = self.slot {
            let mut slots = self.log.slots();
            if !slots.closed {
                let _ = self.log.file.write_all_at(&[0], offset(slot));
                slots.free.push(slot);
            }
        }
    }
}

impl Work {
    /// The work that this thread does now.
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Runs a closure as part of this work, on a thread where it may block.
    pub fn run<T>(&self, closure: impl FnOnce() -> T) -> T {
        self.run_on(true, closure)
    }

    fn run_on<T>(&self, blocking: bool, closure: impl FnOnce() -> T) -> T {
        let _restore = Restore(CURRENT.replace(Some(self.clone())));
        let _mark = self.log.mark_on(&self.label, blocking);
        closure()
    }

    /// Runs a future as part of this work: it is marked during its polls, not while it waits.
    pub async fn follow<F: Future>(self, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        let output = std::future::poll_fn(|context| self.poll(future.as_mut(), context)).await;
        self.log.completed(&self.label);
        output
    }

    fn poll<F: Future>(&self, future: Pin<&mut F>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.run_on(false, || future.poll(context))
    }
}

/// Puts the former work of the thread back, also after a panic.
struct Restore(Option<Work>);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

fn offset(slot: u16) -> u64 {
    WATCHED_MAX as u64 + u64::from(slot) * SLOT_BYTES as u64
}

/// Texts that do not fit are cut: the slot must not run into the next one.
fn format(label: &WorkLabel, began: Duration, blocking: bool) -> Vec<u8> {
    let mut text = [label.uid.as_bytes(), b"\0", label.work.as_bytes(), b"\0", label.pod.as_bytes()].concat();
    text.truncate(SLOT_BYTES - HEADER_BYTES);
    let length = u16::try_from(text.len()).expect("a slot is shorter than 64 KiB").to_le_bytes();
    let began = u64::try_from(began.as_millis()).unwrap_or(u64::MAX).to_le_bytes();
    [&[if blocking { 2 } else { 1 }], &began[..], &length, &text].concat()
}

fn parse(slot: &[u8]) -> Option<LeftWork> {
    let (in_use, rest) = slot.split_first()?;
    let blocking = match in_use {
        1 => false,
        2 => true,
        _ => return None,
    };
    let (began, rest) = rest.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let text = std::str::from_utf8(rest.get(..usize::from(u16::from_le_bytes(*length)))?).ok()?;
    let mut parts = text.splitn(3, '\0').map(str::to_owned);
    let label = WorkLabel { uid: parts.next()?, work: parts.next()?, pod: parts.next()? };
    Some(LeftWork { label, began: Duration::from_millis(u64::from_le_bytes(*began)), blocking })
}

fn read_all(file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    Ok(read)
}

/// Debug builds only: the process aborts in the work that begins with `PODWRIGHT_TEST_ABORT_WORK`, as `<kind> <namespace>/<pod>`.
fn abort_by_test(label: &WorkLabel) {
    #[cfg(debug_assertions)]
    if std::env::var("PODWRIGHT_TEST_ABORT_WORK")
        .is_ok_and(|work| !work.is_empty() && format!("{} {}", label.work, label.pod).starts_with(&work))
    {
        std::process::abort();
    }
    let _ = label;
}

/// Work that is watched. As many as there are suspects (`core/src/suspects.rs`).
const WATCHED_MAX: usize = 256;
/// Threads that work for pods at the same time. More are not marked.
const SLOTS_MAX: u16 = 256;
/// A UID, a kind of work, and the longest namespace and name that Kubernetes allows (63 and 253).
const SLOT_BYTES: usize = 512;
const HEADER_BYTES: usize = 11;

#[cfg(test)]
mod tests {
    use super::*;

    fn label(uid: &str) -> WorkLabel {
        WorkLabel { uid: uid.into(), work: "CreateContainer".into(), pod: format!("default/{uid}") }
    }

    fn left(path: &Path) -> Vec<String> {
        let (_, left) = WorkLog::open(path).unwrap();
        left.work.into_iter().map(|left| left.label.uid).collect()
    }

    fn temporary() -> std::path::PathBuf {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("podwright-work-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        std::env::temp_dir().join(name)
    }

    #[test]
    fn only_work_that_was_running_is_left_by_a_process_that_died() {
        let path = temporary();
        let (log, before) = WorkLog::open(&path).unwrap();
        assert_eq!(before, Left::default());
        log.work(label("done")).run(|| {});
        let running = log.mark(&label("running"));
        std::mem::forget(running);
        assert_eq!(left(&path), ["running"]);
        assert_eq!(left(&path), Vec::<String>::new(), "it counts for one death");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn work_that_runs_at_a_normal_end_is_not_left() {
        let path = temporary();
        let (log, _) = WorkLog::open(&path).unwrap();
        std::mem::forget(log.mark(&label("hangs")));
        log.close();
        log.work(label("late")).run(|| std::mem::forget(log.mark(&label("later"))));
        assert_eq!(left(&path), Vec::<String>::new());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn work_that_ends_after_the_close_frees_no_slot_for_another_mark() {
        let path = temporary();
        let (log, _) = WorkLog::open(&path).unwrap();
        let running = log.mark(&label("running"));
        log.close();
        drop(running);
        std::mem::forget(log.mark(&label("late")));
        assert_eq!(left(&path), Vec::<String>::new());
        std::fs::remove_file(path).unwrap();
    }

    #[tokio::test]
    async fn watched_work_is_completed_by_its_end_and_not_by_a_part_of_it() {
        let watched = |uids: &[&str]| uids.iter().map(|uid| ((*uid).to_owned(), label(uid).work)).collect::<Vec<_>>();
        let path = temporary();
        let (log, _) = WorkLog::open(&path).unwrap();
        log.watch(watched(&["waits", "stepped", "other", "called"]));
        let mut waits = std::pin::pin!(log.work(label("waits")).follow(std::future::pending::<()>()));
        assert!(futures::poll!(&mut waits).is_pending());
        log.work(label("waits")).run(|| {});
        drop(log.mark(&label("stepped")));
        drop(log.mark(&WorkLabel { work: "planning".into(), ..label("other") }));
        log.work(label("called")).follow(async {}).await;
        std::mem::forget(log.mark(&label("dies")));
        let (log, left) = WorkLog::open(&path).unwrap();
        assert_eq!((left.work.len(), left.completed), (1, vec![1, 3]));
        log.watch(watched(&["again"]));
        drop(log.mark(&label("again")));
        log.close();
        assert_eq!(WorkLog::open(&path).unwrap().1.completed, [0], "also after a normal end");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_panic_ends_the_work() {
        let path = temporary();
        let (log, _) = WorkLog::open(&path).unwrap();
        let work = log.work(label("panics"));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work.run(|| panic!("on purpose"))));
        assert!(caught.is_err());
        assert!(Work::current().is_none());
        assert_eq!(left(&path), Vec::<String>::new());
        std::fs::remove_file(path).unwrap();
    }

    #[tokio::test]
    async fn a_future_that_waits_is_not_marked_and_its_closures_on_threads_are() {
        let path = temporary();
        let (log, _) = WorkLog::open(&path).unwrap();
        let marks = || {
            let text = std::fs::read(&path).unwrap();
            text[WATCHED_MAX..]
                .chunks(SLOT_BYTES)
                .filter_map(parse)
                .map(|left| (left.label.uid, left.blocking))
                .collect::<Vec<_>>()
        };
        let pool = crate::Pool::default();
        let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
        let (began, has_begun) = tokio::sync::oneshot::channel();
        let work = log.work(label("pod")).follow(async move {
            let closure = move || {
                let _ = began.send(());
                may_go_on.recv().unwrap();
            };
            pool.run_to_end("key", closure).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
        });
        let task = tokio::spawn(work);
        has_begun.await.unwrap();
        assert_eq!(marks(), [("pod".to_owned(), true)], "the closure runs");
        go_on.send(()).unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !marks().is_empty() {
            assert!(std::time::Instant::now() < until, "the mark stays");
            tokio::task::yield_now().await;
        }
        task.abort();
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn long_and_damaged_labels_are_harmless() {
        let long = WorkLabel { uid: "u".into(), work: "w".into(), pod: "x".repeat(2000) };
        let slot = format(&long, Duration::from_millis(1234), false);
        assert_eq!(slot.len(), SLOT_BYTES);
        let left = parse(&slot).unwrap();
        assert_eq!((left.label.uid.as_str(), left.began, left.blocking), ("u", Duration::from_millis(1234), false));
        assert_eq!(parse(&[]), None);
        assert_eq!(parse(&[1, 255, 255, b'a']), None);
        for damaged in [[1, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, b'a'], [1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0xff]] {
            assert_eq!(parse(&damaged), None);
        }
    }
}
