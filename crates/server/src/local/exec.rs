//! Exec, attach and port-forward: selects the container or sandbox, then proxies the client's connection to the runtime's streaming
//! server.

use http::header::SEC_WEBSOCKET_PROTOCOL;
use http::{HeaderMap, Request};
use hyper::body::Incoming;
use podwright_agent::feed::PodView;
use podwright_core::model::FullName;
use podwright_cri::{CriError, v1};

use super::router::LocalState;
use crate::log::container_named;
use crate::query::QueryParams;
use crate::serve::HttpResponse;
use crate::status_error::StatusError;
use crate::stream_target::{has_tty, is_websocket, ports, ready_sandbox, running_container};
use crate::streaming_proxy::{self, ProxyError, ProxyOptions, is_upgrade};

pub(super) async fn exec(
    state: &LocalState,
    of: &FullName,
    mut params: QueryParams,
    request: Request<Incoming>,
) -> Result<HttpResponse, StatusError> {
    let (streams, command) = (Streams::parse(&mut params)?, params.all("command"));
    let view = state.pod(of)?;
    let (_, container_id) = running_container_id(&view, params.text("container"))?;
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
    state: &LocalState,
    of: &FullName,
    mut params: QueryParams,
    request: Request<Incoming>,
) -> Result<HttpResponse, StatusError> {
    let Streams { stdin, stdout, stderr, .. } = Streams::parse(&mut params)?;
    let view = state.pod(of)?;
    let (name, container_id) = running_container_id(&view, params.text("container"))?;
    params.finish()?;
    check_upgrade(&request)?;
    let tty = has_tty(&view, &name);
    let call = v1::AttachRequest { container_id, stdin, tty, stdout, stderr: stderr && !tty };
    let url = state.api.runtime.attach(call).await.map_err(|error| runtime_error(&error))?;
    proxy_upgrade(state, &url, request).await
}

pub(super) async fn port_forward(
    state: &LocalState,
    of: &FullName,
    mut params: QueryParams,
    request: Request<Incoming>,
) -> Result<HttpResponse, StatusError> {
    let given = params.all("port");
    params.finish()?;
    let view = state.pod(of)?;
    check_upgrade(&request)?;
    // SPDY clients name the port of each stream, also in a tunnel through a WebSocket.
    let port = match is_websocket(request.headers()) && !is_tunnel(request.headers()) {
        true => ports(&given).map_err(|error| StatusError::bad_request(error.to_string()))?,
        false => vec![],
    };
    let sandbox = ready_sandbox(&*state.api.runtime, &view).await.map_err(|error| runtime_error(&error))?;
    let not_running = || StatusError::bad_request(format!("pod {} is not running", view.name()));
    let call = v1::PortForwardRequest { pod_sandbox_id: sandbox.ok_or_else(not_running)?, port };
    let url = state.api.runtime.port_forward(call).await.map_err(|error| runtime_error(&error))?;
    proxy_upgrade(state, &url, request).await
}

/// Kubernetes: `PortForwardWebsocketPrefix`.
fn is_tunnel(headers: &HeaderMap) -> bool {
    let protocols = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    protocols.flat_map(|value| value.split(',')).any(|protocol| protocol.trim().starts_with("SPDY/3.1+"))
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

/// The container's name and the runtime's id of it. It must be running.
fn running_container_id(view: &PodView, container: Option<String>) -> Result<(String, String), StatusError> {
    let (name, _) = container_named(view, container)?;
    match running_container(view, &name) {
        Some(id) => Ok((name, id)),
        None => Err(StatusError::bad_request(format!("container {name} of pod {} is not running", view.name()))),
    }
}

fn check_upgrade(request: &Request<Incoming>) -> Result<(), StatusError> {
    match is_upgrade(request.headers()) {
        true => Ok(()),
        false => Err(StatusError::bad_request("Upgrade request required: SPDY/3.1 or websocket")),
    }
}

async fn proxy_upgrade(state: &LocalState, url: &str, request: Request<Incoming>) -> Result<HttpResponse, StatusError> {
    let permit = state.stream_permit()?;
    // The client is on this host, and its terminal may be idle for any time.
    let options = ProxyOptions { client: None, idle: None, stop: state.stop.clone(), permit };
    streaming_proxy::proxy_upgrade(url, request, options)
        .await
        .map_err(|error: ProxyError| StatusError::internal(error.to_string()))
}

fn runtime_error(error: &CriError) -> StatusError {
    StatusError::internal(format!("the runtime refused the call: {error}"))
}
