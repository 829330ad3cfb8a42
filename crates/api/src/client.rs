//! The HTTP client of the API server: sends requests over one connection, turns failures into `ApiError`, renews credentials.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use jiff::Timestamp;
use kube::client::Body;
use podwright_tasks::{Pool, PoolError};
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;
use tower::{BoxError, Service};

use crate::certificate_pair::{CertificatePair, CurrentCertificate};
use crate::connect::{self, ConnectBackoff, ConnectError, HttpClient};
use crate::error::ApiError;
use crate::kubeconfig::{Access, Kubeconfig, KubeconfigError};
use crate::watched_body::{WatchedBody, is_same};

/// A client of the API server over one connection. Clones share the connection.
#[derive(Clone)]
pub struct ApiClient {
    inner: Arc<Inner>,
    kube: kube::Client,
}

struct Inner {
    /// The kubeconfig file.
    path: PathBuf,
    server: Uri,
    /// Used instead of the credentials in the kubeconfig; `None`: those are used.
    certificate: Option<CurrentCertificate>,
    session: Mutex<Option<Session>>,
    /// One request at a time reads credentials; the others wait for its result.
    renewal: Arc<tokio::sync::Mutex<Renewal>>,
    connect_backoff: ConnectBackoff,
    /// The client's own threads, for files and name lookups.
    pool: Pool,
}

/// The credentials and the connection that requests currently use.
#[derive(Clone)]
struct Session {
    access: Arc<Access>,
    http: HttpClient,
    /// Of a rotation.
    certificate: Option<Arc<CertificatePair>>,
}

/// The result of the last attempt to read credentials.
struct Renewal {
    /// No attempt before this time, which does not depend on the wall clock; `None`: no attempt failed.
    not_before: Option<Instant>,
    /// `None`: it succeeded. As text, because it is compared to log each error once.
    error: Option<String>,
}

/// Why the credentials could not be renewed.
#[derive(Debug, thiserror::Error)]
enum RenewalError {
    #[error(transparent)]
    Read(#[from] PoolError),
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error("{}: {source}", kubeconfig.display())]
    Connect { kubeconfig: PathBuf, source: ConnectError },
}

impl ApiClient {
    /// For the current context of a kubeconfig file. Fails if the file is invalid; does not connect yet.
    pub fn open(path: &Path) -> Result<Self, KubeconfigError> {
        Ok(Self::of(&Kubeconfig::read(path)?))
    }

    /// As [`Self::open`], for a kubeconfig that was read just now.
    pub(crate) fn of(kubeconfig: &Kubeconfig) -> Self {
        let path = kubeconfig.path();
        if let Some(end) = kubeconfig.expires().filter(|end| *end < Timestamp::now()) {
            tracing::error!(
                path = %path.display(),
                not_after = %end,
                "client certificate has expired: the API server will refuse it until the file is renewed"
            );
        }
        Self::new(path, kubeconfig.server().clone(), None, Pool::default())
    }

    /// As [`Self::open`], with the certificate of a rotation instead of the kubeconfig's credentials. Requests wait for the first
    /// one; connections are replaced with it.
    pub fn open_rotated(path: &Path, certificate: CurrentCertificate) -> Result<Self, KubeconfigError> {
        let kubeconfig = Kubeconfig::read_anonymous(path)?;
        Ok(Self::new(path, kubeconfig.server().clone(), Some(certificate), Pool::default()))
    }

    fn new(path: &Path, server: Uri, certificate: Option<CurrentCertificate>, pool: Pool) -> Self {
        let inner = Arc::new(Inner {
            path: path.to_owned(),
            server,
            certificate,
            session: Mutex::default(),
            renewal: Arc::new(tokio::sync::Mutex::new(Renewal { not_before: None, error: None })),
            connect_backoff: ConnectBackoff::default(),
            pool,
        });
        let kube = kube::Client::new(Transport(Arc::clone(&inner)), "default");
        Self { inner, kube }
    }

    /// A client of the same server over a separate connection.
    pub fn new_connection(&self) -> Self {
        let inner = &self.inner;
        Self::new(&inner.path, inner.server.clone(), inner.certificate.clone(), inner.pool.clone())
    }

    /// The server's address.
    pub fn server(&self) -> &Uri {
        &self.inner.server
    }

    /// Reads the kubeconfig again, and opens a new connection, with the next request.
    pub fn reset(&self) {
        *self.inner.session.lock().expect("no panic under this lock") = None;
    }

    /// Sends a request and reads the whole response within `limit`.
    pub async fn call(&self, request: Request<Vec<u8>>, limit: Duration) -> Result<Bytes, ApiError> {
        let work = async {
            let response = self.send(request).await?;
            let body = Limited::new(response.into_body(), BODY_MAX).collect().await;
            Ok(body.map_err(|error| unreachable(&*error))?.to_bytes())
        };
        tokio::time::timeout(limit, work).await.unwrap_or(Err(ApiError::Timeout(limit)))
    }

    /// Sends a request; the caller reads the body. A status other than success is an error.
    pub async fn send(&self, request: Request<Vec<u8>>) -> Result<Response<Body>, ApiError> {
        let response = self.kube.send(request.map(Body::from)).await.map_err(|error| match error {
            kube::Error::Service(error) => unreachable(&*error),
            other => unreachable(&other),
        })?;
        if response.status().is_success() {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let body = tokio::time::timeout(ERROR_BODY_TIMEOUT, Limited::new(body, ERROR_BODY_MAX).collect()).await;
        let body = body.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
        Err(ApiError::from_response(parts.status, &parts.headers, &body))
    }
}

/// A request; `content` is the content type and the body.
pub fn request(method: Method, path: &str, content: Option<(&'static str, Vec<u8>)>) -> Request<Vec<u8>> {
    let (kind, body) = content.unzip();
    let mut request = Request::new(body.unwrap_or_default());
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().unwrap_or_else(|error| {
        // Paths are built from validated names; an invalid one is sent to a path that does not exist.
        tracing::error!(url = path, %error, "invalid request path");
        Uri::from_static("/invalid")
    });
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
    if let Some(kind) = kind {
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    request
}

impl Inner {
    /// The session for the next request. Credentials that are due are read first; if that fails, the old ones are used.
    async fn session(self: &Arc<Self>) -> Result<Session, BoxError> {
        let now = Timestamp::now();
        let certificate = self.certificate().await?;
        let same = |session: &Session| is_same(&session.certificate, &certificate);
        let current = self.session.lock().expect("no panic under this lock").clone();
        if let Some(session) = current.filter(|session| session.access.renew_at > now && same(session)) {
            return Ok(session);
        }
        let renewal = Arc::clone(&self.renewal).lock_owned().await;
        let current = self.session.lock().expect("no panic under this lock").clone();
        let is_delayed = renewal.not_before.is_some_and(|at| at > Instant::now());
        let usable = |session: &Session| same(session) && (session.access.renew_at > now || is_delayed);
        if let Some(session) = current.clone().filter(usable) {
            return Ok(session);
        }
        if let Some(error) = renewal.error.clone().filter(|_| is_delayed) {
            return Err(error.into());
        }
        // A task of its own: a credential plugin may take longer than this request waits, and must not end with it.
        let renewed = Arc::clone(self).renew_and_keep(renewal, current, certificate);
        podwright_tasks::spawn("credential-renewal", renewed).await?
    }

    /// Holds `renewal` until the credentials are read, so that the other requests wait.
    async fn renew_and_keep(
        self: Arc<Self>,
        mut renewal: OwnedMutexGuard<Renewal>,
        current: Option<Session>,
        certificate: Option<Arc<CertificatePair>>,
    ) -> Result<Session, BoxError> {
        match self.renew(current.as_ref(), certificate).await {
            Ok(session) => {
                if renewal.error.take().is_some() {
                    tracing::info!(path = %self.path.display(), "credentials can be read again");
                }
                *self.session.lock().expect("no panic under this lock") = Some(session.clone());
                Ok(session)
            }
            Err(error) => {
                let error = error.to_string();
                renewal.not_before = Some(Instant::now() + REREAD_AFTER_FAILURE);
                if renewal.error.as_ref() != Some(&error) {
                    tracing::warn!(error, "credential renewal failed: retrying");
                }
                renewal.error = Some(error.clone());
                current.ok_or_else(|| error.into())
            }
        }
    }

    /// The certificate of the rotation; `None` without a rotation. Waits for the first one.
    async fn certificate(&self) -> Result<Option<Arc<CertificatePair>>, BoxError> {
        let Some(mut current) = self.certificate.clone() else { return Ok(None) };
        match tokio::time::timeout(CERTIFICATE_WAIT, current.wait_for(Option::is_some)).await {
            Ok(Ok(current)) => Ok(current.clone()),
            _ => Err("the node has no client certificate yet".into()),
        }
    }

    async fn renew(
        &self,
        current: Option<&Session>,
        certificate: Option<Arc<CertificatePair>>,
    ) -> Result<Session, RenewalError> {
        let (path, rotated) = (self.path.clone(), certificate.is_some());
        let read = move || if rotated { Kubeconfig::read_anonymous(&path) } else { Kubeconfig::read(&path) };
        let read = self.pool.run("kubeconfig", READ_TIMEOUT, read).await??;
        let mut access = read.access(&self.pool).await?;
        if let Some(pair) = &certificate {
            access.identity.client = Some((pair.certificates().into(), pair.key().clone()));
        }
        let reusable =
            |session: &&Session| session.access.identity == access.identity && session.access.server == access.server;
        let http = match current.filter(reusable) {
            Some(session) => session.http.clone(),
            None => connect::http(&access, self.connect_backoff.clone(), self.pool.clone())
                .map_err(|source| RenewalError::Connect { kubeconfig: self.path.clone(), source })?,
        };
        Ok(Session { access: Arc::new(access), http, certificate })
    }

    /// After a 401: reads the credentials again soon, because the files may have been renewed.
    fn unauthorized(&self, used: &Session) {
        let mut session = self.session.lock().expect("no panic under this lock");
        let same = session.as_ref().is_some_and(|session| Arc::ptr_eq(&session.access, &used.access));
        if same && let Some(session) = session.as_mut() {
            // Further 401s do not postpone it.
            let renew_at = session.access.renew_at.min(Timestamp::now() + REREAD_AFTER_401);
            let access = Access { renew_at, ..Access::clone(&session.access) };
            session.access = Arc::new(access);
        }
    }
}

/// Adds address and credentials to requests, and bounds the time until the response starts.
#[derive(Clone)]
struct Transport(Arc<Inner>);

impl Service<Request<Body>> for Transport {
    type Response = Response<WatchedBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<WatchedBody>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let inner = Arc::clone(&self.0);
        let work = async move {
            let session = inner.session().await?;
            let is_watch = request.uri().query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"));
            *request.uri_mut() = absolute(&session.access.server, request.uri())?;
            let headers = request.headers_mut();
            headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
            if let Some(authorization) = &session.access.authorization {
                headers.insert(AUTHORIZATION, authorization.clone());
            }
            let response = session.http.request(request).await?;
            if response.status() == StatusCode::UNAUTHORIZED {
                inner.unauthorized(&session);
            }
            let rotation = inner.certificate.clone().filter(|_| is_watch).map(|current| (current, session.certificate));
            Ok(response.map(|body| WatchedBody::new(body, rotation)))
        };
        Box::pin(async move {
            let timed_out = |_| BoxError::from(format!("no response within {RESPONSE_TIMEOUT:?}"));
            tokio::time::timeout(RESPONSE_TIMEOUT, work).await.map_err(timed_out)?
        })
    }
}

/// The request's path appended to the server's address, which may have a path of its own.
fn absolute(server: &Uri, request: &Uri) -> Result<Uri, BoxError> {
    let path = request.path_and_query().map_or("/", |path| path.as_str());
    let prefix = server.path().trim_end_matches('/');
    let mut parts = server.clone().into_parts();
    parts.path_and_query = Some(format!("{prefix}{path}").parse()?);
    Ok(Uri::from_parts(parts)?)
}

/// An error without an HTTP response, with the text of its whole source chain.
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
/// Until the response headers. The response to a watch starts at once, too.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// A page of pods, each as large as etcd allows.
const BODY_MAX: usize = 128 << 20;
const ERROR_BODY_MAX: usize = 256 << 10;
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// For a kubeconfig.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// For the first certificate of a node that joins; shorter than the limits of calls, so that the error names the reason.
const CERTIFICATE_WAIT: Duration = Duration::from_secs(9);
/// Delay after credentials could not be read.
const REREAD_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Delay after the server refused the current credentials.
const REREAD_AFTER_401: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
