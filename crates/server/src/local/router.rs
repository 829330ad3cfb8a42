//! Routes a request of the local API to its handler.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;
use podwright_agent::event_loop::{CorrelatedEvent, Explanation, Handle};
use podwright_agent::feed::{PodFeed, PodView};
use podwright_agent::host::{HostPaths, Pool};
use podwright_agent::local::Store;
use podwright_core::model::{Event, FullName};
use podwright_cri::BoxFuture;
use serde::Serialize;
use tokio::sync::{Semaphore, broadcast};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::body::reject_and_drain;
use super::events;
use super::images::{self, ImageRequestError, NodeImages, PullAmount};
use super::metrics::{NodeCapacity, UsageSource};
use super::route::LocalRoute;
use super::table::{ObjectForm, TableCells};
use super::{STREAMS_MAX, TRANSFERS_MAX, discovery, exec, metrics, patch, pods, restart_stop, watch, write};
use crate::log;
use crate::query::QueryParams;
use crate::serve::{HttpResponse, RESPONSE_TIMEOUT, StreamGuard, json, text};
use crate::status_error::StatusError;
use crate::streaming_proxy::StreamingRuntime;

/// The queries and events that the local API sends to the agent.
pub trait AgentApi: Send + Sync + 'static {
    /// Manifests that could not be parsed, as (origin, error); `None` while the agent shuts down.
    fn broken_manifests(&self) -> BoxFuture<'_, Option<Vec<(String, String)>>>;
    /// The container runtime responds; `None` while the agent shuts down.
    fn runtime_up(&self) -> BoxFuture<'_, Option<bool>>;
    /// No check of the container runtime has ended since the agent was started; `None` while the agent shuts down.
    fn runtime_pending(&self) -> BoxFuture<'_, Option<bool>> {
        Box::pin(async { Some(false) })
    }
    /// Why the container runtime has no network for pods; `None`: it has, or is not known yet.
    fn network_error(&self) -> Option<String> {
        None
    }
    /// Other problems that the container runtime reports.
    fn runtime_problems(&self) -> Vec<String> {
        vec![]
    }
    /// The pressure conditions of the node that hold: `MemoryPressure`, …
    fn pressures(&self) -> Vec<&'static str> {
        vec![]
    }
    /// The history of each pod instance with this name (`namespace/name`); `None` while the agent shuts down.
    fn explain(&self, pod: String) -> BoxFuture<'_, Option<Vec<Explanation>>>;
    /// The events in memory, oldest first.
    fn events(&self) -> Vec<CorrelatedEvent>;
    /// Every event from now on.
    fn follow_events(&self) -> broadcast::Receiver<CorrelatedEvent>;
    /// Passes a user's request (restart, stop) to the event loop.
    fn send(&self, event: Event) -> BoxFuture<'_, ()>;
}

impl AgentApi for Handle {
    fn broken_manifests(&self) -> BoxFuture<'_, Option<Vec<(String, String)>>> {
        Box::pin(async { Some(self.pods().await?.broken) })
    }

    fn runtime_up(&self) -> BoxFuture<'_, Option<bool>> {
        Box::pin(async { Some(self.pods().await?.runtime_up) })
    }

    fn runtime_pending(&self) -> BoxFuture<'_, Option<bool>> {
        Box::pin(async { Some(self.pods().await?.runtime_pending) })
    }

    fn network_error(&self) -> Option<String> {
        self.state().follow_runtime().borrow().as_ref()?.network.clone()
    }

    fn runtime_problems(&self) -> Vec<String> {
        self.state().follow_runtime().borrow().as_ref().map(|facts| facts.problems.clone()).unwrap_or_default()
    }

    fn pressures(&self) -> Vec<&'static str> {
        self.state().pressures()
    }

    fn explain(&self, pod: String) -> BoxFuture<'_, Option<Vec<Explanation>>> {
        Box::pin(Handle::explain(self, pod))
    }

    fn events(&self) -> Vec<CorrelatedEvent> {
        self.state().events()
    }

    fn follow_events(&self) -> broadcast::Receiver<CorrelatedEvent> {
        self.state().follow_events()
    }

    fn send(&self, event: Event) -> BoxFuture<'_, ()> {
        Box::pin(Handle::send(self, event))
    }
}

/// Formats the result of `explain`: instances of the pod, events, the directory of pod logs, the current time, and how far the
/// pull of an image is.
pub type ExplainFormatter = fn(&[Explanation], &[CorrelatedEvent], &Path, Timestamp, PullLookup<'_>) -> String;
/// How far the pull of the image in a field of a pod is.
pub type PullLookup<'a> = &'a dyn Fn(&str) -> Option<PullAmount>;

/// The parts that the local API serves from.
pub struct LocalApi {
    /// The node's name.
    pub node: String,
    /// The directories of container logs.
    pub paths: HostPaths,
    /// Every pod with its current status.
    pub feed: Arc<PodFeed>,
    /// The pods that were created through this API.
    pub store: Arc<Store>,
    /// For reading log files.
    pub pool: Pool,
    /// The container runtime, for exec, attach and port-forward.
    pub runtime: Arc<dyn StreamingRuntime>,
    /// The images of the node; an error if another program keeps them.
    pub images: Result<Arc<dyn NodeImages>, ImageRequestError>,
    /// What the node and its pods use.
    pub usage: Arc<dyn UsageSource>,
    /// What the node has.
    pub capacity: NodeCapacity,
    /// What pods can request of it.
    pub allocatable: NodeCapacity,
    /// The event loop.
    pub agent: Arc<dyn AgentApi>,
    /// Computes the cells of tables.
    pub cells: TableCells,
    /// Formats the response of `/podwright/v1/explain`.
    pub format_explanation: ExplainFormatter,
}

/// The state that all requests share.
pub(super) struct LocalState {
    pub(super) api: LocalApi,
    pub(super) stop: CancellationToken,
    streams: Arc<Semaphore>,
    transfers: Arc<Semaphore>,
}

impl LocalState {
    pub(super) fn new(api: LocalApi, stop: CancellationToken) -> Self {
        let (streams, transfers) = (Semaphore::new(STREAMS_MAX), Semaphore::new(TRANSFERS_MAX));
        Self { api, stop, streams: Arc::new(streams), transfers: Arc::new(transfers) }
    }

    /// A permit for one of the [`STREAMS_MAX`] streaming responses.
    pub(super) fn stream_permit(&self) -> Result<StreamGuard, StatusError> {
        match Arc::clone(&self.streams).try_acquire_owned() {
            Ok(permit) => Ok(Box::new(permit)),
            Err(_) => Err(StatusError::too_many()),
        }
    }

    /// A permit for one of the [`TRANSFERS_MAX`] transfers of images.
    pub(super) fn transfer_permit(&self) -> Result<StreamGuard, StatusError> {
        match Arc::clone(&self.transfers).try_acquire_owned() {
            Ok(permit) => Ok(Box::new((permit, self.stream_permit()?))),
            Err(_) => Err(StatusError::too_many_transfers()),
        }
    }

    /// How far the pull of this image is.
    pub(super) fn pull_amount(&self, image: &str) -> Option<PullAmount> {
        self.api.images.as_ref().ok()?.pull_amount(image)
    }

    /// The newest pod with this name.
    pub(super) fn pod(&self, of: &FullName) -> Result<Arc<PodView>, StatusError> {
        self.api.feed.by_name(&of.namespace, &of.name).ok_or_else(|| StatusError::not_found("pods", &of.name))
    }
}

pub(super) async fn handle(state: Arc<LocalState>, request: Request<Incoming>) -> HttpResponse {
    let route = match LocalRoute::parse(request.method(), request.uri().path()) {
        Ok(route) => route,
        Err(error) => return reject_and_drain(error, request),
    };
    match timeout(RESPONSE_TIMEOUT, dispatch(&state, route, request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => error.response(),
        Err(_) => StatusError::unavailable("the agent did not respond in time").response(),
    }
}

async fn dispatch(
    state: &Arc<LocalState>,
    route: LocalRoute,
    request: Request<Incoming>,
) -> Result<HttpResponse, StatusError> {
    let mut params = QueryParams::parse(request.uri().query().unwrap_or_default());
    let form = match ObjectForm::parse(request.headers(), &mut params) {
        Ok(form) => form,
        Err(error) => return Ok(reject_and_drain(error, request)),
    };
    match route {
        LocalRoute::Create(namespace) => write::create(state, namespace, params, request).await,
        LocalRoute::Update(of) => write::update(state, of, params, request).await,
        LocalRoute::Patch(of) => patch::patch(state, of, params, request).await,
        LocalRoute::Delete(of) => write::delete(state, of, params, request).await,
        LocalRoute::Exec(of) => exec::exec(state, &of, params, request).await,
        LocalRoute::Attach(of) => exec::attach(state, &of, params, request).await,
        LocalRoute::PortForward(of) => exec::port_forward(state, &of, params, request).await,
        LocalRoute::Images(of) => images::respond(state, of, params, request).await,
        LocalRoute::Pods(namespace) if params.flag("watch")? => watch::watch(state, namespace, form, params),
        LocalRoute::Pods(namespace) => pods::list(state, namespace, form, params),
        LocalRoute::Pod(of) => pods::one(state, &of, form, params),
        LocalRoute::Events(namespace) => events::list(state, namespace, form, params),
        LocalRoute::Event(of) => events::one(state, &of, form, params),
        LocalRoute::Discovery(document) => discovery::respond(document, params),
        LocalRoute::Log(of) => container_log(state, &of, params).await,
        LocalRoute::Restart(of) => restart_stop::restart(state, &of, params).await,
        LocalRoute::Stop => restart_stop::stop(state, params).await,
        LocalRoute::Nodes(named) => metrics::node_objects(state, named.as_deref(), params).await,
        LocalRoute::NodeMetrics(named) => metrics::nodes(state, named.as_deref(), params).await,
        LocalRoute::PodMetricsList(namespace) => metrics::pods(state, namespace, params).await,
        LocalRoute::PodMetrics(of) => metrics::pod(state, &of, params).await,
        LocalRoute::Manifests => manifests(state, params).await,
        LocalRoute::Explain => explain(state, params).await,
        LocalRoute::Pulls => images::pulls(state, params),
    }
}

async fn container_log(
    state: &LocalState,
    of: &FullName,
    mut params: QueryParams,
) -> Result<HttpResponse, StatusError> {
    let options = log::LogOptions::parse(&mut params)?;
    params.finish()?;
    let view = state.pod(of)?;
    let files = log::LogFiles { paths: state.api.paths.clone(), pool: state.api.pool.clone() };
    let log = log::ContainerLog::new(files, Arc::clone(&state.api.feed), view, options)?;
    log.respond(state.stream_permit()?, LOG_PATIENCE, state.stop.clone()).await
}

async fn manifests(state: &LocalState, params: QueryParams) -> Result<HttpResponse, StatusError> {
    params.finish()?;
    let broken = state.api.agent.broken_manifests().await.ok_or_else(shutting_down)?;
    let broken = broken.into_iter().map(|(origin, message)| serde_json::json!({"origin": origin, "message": message}));
    let runtime_up = state.api.agent.runtime_up().await.ok_or_else(shutting_down)?;
    let mut response = serde_json::json!({"broken": broken.collect::<Vec<_>>(), "runtimeUp": runtime_up});
    // Only in the first moments of an agent.
    if state.api.agent.runtime_pending().await.ok_or_else(shutting_down)? {
        response["runtimePending"] = true.into();
    }
    if let Some(error) = state.api.agent.network_error() {
        response["networkError"] = error.into();
    }
    let problems = state.api.agent.runtime_problems();
    if !problems.is_empty() {
        response["runtimeProblems"] = problems.into();
    }
    let pressures = state.api.agent.pressures();
    if !pressures.is_empty() {
        response["pressures"] = pressures.into();
    }
    Ok(object(&response))
}

async fn explain(state: &LocalState, mut params: QueryParams) -> Result<HttpResponse, StatusError> {
    let pod = params.text("pod").ok_or_else(|| StatusError::bad_request("name a pod: ?pod=NAMESPACE/NAME"))?;
    params.finish()?;
    let agent = &state.api.agent;
    let instances = agent.explain(pod.clone()).await.ok_or_else(shutting_down)?;
    if instances.is_empty() {
        return Err(unknown_pod(&pod, &agent.broken_manifests().await.ok_or_else(shutting_down)?));
    }
    let logs = &state.api.paths.pod_logs_dir;
    let pulls = |image: &str| state.pull_amount(image);
    let shown = (state.api.format_explanation)(&instances, &agent.events(), logs, Timestamp::now(), &pulls);
    Ok(text(StatusCode::OK, shown))
}

pub(super) fn shutting_down() -> StatusError {
    StatusError::unavailable("the agent is shutting down")
}

/// Lists the broken manifests too: one of them may be the reason why the pod does not exist.
fn unknown_pod(pod: &str, broken: &[(String, String)]) -> StatusError {
    let error = StatusError::not_found("pods", pod);
    let name = pod.rsplit('/').next().unwrap_or(pod);
    // The one that is probably meant comes first.
    let (mut first, others): (Vec<_>, Vec<_>) = broken.iter().partition(|(origin, _)| origin.contains(name));
    first.extend(others);
    let broken: Vec<String> = first.into_iter().map(|(origin, why)| format!("\n  {origin}: {why}")).collect();
    match broken.is_empty() {
        true => error,
        false => error.append(&format!("; these manifests can't be used:{}", broken.concat())),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct List<T> {
    kind: &'static str,
    api_version: &'static str,
    metadata: serde_json::Value,
    items: Vec<T>,
}

/// A v1 list at this resource version.
pub(super) fn list<T: Serialize>(kind: &'static str, version: u64, items: Vec<T>) -> HttpResponse {
    let metadata = serde_json::json!({"resourceVersion": version.to_string()});
    object(&List { kind, api_version: "v1", metadata, items })
}

/// One object, with status 200.
pub(super) fn object(value: &impl Serialize) -> HttpResponse {
    with_code(StatusCode::OK, value)
}

pub(super) fn with_code(code: StatusCode, value: &impl Serialize) -> HttpResponse {
    json(code, serde_json::to_vec(value).expect("plain data"))
}

/// A user may read a log slowly, in a pager.
const LOG_PATIENCE: Duration = Duration::from_secs(3600);
