//! The read-only HTTP server on the address of `--listen`: health, pods and metrics.
//!
//! | path | response |
//! |---|---|
//! | /livez, /healthz | 200 `ok` while the event loop runs, else 500 with the reason |
//! | /readyz | 200 `ok` when nothing is missing, else 503 with one line per missing part |
//! | /pods | a v1 PodList without values of environment variables; 503 while it cannot be built |
//! | /metrics | metrics in the Prometheus text format |

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::ALLOW;
use http::{HeaderValue, Method, Request, StatusCode};
use hyper::body::Incoming;
use podwright_agent::stats::SampleError;
use podwright_core::model::FullName;
use podwright_cri::BoxFuture;
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::query::QueryParams;
use crate::serve::{self, HttpResponse, RESPONSE_TIMEOUT, compressed, json, prometheus_text, text};

mod pod_list;

pub use pod_list::PodListCache;

/// The data that the health server shows.
pub trait AgentStatus: Send + Sync + 'static {
    /// All pods, as the JSON of a v1 PodList without values of environment variables: any local user may read it. `None`: the
    /// list cannot be built now.
    fn pods(&self) -> BoxFuture<'_, Option<Bytes>>;
    /// A page of metrics in the Prometheus text format.
    fn metrics(&self, page: MetricsPage) -> BoxFuture<'_, Bytes>;
    /// The body of `/stats/summary`.
    fn stats_summary(&self, only_cpu_and_memory: bool) -> BoxFuture<'_, Result<Bytes, SampleError>>;
    /// Counts the result of a health check, for [`MetricsPage::Slis`].
    fn record_healthcheck(&self, name: &str, passed: bool);
    /// Forgets the results of health checks.
    fn reset_healthchecks(&self);
    /// The static pod whose mirror pod has this UID in the API server.
    fn static_pod_name<'a>(&'a self, mirror: &'a str) -> BoxFuture<'a, Option<FullName>>;
    /// Why the agent should be restarted; `None` while it is live. Does not wait for anything.
    fn not_live(&self) -> Option<String>;
    /// Reasons why the agent is not ready: no runtime, no journal, a source not yet read. Empty when ready.
    fn not_ready(&self) -> BoxFuture<'_, Vec<String>>;
}

/// The pages of metrics that a kubelet serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MetricsPage {
    /// `/metrics`: the agent itself.
    Agent,
    /// `/metrics/cadvisor`: every cgroup, in the form of cAdvisor.
    Cadvisor,
    /// `/metrics/resource`: CPU and memory of pods and containers, for metrics-server.
    Resource,
    /// `/metrics/probes`: results of probes.
    Probes,
    /// `/metrics/slis`: results of health checks.
    Slis,
}

impl MetricsPage {
    /// The page at a path.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        Some(match path.strip_prefix("/metrics")? {
            "" => Self::Agent,
            "/cadvisor" => Self::Cadvisor,
            "/resource" => Self::Resource,
            "/probes" => Self::Probes,
            "/slis" => Self::Slis,
            _ => return None,
        })
    }
}

/// The response to `/stats/summary` with this query.
pub(crate) async fn summary(agent: &dyn AgentStatus, query: &str) -> HttpResponse {
    // Kubernetes: `strconv.ParseBool`; a value that it does not know is false.
    let given = QueryParams::parse(query).all("only_cpu_and_memory").into_iter().next();
    let only = given.is_some_and(|given| ["1", "t", "T", "true", "TRUE", "True"].contains(&given.as_str()));
    match agent.stats_summary(only).await {
        Ok(summary) => json(StatusCode::OK, summary),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// Bind before other parts start, so that an address in use is reported early.
pub fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    // Connections inherit it.
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until `stop` is cancelled.
pub async fn serve(listener: TcpListener, agent: Arc<dyn AgentStatus>, stop: CancellationToken) {
    serve::serve(listener, move |request| respond(Arc::clone(&agent), request), stop).await;
}

async fn respond(agent: Arc<dyn AgentStatus>, request: Request<Incoming>) -> HttpResponse {
    let path = request.uri().path();
    let known = matches!(path, "/healthz" | "/livez" | "/readyz" | "/pods" | "/pods/" | "/stats/summary")
        || MetricsPage::of_path(path).is_some();
    let query = request.uri().query().unwrap_or_default();
    match (request.method(), path) {
        _ if !known => text(StatusCode::NOT_FOUND, "404 page not found"),
        (&Method::GET | &Method::HEAD, path) => match timeout(RESPONSE_TIMEOUT, page(&*agent, path, query)).await {
            Ok(response) => compressed(response, request.headers()),
            Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "the agent did not respond in time"),
        },
        _ => {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are allowed");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        }
    }
}

async fn page(agent: &dyn AgentStatus, path: &str, query: &str) -> HttpResponse {
    if path.starts_with("/pods") {
        return match agent.pods().await {
            Some(pods) => json(StatusCode::OK, pods),
            None => text(StatusCode::SERVICE_UNAVAILABLE, "the list of pods is not available yet"),
        };
    }
    if path.starts_with("/stats") {
        return summary(agent, query).await;
    }
    if let Some(page) = MetricsPage::of_path(path) {
        return prometheus_text(agent.metrics(page).await);
    }
    if let Some(why) = agent.not_live() {
        return text(StatusCode::INTERNAL_SERVER_ERROR, why);
    }
    if path == "/readyz" {
        let not_ready = agent.not_ready().await;
        if !not_ready.is_empty() {
            return text(StatusCode::SERVICE_UNAVAILABLE, not_ready.join("\n"));
        }
    }
    text(StatusCode::OK, "ok")
}

/// Of a connection, which the kernel doubles. It would grow to megabytes for a client that reads nothing, and counts as memory of the
/// agent's cgroup.
const SEND_BUFFER: u32 = 64 << 10;
/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

#[cfg(test)]
mod tests;
