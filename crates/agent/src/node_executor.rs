//! All hands together: what the loop hands its effects to on a real machine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use podwright_core::model::{
    Answer, CallError, KubeEvent, Listing, Now, ObjectError, ObjectRequest, ObjectResult, PodRecord, PodSeen, PodUid,
    RuntimeReady, Source,
};
use podwright_cri::BoxFuture;

use crate::event_loop::{Clock, Executor, Order};
use crate::host::Host;
use crate::object_store::PodObjectStore;
use crate::observe::Observer;
use crate::perform;

/// Looking for leftovers, and removing them, has no pod whose deadline counts.
const SWEEP_LIMIT: Duration = Duration::from_secs(60);

/// The hands of a real agent.
pub struct NodeExecutor {
    perform: Arc<perform::CallExecutor>,
    observer: Arc<Observer>,
    host: Host,
    stores: BTreeMap<Source, Arc<dyn PodObjectStore>>,
}

impl NodeExecutor {
    /// All of them; `stores` have the pod objects of those sources whose pods are objects.
    pub fn new(
        perform: Arc<perform::CallExecutor>,
        observer: Arc<Observer>,
        host: Host,
        stores: BTreeMap<Source, Arc<dyn PodObjectStore>>,
    ) -> Self {
        Self { perform, observer, host, stores }
    }
}

impl Executor for NodeExecutor {
    fn call(&self, order: Order) -> BoxFuture<'static, Result<Answer, CallError>> {
        let perform = Arc::clone(&self.perform);
        Box::pin(async move { perform.perform(order.uid, order.pod, order.call, order.limit, order.cancel).await })
    }

    fn observe(&self, uid: PodUid) -> BoxFuture<'static, Result<(PodSeen, bool), CallError>> {
        let observer = Arc::clone(&self.observer);
        Box::pin(async move { observer.observe(&uid).await })
    }

    fn list(&self) -> BoxFuture<'static, Result<Listing, CallError>> {
        let observer = Arc::clone(&self.observer);
        Box::pin(async move { observer.list().await })
    }

    fn check_runtime(&self) -> BoxFuture<'static, Result<RuntimeReady, CallError>> {
        let observer = Arc::clone(&self.observer);
        Box::pin(async move { observer.check_runtime().await })
    }

    fn find_leftovers(&self) -> BoxFuture<'static, Result<BTreeSet<PodUid>, CallError>> {
        let host = self.host.clone();
        Box::pin(async move { Ok(host.leftovers(SWEEP_LIMIT).await?) })
    }

    fn sweep(&self, uid: PodUid) -> BoxFuture<'static, ()> {
        let host = self.host.clone();
        Box::pin(async move {
            match host.sweep(uid.as_str(), SWEEP_LIMIT).await {
                Ok(()) => tracing::info!(%uid, "removed what an unknown pod had left"),
                Err(error) => tracing::warn!(%uid, %error, "what an unknown pod left can't be removed"),
            }
        })
    }

    fn keep_aside(&self, record: Box<PodRecord>) -> BoxFuture<'static, ()> {
        let host = self.host.clone();
        Box::pin(async move {
            let uid = record.uid.clone();
            match host.keep_aside(*record, SWEEP_LIMIT).await {
                Ok(path) => tracing::error!(%uid, path = %path.display(), "the record of a pod in quarantine is kept"),
                Err(error) => tracing::error!(%uid, %error, "the record of a pod in quarantine can't be kept"),
            }
        })
    }

    fn request(&self, store: Source, request: ObjectRequest, limit: Duration) -> BoxFuture<'static, ObjectResult> {
        let Some(objects) = self.stores.get(&store) else {
            let message = format!("nobody keeps the objects of source {}", store.as_str());
            return Box::pin(async move { Err(ObjectError::Refused(message)) });
        };
        let answer = objects.request(request);
        Box::pin(async move {
            let late = |_| ObjectError::Unavailable { message: format!("no answer within {limit:?}"), after: None };
            tokio::time::timeout(limit, answer).await.map_err(late)?
        })
    }

    fn event(&self, event: &KubeEvent, _now: Now) {
        let container = event.container.as_ref().map_or("", |name| name.as_str());
        if event.warning {
            tracing::warn!(pod = %event.pod, container, reason = event.reason, "{}", event.message);
        } else {
            tracing::info!(pod = %event.pod, container, reason = event.reason, "{}", event.message);
        }
    }
}

/// The machine's own clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Now {
        Now { boot: podwright_linux::clock::boot_time(), wall: Timestamp::now() }
    }
}
