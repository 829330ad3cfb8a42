//! `/exec`, `/attach`, `/portForward` and `/run`: select the container or sandbox, ask the runtime for a streaming URL and proxy the
//! connection to it. Texts and codes are the Go kubelet's (`getExec`, `getAttach`, `getPortForward`, `getRun`).

use std::sync::Arc;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderValue, Request, StatusCode};
use hyper::body::Incoming;
use podwright_agent::feed::PodView;
use podwright_core::model::Source;
use podwright_cri::{Code, CriError, v1};

use super::client_ip;
use super::connection::ClientConnection;
use super::router::ContainerPath;
use super::state::ServerState;
use crate::query::QueryParams;
use crate::serve::{HttpResponse, json, text, too_many};
use crate::stream_target::{has_tty, is_websocket, ports, ready_sandbox, running_container};
use crate::streaming_proxy::{ProxyError, ProxyOptions, echo, proxy_upgrade};

/// An error is the response for the client.
type Handled<T> = Result<T, Box<HttpResponse>>;

/// The requests that become streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamKind {
    Exec,
    Attach,
    /// The container of its path is empty.
    PortForward,
}

/// Connects the client to the stream that the runtime serves.
pub(super) async fn stream(
    kind: StreamKind,
    state: &ServerState,
    client: &ClientConnection,
    user: &str,
    of: &ContainerPath<'_>,
    request: Request<Incoming>,
) -> HttpResponse {
    let params = QueryParams::parse(request.uri().query().unwrap_or_default());
    let websocket = is_websocket(request.headers());
    let url = match kind {
        StreamKind::Exec => exec(state, of, params).await,
        StreamKind::Attach => attach(state, of, params).await,
        StreamKind::PortForward => port_forward(state, of, params, websocket).await,
    };
    match url {
        Ok(url) => proxy(state, client, user, &url, request).await,
        Err(response) => *response,
    }
}

async fn exec(state: &ServerState, of: &ContainerPath<'_>, mut params: QueryParams) -> Handled<String> {
    let StandardStreams { stdin, stdout, stderr, tty } = StandardStreams::parse(&mut params)?;
    let view = pod(state, of).await?;
    let not_found = || format!("container not found ({:?})", of.container);
    let container_id = running_container(&view, of.container).ok_or_else(|| internal(not_found()))?;
    let call = v1::ExecRequest { container_id, cmd: params.all("command"), tty, stdin, stdout, stderr };
    state.api.runtime.exec(call).await.map_err(|error| runtime_error(&error))
}

async fn attach(state: &ServerState, of: &ContainerPath<'_>, mut params: QueryParams) -> Handled<String> {
    let StandardStreams { stdin, stdout, stderr, .. } = StandardStreams::parse(&mut params)?;
    let view = pod(state, of).await?;
    let not_found = || format!("container {} not found in pod {}_{}", of.container, of.pod, of.namespace);
    let container_id = running_container(&view, of.container).ok_or_else(|| internal(not_found()))?;
    // Whether a process has a terminal cannot change after its start.
    let tty = has_tty(&view, of.container);
    let call = v1::AttachRequest { container_id, stdin, tty, stdout, stderr: stderr && !tty };
    state.api.runtime.attach(call).await.map_err(|error| runtime_error(&error))
}

async fn port_forward(
    state: &ServerState,
    of: &ContainerPath<'_>,
    mut params: QueryParams,
    websocket: bool,
) -> Handled<String> {
    let port = match websocket {
        true => ports(&params.all("port")).map_err(|error| bad_request(error.to_string()))?,
        false => vec![],
    };
    let view = pod(state, of).await?;
    let sandbox = ready_sandbox(&*state.api.runtime, &view).await.map_err(|error| runtime_error(&error))?;
    let not_found = || internal(format!("pod not found (\"{}_{}\")", of.pod, of.namespace));
    let pod_sandbox_id = sandbox.ok_or_else(not_found)?;
    let call = v1::PortForwardRequest { pod_sandbox_id, port };
    state.api.runtime.port_forward(call).await.map_err(|error| runtime_error(&error))
}

/// The command is split at single spaces, as by the Go kubelet's `/run`.
pub(super) async fn run(state: &ServerState, of: &ContainerPath<'_>, query: &str) -> HttpResponse {
    let output = async {
        let view = pod(state, of).await?;
        let not_found = || format!("container not found ({:?})", of.container);
        let container_id = running_container(&view, of.container).ok_or_else(|| internal(not_found()))?;
        let text = QueryParams::parse(query).text("cmd").unwrap_or_default();
        let cmd: Vec<String> = text.split(' ').map(ToOwned::to_owned).collect();
        let limit = state.api.run_timeout;
        let timeout = i64::try_from(limit.as_secs()).unwrap_or(i64::MAX);
        let call = v1::ExecSyncRequest { container_id, cmd, timeout };
        let done = state.api.runtime.exec_sync(call, limit + RUN_MARGIN).await;
        let done = done.map_err(|error| internal(error.message))?;
        match done.exit_code {
            0 => Ok([done.stdout, done.stderr].concat()),
            code => {
                let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
                Err(internal(format!("command '{text}' exited with {code}: {stderr}")))
            }
        }
    };
    match output.await {
        Ok(output) => json(StatusCode::OK, output),
        Err(response) => *response,
    }
}

async fn proxy(
    state: &ServerState,
    client: &ClientConnection,
    user: &str,
    url: &str,
    request: Request<Incoming>,
) -> HttpResponse {
    let Some(permit) = state.stream_permit(user) else { return too_many("too many open logs and execs\n") };
    let (client, idle) = (Some(client_ip(client.peer)), state.api.stream_idle);
    let options = ProxyOptions { client, idle, stop: state.stop.clone(), permit };
    match proxy_upgrade(url, request, options).await {
        Ok(response) => response,
        Err(ProxyError::Refused { status, headers, body }) => echo(status, &headers, body),
        Err(error) => *internal(format!("{error}\n")),
    }
}

/// The pod of a request. The API server knows a static pod by the UID of its mirror pod (Go kubelet: `TranslatePodUID`).
async fn pod(state: &ServerState, of: &ContainerPath<'_>) -> Handled<Arc<PodView>> {
    let missing = || Box::new(text(StatusCode::NOT_FOUND, "pod does not exist"));
    let view = state.api.feed.by_name(of.namespace, of.pod).ok_or_else(missing)?;
    let is_own = match of.uid {
        None => true,
        Some(uid) if view.uid().as_str() == uid => true,
        Some(uid) if matches!(view.source, Source::File | Source::Url) => {
            let mirrored = state.api.status.static_pod_name(uid).await;
            mirrored.is_some_and(|name| *name.namespace == *of.namespace && *name.name == *of.pod)
        }
        Some(_) => false,
    };
    if is_own { Ok(view) } else { Err(Box::new(text(StatusCode::NOT_FOUND, "pod not found"))) }
}

/// The standard streams that the client asks for.
#[derive(Debug, PartialEq, Eq)]
struct StandardStreams {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

impl StandardStreams {
    fn parse(params: &mut QueryParams) -> Handled<Self> {
        let mut flag = |key| params.text(key).as_deref() == Some("1");
        let (stdin, stdout, stderr, tty) = (flag("input"), flag("output"), flag("error"), flag("tty"));
        // A terminal has only one output stream.
        let stderr = stderr && !tty;
        match stdin || stdout || stderr {
            true => Ok(Self { stdin, stdout, stderr, tty }),
            false => Err(bad_request("you must specify at least 1 of stdin, stdout, stderr".into())),
        }
    }
}

/// Kubernetes: `streaming.WriteError`.
fn runtime_error(error: &CriError) -> Box<HttpResponse> {
    match error.code {
        Code::NotFound => Box::new(text(StatusCode::NOT_FOUND, error.message.clone())),
        Code::ResourceExhausted => {
            let mut response = text(StatusCode::TOO_MANY_REQUESTS, error.message.clone());
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("60"));
            Box::new(response)
        }
        _ => internal(error.message.clone()),
    }
}

fn internal(message: String) -> Box<HttpResponse> {
    Box::new(text(StatusCode::INTERNAL_SERVER_ERROR, message))
}

fn bad_request(message: String) -> Box<HttpResponse> {
    Box::new(text(StatusCode::BAD_REQUEST, message))
}

/// For the runtime, after the command has timed out.
const RUN_MARGIN: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_has_no_error_stream_and_one_stream_is_needed() {
        let parse = |query| StandardStreams::parse(&mut QueryParams::parse(query)).ok();
        let streams = |stdin, stdout, stderr, tty| Some(StandardStreams { stdin, stdout, stderr, tty });
        assert_eq!(parse("input=1&output=1&error=1"), streams(true, true, true, false));
        assert_eq!(parse("input=1&output=1&error=1&tty=1"), streams(true, true, false, true));
        for none in ["", "tty=1", "error=1&tty=1", "input=true", "stdin=1"] {
            assert_eq!(parse(none), None, "{none}");
        }
    }
}
