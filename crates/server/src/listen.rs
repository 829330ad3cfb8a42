//! HTTP for people and monitors, on the address of `--listen`: is it well, and which pods are there. Nothing can be changed here.
//!
//! | path | answer |
//! |---|---|
//! | /livez, /healthz | 200 `ok` while the loop turns, else 500 with the reason |
//! | /readyz | 200 `ok` when it does all its work, else 503 with what it lacks |
//! | /pods | a v1 PodList |
//! | /metrics | numbers, as Prometheus reads them |

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::ALLOW;
use http::{HeaderValue, Method, Request, StatusCode};
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::BoxFuture;
use crate::serve::{self, ANSWER_MAX, Answer, json, numbers, text};

/// What there is to show.
pub trait Views: Send + Sync + 'static {
    /// All pods, as the JSON of a v1 PodList.
    fn pods(&self) -> BoxFuture<'_, Bytes>;
    /// Numbers for monitors, as Prometheus reads them.
    fn metrics(&self) -> BoxFuture<'_, Bytes>;
    /// How the agent is.
    fn health(&self) -> BoxFuture<'_, Health>;
}

/// How the agent is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Why it should be restarted, if so.
    pub dead: Option<String>,
    /// What it can't do at the moment: no runtime, no journal, a source not yet read.
    pub lacks: Vec<String>,
}

/// Take the address, so that a taken one is known before anything else is started.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Serve until told to stop.
pub async fn serve(listener: TcpListener, views: Arc<dyn Views>, stop: CancellationToken) {
    serve::serve(listener, move |request| answer(Arc::clone(&views), request), stop).await;
}

async fn answer(views: Arc<dyn Views>, request: Request<Incoming>) -> Answer {
    let known = matches!(request.uri().path(), "/healthz" | "/livez" | "/readyz" | "/pods" | "/pods/" | "/metrics");
    match (request.method(), request.uri().path()) {
        _ if !known => text(StatusCode::NOT_FOUND, "404 page not found"),
        (&Method::GET | &Method::HEAD, path) => match timeout(ANSWER_MAX, show(&*views, path)).await {
            Ok(response) => response,
            Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "the agent does not answer"),
        },
        _ => {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        }
    }
}

async fn show(views: &dyn Views, path: &str) -> Answer {
    if path.starts_with("/pods") {
        return json(StatusCode::OK, views.pods().await);
    }
    if path == "/metrics" {
        return numbers(views.metrics().await);
    }
    let Health { dead, lacks } = views.health().await;
    match (dead, path) {
        (Some(why), _) => text(StatusCode::INTERNAL_SERVER_ERROR, why),
        (None, "/readyz") if !lacks.is_empty() => text(StatusCode::SERVICE_UNAVAILABLE, lacks.join("\n")),
        (None, _) => text(StatusCode::OK, "ok"),
    }
}

#[cfg(test)]
mod tests;
