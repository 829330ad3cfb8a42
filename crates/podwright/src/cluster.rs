//! Cluster membership: starts the components that talk to the API server.

use std::sync::Arc;

use podwright_agent::event_loop::Handle;
use podwright_agent::object_store::PodObjectStore;
use podwright_api::node::RegisteredNode;
use podwright_api::pod_objects::PodObjects;
use podwright_api::{ApiClient, events as event_sink, lease, node, pods};
use podwright_core::Node;
use podwright_core::model::{Event, ObjectRequest, ObjectResult, Source, SourceChange};
use podwright_core::node_status::NodeEvent;
use podwright_cri::{BoxFuture, ImageService, RuntimeService};
use podwright_tasks::Tasks;
use tokio::sync::{mpsc, watch};

use crate::config::AgentConfig;

mod events;
mod node_facts;
mod objects;
mod pod_cidr;
mod reviews;
mod runtime;

pub(crate) use node_facts::{kubelet_version, machine_ids};
pub(crate) use objects::objects;
pub(crate) use reviews::ApiReviewer;

/// What the components of the cluster need from the rest of the agent.
pub(crate) struct ClusterDependencies {
    pub(crate) runtime: Arc<dyn RuntimeService>,
    pub(crate) images: Arc<dyn ImageService>,
    pub(crate) handle: Handle,
    pub(crate) changes: mpsc::Sender<(Source, SourceChange)>,
    /// The newest resource version among the recorded pods of the API server.
    pub(crate) recorded_version: Option<u64>,
}

/// The API server as the store of pod objects.
pub(crate) fn object_store(cluster: &ApiClient) -> Arc<dyn PodObjectStore> {
    Arc::new(ApiObjectStore(Arc::new(PodObjects::new(cluster.clone()))))
}

struct ApiObjectStore(Arc<PodObjects>);

impl PodObjectStore for ApiObjectStore {
    fn request(&self, request: ObjectRequest) -> BoxFuture<'static, ObjectResult> {
        let pods = Arc::clone(&self.0);
        Box::pin(async move { pods.request(request).await })
    }
}

/// Starts registration, lease, pod watch and event upload. An unreachable server blocks nothing else. Returns the queue for events of
/// the node.
pub(crate) fn start(
    cluster: ApiClient,
    config: &AgentConfig,
    parts: ClusterDependencies,
    tasks: &Tasks,
) -> mpsc::Sender<NodeEvent> {
    let (node_events, events) = mpsc::channel(events::QUEUE_MAX);
    let Some(settings) = config.cluster.clone() else { return node_events };
    let facts = node_facts::node_facts(config, settings.taints, settings.images_max);
    let name = facts.name.clone();
    tracing::info!(url = %cluster.server(), node = name, "joining the cluster");
    let (registered, object) = watch::channel(None);
    let (occurrences, occurred) = mpsc::channel(events::QUEUE_MAX);
    // Between the two: api does not depend on agent, whose ring may also drop events while the sink waits for the server.
    tasks.service("event-forwarding", events::forward(parts.handle.state().follow_events(), occurrences));
    tasks.service("event-sink", event_sink::run(cluster.clone(), name.clone(), occurred));
    tasks.service("node-object", report_node_object(object.clone(), parts.handle.clone()));
    let (runtime, limit) = (parts.runtime, config.node.runtime_request_timeout);
    let update = move |config| {
        let runtime = Arc::clone(&runtime);
        async move { runtime.update_runtime_config(config, limit).await }
    };
    tasks.service("pod-cidr", pod_cidr::follow(object.clone(), update));
    tasks.service("node-lease", lease::run(cluster.new_connection(), name.clone(), settings.lease, object.clone()));
    tasks.service("pod-watch", pods::run(cluster.clone(), name.clone(), object, parts.changes, parts.recorded_version));
    let (check_every, report_every) = (settings.check_every, settings.report_every);
    let (register, events_to) = (settings.register, Some(node_events.clone()));
    let registration = node::NodeRegistration { facts, register, check_every, report_every, events: events_to };
    tasks.service("node-events", events::report_node_events(name, events, parts.handle.clone()));
    tasks.service("node-status", async move {
        // Usually the runtime's state is known before the first status is sent.
        let reported = parts.handle.state().follow_runtime();
        let (listening, runtime) = runtime::follow(reported, parts.images).await;
        tokio::join!(listening, node::run(cluster, registration, runtime, registered));
    });
    node_events
}

/// Reports the Node object to core: its UID owns mirror pods unless it is being deleted, its labels decide admission, and pods end
/// at a shutdown once it is not ready.
async fn report_node_object(mut object: watch::Receiver<Option<RegisteredNode>>, handle: Handle) {
    while object.changed().await.is_ok() {
        let object = object.borrow_and_update().clone();
        let labels = object.as_ref().map(|object| object.labels.clone());
        let announces_shutdown = object.as_ref().is_some_and(|object| object.announces_shutdown);
        let uid = object.filter(|object| !object.deleting).map(|object| object.uid);
        handle.send(Event::NodeKnown { uid, labels }).await;
        if announces_shutdown {
            handle.send(Event::ShutdownAnnounced).await;
        }
    }
}

/// The newest resource version among the pods of the API server that the journal holds.
pub(crate) fn recorded_version(node: &Node) -> Option<u64> {
    let records = node.workers().iter().map(|(_, machine)| machine.record());
    let versions =
        records.filter(|record| record.source == Source::Api).map(|record| &record.pod.metadata.resource_version);
    versions.filter_map(|version| version.as_deref()?.parse().ok()).max()
}
