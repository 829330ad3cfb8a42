//! One HTTP/2 connection to the API server: made when needed, pinged while it lives, made anew with growing pauses.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt};
use secrecy::ExposeSecret;
use tokio::time::Instant;
use tower::{BoxError, Service};

use crate::backoff::Backoff;
use crate::kubeconfig::{Access, Identity};

/// A client with one connection.
pub(crate) type Http = Client<Patient<HttpsConnector<HttpConnector>>, Body>;

/// A client for this access; nothing is connected yet.
pub(crate) fn http(access: &Access, pauses: Pauses) -> Result<Http, String> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_MAX));
    let tls = tls(access).map_err(|error| error.to_string())?;
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    let builder = match &access.identity.server_name {
        Some(name) => {
            let name = name.clone().try_into().map_err(|_| format!("tls-server-name: {name:?} is no name"))?;
            builder.with_server_name_resolver(FixedServerNameResolver::new(name))
        }
        None => builder,
    };
    let connector = builder.enable_http2().wrap_connector(tcp);
    Ok(Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        // Many requests that come at once share the one connection that is being made.
        .http2_only(true)
        .http2_keep_alive_interval(PING_EVERY)
        .http2_keep_alive_timeout(PING_MAX)
        .http2_keep_alive_while_idle(true)
        .build(Patient { inner: connector, pauses }))
}

fn tls(access: &Access) -> Result<rustls::ClientConfig, kube::Error> {
    let Identity { roots, client, insecure, .. } = &access.identity;
    let mut config = kube::Config::new(access.server.clone());
    config.accept_invalid_certs = *insecure;
    let ders = roots.as_deref().map(|pem| {
        let parts = x509_parser::pem::Pem::iter_from_buffer(pem).filter_map(Result::ok);
        parts.filter(|part| part.label == "CERTIFICATE").map(|part| part.contents).collect()
    });
    config.root_cert = ders;
    if let Some((certificate, key)) = client {
        let base64 = |bytes: &[u8]| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes);
        config.auth_info.client_certificate_data = Some(base64(certificate));
        config.auth_info.client_key_data = Some(base64(key.expose_secret().as_bytes()).into());
    }
    config.rustls_client_config()
}

/// The pauses between attempts to connect; shared by the connections that follow each other.
#[derive(Clone)]
pub(crate) struct Pauses(Arc<Mutex<(Backoff, Instant)>>);

impl Default for Pauses {
    fn default() -> Self {
        Self(Arc::new(Mutex::new((Backoff::new(PAUSE_FIRST, PAUSE_MAX), Instant::now()))))
    }
}

impl Pauses {
    fn until(&self) -> Instant {
        self.0.lock().expect("no panic under this lock").1
    }

    fn ended(&self, well: bool) {
        let (backoff, until) = &mut *self.0.lock().expect("no panic under this lock");
        if well {
            backoff.reset();
        } else {
            *until = Instant::now() + backoff.failed();
        }
    }
}

/// A connector that leaves a server alone that could not be reached a moment ago.
#[derive(Clone)]
pub(crate) struct Patient<C> {
    inner: C,
    pauses: Pauses,
}

impl<C> Service<Uri> for Patient<C>
where
    C: Service<Uri, Error = BoxError> + Clone + Send + 'static,
    C::Future: Send,
    C::Response: Send,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<C::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        // The service that was ready is used; its clone is for next time.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let pauses = self.pauses.clone();
        Box::pin(async move {
            tokio::time::sleep_until(pauses.until()).await;
            let connected = tokio::time::timeout(HANDSHAKE_MAX, inner.call(uri)).await;
            let connected = connected.unwrap_or_else(|_| Err(format!("no connection within {HANDSHAKE_MAX:?}").into()));
            pauses.ended(connected.is_ok());
            connected
        })
    }
}

const CONNECT_MAX: Duration = Duration::from_secs(5);
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
const PING_EVERY: Duration = Duration::from_secs(15);
const PING_MAX: Duration = Duration::from_secs(15);
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
