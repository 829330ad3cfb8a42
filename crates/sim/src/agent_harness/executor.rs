//! The executor of the harness: the agent's own over the fake runtime and the fake host. Its work ends when the process is killed.

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

/// How many effects of each kind were performed.
#[derive(Default, Debug)]
pub struct Counts {
    /// Runtime and host calls.
    pub calls: AtomicU64,
    /// Observations of one pod.
    pub observations: AtomicU64,
    /// Lists of all pods.
    pub lists: AtomicU64,
    /// Health checks of the runtime.
    pub checks: AtomicU64,
    /// Rounds of housekeeping.
    pub rounds: AtomicU64,
}

impl Counts {
    /// The sum over all kinds.
    pub fn sum(&self) -> u64 {
        let all = [&self.calls, &self.observations, &self.lists, &self.checks, &self.rounds];
        all.iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }
}

pub(super) struct HarnessExecutor {
    pub(super) perform: Arc<perform::CallExecutor>,
    pub(super) observer: Arc<Observer>,
    pub(super) host: FakeHost,
    /// Cancelled when the process is killed.
    pub(super) dead: CancellationToken,
    pub(super) counts: Arc<Counts>,
}

impl HarnessExecutor {
    /// Work that never completes once the process is killed.
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

impl Executor for HarnessExecutor {
    fn call(&self, order: Order) -> BoxFuture<'static, Result<Answer, CallError>> {
        count(&self.counts.calls);
        let perform = Arc::clone(&self.perform);
        self.alive(async move { perform.perform(order.uid, order.pod, order.call, order.limit, order.cancel).await })
    }

    fn observe(&self, uid: PodUid) -> BoxFuture<'static, Result<(PodSeen, bool), CallError>> {
        count(&self.counts.observations);
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

    fn save_quarantined_record(&self, _: Box<PodRecord>) -> BoxFuture<'static, ()> {
        self.alive(async {})
    }

    fn request(&self, store: Source, _: ObjectRequest, _: Duration) -> BoxFuture<'static, ObjectResult> {
        let message = format!("no object store for source {}", store.as_str());
        self.alive(async move { Err(ObjectError::Refused(message)) })
    }

    fn event(&self, _: &KubeEvent, _: Now) {}
}
