//! Exec and attach: the runtime is asked for a stream, and the caller's upgrade is passed on to it byte for byte.
//!
//! Nothing of what flows is understood here, so whatever protocol both ends speak (SPDY/3.1, websocket) passes. Only streaming
//! servers on this machine's loopback are dialled: the URL comes from the runtime, and must not lead anywhere else.

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
use podwright_cri::{CriError, RuntimeService, v1};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::answer::Room;
use super::failure::Failure;
use super::params::Params;
use crate::BoxFuture;
use crate::log::container_named;
use crate::serve::{Answer, Stall};

/// Prepares streams; every runtime does.
pub trait Streamer: Send + Sync + 'static {
    /// The URL at which a command can be run.
    fn exec(&self, request: v1::ExecRequest) -> BoxFuture<'_, Result<String, CriError>>;
    /// The URL at which a container's own process can be reached.
    fn attach(&self, request: v1::AttachRequest) -> BoxFuture<'_, Result<String, CriError>>;
}

impl<R: RuntimeService> Streamer for R {
    fn exec(&self, request: v1::ExecRequest) -> BoxFuture<'_, Result<String, CriError>> {
        RuntimeService::exec(self, request, RUNTIME_MAX)
    }

    fn attach(&self, request: v1::AttachRequest) -> BoxFuture<'_, Result<String, CriError>> {
        RuntimeService::attach(self, request, RUNTIME_MAX)
    }
}

pub(super) async fn exec(
    room: &Room,
    of: &FullName,
    mut params: Params,
    request: Request<Incoming>,
) -> Result<Answer, Failure> {
    let (streams, command) = (Streams::read(&mut params)?, params.all("command"));
    let view = room.named(of)?;
    let container_id = running(&view, params.text("container"))?;
    params.finish()?;
    if command.is_empty() {
        return Err(Failure::bad_request("you must specify at least one command for the container"));
    }
    is_upgrade(&request)?;
    let Streams { stdin, stdout, stderr, tty } = streams;
    let ask = v1::ExecRequest { container_id, cmd: command, tty, stdin, stdout, stderr };
    let url = room.local.runtime.exec(ask).await.map_err(|error| refused(&error))?;
    pass_on(room, &url, request).await
}

pub(super) async fn attach(
    room: &Room,
    of: &FullName,
    mut params: Params,
    request: Request<Incoming>,
) -> Result<Answer, Failure> {
    let Streams { stdin, stdout, stderr, tty } = Streams::read(&mut params)?;
    let view = room.named(of)?;
    let container_id = running(&view, params.text("container"))?;
    params.finish()?;
    is_upgrade(&request)?;
    let ask = v1::AttachRequest { container_id, stdin, tty, stdout, stderr };
    let url = room.local.runtime.attach(ask).await.map_err(|error| refused(&error))?;
    pass_on(room, &url, request).await
}

/// What is to flow.
struct Streams {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

impl Streams {
    fn read(params: &mut Params) -> Result<Self, Failure> {
        let (stdin, stdout) = (params.flag("stdin")?, params.flag("stdout")?);
        let (stderr, tty) = (params.flag("stderr")?, params.flag("tty")?);
        if !stdin && !stdout && !stderr {
            return Err(Failure::bad_request("you must specify at least 1 of stdin, stdout, stderr"));
        }
        // A terminal has one output.
        Ok(Self { stdin, stdout, stderr: stderr && !tty, tty })
    }
}

/// The runtime's id of the container that is meant, which must run.
fn running(view: &PodView, container: Option<String>) -> Result<String, Failure> {
    let (name, status) = container_named(view, container)?;
    let running = status.filter(|status| status.state.as_ref().is_some_and(|state| state.running.is_some()));
    let id = running.and_then(|status| status.container_id.as_deref());
    let id =
        id.ok_or_else(|| Failure::bad_request(format!("container {name} of pod {} is not running", view.name())))?;
    Ok(id.split_once("://").map_or(id, |(_, id)| id).to_owned())
}

fn is_upgrade(request: &Request<Incoming>) -> Result<(), Failure> {
    let asks = request.headers().get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let asks = asks.flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    match asks && request.headers().contains_key(UPGRADE) {
        true => Ok(()),
        false => Err(Failure::bad_request("Upgrade request required: SPDY/3.1 or websocket")),
    }
}

async fn pass_on(room: &Room, url: &str, mut request: Request<Incoming>) -> Result<Answer, Failure> {
    let place = room.place()?;
    let (address, uri) = on_loopback(url)?;
    let dialled = timeout(DIAL_MAX, TcpStream::connect(address)).await;
    let stream = match dialled {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(broken(&format!("can't be reached at {address}: {error}"))),
        Err(_) => return Err(broken(&format!("does not answer at {address}"))),
    };
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(&error.to_string()))?;
    tokio::spawn(connection.with_upgrades());
    let mut ask = Request::new(Empty::<Bytes>::new());
    ask.method_mut().clone_from(request.method());
    *ask.uri_mut() = uri;
    ask.headers_mut().clone_from(request.headers());
    let host = HeaderValue::from_str(&address.to_string()).expect("an address is text");
    ask.headers_mut().insert(HOST, host);
    let answered = timeout(HEAD_MAX, sender.send_request(ask)).await;
    let mut answered = match answered {
        Ok(Ok(answered)) => answered,
        Ok(Err(error)) => return Err(broken(&error.to_string())),
        Err(_) => return Err(broken("does not answer")),
    };
    if answered.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(said_no(answered).await);
    }
    let mut answer = Response::new(Empty::new().boxed_unsync());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    answer.headers_mut().clone_from(answered.headers());
    answer.extensions_mut().insert(Stall(None));
    let ends = (hyper::upgrade::on(&mut request), hyper::upgrade::on(&mut answered));
    tokio::spawn(join(ends.0, ends.1, room.stop.clone(), place));
    Ok(answer)
}

/// Until one end closes, or the agent ends.
async fn join(
    caller: hyper::upgrade::OnUpgrade,
    runtime: hyper::upgrade::OnUpgrade,
    stop: CancellationToken,
    _place: OwnedSemaphorePermit,
) {
    let ends = timeout(HEAD_MAX, futures::future::try_join(caller, runtime)).await;
    let Ok(Ok((caller, runtime))) = ends else { return };
    let (mut caller, mut runtime) = (TokioIo::new(caller), TokioIo::new(runtime));
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut caller, &mut runtime) => {}
        () = stop.cancelled() => {}
    }
}

/// Where the stream is, if it is on this machine.
fn on_loopback(url: &str) -> Result<(SocketAddr, Uri), Failure> {
    let wrong = |why: &str| Failure::internal(format!("the runtime's stream {} is not used: {why}", shown(url)));
    let uri: Uri = url.parse().map_err(|_| wrong("it is no URL"))?;
    if uri.scheme_str() != Some("http") {
        return Err(wrong("it is not plain HTTP"));
    }
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let ip = match host {
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        host => host.parse().map_err(|_| wrong("it names no address"))?,
    };
    if !ip.is_loopback() {
        return Err(wrong("it is not on this machine's loopback"));
    }
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let path: Uri = path.parse().map_err(|_| wrong("it has no path"))?;
    Ok((SocketAddr::new(ip, uri.port_u16().unwrap_or(80)), path))
}

/// Without the token, which lets in whoever has it.
fn shown(url: &str) -> String {
    let end = url.rfind('/').unwrap_or(url.len());
    let short: String = url[..end].chars().take(80).collect();
    format!("{short:?}…")
}

async fn said_no(answered: Response<Incoming>) -> Failure {
    let status = answered.status();
    let body = timeout(HEAD_MAX, Limited::new(answered.into_body(), WORDS_MAX).collect()).await;
    let words = body.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
    broken(&format!("refuses the upgrade: {status} {}", String::from_utf8_lossy(&words).trim()))
}

fn broken(why: &str) -> Failure {
    Failure::internal(format!("the runtime's streaming server {why}"))
}

fn refused(error: &CriError) -> Failure {
    Failure::internal(format!("the runtime refuses: {error}"))
}

/// For the runtime to prepare a stream.
const RUNTIME_MAX: Duration = Duration::from_secs(5);
/// On loopback a connection is there at once, or not at all.
const DIAL_MAX: Duration = Duration::from_secs(2);
/// For the streaming server's answer.
const HEAD_MAX: Duration = Duration::from_secs(2);
/// Of what it says when it says no.
const WORDS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_dialled() {
        let (address, uri) = on_loopback("http://127.0.0.1:4000/exec/token?a=b").unwrap();
        assert_eq!((address.to_string(), uri.to_string()), ("127.0.0.1:4000".into(), "/exec/token?a=b".into()));
        assert!(on_loopback("http://[::1]:1/x").is_ok() && on_loopback("http://localhost:1/x").is_ok());
        for elsewhere in [
            "http://10.0.0.1:80/exec/t",
            "http://example.org/exec/t",
            "https://127.0.0.1/exec/t",
            "127.0.0.1:1/t",
            "",
            "http:///x",
        ] {
            let said = on_loopback(elsewhere).unwrap_err().status().message.unwrap();
            assert!(said.contains("is not used"), "{said}");
            assert!(!said.contains("exec/t"), "the token stays secret: {said}");
        }
    }
}
