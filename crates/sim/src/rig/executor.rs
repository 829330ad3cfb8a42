//! The hands of an agent in the box: the shipped ones over the fake runtime and the fake machine, and the end of a process.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use podwright_agent::event_loop::{Executor, Order};
use podwright_agent::observe::Observer;
use podwright_agent::perform;
use podwright_core::model::{
    Answer, CallError, KubeEvent, Listing, Now, ObjectError, ObjectRequest, ObjectResult, PodRecord, PodSeen, PodUid,
    RuntimeReady, Source,
};
use podwright_cri::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::host::FakeHost;

/// What the loop asked for, by kind.
#[derive(Default, Debug)]
pub struct Counts {
    /// Calls.
    pub calls: AtomicU64,
    /// Looks at one pod.
    pub looks: AtomicU64,
    /// Lists.
    pub lists: AtomicU64,
    /// Health checks.
    pub checks: AtomicU64,
    /// Rounds of housekeeping.
    pub rounds: AtomicU64,
}

impl Counts {
    /// All of them.
    pub fn sum(&self) -> u64 {
        let all = [&self.calls, &self.looks, &self.lists, &self.checks, &self.rounds];
        all.iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }
}

pub(super) struct RigExecutor {
    pub(super) perform: Arc<perform::CallExecutor>,
    pub(super) observer: Arc<Observer>,
    pub(super) host: FakeHost,
    /// The process is dead: what it was at is dropped where it stands.
    pub(super) dead: CancellationToken,
    pub(super) counts: Arc<Counts>,
}

impl RigExecutor {
    /// Work of this process: it ends with it.
    fn alive<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> BoxFuture<'static, T> {
        let dead = self.dead.clone();
        Box::pin(async move {
            tokio::select! {
                biased;
                () = dead.cancelled() => std::future::pending().await,
                done = work => done,
            }
        })
    }
}

fn count(n: &AtomicU64) {
    n.fetch_add(1, Ordering::Relaxed);
}

impl Executor for RigExecutor {
    fn call(&self, order: Order) -> BoxFuture<'static, Result<Answer, CallError>> {
        count(&self.counts.calls);
        let perform = Arc::clone(&self.perform);
        self.alive(async move { perform.perform(order.uid, order.pod, order.call, order.limit, order.cancel).await })
    }

    fn observe(&self, uid: PodUid) -> BoxFuture<'static, Result<(PodSeen, bool), CallError>> {
        count(&self.counts.looks);
        let observer = Arc::clone(&self.observer);
        self.alive(async move { observer.observe(&uid).await })
    }

    fn list(&self) -> BoxFuture<'static, Result<Listing, CallError>> {
        count(&self.counts.lists);
        let observer = Arc::clone(&self.observer);
        self.alive(async move { observer.list().await })
    }

    fn check_runtime(&self) -> BoxFuture<'static, Result<RuntimeReady, CallError>> {
        count(&self.counts.checks);
        let observer = Arc::clone(&self.observer);
        self.alive(async move { observer.check_runtime().await })
    }

    fn find_leftovers(&self) -> BoxFuture<'static, Result<BTreeSet<PodUid>, CallError>> {
        count(&self.counts.rounds);
        let host = self.host.clone();
        self.alive(async move { Ok(host.leftovers()) })
    }

    fn sweep(&self, uid: PodUid) -> BoxFuture<'static, ()> {
        let host = self.host.clone();
        self.alive(async move { host.sweep(uid.as_str()) })
    }

    fn keep_aside(&self, _: Box<PodRecord>) -> BoxFuture<'static, ()> {
        self.alive(async {})
    }

    fn request(&self, store: Source, _: ObjectRequest, _: Duration) -> BoxFuture<'static, ObjectResult> {
        let message = format!("nobody keeps the objects of source {}", store.as_str());
        self.alive(async move { Err(ObjectError::Refused(message)) })
    }

    fn event(&self, _: &KubeEvent, _: Now) {}
}
