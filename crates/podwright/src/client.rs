//! The commands that talk to a running agent: a client of the local API on its unix socket.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::request::Builder;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};

use crate::cli::ClientCommand;

mod apply;
mod events;
mod exec;
mod get;
mod lifecycle;
mod logs;
mod output;
mod wait;
mod watch;
mod watch_stream;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// The socket does not exist, or no process listens on it.
    #[error("cannot connect to the agent on {}: is `podwright run` running, with the same --run-dir? ({source})", socket.display())]
    NoAgent { socket: PathBuf, source: io::Error },
    /// The agent or the file system denied access.
    #[error("permission denied on {}: only root and the user of the agent have access", socket.display())]
    Denied { socket: PathBuf },
    /// The agent responded with an error.
    #[error("{message}")]
    Refused {
        /// HTTP status code.
        code: u16,
        message: String,
    },
    /// The arguments are not valid.
    #[error("{0}")]
    Usage(String),
    /// `--timeout` has passed.
    #[error("timed out waiting for {0}")]
    TimedOut(String),
    /// The output cannot be written or encoded.
    #[error("write the output: {0}")]
    Write(String),
    /// The connection failed, or the response is not valid.
    #[error("request to the agent on {} failed: {cause}", socket.display())]
    Connection { socket: PathBuf, cause: String },
}

impl ClientError {
    /// The error of a response that is not a success.
    fn from_response(status: StatusCode, body: &[u8]) -> Self {
        let message = serde_json::from_slice::<Status>(body).ok().and_then(|status| status.message);
        let message = message.unwrap_or_else(|| format!("the agent responded with {status}"));
        Self::Refused { code: status.as_u16(), message }
    }

    /// 2 for wrong usage, else 1.
    fn exit_code(&self) -> ExitCode {
        if matches!(self, Self::Usage(_)) { ExitCode::from(crate::cli::EXIT_USAGE) } else { ExitCode::FAILURE }
    }

    /// How to continue after a watch failed; `None`: the error is final.
    fn watch_resume(&self) -> Option<WatchResume> {
        match self {
            Self::Refused { code: 410, .. } => Some(WatchResume::FromStart),
            Self::Connection { .. } => Some(WatchResume::FromLastVersion),
            _ => None,
        }
    }

    fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: 404, .. })
    }
}

/// How a watch is opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchResume {
    /// The agent has dropped the versions that were missed.
    FromStart,
    FromLastVersion,
}

/// Runs a command. The exit code is 0 for success, 1 for failure, 2 for wrong usage.
pub(crate) fn run(command: &ClientCommand) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("podwright: start the async runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(dispatch(command));
    // A pending read of the terminal must not block the exit.
    runtime.shutdown_background();
    result.unwrap_or_else(|error| {
        eprintln!("podwright: {error}");
        error.exit_code()
    })
}

async fn dispatch(command: &ClientCommand) -> Result<ExitCode, ClientError> {
    match command {
        ClientCommand::Get(flags) => get::get(flags).await,
        ClientCommand::Describe(flags) => get::describe(flags).await,
        ClientCommand::Events(flags) => events::events(flags).await,
        ClientCommand::Explain(flags) => get::explain(flags).await,
        ClientCommand::Apply(flags) => apply::apply(flags).await,
        ClientCommand::Delete(flags) => lifecycle::delete(flags).await,
        ClientCommand::Restart(flags) => lifecycle::restart(flags).await,
        ClientCommand::Stop(flags) => lifecycle::stop(flags).await,
        ClientCommand::Logs(flags) => logs::logs(flags).await,
        ClientCommand::Exec(flags) => exec::run(flags).await,
        ClientCommand::Wait(flags) => wait::wait(flags).await,
    }
}

/// A connection factory for the socket of an agent.
#[derive(Debug)]
pub(crate) struct Client {
    socket: PathBuf,
    /// A connection has succeeded before: if the next fails, the agent is probably being restarted, so it is retried.
    was_connected: AtomicBool,
}

impl Client {
    /// The agent with this run directory.
    pub(crate) fn new(run_dir: &Path) -> Self {
        Self { socket: run_dir.join(podwright_server::local::SOCKET_NAME), was_connected: AtomicBool::new(false) }
    }

    /// `GET`, decoded as JSON.
    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.send(Method::GET, path, None).await
    }

    /// `GET`, the body as it is.
    async fn get_bytes(&self, path: &str) -> Result<Bytes, ClientError> {
        timeout(RESPONSE_MAX, self.read_response(Method::GET, path, None)).await.map_err(|_| self.no_response())?
    }

    /// Any method, with an optional body; the response is decoded as JSON.
    async fn send<T: DeserializeOwned>(&self, m: Method, path: &str, body: Option<&Value>) -> Result<T, ClientError> {
        let body = timeout(RESPONSE_MAX, self.read_response(m, path, body)).await.map_err(|_| self.no_response())??;
        serde_json::from_slice(&body).map_err(|error| self.failed(error))
    }

    async fn read_response(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Bytes, ClientError> {
        let response = self.request(method, path, body, |request| request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), BODY_MAX).collect().await.map_err(|error| self.failed(error))?;
        let body = body.to_bytes();
        if status.is_success() { Ok(body) } else { Err(ClientError::from_response(status, &body)) }
    }

    /// A `GET` whose body is streamed. Any status but success is an error.
    async fn follow(&self, path: &str) -> Result<Incoming, ClientError> {
        let opened = self.request(Method::GET, path, None, |request| request);
        let response = timeout(RESPONSE_MAX, opened).await.map_err(|_| self.no_response())??;
        let status = response.status();
        if status.is_success() {
            return Ok(response.into_body());
        }
        let body = Limited::new(response.into_body(), BODY_MAX).collect().await.map_err(|error| self.failed(error))?;
        Err(ClientError::from_response(status, &body.to_bytes()))
    }

    /// Sends one request on a new connection, which stays open as long as the body or the upgraded connection.
    async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        customize: impl FnOnce(Builder) -> Builder,
    ) -> Result<Response<Incoming>, ClientError> {
        let stream = self.connect().await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| self.failed(e))?;
        podwright_tasks::spawn("api-connection", connection.with_upgrades());
        let request = Request::builder().method(method).uri(path).header(header::HOST, "podwright");
        let mut request = customize(request);
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body))).map_err(|error| self.failed(error))?;
        sender.send_request(request).await.map_err(|error| self.send_error(&error))
    }

    async fn connect(&self) -> Result<UnixStream, ClientError> {
        let patience = if self.was_connected.load(Ordering::Relaxed) { RESTART_MAX } else { Duration::ZERO };
        let until = Instant::now() + patience;
        loop {
            match UnixStream::connect(&self.socket).await {
                Ok(stream) => {
                    self.was_connected.store(true, Ordering::Relaxed);
                    return Ok(stream);
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(ClientError::Denied { socket: self.socket.clone() });
                }
                Err(source) if Instant::now() >= until => {
                    return Err(ClientError::NoAgent { socket: self.socket.clone(), source });
                }
                Err(_) => sleep(RETRY_DELAY).await,
            }
        }
    }

    /// The agent closes the connections of other users without a response.
    fn send_error(&self, error: &hyper::Error) -> ClientError {
        let io = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
        let cut = |io: &io::Error| matches!(io.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
        match error.is_incomplete_message() || error.is_canceled() || io.is_some_and(cut) {
            true => ClientError::Denied { socket: self.socket.clone() },
            false => self.failed(error),
        }
    }

    fn no_response(&self) -> ClientError {
        self.failed("no response")
    }

    fn failed(&self, cause: impl ToString) -> ClientError {
        ClientError::Connection { socket: self.socket.clone(), cause: cause.to_string() }
    }
}

/// How long a client that was connected waits for the agent to be restarted.
const RESTART_MAX: Duration = Duration::from_secs(10);
/// Between two attempts to connect or watch.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// More than the 10 s in which the agent responds.
const RESPONSE_MAX: Duration = Duration::from_secs(15);
/// Enough for a list of a thousand large pods.
const BODY_MAX: usize = 256 << 20;

/// A list object of the API.
#[derive(Deserialize)]
struct List<T> {
    items: Vec<T>,
}

/// Finds the newest pod of this name. The node name at the end of a static pod's name may be omitted.
/// Without a namespace, all namespaces are searched.
async fn find<'a>(client: &Client, namespace: impl Into<Option<&'a str>>, name: &str) -> Result<Pod, ClientError> {
    let namespace = namespace.into();
    let name = name.strip_prefix("pod/").or_else(|| name.strip_prefix("pods/")).unwrap_or(name);
    let pods = client.get::<List<Pod>>(&path("pods", namespace)).await?.items;
    let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    let named = |pod: &&Pod| pod.metadata.name.as_deref().is_some_and(|full| is_named(full, name, &node(pod)));
    let created = |pod: &&Pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let found = pods.iter().filter(named).max_by_key(created).cloned();
    let place = namespace.map_or("any namespace".into(), |namespace| format!("namespace {namespace:?}"));
    let message = format!("pods {name:?} not found in {place}");
    found.ok_or(ClientError::Refused { code: 404, message })
}

fn is_named(full: &str, name: &str, node: &str) -> bool {
    full == name || full.strip_suffix(node).and_then(|rest| rest.strip_suffix('-')) == Some(name)
}

fn path(resource: &str, namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) => format!("/api/v1/namespaces/{}/{resource}", encode(namespace)),
        None => format!("/api/v1/{resource}"),
    }
}

fn with_query(path: &str, query: &str) -> String {
    format!("{path}{}{query}", if path.contains('?') { '&' } else { '?' })
}

/// The API path of a pod.
fn pod_path(pod: &Pod) -> String {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    format!("{}/{}", path("pods", Some(namespace)), encode(name))
}

/// Percent-encodes user input, so that it stays a single path segment or query value.
fn encode(text: &str) -> String {
    let unreserved = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~');
    text.bytes().map(|b| if unreserved(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Writes to stdout. A closed pipe is not a failure.
fn print(text: &str) -> ExitCode {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("podwright: write the output: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_an_agent_the_error_names_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let error = Client::new(dir.path()).get_bytes("/api/v1/pods").await.unwrap_err().to_string();
        assert!(
            error.contains(&dir.path().join("api.sock").display().to_string()) && error.contains("podwright run"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_connection_closed_without_a_response_means_permission_denied() {
        let dir = tempfile::tempdir().unwrap();
        let listener = tokio::net::UnixListener::bind(dir.path().join("api.sock")).unwrap();
        tokio::spawn(async move {
            let _ = listener.accept().await;
        });
        let error = Client::new(dir.path()).get_bytes("/api/v1/pods").await.unwrap_err();
        assert!(matches!(error, ClientError::Denied { .. }), "{error}");
    }

    #[test]
    fn static_pods_are_found_without_the_node_name() {
        assert!(is_named("web-node", "web-node", "node") && is_named("web-node", "web", "node"));
        assert!(!is_named("web-node", "we", "node") && !is_named("webnode", "web", "node") && !is_named("web", "", ""));
    }

    #[test]
    fn user_input_stays_one_path_segment() {
        assert_eq!(encode("a/../b?c d"), "a%2F..%2Fb%3Fc%20d");
        assert_eq!(path("pods", Some("x/y")), "/api/v1/namespaces/x%2Fy/pods");
    }
}
