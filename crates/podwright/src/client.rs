//! Asks a running agent over its socket, as any client of the local API does.

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

mod act;
mod apply;
mod events;
mod exec;
mod get;
mod lines;
mod logs;
mod shape;
mod wait;
mod watch;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// Nobody listens.
    #[error("no agent answers on {}: is `podwright run` running, with this --run-dir? ({source})", socket.display())]
    NoAgent {
        /// Where.
        socket: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not for this user.
    #[error("{}: only root and the user the agent runs as may ask", socket.display())]
    Denied {
        /// Where.
        socket: PathBuf,
    },
    /// The agent said no.
    #[error("{message}")]
    Refused {
        /// The HTTP status.
        code: u16,
        /// What it said.
        message: String,
    },
    /// Nothing is wrong with the agent: what was typed can't be done.
    #[error("{0}")]
    Usage(String),
    /// It takes longer than was allowed.
    #[error("timed out waiting for {0}")]
    TimedOut(String),
    /// What was asked for can't be written out.
    #[error("write: {0}")]
    Write(String),
    /// The talk broke off.
    #[error("ask the agent on {}: {why}", socket.display())]
    Broken {
        /// Where.
        socket: PathBuf,
        /// Why.
        why: String,
    },
}

impl ClientError {
    /// What a body says that is no success.
    fn said(status: StatusCode, body: &[u8]) -> Self {
        let said = serde_json::from_slice::<Status>(body).ok().and_then(|status| status.message);
        let message = said.unwrap_or_else(|| format!("the agent answers {status}"));
        Self::Refused { code: status.as_u16(), message }
    }

    /// 2 if it was typed wrong, else 1: it was not done.
    fn exit_code(&self) -> ExitCode {
        if matches!(self, Self::Usage(_)) { ExitCode::from(crate::cli::EXIT_USAGE) } else { ExitCode::FAILURE }
    }

    /// A watch has come to its end: it can be begun anew, `Some(true)` only from the beginning.
    fn ended_watch(&self) -> Option<bool> {
        match self {
            Self::Refused { code: 410, .. } => Some(true),
            Self::Broken { .. } => Some(false),
            _ => None,
        }
    }

    /// There is no such thing.
    fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: 404, .. })
    }
}

/// Carry out a verb, and tell how it went: 0 if it was done, 1 if not, 2 if it was typed wrong.
pub(crate) fn run(command: &ClientCommand) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("podwright: start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(dispatch(command));
    // A read of the terminal that nobody answers must not hold the end up.
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
        ClientCommand::Delete(flags) => act::delete(flags).await,
        ClientCommand::Restart(flags) => act::restart(flags).await,
        ClientCommand::Stop(flags) => act::stop(flags).await,
        ClientCommand::Logs(flags) => logs::logs(flags).await,
        ClientCommand::Exec(flags) => exec::run(flags).await,
        ClientCommand::Wait(flags) => wait::wait(flags).await,
    }
}

/// The way to an agent.
#[derive(Debug)]
pub(crate) struct Client {
    socket: PathBuf,
    /// It has answered once: if it doesn't now, it is being started anew.
    met: AtomicBool,
}

impl Client {
    /// The agent with this run directory.
    pub(crate) fn new(run_dir: &Path) -> Self {
        Self { socket: run_dir.join(podwright_server::local::SOCKET_NAME), met: AtomicBool::new(false) }
    }

    /// `GET`, read as JSON.
    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.ask(Method::GET, path, None).await
    }

    /// `GET`, as it comes.
    async fn get_bytes(&self, path: &str) -> Result<Bytes, ClientError> {
        timeout(ANSWER_MAX, self.whole(Method::GET, path, None)).await.map_err(|_| self.silent())?
    }

    /// Any method, with a body or not, the answer read as JSON.
    async fn ask<T: DeserializeOwned>(&self, m: Method, path: &str, body: Option<&Value>) -> Result<T, ClientError> {
        let body = timeout(ANSWER_MAX, self.whole(m, path, body)).await.map_err(|_| self.silent())??;
        serde_json::from_slice(&body).map_err(|error| self.broken(error))
    }

    async fn whole(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Bytes, ClientError> {
        let response = self.request(method, path, body, |request| request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), BODY_MAX).collect().await.map_err(|error| self.broken(error))?;
        let body = body.to_bytes();
        if status.is_success() { Ok(body) } else { Err(ClientError::said(status, &body)) }
    }

    /// A `GET` whose body goes on and on; anything but success is an error.
    async fn follow(&self, path: &str) -> Result<Incoming, ClientError> {
        let opened = self.request(Method::GET, path, None, |request| request);
        let response = timeout(ANSWER_MAX, opened).await.map_err(|_| self.silent())??;
        let status = response.status();
        if status.is_success() {
            return Ok(response.into_body());
        }
        let body = Limited::new(response.into_body(), BODY_MAX).collect().await.map_err(|error| self.broken(error))?;
        Err(ClientError::said(status, &body.to_bytes()))
    }

    /// One request on a connection of its own; the connection lives as long as the body, or what it was upgraded to.
    async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        with: impl FnOnce(Builder) -> Builder,
    ) -> Result<Response<Incoming>, ClientError> {
        let stream = self.connect().await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| self.broken(e))?;
        tokio::spawn(connection.with_upgrades());
        let request = Request::builder().method(method).uri(path).header(header::HOST, "podwright");
        let mut request = with(request);
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body))).map_err(|error| self.broken(error))?;
        sender.send_request(request).await.map_err(|error| self.turned_away(&error))
    }

    async fn connect(&self) -> Result<UnixStream, ClientError> {
        let patience = if self.met.load(Ordering::Relaxed) { RESTART_MAX } else { Duration::ZERO };
        let until = Instant::now() + patience;
        loop {
            match UnixStream::connect(&self.socket).await {
                Ok(stream) => {
                    self.met.store(true, Ordering::Relaxed);
                    return Ok(stream);
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(ClientError::Denied { socket: self.socket.clone() });
                }
                Err(source) if Instant::now() >= until => {
                    return Err(ClientError::NoAgent { socket: self.socket.clone(), source });
                }
                Err(_) => sleep(AGAIN_AFTER).await,
            }
        }
    }

    /// A door that closes without a word is the answer to a stranger.
    fn turned_away(&self, error: &hyper::Error) -> ClientError {
        let io = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
        let cut = |io: &io::Error| matches!(io.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
        match error.is_incomplete_message() || error.is_canceled() || io.is_some_and(cut) {
            true => ClientError::Denied { socket: self.socket.clone() },
            false => self.broken(error),
        }
    }

    fn silent(&self) -> ClientError {
        self.broken("it does not answer")
    }

    fn broken(&self, why: impl ToString) -> ClientError {
        ClientError::Broken { socket: self.socket.clone(), why: why.to_string() }
    }
}

/// An agent that was there may be started anew meanwhile.
const RESTART_MAX: Duration = Duration::from_secs(10);
/// Between two tries.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// The agent gives itself 10 s.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// A thousand large pods.
const BODY_MAX: usize = 256 << 20;

/// A list of the API.
#[derive(Deserialize)]
struct List<T> {
    items: Vec<T>,
}

/// A pod by its name, or by its manifest's name: static pods have the node's behind it.
/// Without a namespace, in all of them.
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

/// Where this pod's object is.
fn pod_path(pod: &Pod) -> String {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    format!("{}/{}", path("pods", Some(namespace)), encode(name))
}

/// Whatever people type becomes a part of a path, and no more than that.
fn encode(text: &str) -> String {
    let harmless = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~');
    text.bytes().map(|b| if harmless(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Whoever reads may stop reading; that is no failure of ours.
fn print(text: &str) -> ExitCode {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("podwright: write: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_an_agent_the_socket_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let said = Client::new(dir.path()).get_bytes("/api/v1/pods").await.unwrap_err().to_string();
        assert!(
            said.contains(&dir.path().join("api.sock").display().to_string()) && said.contains("podwright run"),
            "{said}"
        );
    }

    #[tokio::test]
    async fn a_door_that_closes_without_a_word_means_not_for_you() {
        let dir = tempfile::tempdir().unwrap();
        let listener = tokio::net::UnixListener::bind(dir.path().join("api.sock")).unwrap();
        tokio::spawn(async move {
            let _ = listener.accept().await;
        });
        let said = Client::new(dir.path()).get_bytes("/api/v1/pods").await.unwrap_err();
        assert!(matches!(said, ClientError::Denied { .. }), "{said}");
    }

    #[test]
    fn static_pods_go_by_their_manifests_name_too() {
        assert!(is_named("web-node", "web-node", "node") && is_named("web-node", "web", "node"));
        assert!(!is_named("web-node", "we", "node") && !is_named("webnode", "web", "node") && !is_named("web", "", ""));
    }

    #[test]
    fn what_people_type_stays_one_part_of_the_path() {
        assert_eq!(encode("a/../b?c d"), "a%2F..%2Fb%3Fc%20d");
        assert_eq!(path("pods", Some("x/y")), "/api/v1/namespaces/x%2Fy/pods");
    }
}
