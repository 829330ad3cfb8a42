//! Exec, attach and port-forward: the runtime returns a streaming URL, and the client's upgraded connection is proxied to it byte
//! for byte (Go kubelet: `UpgradeAwareHandler`).
//!
//! The proxy does not interpret the bytes, so any protocol that both ends support (SPDY/3.1, websocket) works. Only streaming
//! servers on the loopback interface are dialled: the URL comes from the runtime and must not lead to another host.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use podwright_cri::{BoxFuture, CriError, RuntimeService, v1};
use tokio::io::{AsyncWriteExt, copy, split};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::serve::{HttpResponse, StreamGuard, WriteTimeout, complete};

mod activity;

use activity::WatchedStream;

/// Sandboxes that are ready, and running containers.
pub(crate) type RunningObjects = (Vec<v1::PodSandbox>, Vec<v1::Container>);

/// The calls of the runtime that the servers need.
pub trait StreamingRuntime: Send + Sync + 'static {
    /// The URL that runs a command in a container.
    fn exec(&self, request: v1::ExecRequest) -> BoxFuture<'_, Result<String, CriError>>;
    /// The URL that attaches to a container's process.
    fn attach(&self, request: v1::AttachRequest) -> BoxFuture<'_, Result<String, CriError>>;
    /// The URL that forwards ports of a sandbox.
    fn port_forward(&self, _: v1::PortForwardRequest) -> BoxFuture<'_, Result<String, CriError>> {
        Box::pin(async { Err(CriError::unimplemented("PortForward")) })
    }
    /// Runs a command and returns its output. `limit` is the time the command may take.
    fn exec_sync(
        &self,
        _: v1::ExecSyncRequest,
        _limit: Duration,
    ) -> BoxFuture<'_, Result<v1::ExecSyncResponse, CriError>> {
        Box::pin(async { Err(CriError::unimplemented("ExecSync")) })
    }
    /// The sandboxes that are ready, and the running containers.
    fn running(&self) -> BoxFuture<'_, Result<RunningObjects, CriError>> {
        Box::pin(async { Err(CriError::unimplemented("ListPodSandbox")) })
    }
}

impl<R: RuntimeService> StreamingRuntime for R {
    fn exec(&self, request: v1::ExecRequest) -> BoxFuture<'_, Result<String, CriError>> {
        RuntimeService::exec(self, request, RUNTIME_TIMEOUT)
    }

    fn attach(&self, request: v1::AttachRequest) -> BoxFuture<'_, Result<String, CriError>> {
        RuntimeService::attach(self, request, RUNTIME_TIMEOUT)
    }

    fn port_forward(&self, request: v1::PortForwardRequest) -> BoxFuture<'_, Result<String, CriError>> {
        RuntimeService::port_forward(self, request, RUNTIME_TIMEOUT)
    }

    fn exec_sync(
        &self,
        request: v1::ExecSyncRequest,
        limit: Duration,
    ) -> BoxFuture<'_, Result<v1::ExecSyncResponse, CriError>> {
        RuntimeService::exec_sync(self, request, limit)
    }

    fn running(&self) -> BoxFuture<'_, Result<RunningObjects, CriError>> {
        Box::pin(async {
            let ready = v1::PodSandboxStateValue { state: v1::PodSandboxState::SandboxReady.into() };
            let ready = v1::PodSandboxFilter { state: Some(ready), ..Default::default() };
            let running = v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning.into() };
            let running = v1::ContainerFilter { state: Some(running), ..Default::default() };
            let sandboxes = self.list_pod_sandbox(Some(ready), RUNTIME_TIMEOUT).await?;
            Ok((sandboxes, self.list_containers(Some(running), RUNTIME_TIMEOUT).await?))
        })
    }
}

/// Why a connection is not proxied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyError {
    #[error("Upgrade request required")]
    NotAnUpgrade,
    #[error("the runtime's streaming URL {url} is rejected: {why}")]
    Url { url: String, why: &'static str },
    #[error("the runtime's streaming server can't be reached at {address}: {source}")]
    Dial { address: SocketAddr, source: std::io::Error },
    #[error("the runtime's streaming server does not respond")]
    Silent,
    #[error("the runtime's streaming server: {0}")]
    Protocol(#[from] hyper::Error),
    /// Neither an upgrade nor an error.
    #[error("invalid upgrade response: status code {}", .0.as_u16())]
    NotUpgraded(StatusCode),
    /// The streaming server refuses with this response.
    #[error("the runtime's streaming server refuses the upgrade: {status} {}", String::from_utf8_lossy(body).trim())]
    Refused { status: StatusCode, headers: Box<HeaderMap>, body: Bytes },
}

/// The parts of a proxied stream that the server decides on.
pub(crate) struct ProxyOptions {
    /// For `X-Forwarded-For`; `None`: the header is not set.
    pub(crate) client: Option<IpAddr>,
    /// A stream without any byte for this long is closed; `None`: never.
    pub(crate) idle: Option<Duration>,
    pub(crate) stop: CancellationToken,
    /// Held until the stream ends.
    pub(crate) permit: StreamGuard,
}

/// The client asks for an upgrade of its connection.
pub(crate) fn is_upgrade(headers: &HeaderMap) -> bool {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let upgrade = values.flat_map(|value| value.split(',')).any(|value| value.trim().eq_ignore_ascii_case("upgrade"));
    upgrade && headers.contains_key(UPGRADE)
}

/// Upgrades the client's connection and proxies it to the streaming URL.
pub(crate) async fn proxy_upgrade(
    url: &str,
    mut request: Request<Incoming>,
    options: ProxyOptions,
) -> Result<HttpResponse, ProxyError> {
    if !is_upgrade(request.headers()) {
        return Err(ProxyError::NotAnUpgrade);
    }
    let (address, uri) = parse_loopback_url(url)?;
    let stream = match timeout(DIAL_TIMEOUT, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(source)) => return Err(ProxyError::Dial { address, source }),
        Err(_) => return Err(ProxyError::Silent),
    };
    let _ = stream.set_nodelay(true);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    podwright_tasks::spawn("runtime-stream", connection.with_upgrades());
    let upstream = upstream_request(&request, address, uri, options.client);
    let mut upstream = match timeout(RESPONSE_TIMEOUT, sender.send_request(upstream)).await {
        Ok(response) => response?,
        Err(_) => return Err(ProxyError::Silent),
    };
    if upstream.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refused_upgrade(upstream).await);
    }
    let mut response = Response::new(complete(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().clone_from(upstream.headers());
    response.extensions_mut().insert(WriteTimeout::Never);
    let ends = (hyper::upgrade::on(&mut request), hyper::upgrade::on(&mut upstream));
    podwright_tasks::spawn("exec-stream", copy_streams(ends.0, ends.1, options));
    Ok(response)
}

/// The response of the streaming server that refused an upgrade, for the client.
pub(crate) fn echo(status: StatusCode, headers: &HeaderMap, body: Bytes) -> HttpResponse {
    let mut response = Response::new(complete(body));
    *response.status_mut() = status;
    if let Some(kind) = headers.get(http::header::CONTENT_TYPE) {
        response.headers_mut().insert(http::header::CONTENT_TYPE, kind.clone());
    }
    response
}

/// The caller's method and headers, the runtime's path and query.
fn upstream_request(
    request: &Request<Incoming>,
    address: SocketAddr,
    uri: Uri,
    client: Option<IpAddr>,
) -> Request<Empty<Bytes>> {
    let mut upstream = Request::new(Empty::<Bytes>::new());
    upstream.method_mut().clone_from(request.method());
    *upstream.uri_mut() = uri;
    upstream.headers_mut().clone_from(request.headers());
    let headers = upstream.headers_mut();
    if !headers.contains_key(HOST) {
        let host = HeaderValue::from_str(&address.to_string()).expect("a socket address is a valid header value");
        headers.insert(HOST, host);
    }
    if let Some(client) = client {
        let earlier = headers.get(&FORWARDED_FOR).and_then(|value| value.to_str().ok()).map(ToOwned::to_owned);
        let all = earlier.map_or_else(|| client.to_string(), |earlier| format!("{earlier}, {client}"));
        if let Ok(value) = HeaderValue::from_str(&all) {
            headers.insert(FORWARDED_FOR, value);
        }
    }
    upstream
}

/// Copies in both directions until one end closes, nothing was copied for too long, or the agent stops.
async fn copy_streams(client: OnUpgrade, runtime: OnUpgrade, options: ProxyOptions) {
    let ends = timeout(RESPONSE_TIMEOUT, futures::future::try_join(client, runtime)).await;
    let Ok(Ok((client, runtime))) = ends else { return };
    let (client, idle) = WatchedStream::watch(TokioIo::new(client));
    let (mut client_reads, mut client_writes) = split(client);
    let (mut runtime_reads, mut runtime_writes) = split(TokioIo::new(runtime));
    tokio::select! {
        _ = copy(&mut client_reads, &mut runtime_writes) => {}
        _ = copy(&mut runtime_reads, &mut client_writes) => {}
        () = idle.for_at_least(options.idle) => tracing::debug!("idle stream closed"),
        () = options.stop.cancelled() => {}
    }
    // TLS clients need the end of the stream in order to distinguish it from a cut connection.
    let _ = timeout(RESPONSE_TIMEOUT, client_writes.shutdown()).await;
    drop(options.permit);
}

/// Address and path of a streaming URL, if it is on the loopback interface.
fn parse_loopback_url(url: &str) -> Result<(SocketAddr, Uri), ProxyError> {
    let wrong = |why: &'static str| ProxyError::Url { url: without_token(url), why };
    let uri: Uri = url.parse().map_err(|_| wrong("not a URL"))?;
    if uri.scheme_str() != Some("http") {
        return Err(wrong("not plain HTTP"));
    }
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let ip = match host {
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        host => host.parse().map_err(|_| wrong("the host is not an IP address"))?,
    };
    if !ip.is_loopback() {
        return Err(wrong("not a loopback address"));
    }
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let path: Uri = path.parse().map_err(|_| wrong("invalid path"))?;
    Ok((SocketAddr::new(ip, uri.port_u16().unwrap_or(80)), path))
}

/// Cuts off the last path segment: it is a token that grants access to the stream.
fn without_token(url: &str) -> String {
    let end = url.rfind('/').unwrap_or(url.len());
    let short: String = url[..end].chars().take(80).collect();
    format!("{short:?}…")
}

async fn refused_upgrade(response: Response<Incoming>) -> ProxyError {
    let status = response.status();
    if status.as_u16() < 400 {
        return ProxyError::NotUpgraded(status);
    }
    let headers = Box::new(response.headers().clone());
    let body = timeout(RESPONSE_TIMEOUT, Limited::new(response.into_body(), ERROR_BODY_MAX).collect()).await;
    let body = body.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
    ProxyError::Refused { status, headers, body }
}

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// For the runtime's Exec, Attach, PortForward and List calls.
const RUNTIME_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection over loopback succeeds or fails at once.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
/// For the streaming server's response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of the streaming server's error body.
const ERROR_BODY_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_urls_are_accepted() {
        let (address, uri) = parse_loopback_url("http://127.0.0.1:4000/exec/token?a=b").unwrap();
        assert_eq!((address.to_string(), uri.to_string()), ("127.0.0.1:4000".into(), "/exec/token?a=b".into()));
        assert!(parse_loopback_url("http://[::1]:1/x").is_ok() && parse_loopback_url("http://localhost:1/x").is_ok());
        for elsewhere in [
            "http://10.0.0.1:80/exec/t",
            "http://example.org/exec/t",
            "https://127.0.0.1/exec/t",
            "127.0.0.1:1/t",
            "",
            "http:///x",
        ] {
            let message = parse_loopback_url(elsewhere).unwrap_err().to_string();
            assert!(message.contains("is rejected"), "{message}");
            assert!(!message.contains("exec/t"), "the message contains the token: {message}");
        }
    }
}
