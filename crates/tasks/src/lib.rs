//! Supervised tokio tasks: every task of the agent has a name, and none ends unnoticed.
//!
//! ```text
//!  Tasks::service ── ends or panics before the stop ──▶ Supervisor::failed ─▶ the process ends with an error that names the task
//!  Tasks::job     ── panics ──────────────────────────▶ the same; its normal end is fine
//!  spawn          ── panics ──▶ one log line with the name; the owner of the handle sees the error
//!  spawn_thread   ── ends or panics ──▶ its ThreadEnd, which is given to a service or a job
//! ```
//!
//! A service runs until the agent stops: an event source, a listener, the node's lease. Without it the agent looks healthy and
//! does half of its work, so the process exits and whatever supervises it (systemd, usually) starts it again; containers
//! keep running. Work for one request, one container or one pull is not a service: its failure affects only that work.

mod error_chain;
mod panic;
mod pool;
mod thread_end;
mod threads;
mod work;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use error_chain::error_chain;
pub use panic::panic_message;
pub use pool::{Pool, PoolError, PoolKey, PoolLimits};
pub use thread_end::{ThreadEnd, spawn_thread};
pub use work::{Left, LeftWork, Mark, Work, WorkLabel, WorkLog};

/// Spawns supervised tasks. Cheap to clone; components that start tasks of their own get one.
#[derive(Clone, Debug)]
pub struct Tasks {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Holds the first failure: it ends the process, and later ones are only logged.
    failures: mpsc::Sender<TaskFailure>,
    stop: CancellationToken,
    running: TaskTracker,
}

/// Whether a task may end before the stop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Service,
    Job,
}

/// What a task does at the stop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// It is dropped.
    AtStop,
    /// It ends its work.
    ByItself,
}

/// Reports the first failure of a supervised task, and waits for the tasks at the end.
#[derive(Debug)]
pub struct Supervisor {
    failures: mpsc::Receiver<TaskFailure>,
    running: TaskTracker,
}

/// A supervised task failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskFailure {
    /// A service returned although no stop was requested.
    #[error("task {name} ended unexpectedly")]
    Ended {
        /// The task's name.
        name: &'static str,
    },
    /// A service or a job panicked.
    #[error("task {name} panicked: {message}")]
    Panicked {
        /// The task's name.
        name: &'static str,
        /// The panic's message.
        message: String,
    },
}

impl Tasks {
    /// A set of tasks that may end once `stop` is cancelled, and its supervisor.
    pub fn supervised(stop: CancellationToken) -> (Self, Supervisor) {
        let (failures, failed) = mpsc::channel(1);
        let running = TaskTracker::new();
        let supervisor = Supervisor { failures: failed, running: running.clone() };
        (Self { shared: Arc::new(Shared { failures, stop, running }) }, supervisor)
    }

    /// A set without a supervisor, for tests and one-shot commands: failures are logged only.
    pub fn unsupervised() -> Self {
        Self::supervised(CancellationToken::new()).0
    }

    /// Spawns a task that runs as long as the agent and is dropped at the stop. Its end before that is a failure. Aborting it is
    /// not.
    pub fn service(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.supervise(name, Kind::Service, Ends::AtStop, Box::pin(task))
    }

    /// The same for a task that ends its work itself after the stop; [`Supervisor::drain`] waits for it.
    pub fn drained_service(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.supervise(name, Kind::Service, Ends::ByItself, Box::pin(task))
    }

    /// Spawns a task that does one thing and ends. Only a panic is a failure.
    pub fn job(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.supervise(name, Kind::Job, Ends::AtStop, Box::pin(task))
    }

    /// Boxed: the code around a task, tokio's included, exists once instead of once for each task.
    fn supervise(&self, name: &'static str, kind: Kind, ends: Ends, task: BoxFuture<'static, ()>) -> AbortHandle {
        tracing::debug!(task = name, "task started");
        let shared = Arc::clone(&self.shared);
        let supervised = async move {
            let until_end = async {
                tokio::select! {
                    () = shared.stop.cancelled(), if ends == Ends::AtStop => {}
                    () = killed_by_test(name, task) => {}
                }
            };
            let result = AssertUnwindSafe(until_end).catch_unwind().await;
            let failure = match result {
                Ok(()) if kind == Kind::Job || shared.stop.is_cancelled() => return,
                Ok(()) => TaskFailure::Ended { name },
                Err(panic) => TaskFailure::Panicked { name, message: panic_message(&*panic) },
            };
            tracing::error!(task = name, error = %failure, "supervised task failed");
            // Full: an earlier failure ends the process already. Closed: there is no supervisor.
            let _ = shared.failures.try_send(failure);
        };
        self.shared.running.spawn(supervised).abort_handle()
    }
}

impl Supervisor {
    /// The first failure. Never returns while all tasks do their work.
    pub async fn failed(&mut self) -> TaskFailure {
        match self.failures.recv().await {
            Some(failure) => failure,
            None => std::future::pending().await,
        }
    }

    /// Waits until every task has ended, `limit` at most. Returns whether all have. The stop must be cancelled before.
    pub async fn drain(self, limit: Duration) -> bool {
        self.running.close();
        tokio::time::timeout(limit, self.running.wait()).await.is_ok()
    }
}

/// Spawns work for one request, one connection or one container. A panic is logged with the name, and the owner of the handle
/// sees it as a [`tokio::task::JoinError`].
pub fn spawn<T: Send + 'static>(name: &'static str, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    // Boxed: the code around it exists once for each kind of result.
    let work: BoxFuture<'static, T> = Box::pin(work);
    tokio::spawn(async move {
        match AssertUnwindSafe(work).catch_unwind().await {
            Ok(value) => value,
            Err(panic) => {
                tracing::error!(task = name, error = panic_message(&*panic), "task panicked");
                std::panic::resume_unwind(panic)
            }
        }
    })
}

/// The message of a panic that was caught.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Panicked(pub String);

/// Runs `work` and catches a panic in it.
pub async fn catch<T>(work: impl Future<Output = T>) -> Result<T, Panicked> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|panic| Panicked(panic_message(&*panic)))
}

/// Debug builds only: the task named by `PODWRIGHT_TEST_KILL_TASK` panics shortly after its start, so that a test sees what
/// the process does about it.
async fn killed_by_test(name: &'static str, task: BoxFuture<'static, ()>) {
    #[cfg(debug_assertions)]
    if std::env::var("PODWRIGHT_TEST_KILL_TASK").is_ok_and(|killed| killed == name) {
        tokio::select! {
            () = task => {}
            () = tokio::time::sleep(Duration::from_millis(500)) => panic!("killed by a test"),
        }
        return;
    }
    let _ = name;
    task.await;
}

#[cfg(test)]
mod tests;
