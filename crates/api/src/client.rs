//! The way to the API server: requests out, answers or clear errors back, all over one connection.

use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use jiff::Timestamp;
use kube::client::Body;
use tower::{BoxError, Service};

use crate::connect::{self, Http, Pauses};
use crate::error::ApiError;
use crate::kubeconfig::{Access, Kubeconfig, KubeconfigError};

/// An API server, over one connection. Clones share it.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
    client: kube::Client,
}

struct Inner {
    path: std::path::PathBuf,
    server: Uri,
    live: Mutex<Option<Live>>,
    /// One at a time reads credentials; the others wait for it.
    renewal: tokio::sync::Mutex<Renewal>,
    pauses: Pauses,
}

/// What requests are sent with now.
#[derive(Clone)]
struct Live {
    access: Arc<Access>,
    http: Http,
}

/// How reading credentials went.
struct Renewal {
    not_before: Timestamp,
    error: Option<String>,
}

impl Cluster {
    /// By a kubeconfig file. Wrong files are refused here; nothing is connected yet.
    pub fn open(path: &Path) -> Result<Self, KubeconfigError> {
        let kubeconfig = Kubeconfig::read(path)?;
        if let Some(end) = kubeconfig.expires().filter(|end| *end < Timestamp::now()) {
            tracing::error!(
                kubeconfig = %path.display(),
                "the client certificate ended at {end}: the API server will refuse it until the file is renewed"
            );
        }
        Ok(Self::new(path, kubeconfig.server().clone()))
    }

    fn new(path: &Path, server: Uri) -> Self {
        let inner = Arc::new(Inner {
            path: path.to_owned(),
            server,
            live: Mutex::default(),
            renewal: tokio::sync::Mutex::new(Renewal { not_before: Timestamp::MIN, error: None }),
            pauses: Pauses::default(),
        });
        let client = kube::Client::new(Transport(Arc::clone(&inner)), "default");
        Self { inner, client }
    }

    /// The same server over a connection of its own.
    pub fn another(&self) -> Self {
        Self::new(&self.inner.path, self.inner.server.clone())
    }

    /// For [`kube::Api`]; every request has 30 s until its answer begins.
    pub fn client(&self) -> &kube::Client {
        &self.client
    }

    /// The server's address.
    pub fn server(&self) -> &Uri {
        &self.inner.server
    }

    /// Read the kubeconfig again and make the next request over a new connection.
    pub fn reset(&self) {
        *self.inner.live.lock().expect("no panic under this lock") = None;
    }

    /// Send a request; the whole answer must be here within `limit`.
    pub async fn call(&self, request: Request<Vec<u8>>, limit: Duration) -> Result<Bytes, ApiError> {
        let work = async {
            let response = self.send(request).await?;
            let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
            Ok(body.map_err(|error| unreachable(&*error))?.to_bytes())
        };
        tokio::time::timeout(limit, work).await.unwrap_or(Err(ApiError::Timeout(limit)))
    }

    /// Send a request; its answer is read by the caller. Anything but success is an error already.
    pub async fn send(&self, request: Request<Vec<u8>>) -> Result<Response<Body>, ApiError> {
        let response = self.client.send(request.map(Body::from)).await.map_err(|error| match error {
            kube::Error::Service(error) => unreachable(&*error),
            other => unreachable(&other),
        })?;
        if response.status().is_success() {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let body = tokio::time::timeout(ERROR_BODY_MAX, Limited::new(body, ERROR_MAX).collect()).await;
        let body = body.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
        Err(ApiError::from_answer(parts.status, &parts.headers, &body))
    }
}

/// A request with a JSON body, or none.
pub fn request(method: Method, path: &str, content: Option<(&'static str, Vec<u8>)>) -> Request<Vec<u8>> {
    let (kind, body) = content.unzip();
    let mut request = Request::new(body.unwrap_or_default());
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().unwrap_or_else(|error| {
        // Paths are made of names that were validated; one that is no path reaches nothing.
        tracing::error!(path, %error, "no path for a request");
        Uri::from_static("/invalid")
    });
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
    if let Some(kind) = kind {
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    request
}

impl Inner {
    /// What to send with; credentials that are due are read first. Old ones are better than none.
    async fn live(&self) -> Result<Live, BoxError> {
        let now = Timestamp::now();
        let have = self.live.lock().expect("no panic under this lock").clone();
        if let Some(live) = have.filter(|live| live.access.renew_at > now) {
            return Ok(live);
        }
        let mut renewal = self.renewal.lock().await;
        let have = self.live.lock().expect("no panic under this lock").clone();
        if let Some(live) = have.clone().filter(|live| live.access.renew_at > now || renewal.not_before > now) {
            return Ok(live);
        }
        if let Some(error) = renewal.error.clone().filter(|_| renewal.not_before > now) {
            return Err(error.into());
        }
        match self.renewed(have.as_ref()).await {
            Ok(live) => {
                if renewal.error.take().is_some() {
                    tracing::info!(kubeconfig = %self.path.display(), "the credentials can be read again");
                }
                *self.live.lock().expect("no panic under this lock") = Some(live.clone());
                Ok(live)
            }
            Err(error) => {
                renewal.not_before = Timestamp::now() + REREAD_FAILED;
                if renewal.error.as_ref() != Some(&error) {
                    tracing::warn!("{error}");
                }
                renewal.error = Some(error.clone());
                have.ok_or_else(|| error.into())
            }
        }
    }

    async fn renewed(&self, have: Option<&Live>) -> Result<Live, String> {
        let path = self.path.clone();
        let read = tokio::task::spawn_blocking(move || Kubeconfig::read(&path)).await;
        let read = read.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        let access = read.access().await.map_err(|error| error.to_string())?;
        let http = match have {
            Some(live) if live.access.identity == access.identity && live.access.server == access.server => {
                live.http.clone()
            }
            _ => connect::http(&access, self.pauses.clone())
                .map_err(|error| format!("{}: {error}", self.path.display()))?,
        };
        Ok(Live { access: Arc::new(access), http })
    }

    /// The server does not know us: perhaps the files do by now.
    fn refused(&self, by: &Live) {
        let mut live = self.live.lock().expect("no panic under this lock");
        let same = live.as_ref().is_some_and(|live| Arc::ptr_eq(&live.access, &by.access));
        if same && let Some(live) = live.as_mut() {
            // Not moved later by the refusals that follow.
            let renew_at = live.access.renew_at.min(Timestamp::now() + REREAD_REFUSED);
            let access = Access { renew_at, ..Access::clone(&live.access) };
            live.access = Arc::new(access);
        }
    }
}

/// Puts address and credentials on requests, and bounds the wait for an answer.
#[derive(Clone)]
struct Transport(Arc<Inner>);

impl Service<Request<Body>> for Transport {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let inner = Arc::clone(&self.0);
        let work = async move {
            let live = inner.live().await?;
            *request.uri_mut() = absolute(&live.access.server, request.uri())?;
            let headers = request.headers_mut();
            headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
            if let Some(authorization) = &live.access.authorization {
                headers.insert(AUTHORIZATION, authorization.clone());
            }
            let response = live.http.request(request).await?;
            if response.status() == StatusCode::UNAUTHORIZED {
                inner.refused(&live);
            }
            Ok(response)
        };
        Box::pin(async move {
            let late = |_| BoxError::from(format!("no answer within {HEADERS_MAX:?}"));
            tokio::time::timeout(HEADERS_MAX, work).await.map_err(late)?
        })
    }
}

/// The server's address, its own path included, before the request's.
fn absolute(server: &Uri, request: &Uri) -> Result<Uri, BoxError> {
    let path = request.path_and_query().map_or("/", |path| path.as_str());
    let prefix = server.path().trim_end_matches('/');
    let mut parts = server.clone().into_parts();
    parts.path_and_query = Some(format!("{prefix}{path}").parse()?);
    Ok(Uri::from_parts(parts)?)
}

/// The whole story of an error that is no answer.
fn unreachable(error: &dyn std::error::Error) -> ApiError {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = inner.source();
    }
    ApiError::Unreachable(text)
}

const AGENT: &str = concat!("podwright/", env!("CARGO_PKG_VERSION"), " (linux)");
/// An answer must begin within this time. A watch's answer begins at once, too.
const HEADERS_MAX: Duration = Duration::from_secs(30);
/// A page of pods, each as large as etcd lets it be.
const ANSWER_MAX: usize = 128 << 20;
const ERROR_MAX: usize = 256 << 10;
const ERROR_BODY_MAX: Duration = Duration::from_secs(10);
/// After credentials could not be read.
const REREAD_FAILED: Duration = Duration::from_secs(5);
/// After the server refused those we have.
const REREAD_REFUSED: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_own_path_is_kept() {
        let uri = |text: &str| text.parse::<Uri>().unwrap();
        let whole = |server: &str| absolute(&uri(server), &uri("/api/v1/pods?limit=2")).unwrap().to_string();
        assert_eq!(whole("https://10.0.0.1:6443"), "https://10.0.0.1:6443/api/v1/pods?limit=2");
        assert_eq!(whole("https://rancher/k8s/clusters/c-1/"), "https://rancher/k8s/clusters/c-1/api/v1/pods?limit=2");
    }
}
