//! The read-only HTTP server on the address of `--listen`: health, pods and metrics.
//!
//! | path | response |
//! |---|---|
//! | /livez, /healthz | 200 `ok` while the event loop runs, else 500 with the reason |
//! | /readyz | 200 `ok` when nothing is missing, else 503 with one line per missing part |
//! | /pods | a v1 PodList without values of environment variables |
//! | /metrics | metrics in the Prometheus text format |

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::ALLOW;
use http::{HeaderValue, Method, Request, StatusCode};
use hyper::body::Incoming;
use podwright_cri::BoxFuture;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::serve::{self, HttpResponse, RESPONSE_TIMEOUT, json, prometheus_text, text};

mod pod_list;

pub use pod_list::PodListCache;

/// The data that the health server shows.
pub trait AgentStatus: Send + Sync + 'static {
    /// All pods, as the JSON of a v1 PodList without values of environment variables: any local user may read it.
    fn pods(&self) -> BoxFuture<'_, Bytes>;
    /// All metrics in the Prometheus text format.
    fn metrics(&self) -> BoxFuture<'_, Bytes>;
    /// Why the agent should be restarted; `None` while it is live. Does not wait for anything.
    fn not_live(&self) -> Option<String>;
    /// Reasons why the agent is not ready: no runtime, no journal, a source not yet read. Empty when ready.
    fn not_ready(&self) -> BoxFuture<'_, Vec<String>>;
}

/// Bind before other parts start, so that an address in use is reported early.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Serves until `stop` is cancelled.
pub async fn serve(listener: TcpListener, agent: Arc<dyn AgentStatus>, stop: CancellationToken) {
    serve::serve(listener, move |request| respond(Arc::clone(&agent), request), stop).await;
}

async fn respond(agent: Arc<dyn AgentStatus>, request: Request<Incoming>) -> HttpResponse {
    let known = matches!(request.uri().path(), "/healthz" | "/livez" | "/readyz" | "/pods" | "/pods/" | "/metrics");
    match (request.method(), request.uri().path()) {
        _ if !known => text(StatusCode::NOT_FOUND, "404 page not found"),
        (&Method::GET | &Method::HEAD, path) => match timeout(RESPONSE_TIMEOUT, page(&*agent, path)).await {
            Ok(response) => response,
            Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "the agent did not respond in time"),
        },
        _ => {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are allowed");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        }
    }
}

async fn page(agent: &dyn AgentStatus, path: &str) -> HttpResponse {
    if path.starts_with("/pods") {
        return json(StatusCode::OK, agent.pods().await);
    }
    if path == "/metrics" {
        return prometheus_text(agent.metrics().await);
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

#[cfg(test)]
mod tests;
