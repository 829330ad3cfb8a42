//! Threads for blocking work, bounded per key and per owner: a hung file system delays only the pods that use it.
//!
//! Each closure has a thread to itself. tokio's blocking pool is not used: it is shared with everything else that
//! blocks, its threads cannot be distinguished when all of them hang, and a runtime waits for them when it shuts down.
//!
//! - One key (a mount, a directory) has at most [`PoolLimits::per_key`] threads, hung ones included. When all of those hang,
//!   more work for that key is refused at once.
//! - One owner (a pod, or a part of the agent) has at most [`PoolLimits::per_owner`] threads over all its keys: a pod with many
//!   hung volumes does not use up the threads of others.
//! - At most [`PoolLimits::active`] closures run at a time, over all keys. After [`ACTIVE_TIME_MAX`] a closure no longer counts:
//!   it waits for something, and the limit is there for work that keeps the disks and CPUs busy.
//! - A closure that outlives its limit, or whose caller goes away, is abandoned: its thread can't be stopped. At most
//!   [`PoolLimits::stuck`] threads may be abandoned or slow; beyond that all work is refused.

mod closure;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use closure::{Closure, erase};

use crate::panic_message;
use crate::threads::Threads;
use crate::work::Work;

/// Runs blocking closures by key. Clones share the same threads.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Shared>);

/// How many threads there may be.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// Threads of one key.
    pub per_key: usize,
    /// Threads of one owner, over all its keys.
    pub per_owner: usize,
    /// Closures at work at once, over all keys.
    pub active: usize,
    /// Abandoned and slow closures, over all keys.
    pub stuck: usize,
}

impl Default for PoolLimits {
    fn default() -> Self {
        // A blocked thread costs a few pages. Two per key let one call overtake another that hangs.
        Self { per_key: 2, per_owner: 8, active: 32, stuck: 256 }
    }
}

/// The resource that a closure works on, and its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolKey {
    owner: String,
    name: String,
}

impl PoolKey {
    /// Work on something that may hang apart from the owner's other work.
    pub fn new(owner: impl Into<String>, name: impl Into<String>) -> Self {
        Self { owner: owner.into(), name: name.into() }
    }

    /// Shown in errors.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A key that is its own owner.
impl From<&str> for PoolKey {
    fn from(name: &str) -> Self {
        Self { owner: name.into(), name: name.into() }
    }
}

impl From<String> for PoolKey {
    fn from(name: String) -> Self {
        Self { owner: name.clone(), name }
    }
}

impl From<&String> for PoolKey {
    fn from(name: &String) -> Self {
        name.as_str().into()
    }
}

impl From<&PoolKey> for PoolKey {
    fn from(key: &PoolKey) -> Self {
        key.clone()
    }
}

/// Why there is no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The closure did not end in time; it may still do its work later.
    #[error("{key} did not answer within {limit:?}")]
    Timeout {
        /// The name of the key.
        key: String,
        /// The time it had.
        limit: Duration,
    },
    /// Nothing was begun: earlier work for this key took all the time.
    #[error("{key} is busy: its earlier work did not end within {limit:?}")]
    Busy {
        /// The name of the key.
        key: String,
        /// The time it had.
        limit: Duration,
    },
    /// Nothing was begun: all threads of this key or of its owner hang.
    #[error("{key} hangs: {count} earlier calls have not come back")]
    Stuck {
        /// The name of the key, or its owner.
        key: String,
        /// Number of threads that hang.
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
    active: Arc<Semaphore>,
    /// Threads that run without a permit of `active`.
    stuck: AtomicUsize,
    groups: Mutex<HashMap<(Scope, String), Arc<Group>>>,
}

/// Whose threads are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Scope {
    Key,
    Owner,
}

#[derive(Debug)]
struct Group {
    slots: Arc<Semaphore>,
    /// Threads whose callers have given up on them.
    abandoned: AtomicUsize,
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
            active: Arc::new(Semaphore::new(limits.active)),
            stuck: AtomicUsize::new(0),
            groups: Mutex::default(),
        }))
    }

    /// Runs a closure on a thread of its own and waits for it, at most `limit` in all. Dropping the future abandons it.
    pub async fn run<T: Send + 'static>(
        &self,
        key: impl Into<PoolKey>,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PoolError> {
        let (work, result) = erase(work);
        self.run_until(key.into(), limit, work).await?;
        result.take()
    }

    /// Runs a closure whose result must be known, such as a write: waits as long as it takes. Dropping the future abandons it.
    pub async fn run_to_end<T: Send + 'static>(
        &self,
        key: impl Into<PoolKey>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PoolError> {
        let (work, result) = erase(work);
        self.run_until(key.into(), FOREVER, work).await?;
        result.take()
    }

    async fn run_until(&self, key: PoolKey, limit: Duration, work: Closure) -> Result<(), PoolError> {
        let deadline = Instant::now() + limit;
        let own = GroupUse::of(&self.0, Scope::Key, &key.name, self.0.limits.per_key);
        let owner = GroupUse::of(&self.0, Scope::Owner, &key.owner, self.0.limits.per_owner);
        own.check(self.0.limits.per_key)?;
        owner.check(self.0.limits.per_owner)?;
        let stuck = self.stuck();
        if stuck >= self.0.limits.stuck {
            return Err(PoolError::Full(stuck));
        }
        let busy = |_| PoolError::Busy { key: key.name.clone(), limit };
        // The key's slot first: a closure that waits for a busy key does not hold a slot of its owner.
        let slot = timeout_at(deadline, own.group.slots.clone().acquire_owned()).await.map_err(busy)?;
        let owner_slot = timeout_at(deadline, owner.group.slots.clone().acquire_owned()).await.map_err(busy)?;
        let active = timeout_at(deadline, self.0.active.clone().acquire_owned()).await.map_err(busy)?;
        let active = active.expect("the semaphore is never closed");

        let (answer, mut answered) = oneshot::channel();
        let state =
            Arc::new(ClosureState { own, owner, done: false.into(), slow: false.into(), abandoned: false.into() });
        let of_thread = state.clone();
        let current = Work::current();
        let thread = move || {
            let result = catch_unwind(AssertUnwindSafe(|| match current {
                Some(current) => current.run(work),
                None => work(),
            }));
            of_thread.end();
            drop((slot, owner_slot));
            // The caller may have given up.
            let _ = answer.send(result);
        };
        self.0.threads.run(Box::new(thread)).map_err(|e| PoolError::Thread(e.to_string()))?;

        let mut waiting = Waiting { state: Some(state), active: Some(active) };
        let slow_at = Instant::now() + ACTIVE_TIME_MAX;
        let mut result = timeout_at(deadline.min(slow_at), &mut answered).await;
        if result.is_err() && slow_at < deadline {
            waiting.give_up_active();
            result = timeout_at(deadline, answered).await;
        }
        let Ok(result) = result else { return Err(PoolError::Timeout { key: key.name, limit }) };
        waiting.state = None;
        let result = result.map_err(|_| PoolError::Panicked("the thread is gone".into()))?;
        result.map_err(|panic| PoolError::Panicked(panic_message(&*panic)))
    }

    /// Threads that are abandoned, or slow.
    pub fn stuck(&self) -> usize {
        self.0.stuck.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn groups(&self) -> MutexGuard<'_, HashMap<(Scope, String), Arc<Group>>> {
        // The map is whole at every moment in which a panic could happen.
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A key or owner in use; it is forgotten with its last use.
#[derive(Debug)]
struct GroupUse {
    shared: Arc<Shared>,
    id: (Scope, String),
    group: Arc<Group>,
}

impl GroupUse {
    fn of(shared: &Arc<Shared>, scope: Scope, name: &str, slots: usize) -> Self {
        let id = (scope, name.to_owned());
        let fresh = || Arc::new(Group { slots: Arc::new(Semaphore::new(slots)), abandoned: AtomicUsize::new(0) });
        let group = shared.groups().entry(id.clone()).or_insert_with(fresh).clone();
        Self { shared: shared.clone(), id, group }
    }

    fn check(&self, max: usize) -> Result<(), PoolError> {
        let count = self.group.abandoned.load(Ordering::SeqCst);
        if count >= max { Err(PoolError::Stuck { key: self.id.1.clone(), count }) } else { Ok(()) }
    }
}

impl Drop for GroupUse {
    fn drop(&mut self) {
        let mut groups = self.shared.groups();
        // The map's own and this one: uses are only begun under the lock.
        if Arc::strong_count(&self.group) == 2 {
            groups.remove(&self.id);
        }
    }
}

/// One closure, shared by its caller and its thread.
#[derive(Debug)]
struct ClosureState {
    own: GroupUse,
    owner: GroupUse,
    done: AtomicBool,
    /// It runs without a permit of `active`, and is counted in `Shared::stuck`.
    slow: AtomicBool,
    /// Its caller has given up; it is counted in both groups.
    abandoned: AtomicBool,
}

impl ClosureState {
    fn count_slow(&self, change: impl Fn(&AtomicUsize) -> usize) {
        change(&self.own.shared.stuck);
    }

    fn count_abandoned(&self, change: impl Fn(&AtomicUsize) -> usize) {
        change(&self.own.group.abandoned);
        change(&self.owner.group.abandoned);
    }

    /// Called by the thread when the closure has ended.
    fn end(&self) {
        self.done.store(true, Ordering::SeqCst);
        self.uncount();
    }

    fn uncount(&self) {
        if self.slow.swap(false, Ordering::SeqCst) {
            self.count_slow(|n| n.fetch_sub(1, Ordering::SeqCst));
        }
        if self.abandoned.swap(false, Ordering::SeqCst) {
            self.count_abandoned(|n| n.fetch_sub(1, Ordering::SeqCst));
        }
    }

    /// Called by the caller, at most once, as is `set_abandoned`.
    fn set_slow(&self) {
        // Counted first, so that the thread never subtracts what was not yet added.
        self.count_slow(|n| n.fetch_add(1, Ordering::SeqCst));
        self.slow.store(true, Ordering::SeqCst);
        self.uncount_if_done();
    }

    fn set_abandoned(&self) {
        self.count_abandoned(|n| n.fetch_add(1, Ordering::SeqCst));
        self.abandoned.store(true, Ordering::SeqCst);
        self.uncount_if_done();
    }

    /// The closure may have ended in between and not have seen the flag.
    fn uncount_if_done(&self) {
        if self.done.load(Ordering::SeqCst) {
            self.uncount();
        }
    }
}

/// The caller's side of a closure: dropped before the result, it abandons the closure.
struct Waiting {
    /// `None`: the result has arrived.
    state: Option<Arc<ClosureState>>,
    /// `None`: given up, because the closure is slow.
    active: Option<OwnedSemaphorePermit>,
}

impl Waiting {
    fn give_up_active(&mut self) {
        if let Some(state) = self.state.as_ref().filter(|_| self.active.is_some()) {
            state.set_slow();
        }
        self.active = None;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.give_up_active();
        if let Some(state) = &self.state {
            state.set_abandoned();
        }
    }
}

/// After this time a closure waits for something rather than working.
const ACTIVE_TIME_MAX: Duration = Duration::from_secs(1);
/// Longer than any node runs without a restart of the agent; `Instant` can still be added to it.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

#[cfg(test)]
mod tests;
