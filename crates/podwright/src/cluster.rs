//! This machine as a node of a cluster: the parts that speak to the API server, started together.

use std::sync::Arc;

use podwright_agent::event_loop::Handle;
use podwright_agent::object_store::PodObjectStore;
use podwright_api::node::Registered;
use podwright_api::pod_objects::PodObjects;
use podwright_api::{Cluster, events as event_sink, lease, node, pods};
use podwright_core::model::{Event, ObjectRequest, ObjectResult, Source, SourceChange};
use podwright_cri::{BoxFuture, ImageService};
use podwright_tasks::Tasks;
use tokio::sync::{mpsc, watch};

use crate::config::AgentConfig;

mod events;
mod machine;
mod objects;
mod runtime;

pub(crate) use objects::objects;

/// What the parts need of the rest.
pub(crate) struct Parts {
    pub(crate) images: Arc<dyn ImageService>,
    pub(crate) handle: Handle,
    pub(crate) changes: mpsc::Sender<(Source, SourceChange)>,
}

/// The API server as the store of pod objects.
pub(crate) fn object_store(cluster: &Cluster) -> Arc<dyn PodObjectStore> {
    Arc::new(ApiObjectStore(Arc::new(PodObjects::new(cluster.clone()))))
}

struct ApiObjectStore(Arc<PodObjects>);

impl PodObjectStore for ApiObjectStore {
    fn request(&self, request: ObjectRequest) -> BoxFuture<'static, ObjectResult> {
        let pods = Arc::clone(&self.0);
        Box::pin(async move { pods.request(request).await })
    }
}

/// Register the node, keep it alive, and follow its pods. A server that is away holds nothing else up.
pub(crate) fn start(cluster: Cluster, config: &AgentConfig, parts: Parts, tasks: &Tasks) {
    let Some(settings) = config.cluster.clone() else { return };
    let facts = machine::facts(config, settings.taints, settings.images_max);
    let name = facts.name.clone();
    tracing::info!(server = %cluster.server(), node = name, "joining the cluster");
    let (registered, object) = watch::channel(None);
    let (occurrences, occurred) = mpsc::channel(events::ON_THEIR_WAY_MAX);
    tasks.service("event-forwarding", events::hand_on(parts.handle.state().follow_events(), occurrences));
    tasks.service("event-sink", event_sink::run(cluster.clone(), name.clone(), occurred));
    tasks.service("node-object", tell_of_node(object.clone(), parts.handle.clone()));
    tasks.service("node-lease", lease::run(cluster.another(), name.clone(), settings.lease, object.clone()));
    tasks.service("pod-watch", pods::run(cluster.clone(), name.clone(), object, parts.changes));
    let (check_every, report_every) = (settings.check_every, settings.report_every);
    let (told, events) = mpsc::channel(events::ON_THEIR_WAY_MAX);
    let (register, events_to) = (settings.register, Some(told));
    let registration = node::Registration { facts, register, check_every, report_every, events: events_to };
    tasks.service("node-events", events::tell_of_node(name, events, parts.handle.clone()));
    tasks.service("node-status", async move {
        // As a rule the first word about the node says how its runtime is.
        let said = parts.handle.state().follow_runtime();
        let (listening, runtime) = runtime::follow(said, parts.images).await;
        tokio::join!(listening, node::run(cluster, registration, runtime, registered));
    });
}

/// Mirrors belong to the node's object, unless it is going; pods are admitted by its labels.
async fn tell_of_node(mut object: watch::Receiver<Option<Registered>>, handle: Handle) {
    while object.changed().await.is_ok() {
        let object = object.borrow_and_update().clone();
        let labels = object.as_ref().map(|object| object.labels.clone());
        let uid = object.filter(|object| !object.is_going).map(|object| object.uid);
        handle.send(Event::NodeKnown { uid, labels }).await;
    }
}
