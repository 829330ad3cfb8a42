//! A fault-injecting proxy between an agent and the API server: the test decides what happens to each request.
//!
//! For every connection of the agent it opens one to the server, with the node's certificate. Without a decision requests and
//! responses pass unchanged.

use std::convert::Infallible;
use std::future::pending;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use anyhow::Result;
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::api_client::ClientIdentity;

/// A received request.
#[derive(Clone, Debug)]
pub struct ProxiedRequest {
    /// `GET`, `PATCH`, …
    pub method: String,
    /// Path and query.
    pub path: String,
}

impl ProxiedRequest {
    /// A list of the node's pods.
    pub fn is_list_of_pods(&self) -> bool {
        self.method == "GET" && self.path.starts_with("/api/v1/pods?") && !self.path.contains("watch=true")
    }

    /// A watch of the node's pods.
    pub fn is_watch_of_pods(&self) -> bool {
        self.path.starts_with("/api/v1/pods?") && self.path.contains("watch=true")
    }

    /// A change of the node's lease.
    pub fn is_lease(&self) -> bool {
        self.path.starts_with("/apis/coordination.k8s.io/")
    }
}

/// What the proxy does with a request.
#[derive(Clone, Debug)]
pub enum ProxyAction {
    /// Forwards it to the server, and the response back.
    Pass,
    /// Closes the connection before the server receives the request.
    CutBefore,
    /// Forwards it to the server, and closes the connection before the response.
    CutAfter,
    /// Half open: the connection stays open, but is neither read nor written any more.
    Freeze,
    /// Responds with this status, header and text; the server does not receive the request.
    Respond(u16, Option<(&'static str, &'static str)>, String),
    /// Sends this text before the server's response.
    Prepend(String),
    /// Sends the server's response with each frame rewritten.
    Rewrite(fn(Bytes) -> Bytes),
}

type Decide = Box<dyn FnMut(&ProxiedRequest) -> ProxyAction + Send>;
type ResponseBody = BoxBody<Bytes, hyper::Error>;

/// The proxy. Dropping it closes every connection and frees the port.
#[derive(Debug)]
pub struct Proxy {
    state: Arc<ProxyState>,
    _runtime: tokio::runtime::Runtime,
}

/// Shared by all connections.
struct ProxyState {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
    server: (&'static str, u16),
    decide: Mutex<Option<Decide>>,
    cut: Notify,
}

impl std::fmt::Debug for ProxyState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "proxy to {}:{}", self.server.0, self.server.1)
    }
}

impl Proxy {
    /// Listens on `port` of loopback with the certificate of `server`, and connects to port `to` as `node`.
    pub(crate) fn start(port: u16, server: &ClientIdentity, node: &ClientIdentity, to: u16) -> Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut accepting = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![server.certificate.clone()], server.key.clone_key())?;
        let mut connecting = node.client_config()?;
        accepting.alpn_protocols = vec![b"h2".to_vec()];
        connecting.alpn_protocols.clone_from(&accepting.alpn_protocols);
        let state = Arc::new(ProxyState {
            acceptor: Arc::new(accepting).into(),
            connector: Arc::new(connecting).into(),
            server: ("127.0.0.1", to),
            decide: Mutex::default(),
            cut: Notify::new(),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", port)))?;
        runtime.spawn(accept(listener, Arc::clone(&state)));
        Ok(Self { state, _runtime: runtime })
    }

    /// Sets the function that decides about each request from now on.
    pub fn decide(&self, decide: impl FnMut(&ProxiedRequest) -> ProxyAction + Send + 'static) {
        *self.state.decide.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(decide));
    }

    /// Forwards every request from now on.
    pub fn pass(&self) {
        self.decide(|_| ProxyAction::Pass);
    }

    /// Closes every open connection.
    pub fn cut(&self) {
        self.state.cut.notify_waiters();
    }
}

impl ProxyState {
    fn action_for(&self, request: &ProxiedRequest) -> ProxyAction {
        let mut decide = self.decide.lock().unwrap_or_else(PoisonError::into_inner);
        decide.as_mut().map_or(ProxyAction::Pass, |decide| decide(request))
    }
}

/// How the proxy ends a connection early.
enum End {
    Cut,
    Freeze,
}

async fn accept(listener: TcpListener, state: Arc<ProxyState>) {
    while let Ok((stream, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            // A killed agent ends its connections in many states; none is an error of the proxy.
            let _ = serve(stream, state).await;
        });
    }
}

async fn serve(stream: TcpStream, state: Arc<ProxyState>) -> Result<()> {
    let cut = state.cut.notified();
    let stream = state.acceptor.accept(stream).await?;
    let server = TcpStream::connect(state.server).await?;
    let server = state.connector.connect(ServerName::try_from(state.server.0)?, server).await?;
    let (sender, driver) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(server)).await?;
    let (end, mut ended) = mpsc::channel(1);
    let service = service_fn(|request| pass(request, sender.clone(), Arc::clone(&state), end.clone()));
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    let mut connection = pin!(connection.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        result = &mut connection => result?,
        lost = driver => lost?,
        () = cut => {}
        how = ended.recv() => if let Some(End::Freeze) = how {
            // The connection stays open, and is never polled again.
            pending::<()>().await;
        },
    }
    Ok(())
}

async fn pass(
    request: Request<Incoming>,
    mut server: SendRequest<Full<Bytes>>,
    state: Arc<ProxyState>,
    end: mpsc::Sender<End>,
) -> Result<Response<ResponseBody>, hyper::Error> {
    let (head, body) = request.into_parts();
    let request = Request::from_parts(head, Full::new(body.collect().await?.to_bytes()));
    let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    match state.action_for(&ProxiedRequest { method: request.method().to_string(), path }) {
        ProxyAction::Pass => Ok(server.send_request(request).await?.map(BodyExt::boxed)),
        ProxyAction::CutBefore => over(&end, End::Cut).await,
        ProxyAction::CutAfter => {
            server.send_request(request).await?.into_body().collect().await?;
            over(&end, End::Cut).await
        }
        ProxyAction::Freeze => over(&end, End::Freeze).await,
        ProxyAction::Respond(status, header, text) => Ok(response(status, header, text)),
        ProxyAction::Prepend(text) => {
            let response = without_length(server.send_request(request).await?);
            Ok(response.map(|rest| PrefixedBody { first: Some(text.into()), rest }.boxed()))
        }
        ProxyAction::Rewrite(change) => {
            let response = without_length(server.send_request(request).await?);
            Ok(response.map(|body| body.map_frame(move |frame| frame.map_data(change)).boxed()))
        }
    }
}

/// Ends the connection; never returns.
async fn over(end: &mpsc::Sender<End>, how: End) -> ! {
    let _ = end.send(how).await;
    pending().await
}

fn response(status: u16, header: Option<(&str, &str)>, text: String) -> Response<ResponseBody> {
    let mut response = Response::builder().status(status);
    if let Some((name, value)) = header {
        response = response.header(name, value);
    }
    let body = Full::new(Bytes::from(text)).map_err(|never: Infallible| match never {}).boxed();
    response.body(body).expect("a test's status and header are valid")
}

/// Removes the Content-Length of a response whose body will change.
fn without_length(mut response: Response<Incoming>) -> Response<Incoming> {
    response.headers_mut().remove(hyper::header::CONTENT_LENGTH);
    response
}

/// A body with a prefix.
struct PrefixedBody {
    first: Option<Bytes>,
    rest: Incoming,
}

impl Body for PrefixedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }
}
