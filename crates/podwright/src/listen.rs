//! HTTP for people and monitors, on the address of `--listen`: is it well, and which pods are there. Nothing can be changed here.
//!
//! | path | answer |
//! |---|---|
//! | /livez, /healthz | 200 `ok` while the loop turns, else 500 with the reason |
//! | /readyz | 200 `ok` when it does all its work, else 503 with what it lacks |
//! | /pods | a v1 PodList |

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// A future that can be sent anywhere.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What there is to show.
pub(crate) trait Views: Send + Sync + 'static {
    /// All pods, as the JSON of a v1 PodList.
    fn pods(&self) -> BoxFuture<'_, Bytes>;
    /// How the agent is.
    fn health(&self) -> BoxFuture<'_, Health>;
}

/// How the agent is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Health {
    /// Why it should be restarted, if so.
    pub(crate) dead: Option<String>,
    /// What it can't do at the moment: no runtime, no journal, a source not yet read.
    pub(crate) lacks: Vec<String>,
}

/// Take the address, so that a taken one is known before anything else is started.
pub(crate) async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Serve until told to stop. Connections under way then get a moment to end.
pub(crate) async fn serve(listener: TcpListener, views: Arc<dyn Views>, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // A place first: more callers than that wait in the kernel's own queue.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of file descriptors, mostly: it passes when others close theirs.
                    tracing::warn!(%error, "a connection could not be taken");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
        };
        let (views, stop) = (Arc::clone(&views), stop.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(Arc::clone(&views), request));
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_MAX)
                .max_buf_size(16 << 10)
                // One question a connection: who holds one open takes a place from others.
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                // Who reads too slowly is cut off.
                _ = timeout(CONNECTION_MAX, connection) => {}
                () = async { stop.cancelled().await; tokio::time::sleep(DRAIN).await } => {}
            }
            drop(place);
        });
    }
}

async fn answer(views: Arc<dyn Views>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let known = matches!(request.uri().path(), "/healthz" | "/livez" | "/readyz" | "/pods" | "/pods/");
    let response = match (request.method(), request.uri().path()) {
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
    };
    Ok(response)
}

async fn show(views: &dyn Views, path: &str) -> Response<Full<Bytes>> {
    if path.starts_with("/pods") {
        let mut response = Response::new(Full::new(views.pods().await));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        return response;
    }
    let Health { dead, lacks } = views.health().await;
    match (dead, path) {
        (Some(why), _) => text(StatusCode::INTERNAL_SERVER_ERROR, &why),
        (None, "/readyz") if !lacks.is_empty() => text(StatusCode::SERVICE_UNAVAILABLE, &lacks.join("\n")),
        (None, _) => text(StatusCode::OK, "ok"),
    }
}

fn text(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::copy_from_slice(text.as_bytes())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// A few monitors and people; each holds some kilobytes.
const CONNECTIONS_MAX: usize = 64;
/// For the request's head.
const HEADER_MAX: Duration = Duration::from_secs(5);
/// For the agent to say what it has to say.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// For everything, slow readers included.
const CONNECTION_MAX: Duration = Duration::from_secs(60);
/// For what is under way at the end.
const DRAIN: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
