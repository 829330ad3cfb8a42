//! The executor of a real node: passes each effect of the event loop to the component that performs it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use podwright_core::model::{
    Answer, CallError, KubeEvent, Listing, NodeReading, Now, ObjectError, ObjectRequest, ObjectResult, PodReading,
    PodRecord, PodSeen, PodUid, RuntimeReady, Source,
};
use podwright_cri::BoxFuture;
use tracing::{Instrument, debug_span, info_span};

use crate::event_loop::{Clock, Executor, Order};
use crate::host::Host;
use crate::images_gc::SharedImageGc;
use crate::object_store::PodObjectStore;
use crate::observe::Observer;
use crate::perform;
use crate::stats::Sampler;

/// Time limit for work that belongs to no call: finding and removing leftovers, writing quarantined records.
const SWEEP_LIMIT: Duration = Duration::from_secs(60);
/// A pod that comes back waits for the removal of its leftovers: an abandoned removal would continue in its directories.
const REMOVAL_LIMIT: Duration = Duration::from_secs(3600);

/// Performs effects on the container runtime, the host and the object stores.
pub struct NodeExecutor {
    perform: Arc<perform::CallExecutor>,
    observer: Arc<Observer>,
    host: Host,
    stores: BTreeMap<Source, Arc<dyn PodObjectStore>>,
    /// `None`: nothing is read and removed for eviction.
    eviction: Option<(Arc<Sampler>, SharedImageGc)>,
}

impl NodeExecutor {
    /// `stores` holds one store for each source whose pods are API objects.
    pub fn new(
        perform: Arc<perform::CallExecutor>,
        observer: Arc<Observer>,
        host: Host,
        stores: BTreeMap<Source, Arc<dyn PodObjectStore>>,
    ) -> Self {
        Self { perform, observer, host, stores, eviction: None }
    }

    /// Reads the node with this sampler, and removes unused images with this collector.
    pub fn with_eviction(self, sampler: Arc<Sampler>, images: SharedImageGc) -> Self {
        Self { eviction: Some((sampler, images)), ..self }
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
        Box::pin(async move { observer.list().await }.instrument(debug_span!("list")))
    }

    fn check_runtime(&self) -> BoxFuture<'static, Result<RuntimeReady, CallError>> {
        let observer = Arc::clone(&self.observer);
        Box::pin(async move { observer.check_runtime().await }.instrument(debug_span!("check_runtime")))
    }

    fn find_leftovers(&self) -> BoxFuture<'static, Result<BTreeSet<PodUid>, CallError>> {
        let host = self.host.clone();
        Box::pin(async move { Ok(host.list_leftovers(SWEEP_LIMIT).await?) }.instrument(debug_span!("find_leftovers")))
    }

    fn read_node(&self, pods: PodReading) -> BoxFuture<'static, NodeReading> {
        let Some((sampler, _)) = self.eviction.clone() else {
            return Box::pin(std::future::ready(NodeReading::default()));
        };
        Box::pin(async move { sampler.read_node(pods).await }.instrument(debug_span!("read_node")))
    }

    fn remove_unused_images(&self) -> BoxFuture<'static, ()> {
        let Some((_, images)) = self.eviction.clone() else { return Box::pin(std::future::ready(())) };
        let removed = async move {
            let collect = async { images.lock().await.reclaim(podwright_linux::clock::boot_time()).await };
            match tokio::time::timeout(SWEEP_LIMIT, collect).await {
                Ok(Ok(collection)) => {
                    let (removed, failed) = (collection.removed.len(), collection.failed.len());
                    tracing::info!(
                        removed,
                        failed,
                        freed_bytes = collection.freed,
                        "unused images removed for disk space"
                    );
                }
                Ok(Err(error)) => tracing::warn!(%error, "removal of unused images failed"),
                Err(_) => tracing::warn!(limit_ms = SWEEP_LIMIT.as_millis(), "removal of unused images took too long"),
            }
        };
        Box::pin(removed.instrument(info_span!("remove_unused_images")))
    }

    fn sweep(&self, uid: PodUid) -> BoxFuture<'static, ()> {
        let host = self.host.clone();
        let span = info_span!("sweep", %uid);
        let sweep = async move {
            match host.remove_leftovers(uid.as_str(), REMOVAL_LIMIT).await {
                Ok(()) => tracing::info!("leftovers of an unknown pod removed"),
                Err(error) => tracing::warn!(error = error.message(), "removal of leftovers of an unknown pod failed"),
            }
        };
        Box::pin(sweep.instrument(span))
    }

    fn save_quarantined_record(&self, record: Box<PodRecord>) -> BoxFuture<'static, ()> {
        let host = self.host.clone();
        let span = info_span!("quarantine", uid = %record.uid);
        let write = async move {
            match host.save_quarantined(*record, SWEEP_LIMIT).await {
                Ok(path) => tracing::error!(path = %path.display(), "record of a quarantined pod written"),
                Err(error) => {
                    tracing::error!(error = error.message(), "writing the record of a quarantined pod failed")
                }
            }
        };
        Box::pin(write.instrument(span))
    }

    fn request(&self, store: Source, request: ObjectRequest, limit: Duration) -> BoxFuture<'static, ObjectResult> {
        let Some(objects) = self.stores.get(&store) else {
            let message = format!("no object store for source {}", store.as_str());
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
            tracing::warn!(pod = %event.pod, container, reason = event.reason, note = %event.message, "pod event");
        } else {
            tracing::info!(pod = %event.pod, container, reason = event.reason, note = %event.message, "pod event");
        }
    }
}

/// The clocks of the host: `CLOCK_BOOTTIME` and wall time.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Now {
        Now { boot: podwright_linux::clock::boot_time(), wall: Timestamp::now() }
    }
}
