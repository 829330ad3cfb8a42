//! A man in the middle: an agent asks it instead of the API server, and a test says what becomes of each request.
//!
//! Every connection of the agent has one of its own to the server, made with the node's certificate. Where nothing is
//! decided, requests and answers pass as they are.

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

use crate::api_client::Identity;

/// A request as it comes.
#[derive(Clone, Debug)]
pub struct Asked {
    /// `GET`, `PATCH`, …
    pub method: String,
    /// Path and query.
    pub path: String,
}

impl Asked {
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

/// What becomes of a request.
#[derive(Clone, Debug)]
pub enum Fate {
    /// To the server, and its answer back.
    Pass,
    /// The connection is cut before the server has seen it.
    CutBefore,
    /// The server does it, and the connection is cut before it can say so.
    CutAfter,
    /// Half open: the connection stays, and from now on nobody reads from it or writes to it.
    Freeze,
    /// This status, header and text; the server has not seen the request.
    Answer(u16, Option<(&'static str, &'static str)>, String),
    /// This text before the server's answer.
    Before(String),
    /// The server's answer, each part of it changed.
    Changed(fn(Bytes) -> Bytes),
}

type Decide = Box<dyn FnMut(&Asked) -> Fate + Send>;
type Answer = BoxBody<Bytes, hyper::Error>;

/// See the module. Dropped: every connection is cut and the port is free.
#[derive(Debug)]
pub struct Proxy {
    way: Arc<Way>,
    _runtime: tokio::runtime::Runtime,
}

/// What all connections share.
struct Way {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
    server: (&'static str, u16),
    decide: Mutex<Option<Decide>>,
    cut: Notify,
}

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a way to {}:{}", self.server.0, self.server.1)
    }
}

impl Proxy {
    /// Listen on a port of loopback as `server`, and be `node` towards the server on another one.
    pub(crate) fn start(port: u16, server: &Identity, node: &Identity, to: u16) -> Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut accepting = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![server.certificate.clone()], server.key.clone_key())?;
        let mut connecting = node.client_config()?;
        accepting.alpn_protocols = vec![b"h2".to_vec()];
        connecting.alpn_protocols.clone_from(&accepting.alpn_protocols);
        let way = Arc::new(Way {
            acceptor: Arc::new(accepting).into(),
            connector: Arc::new(connecting).into(),
            server: ("127.0.0.1", to),
            decide: Mutex::default(),
            cut: Notify::new(),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", port)))?;
        runtime.spawn(accept(listener, Arc::clone(&way)));
        Ok(Self { way, _runtime: runtime })
    }

    /// Who says from now on what becomes of a request.
    pub fn decide(&self, decide: impl FnMut(&Asked) -> Fate + Send + 'static) {
        *self.way.decide.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(decide));
    }

    /// Everything passes from now on.
    pub fn pass(&self) {
        self.decide(|_| Fate::Pass);
    }

    /// Cut every connection that is open.
    pub fn cut(&self) {
        self.way.cut.notify_waiters();
    }
}

impl Way {
    fn fate_of(&self, asked: &Asked) -> Fate {
        let mut decide = self.decide.lock().unwrap_or_else(PoisonError::into_inner);
        decide.as_mut().map_or(Fate::Pass, |decide| decide(asked))
    }
}

/// How a connection ends before its time.
enum End {
    Cut,
    Freeze,
}

async fn accept(listener: TcpListener, way: Arc<Way>) {
    while let Ok((stream, _)) = listener.accept().await {
        let way = Arc::clone(&way);
        tokio::spawn(async move {
            // An agent that is killed ends its connections in many ways; none is a fault of the proxy.
            let _ = serve(stream, way).await;
        });
    }
}

async fn serve(stream: TcpStream, way: Arc<Way>) -> Result<()> {
    let cut = way.cut.notified();
    let stream = way.acceptor.accept(stream).await?;
    let server = TcpStream::connect(way.server).await?;
    let server = way.connector.connect(ServerName::try_from(way.server.0)?, server).await?;
    let (sender, driver) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(server)).await?;
    let (end, mut ended) = mpsc::channel(1);
    let service = service_fn(|request| pass(request, sender.clone(), Arc::clone(&way), end.clone()));
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    let mut connection = pin!(connection.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        result = &mut connection => result?,
        lost = driver => lost?,
        () = cut => {}
        how = ended.recv() => if let Some(End::Freeze) = how {
            // The connection is kept, and never polled again.
            pending::<()>().await;
        },
    }
    Ok(())
}

async fn pass(
    request: Request<Incoming>,
    mut server: SendRequest<Full<Bytes>>,
    way: Arc<Way>,
    end: mpsc::Sender<End>,
) -> Result<Response<Answer>, hyper::Error> {
    let (head, body) = request.into_parts();
    let request = Request::from_parts(head, Full::new(body.collect().await?.to_bytes()));
    let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    match way.fate_of(&Asked { method: request.method().to_string(), path }) {
        Fate::Pass => Ok(server.send_request(request).await?.map(BodyExt::boxed)),
        Fate::CutBefore => over(&end, End::Cut).await,
        Fate::CutAfter => {
            server.send_request(request).await?.into_body().collect().await?;
            over(&end, End::Cut).await
        }
        Fate::Freeze => over(&end, End::Freeze).await,
        Fate::Answer(status, header, text) => Ok(answer(status, header, text)),
        Fate::Before(text) => {
            let answer = changed(server.send_request(request).await?);
            Ok(answer.map(|rest| Prefixed { first: Some(text.into()), rest }.boxed()))
        }
        Fate::Changed(change) => {
            let answer = changed(server.send_request(request).await?);
            Ok(answer.map(|body| body.map_frame(move |frame| frame.map_data(change)).boxed()))
        }
    }
}

/// Wait for the end of the connection.
async fn over(end: &mpsc::Sender<End>, how: End) -> ! {
    let _ = end.send(how).await;
    pending().await
}

fn answer(status: u16, header: Option<(&str, &str)>, text: String) -> Response<Answer> {
    let mut response = Response::builder().status(status);
    if let Some((name, value)) = header {
        response = response.header(name, value);
    }
    let body = Full::new(Bytes::from(text)).map_err(|never: Infallible| match never {}).boxed();
    response.body(body).expect("a test's status and header are valid")
}

/// An answer that will have another length.
fn changed(mut response: Response<Incoming>) -> Response<Incoming> {
    response.headers_mut().remove(hyper::header::CONTENT_LENGTH);
    response
}

/// A body with something before it.
struct Prefixed {
    first: Option<Bytes>,
    rest: Incoming,
}

impl Body for Prefixed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }
}
