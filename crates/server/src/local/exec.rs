//! Exec and attach: the runtime returns a streaming URL, and the client's upgraded connection is proxied to it byte for byte.
//!
//! The proxy does not interpret the bytes, so any protocol that both ends support (SPDY/3.1, websocket) works. Only streaming
//! servers on the loopback interface are dialled: the URL comes from the runtime and must not lead to another host.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, UPGRADE};
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use podwright_agent::feed::PodView;
use podwright_core::model::FullName;
use podwright_cri::{BoxFuture, CriError, RuntimeService, v1};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::router::ServerState;
use crate::log::container_named;
use crate::query::QueryParams;
use crate::serve::{HttpResponse, WriteTimeout};
use crate::status_error::StatusError;

/// The streaming calls of the runtime.
pub trait StreamingRuntime: Send + Sync + 'static {
    /// The URL that runs a command in a container.
    fn exec(&self, request: v1::ExecRequest) -> BoxFuture<'_, Result<String, CriError>>;
    /// The URL that attaches to a container's process.
    fn attach(&self, request: v1::AttachRequest) -> BoxFuture<'_, Result<String, CriError>>;
}

impl<R: RuntimeService> StreamingRuntime for R {
    fn exec(&self, request: v1::ExecRequest) -> BoxFuture<'_, Result<String, CriError>> {
        RuntimeService::exec(self, request, RUNTIME_TIMEOUT)
    }

    fn attach(&self, request: v1::AttachRequest) -> BoxFuture<'_, Result<String, CriError>> {
        RuntimeService::attach(self, request, RUNTIME_TIMEOUT)
    }
}

pub(super) async fn exec(
    state: &ServerState,
    of: &FullName,
    mut params: QueryParams,
    request: Request<Incoming>,
) -> Result<HttpResponse, StatusError> {
    let (streams, command) = (Streams::parse(&mut params)?, params.all("command"));
    let view = state.pod(of)?;
    let container_id = running_container_id(&view, params.text("container"))?;
    params.finish()?;
    if command.is_empty() {
        return Err(StatusError::bad_request("you must specify at least one command for the container"));
    }
    check_upgrade(&request)?;
    let Streams { stdin, stdout, stderr, tty } = streams;
    let call = v1::ExecRequest { container_id, cmd: command, tty, stdin, stdout, stderr };
    let url = state.api.runtime.exec(call).await.map_err(|error| runtime_error(&error))?;
    proxy_upgrade(state, &url, request).await
}

pub(super) async fn attach(
    state: &ServerState,
    of: &FullName,
    mut params: QueryParams,
    request: Request<Incoming>,
) -> Result<HttpResponse, StatusError> {
    let Streams { stdin, stdout, stderr, tty } = Streams::parse(&mut params)?;
    let view = state.pod(of)?;
    let container_id = running_container_id(&view, params.text("container"))?;
    params.finish()?;
    check_upgrade(&request)?;
    let call = v1::AttachRequest { container_id, stdin, tty, stdout, stderr };
    let url = state.api.runtime.attach(call).await.map_err(|error| runtime_error(&error))?;
    proxy_upgrade(state, &url, request).await
}

/// The standard streams that the client asks for.
struct Streams {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

impl Streams {
    fn parse(params: &mut QueryParams) -> Result<Self, StatusError> {
        let (stdin, stdout) = (params.flag("stdin")?, params.flag("stdout")?);
        let (stderr, tty) = (params.flag("stderr")?, params.flag("tty")?);
        if !stdin && !stdout && !stderr {
            return Err(StatusError::bad_request("you must specify at least 1 of stdin, stdout, stderr"));
        }
        // A terminal has only one output stream.
        Ok(Self { stdin, stdout, stderr: stderr && !tty, tty })
    }
}

/// The runtime's id of the container, which must be running.
fn running_container_id(view: &PodView, container: Option<String>) -> Result<String, StatusError> {
    let (name, status) = container_named(view, container)?;
    let running = status.filter(|status| status.state.as_ref().is_some_and(|state| state.running.is_some()));
    let id = running.and_then(|status| status.container_id.as_deref());
    let id =
        id.ok_or_else(|| StatusError::bad_request(format!("container {name} of pod {} is not running", view.name())))?;
    Ok(id.split_once("://").map_or(id, |(_, id)| id).to_owned())
}

fn check_upgrade(request: &Request<Incoming>) -> Result<(), StatusError> {
    let values = request.headers().get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let upgrade = values.flat_map(|value| value.split(',')).any(|value| value.trim().eq_ignore_ascii_case("upgrade"));
    match upgrade && request.headers().contains_key(UPGRADE) {
        true => Ok(()),
        false => Err(StatusError::bad_request("Upgrade request required: SPDY/3.1 or websocket")),
    }
}

async fn proxy_upgrade(
    state: &ServerState,
    url: &str,
    mut request: Request<Incoming>,
) -> Result<HttpResponse, StatusError> {
    let permit = state.stream_permit()?;
    let (address, uri) = parse_loopback_url(url)?;
    let dialled = timeout(DIAL_TIMEOUT, TcpStream::connect(address)).await;
    let stream = match dialled {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(streaming_error(&format!("can't be reached at {address}: {error}"))),
        Err(_) => return Err(streaming_error(&format!("does not respond at {address}"))),
    };
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| streaming_error(&error.to_string()))?;
    podwright_tasks::spawn("runtime-stream", connection.with_upgrades());
    let mut upstream = Request::new(Empty::<Bytes>::new());
    upstream.method_mut().clone_from(request.method());
    *upstream.uri_mut() = uri;
    upstream.headers_mut().clone_from(request.headers());
    let host = HeaderValue::from_str(&address.to_string()).expect("a socket address is a valid header value");
    upstream.headers_mut().insert(HOST, host);
    let mut upstream_response = match timeout(RESPONSE_TIMEOUT, sender.send_request(upstream)).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return Err(streaming_error(&error.to_string())),
        Err(_) => return Err(streaming_error("does not respond")),
    };
    if upstream_response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refused_upgrade(upstream_response).await);
    }
    let mut response = Response::new(Empty::new().boxed_unsync());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().clone_from(upstream_response.headers());
    response.extensions_mut().insert(WriteTimeout::Never);
    let ends = (hyper::upgrade::on(&mut request), hyper::upgrade::on(&mut upstream_response));
    podwright_tasks::spawn("exec-stream", copy_streams(ends.0, ends.1, state.stop.clone(), permit));
    Ok(response)
}

/// Copies in both directions until one end closes or the agent stops.
async fn copy_streams(
    client: hyper::upgrade::OnUpgrade,
    runtime: hyper::upgrade::OnUpgrade,
    stop: CancellationToken,
    _permit: OwnedSemaphorePermit,
) {
    let ends = timeout(RESPONSE_TIMEOUT, futures::future::try_join(client, runtime)).await;
    let Ok(Ok((client, runtime))) = ends else { return };
    let (mut client, mut runtime) = (TokioIo::new(client), TokioIo::new(runtime));
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut runtime) => {}
        () = stop.cancelled() => {}
    }
}

/// Address and path of a streaming URL, if it is on the loopback interface.
fn parse_loopback_url(url: &str) -> Result<(SocketAddr, Uri), StatusError> {
    let wrong = |why: &str| {
        StatusError::internal(format!("the runtime's streaming URL {} is rejected: {why}", without_token(url)))
    };
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

async fn refused_upgrade(response: Response<Incoming>) -> StatusError {
    let status = response.status();
    let body = timeout(RESPONSE_TIMEOUT, Limited::new(response.into_body(), ERROR_BODY_MAX).collect()).await;
    let body = body.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
    streaming_error(&format!("refuses the upgrade: {status} {}", String::from_utf8_lossy(&body).trim()))
}

fn streaming_error(why: &str) -> StatusError {
    StatusError::internal(format!("the runtime's streaming server {why}"))
}

fn runtime_error(error: &CriError) -> StatusError {
    StatusError::internal(format!("the runtime refused the call: {error}"))
}

/// For the runtime's Exec or Attach call.
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
            let message = parse_loopback_url(elsewhere).unwrap_err().status().message.unwrap();
            assert!(message.contains("is rejected"), "{message}");
            assert!(!message.contains("exec/t"), "the message contains the token: {message}");
        }
    }
}
