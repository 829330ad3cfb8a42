//! Threads for blocking file work, bounded per mount: a hung file system delays only the pods that use it.
//!
//! Each closure has a thread to itself. tokio's blocking pool is not used: it is shared with everything else that
//! blocks, its threads cannot be told apart when all of them hang, and a runtime waits for them when it shuts down.
//!
//! - One key (a mount, a pod) has at most [`PoolLimits::per_key`] threads, hung ones included. When all of those hang, more
//!   work for that key is refused at once.
//! - At most [`PoolLimits::active`] closures that someone still waits for run at a time, over all keys.
//! - A closure that outlives its limit, or whose caller goes away, is abandoned: its thread can't be stopped, but it no
//!   longer counts as active. At most [`PoolLimits::stuck`] such threads may exist; beyond that the machine is in real trouble
//!   and all work is refused.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use super::threads::Threads;

/// Runs blocking closures by key. Clones share the same threads.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Shared>);

/// How many threads there may be.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// Threads of one key.
    pub per_key: usize,
    /// Closures at work at once, over all keys.
    pub active: usize,
    /// Abandoned closures, over all keys.
    pub stuck: usize,
}

impl Default for PoolLimits {
    fn default() -> Self {
        // A blocked thread costs a few pages. Two per key let one call overtake another that hangs.
        Self { per_key: 2, active: 32, stuck: 256 }
    }
}

/// Why there is no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The closure did not end in time; it may still do its work later.
    #[error("{key} did not answer within {limit:?}")]
    Timeout {
        /// For whom.
        key: String,
        /// The time it had.
        limit: Duration,
    },
    /// Nothing was begun: earlier work for this key took all the time.
    #[error("{key} is busy: its earlier work did not end within {limit:?}")]
    Busy {
        /// For whom.
        key: String,
        /// The time it had.
        limit: Duration,
    },
    /// Nothing was begun: all threads of this key hang.
    #[error("{key} hangs: {count} earlier calls have not come back")]
    Stuck {
        /// For whom.
        key: String,
        /// How many.
        count: usize,
    },
    /// Nothing was begun: too many threads hang.
    #[error("{0} calls on hung file systems have not come back: no more are begun")]
    Full(usize),
    /// Nothing was begun: the kernel gives no thread.
    #[error("start a thread: {0}")]
    Thread(String),
    /// The closure panicked.
    #[error("internal error: {0}")]
    Panicked(String),
}

impl PoolError {
    /// The work may have been done, or may be done later.
    pub fn in_doubt(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::Panicked(_))
    }
}

#[derive(Debug)]
struct Shared {
    limits: PoolLimits,
    threads: Threads,
    active: Semaphore,
    stuck: AtomicUsize,
    keys: Mutex<HashMap<String, Arc<Key>>>,
}

#[derive(Debug)]
struct Key {
    slots: Arc<Semaphore>,
    stuck: AtomicUsize,
}

impl Default for Pool {
    fn default() -> Self {
        Self::new(PoolLimits::default())
    }
}

impl Pool {
    /// A pool without threads yet.
    pub fn new(limits: PoolLimits) -> Self {
        Self(Arc::new(Shared {
            limits,
            threads: Threads::default(),
            active: Semaphore::new(limits.active),
            stuck: AtomicUsize::new(0),
            keys: Mutex::default(),
        }))
    }

    /// Runs a closure on a thread of its own and waits for it, at most `limit` in all. Dropping the future abandons it.
    pub async fn run<T: Send + 'static>(
        &self,
        key: &str,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PoolError> {
        let deadline = Instant::now() + limit;
        let use_of = KeyUse::of(&self.0, key);
        let hung = use_of.key.stuck.load(Ordering::SeqCst);
        if hung >= self.0.limits.per_key {
            return Err(PoolError::Stuck { key: key.into(), count: hung });
        }
        let hung = self.0.stuck.load(Ordering::SeqCst);
        if hung >= self.0.limits.stuck {
            return Err(PoolError::Full(hung));
        }
        let busy = |_| PoolError::Busy { key: key.into(), limit };
        let slot = timeout_at(deadline, use_of.key.slots.clone().acquire_owned()).await.map_err(busy)?;
        let _active = timeout_at(deadline, self.0.active.acquire()).await.map_err(busy)?;

        let (answer, answered) = oneshot::channel();
        let fate = Arc::new(Fate { use_of, done: AtomicBool::new(false), abandoned: AtomicBool::new(false) });
        let of_thread = fate.clone();
        let thread = move || {
            let result = catch_unwind(AssertUnwindSafe(work));
            of_thread.end();
            drop(slot);
            // Nobody may be waiting any more.
            let _ = answer.send(result);
        };
        self.0.threads.run(Box::new(thread)).map_err(|e| PoolError::Thread(e.to_string()))?;

        let mut abandon = AbandonOnDrop(Some(fate));
        match timeout_at(deadline, answered).await {
            Ok(result) => {
                abandon.0 = None;
                let result = result.map_err(|_| PoolError::Panicked("the thread is gone".into()))?;
                result.map_err(|panic| PoolError::Panicked(panic_text(&*panic)))
            }
            Err(_) => Err(PoolError::Timeout { key: key.into(), limit }),
        }
    }

    /// Threads whose callers have given up on them.
    pub fn stuck(&self) -> usize {
        self.0.stuck.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn keys(&self) -> MutexGuard<'_, HashMap<String, Arc<Key>>> {
        // The map is whole at every moment in which a panic could happen.
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A key someone is using; it is forgotten with its last use.
#[derive(Debug)]
struct KeyUse {
    shared: Arc<Shared>,
    name: String,
    key: Arc<Key>,
}

impl KeyUse {
    fn of(shared: &Arc<Shared>, name: &str) -> Self {
        let fresh =
            || Arc::new(Key { slots: Arc::new(Semaphore::new(shared.limits.per_key)), stuck: AtomicUsize::new(0) });
        let key = shared.keys().entry(name.into()).or_insert_with(fresh).clone();
        Self { shared: shared.clone(), name: name.into(), key }
    }
}

impl Drop for KeyUse {
    fn drop(&mut self) {
        let mut keys = self.shared.keys();
        // The map's own and this one: uses are only begun under the lock.
        if Arc::strong_count(&self.key) == 2 {
            keys.remove(&self.name);
        }
    }
}

/// What caller and thread tell each other about one closure.
#[derive(Debug)]
struct Fate {
    use_of: KeyUse,
    done: AtomicBool,
    abandoned: AtomicBool,
}

impl Fate {
    fn count(&self, change: impl Fn(&AtomicUsize) -> usize) {
        change(&self.use_of.key.stuck);
        change(&self.use_of.shared.stuck);
    }

    /// The thread's last word.
    fn end(&self) {
        self.done.store(true, Ordering::SeqCst);
        if self.abandoned.swap(false, Ordering::SeqCst) {
            self.count(|n| n.fetch_sub(1, Ordering::SeqCst));
        }
    }

    /// The caller's last word.
    fn abandon(&self) {
        // Counted first, so that the thread never takes off what was not yet put on.
        self.count(|n| n.fetch_add(1, Ordering::SeqCst));
        self.abandoned.store(true, Ordering::SeqCst);
        // It may have ended in between and not have seen the flag.
        if self.done.load(Ordering::SeqCst) && self.abandoned.swap(false, Ordering::SeqCst) {
            self.count(|n| n.fetch_sub(1, Ordering::SeqCst));
        }
    }
}

struct AbandonOnDrop(Option<Arc<Fate>>);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        if let Some(fate) = &self.0 {
            fate.abandon();
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const LONG: Duration = Duration::from_secs(30);
    const SHORT: Duration = Duration::from_millis(30);

    /// A closure that hangs until the sender goes away.
    fn hanging() -> (mpsc::Sender<()>, impl FnOnce() + Send + 'static) {
        let (release, held) = mpsc::channel::<()>();
        (release, move || assert!(held.recv().is_err()))
    }

    async fn until(what: &str, check: impl Fn() -> bool) {
        for _ in 0..1000 {
            if check() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{what}");
    }

    #[tokio::test]
    async fn gives_back_what_the_closure_gives() {
        let pool = Pool::default();
        assert_eq!(pool.run("a", LONG, || 7).await, Ok(7));
        until("the key is forgotten", || pool.0.keys().is_empty()).await;
    }

    #[tokio::test]
    async fn a_hung_closure_delays_nobody_else() {
        let pool = Pool::new(PoolLimits { per_key: 2, active: 2, stuck: 10 });
        let mut releases = Vec::new();
        for _ in 0..2 {
            let (release, hang) = hanging();
            releases.push(release);
            let error = pool.run("dead", SHORT, hang).await.unwrap_err();
            assert!(matches!(error, PoolError::Timeout { .. }) && error.in_doubt());
        }
        // All places for active work would be taken if abandoned work kept them.
        let begun = Instant::now();
        for _ in 0..20 {
            pool.run("alive", LONG, || ()).await.unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(5));
        let error = pool.run("dead", LONG, || ()).await.unwrap_err();
        assert_eq!(error, PoolError::Stuck { key: "dead".into(), count: 2 });
        assert!(!error.in_doubt());
        drop(releases);
        until("they come back", || pool.stuck() == 0).await;
        pool.run("dead", LONG, || ()).await.unwrap();
    }

    #[tokio::test]
    async fn one_hung_thread_leaves_its_key_another() {
        let pool = Pool::default();
        let (release, hang) = hanging();
        pool.run("slow", SHORT, hang).await.unwrap_err();
        pool.run("slow", LONG, || ()).await.unwrap();
        drop(release);
    }

    #[tokio::test]
    async fn a_cancelled_caller_abandons_its_closure() {
        let pool = Pool::new(PoolLimits { per_key: 1, ..PoolLimits::default() });
        let (release, hang) = hanging();
        let task = tokio::spawn({
            let pool = pool.clone();
            async move { pool.run("x", LONG, hang).await }
        });
        until("it runs", || pool.0.keys().get("x").is_some_and(|k| k.slots.available_permits() == 0)).await;
        assert_eq!(pool.stuck(), 0);
        task.abort();
        until("it is given up", || pool.stuck() == 1).await;
        drop(release);
        until("it ends", || pool.stuck() == 0).await;
    }

    #[tokio::test]
    async fn waiting_for_the_key_counts_as_time() {
        let pool = Pool::new(PoolLimits { per_key: 1, ..PoolLimits::default() });
        let (release, hang) = hanging();
        let first = pool.run("x", LONG, hang);
        let second = async {
            tokio::task::yield_now().await;
            let error = pool.run("x", SHORT, || ()).await.unwrap_err();
            drop(release);
            error
        };
        let (first, second) = tokio::join!(first, second);
        assert!(matches!(second, PoolError::Busy { .. }) && !second.in_doubt());
        first.unwrap();
    }

    #[tokio::test]
    async fn too_many_hung_threads_refuse_all() {
        let pool = Pool::new(PoolLimits { per_key: 2, active: 8, stuck: 3 });
        let mut releases = Vec::new();
        for i in 0..3 {
            let (release, hang) = hanging();
            releases.push(release);
            pool.run(&format!("dead {i}"), SHORT, hang).await.unwrap_err();
        }
        assert_eq!(pool.run("alive", LONG, || ()).await, Err(PoolError::Full(3)));
        drop(releases);
        until("they come back", || pool.stuck() == 0).await;
        pool.run("alive", LONG, || ()).await.unwrap();
    }

    #[tokio::test]
    async fn a_panic_is_an_error() {
        let error = Pool::default().run("a", LONG, || panic!("oh {}", 1)).await.unwrap_err();
        assert_eq!(error, PoolError::Panicked("oh 1".into()));
    }
}
