//! Threads for one closure at a time. A thread that is done waits a moment for the next closure before it ends: starting a thread
//! costs more than most of the work, and pods come and go in bursts.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A job of a thread. It must not panic.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Idle threads. A busy thread is in no list: one that hangs never returns to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Threads(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    /// Last in, first out: the memory of the last one is most likely cached, and the others can end.
    idle: Vec<(u64, Sender<Job>)>,
    begun: u64,
}

impl Threads {
    /// Runs the job on an idle thread, else on a new one.
    pub(crate) fn run(&self, job: Job) -> io::Result<()> {
        let mut waiting = self.waiting();
        let unsent = match waiting.idle.pop() {
            Some((_, thread)) => thread.send(job).err().map(|unsent| unsent.0),
            None => Some(job),
        };
        let Some(job) = unsent else { return Ok(()) };
        waiting.begun += 1;
        let (threads, id) = (self.clone(), waiting.begun);
        drop(waiting);
        let builder = std::thread::Builder::new().name("host-io".into()).stack_size(STACK);
        builder.spawn(move || threads.work(id, job)).map(drop)
    }

    fn work(&self, id: u64, first: Job) {
        let (sender, jobs) = mpsc::channel();
        let mut job = first;
        loop {
            job();
            self.waiting().idle.push((id, sender.clone()));
            job = match jobs.recv_timeout(LINGER) {
                Ok(next) => next,
                Err(RecvTimeoutError::Timeout) if self.leave(id) => return,
                // It was just taken from the list: the job is about to arrive.
                Err(_) => match jobs.recv() {
                    Ok(next) => next,
                    Err(_) => return,
                },
            };
        }
    }

    /// No more jobs for this one. False if one was given to it already.
    fn leave(&self, id: u64) -> bool {
        let mut waiting = self.waiting();
        let before = waiting.idle.len();
        waiting.idle.retain(|(other, _)| *other != id);
        waiting.idle.len() < before
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // The list is whole at every moment in which a panic could happen.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long an idle thread waits for work.
const LINGER: Duration = Duration::from_millis(500);
/// As tokio's blocking threads: manifests are parsed here. Only the pages that are used take memory.
const STACK: usize = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a job to its end; by which thread.
    fn run(threads: &Threads) -> std::thread::ThreadId {
        let (done, wait) = mpsc::channel();
        threads.run(Box::new(move || done.send(std::thread::current().id()).unwrap())).unwrap();
        wait.recv().unwrap()
    }

    fn until(what: &str, check: impl Fn() -> bool) {
        for _ in 0..1000 {
            if check() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("{what}");
    }

    #[test]
    fn a_thread_that_is_done_takes_the_next_job_and_ends_when_none_comes() {
        let threads = Threads::default();
        // On a busy machine the thread may have ended before the next job.
        let again = (0..20).find_map(|_| {
            let first = run(&threads);
            until("it waits", || !threads.waiting().idle.is_empty() || Arc::strong_count(&threads.0) == 1);
            (run(&threads) == first).then_some(first)
        });
        assert!(again.is_some());
        until("it is gone", || Arc::strong_count(&threads.0) == 1);
        assert_ne!(Some(run(&threads)), again);
    }

    #[test]
    fn a_thread_that_hangs_gets_no_job() {
        let threads = Threads::default();
        let (release, held) = mpsc::channel::<()>();
        threads.run(Box::new(move || assert!(held.recv().is_err()))).unwrap();
        for _ in 0..10 {
            run(&threads);
        }
        drop(release);
        until("all are gone", || Arc::strong_count(&threads.0) == 1);
    }
}
