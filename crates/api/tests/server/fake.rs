//! An API server whose responses are scripted by the test.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use podwright_api::ApiClient;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) path: String,
    pub(crate) content_type: String,
    pub(crate) authorization: String,
    pub(crate) body: Value,
}

/// A scripted response.
pub(crate) enum Reply {
    Json(u16, Value),
    /// Status 200 after a delay.
    After(Duration, Value),
    Text(u16, Vec<(&'static str, String)>, String),
    /// A body of the chunks sent into the channel; ends when the sender is dropped.
    Stream(mpsc::Receiver<Bytes>),
    /// No response at all.
    Hang,
}

type Script = dyn Fn(&ReceivedRequest) -> Reply + Send + Sync;

pub(crate) struct FakeApiServer {
    pub(crate) seen: Arc<Mutex<Vec<ReceivedRequest>>>,
    pub(crate) dir: tempfile::TempDir,
    /// Connections that were accepted, and that have ended.
    accepted: Arc<[AtomicUsize; 2]>,
}

impl FakeApiServer {
    /// Serves this script until the test ends.
    pub(crate) async fn start(script: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static) -> Self {
        let script: Arc<Script> = Arc::new(script);
        let seen = Arc::new(Mutex::new(vec![]));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let log = Arc::clone(&seen);
        let accepted = Arc::<[AtomicUsize; 2]>::default();
        let counted = Arc::clone(&accepted);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted[0].fetch_add(1, Ordering::Relaxed);
                let counted = Arc::clone(&counted);
                let (script, log) = (Arc::clone(&script), Arc::clone(&log));
                let service = service_fn(move |request| respond(request, Arc::clone(&script), Arc::clone(&log)));
                let connection =
                    http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
                tokio::spawn(async move {
                    let _ = connection.await;
                    counted[1].fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("token"), "first").unwrap();
        let kubeconfig = format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n\
             users: [{{name: u, user: {{tokenFile: token}}}}]\n"
        );
        std::fs::write(dir.path().join("kubeconfig"), kubeconfig).unwrap();
        Self { seen, dir, accepted }
    }

    pub(crate) fn client(&self) -> ApiClient {
        ApiClient::open(&self.kubeconfig()).unwrap()
    }

    /// Connections that were ever accepted.
    pub(crate) fn connections(&self) -> usize {
        self.accepted[0].load(Ordering::Relaxed)
    }

    pub(crate) fn open_connections(&self) -> usize {
        self.connections() - self.accepted[1].load(Ordering::Relaxed)
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    /// Received requests of this method whose path has this prefix.
    pub(crate) fn requests(&self, method: &str, path: &str) -> Vec<ReceivedRequest> {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|seen| seen.method == method && seen.path.starts_with(path)).cloned().collect()
    }
}

async fn respond(
    request: Request<Incoming>,
    script: Arc<Script>,
    log: Arc<Mutex<Vec<ReceivedRequest>>>,
) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let header = |name: &str| request.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    let (content_type, authorization) = (header("content-type"), header("authorization"));
    let (method, path) = (request.method().to_string(), request.uri().path_and_query().unwrap().to_string());
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let body = serde_json::from_slice(&body).unwrap_or_default();
    let seen = ReceivedRequest { method, path, content_type, authorization, body };
    log.lock().unwrap().push(seen.clone());
    let whole = |text: String| Full::new(Bytes::from(text)).boxed();
    let (code, headers, body) = match script(&seen) {
        Reply::Json(code, value) => (code, vec![], whole(value.to_string())),
        Reply::After(delay, value) => {
            tokio::time::sleep(delay).await;
            (200, vec![], whole(value.to_string()))
        }
        Reply::Text(code, headers, text) => (code, headers, whole(text)),
        Reply::Stream(chunks) => {
            let frames = ReceiverStream::new(chunks).map(|chunk| Ok(Frame::data(chunk)));
            (200, vec![], StreamBody::new(frames).boxed())
        }
        Reply::Hang => std::future::pending().await,
    };
    let mut response = Response::builder().status(code);
    for (name, value) in headers {
        response = response.header(name, value);
    }
    Ok(response.body(body).unwrap())
}

/// A pod of node `n` as the server stores it.
pub(crate) fn pod(uid: &str, version: u64) -> Value {
    json!({"kind": "Pod", "apiVersion": "v1",
           "metadata": {"name": uid, "namespace": "ns", "uid": uid, "resourceVersion": version.to_string(),
                        "managedFields": [{"manager": "x"}]},
           "spec": {"nodeName": "n", "containers": []}})
}

/// A list of pods.
pub(crate) fn list(version: u64, items: &[Value]) -> Value {
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": version.to_string()}, "items": items})
}

/// A watch event as a line.
pub(crate) fn line(kind: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{}\n", json!({"type": kind, "object": object})))
}

/// A failure as a Kubernetes Status object.
pub(crate) fn status(code: u16, reason: &str, message: &str) -> Reply {
    Reply::Json(code, json!({"kind": "Status", "code": code, "reason": reason, "message": message}))
}

/// Waits until the condition holds; panics after 10 s.
pub(crate) async fn wait_until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..1000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within 10 s: {what}");
}
