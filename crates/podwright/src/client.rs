//! The commands that talk to a running agent: a client of the local API on its unix socket.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::request::Builder;
use http::{Method, Request, Response, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};

use crate::cli::ClientCommand;
use error::WatchResume;
use select::find;

mod apply;
mod complete_names;
mod containers;
mod copy;
mod detach_keys;
mod error;
mod events;
mod exec;
mod explain_text;
mod get;
mod images;
mod last_lines;
mod lifecycle;
mod logs;
mod output;
mod port_forward;
mod proxy;
mod pulls;
mod select;
mod session;
mod spdy;
mod status;
mod terminal;
mod top;
mod upgrade;
mod wait;
mod watch;
mod watch_stream;

pub(crate) use error::ClientError;
pub(crate) use images::AgentImages;

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
        ClientCommand::Top(flags) => top::top(flags).await,
        ClientCommand::Status(flags) => status::status(flags).await,
        ClientCommand::Explain(flags) => get::explain(flags).await,
        ClientCommand::Apply(flags) => apply::apply(flags).await,
        ClientCommand::Delete(flags) => lifecycle::delete(flags).await,
        ClientCommand::Restart(flags) => lifecycle::restart(flags).await,
        ClientCommand::Stop(flags) => lifecycle::stop(flags).await,
        ClientCommand::Start(flags) => lifecycle::start(flags).await,
        ClientCommand::Logs(flags) => logs::logs(flags).await,
        ClientCommand::Exec(flags) => exec::run(flags).await,
        ClientCommand::Attach(flags) => exec::attach(flags).await,
        ClientCommand::Cp(flags) => copy::copy(flags).await,
        ClientCommand::PortForward(flags) => port_forward::run(flags).await,
        ClientCommand::Proxy(flags) => proxy::proxy(flags).await,
        ClientCommand::CompleteNames(flags) => complete_names::complete_names(flags).await,
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

    /// Sends one request on a new connection, which stays open as long as the body or the upgraded connection. A `GET` that the agent
    /// did not respond to, because it ended, is sent again for a moment: the agent may be restarting.
    async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        customize: impl Fn(Builder) -> Builder,
    ) -> Result<Response<Incoming>, ClientError> {
        let until = Instant::now() + RESEND_MAX;
        loop {
            let sent = self.request_once(&method, path, body, &customize).await;
            match sent {
                Err(ClientError::Ended { .. }) if method == Method::GET && Instant::now() < until => {
                    sleep(RETRY_DELAY).await;
                }
                sent => return sent,
            }
        }
    }

    async fn request_once(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
        customize: impl Fn(Builder) -> Builder,
    ) -> Result<Response<Incoming>, ClientError> {
        let request = Request::builder().method(method.clone()).uri(path).header(header::HOST, "podwright");
        let mut request = customize(request);
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body))).map_err(|error| self.failed(error))?;
        self.exchange(request).await
    }

    /// Sends a request on a connection of its own.
    async fn exchange<B>(&self, request: Request<B>) -> Result<Response<Incoming>, ClientError>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let stream = self.connect().await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| self.failed(e))?;
        podwright_tasks::spawn("api-connection", connection.with_upgrades());
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

    /// A connection that was closed without a response: the agent does so with other users, and when it ends.
    fn send_error(&self, error: &hyper::Error) -> ClientError {
        let io = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
        let cut = |io: &io::Error| matches!(io.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
        match error.is_incomplete_message() || error.is_canceled() || io.is_some_and(cut) {
            true if self.is_other_user() => ClientError::Denied { socket: self.socket.clone() },
            true => ClientError::Ended { socket: self.socket.clone() },
            false => self.failed(error),
        }
    }

    /// Neither root nor the user of the agent, who owns the socket.
    fn is_other_user(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        let user = rustix::process::geteuid();
        !user.is_root() && std::fs::metadata(&self.socket).is_ok_and(|socket| socket.uid() != user.as_raw())
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
/// How long a request is sent again that was not responded to.
const RESEND_MAX: Duration = Duration::from_secs(3);
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
    async fn a_connection_closed_without_a_response_means_that_the_agent_ended() {
        let dir = tempfile::tempdir().unwrap();
        let listener = tokio::net::UnixListener::bind(dir.path().join("api.sock")).unwrap();
        tokio::spawn(async move {
            loop {
                let _ = listener.accept().await;
            }
        });
        // The test runs as the owner of the socket: no permission is missing.
        let client = Client::new(dir.path());
        let error = client.send::<Value>(Method::POST, "/podwright/v1/stop", None).await.unwrap_err();
        assert!(matches!(error, ClientError::Ended { .. }), "{error}");
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
