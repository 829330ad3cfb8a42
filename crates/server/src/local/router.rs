//! Routes a request of the local API to its handler.

use std::path::Path;
use std::sync::Arc;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;
use podwright_agent::event_loop::{CorrelatedEvent, Explanation, Handle};
use podwright_agent::feed::{PodFeed, PodView};
use podwright_agent::host::HostPaths;
use podwright_agent::local::Store;
use podwright_core::model::{Event, FullName};
use podwright_cri::BoxFuture;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::body::reject_and_drain;
use super::events;
use super::exec::StreamingRuntime;
use super::route::Route;
use super::{STREAMS_MAX, discovery, exec, pods, restart_stop, watch, write};
use crate::log;
use crate::query::QueryParams;
use crate::serve::{HttpResponse, RESPONSE_TIMEOUT, json, text};
use crate::status_error::StatusError;

/// The queries and events that the local API sends to the agent.
pub trait AgentApi: Send + Sync + 'static {
    /// Manifests that could not be parsed, as (origin, error); `None` while the agent shuts down.
    fn broken_manifests(&self) -> BoxFuture<'_, Option<Vec<(String, String)>>>;
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

/// Formats the result of `explain`: instances of the pod, events, the directory of pod logs, the current time.
pub type ExplainFormatter = fn(&[Explanation], &[CorrelatedEvent], &Path, Timestamp) -> String;

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
    /// The container runtime, for exec and attach.
    pub runtime: Arc<dyn StreamingRuntime>,
    /// The event loop.
    pub agent: Arc<dyn AgentApi>,
    /// Formats the response of `/podwright/v1/explain`.
    pub format_explanation: ExplainFormatter,
}

/// The state that all requests share.
pub(super) struct ServerState {
    pub(super) api: LocalApi,
    pub(super) stop: CancellationToken,
    streams: Arc<Semaphore>,
}

impl ServerState {
    pub(super) fn new(api: LocalApi, stop: CancellationToken) -> Self {
        Self { api, stop, streams: Arc::new(Semaphore::new(STREAMS_MAX)) }
    }

    /// A permit for one of the [`STREAMS_MAX`] streaming responses.
    pub(super) fn stream_permit(&self) -> Result<OwnedSemaphorePermit, StatusError> {
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| StatusError::too_many())
    }

    /// The newest pod with this name.
    pub(super) fn pod(&self, of: &FullName) -> Result<Arc<PodView>, StatusError> {
        self.api.feed.by_name(&of.namespace, &of.name).ok_or_else(|| StatusError::not_found("pods", &of.name))
    }
}

pub(super) async fn handle(state: Arc<ServerState>, request: Request<Incoming>) -> HttpResponse {
    let route = match Route::parse(request.method(), request.uri().path()) {
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
    state: &Arc<ServerState>,
    route: Route,
    request: Request<Incoming>,
) -> Result<HttpResponse, StatusError> {
    let mut params = QueryParams::parse(request.uri().query().unwrap_or_default());
    match route {
        Route::Create(namespace) => return write::create(state, namespace, params, request).await,
        Route::Update(of) => return write::update(state, of, params, request).await,
        Route::Delete(of) => return write::delete(state, of, params, request).await,
        Route::Exec(of) => return exec::exec(state, &of, params, request).await,
        Route::Attach(of) => return exec::attach(state, &of, params, request).await,
        _ => {}
    }
    match route {
        Route::Discovery(document) => discovery::respond(document, params),
        Route::Pods(namespace) if params.flag("watch")? => watch::watch(state, namespace, params),
        Route::Pods(namespace) => pods::list(state, namespace, params),
        Route::Pod(of) => {
            params.text("resourceVersion");
            params.finish()?;
            Ok(object(&*state.pod(&of)?))
        }
        Route::Log(of) => {
            let options = log::LogOptions::parse(&mut params)?;
            params.finish()?;
            let view = state.pod(&of)?;
            let log = log::ContainerLog::new(state.api.paths.clone(), Arc::clone(&state.api.feed), view, options)?;
            log.respond(state.stream_permit()?, state.stop.clone()).await
        }
        Route::Restart(of) => restart_stop::restart(state, &of, params).await,
        Route::Stop => restart_stop::stop(state, params).await,
        Route::Events(namespace) => events::list(state, namespace, params),
        Route::Event(of) => events::one(state, &of, params),
        Route::Manifests => {
            params.finish()?;
            let broken = state.api.agent.broken_manifests().await.ok_or_else(shutting_down)?;
            let broken =
                broken.into_iter().map(|(origin, message)| serde_json::json!({"origin": origin, "message": message}));
            Ok(object(&serde_json::json!({"broken": broken.collect::<Vec<_>>()})))
        }
        Route::Explain => explain(state, params).await,
        Route::Create(_) | Route::Update(_) | Route::Delete(_) | Route::Exec(_) | Route::Attach(_) => {
            unreachable!("handled by the first match")
        }
    }
}

async fn explain(state: &ServerState, mut params: QueryParams) -> Result<HttpResponse, StatusError> {
    let pod = params.text("pod").ok_or_else(|| StatusError::bad_request("name a pod: ?pod=NAMESPACE/NAME"))?;
    params.finish()?;
    let agent = &state.api.agent;
    let instances = agent.explain(pod.clone()).await.ok_or_else(shutting_down)?;
    if instances.is_empty() {
        return Err(unknown_pod(&pod, &agent.broken_manifests().await.ok_or_else(shutting_down)?));
    }
    let logs = &state.api.paths.pod_logs_dir;
    Ok(text(StatusCode::OK, (state.api.format_explanation)(&instances, &agent.events(), logs, Timestamp::now())))
}

fn shutting_down() -> StatusError {
    StatusError::unavailable("the agent is shutting down")
}

/// Lists the broken manifests too: one of them may be the reason why the pod does not exist.
fn unknown_pod(pod: &str, broken: &[(String, String)]) -> StatusError {
    let error = StatusError::not_found("pods", pod);
    let broken: Vec<String> = broken.iter().map(|(origin, why)| format!("\n  {origin}: {why}")).collect();
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
