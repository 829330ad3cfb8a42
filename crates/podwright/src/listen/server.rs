//! An HTTP/1.1 server that can't be worn out: a bounded number of callers, a time limit on each, one question a connection.
//!
//! Used for the address of `--listen` and for the local API's socket alike; they differ in their doors and in what they answer.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// What every answer is.
pub(crate) type Answer = Response<Full<Bytes>>;

/// Where callers come in.
pub(crate) trait Door: Send + 'static {
    /// What a caller is spoken to over.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// The next caller; `None`: one who was turned away.
    fn next(&self) -> impl Future<Output = io::Result<Option<Self::Stream>>> + Send;
}

impl Door for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<Option<TcpStream>> {
        Ok(Some(self.accept().await?.0))
    }
}

/// Serve until told to stop. Connections under way then get a moment to end.
pub(crate) async fn serve<D, F, A>(door: D, answer: F, stop: CancellationToken)
where
    D: Door,
    F: Fn(Request<Incoming>) -> A + Clone + Send + 'static,
    A: Future<Output = Answer> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // A place first: more callers than that wait in the kernel's own queue.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            accepted = door.next() => match accepted {
                Ok(Some(stream)) => stream,
                Ok(None) => continue,
                Err(error) => {
                    // Out of file descriptors, mostly: it passes when others close theirs.
                    tracing::warn!(%error, "a connection could not be taken");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
        };
        let (answer, stop) = (answer.clone(), stop.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let answer = answer(request);
                async move { Ok::<_, Infallible>(answer.await) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_MAX)
                .max_buf_size(16 << 10)
                // Who holds one open takes a place from others.
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                // Who reads too slowly is cut off.
                _ = timeout(CONNECTION_MAX, connection) => {}
                () = async { stop.cancelled().await; tokio::time::sleep(DRAIN).await } => {}
            }
            drop(place);
        });
    }
}

/// An answer in plain words.
pub(crate) fn text(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    body(status, "text/plain; charset=utf-8", text.into())
}

/// An answer for programs.
pub(crate) fn json(status: StatusCode, value: impl Into<Bytes>) -> Answer {
    body(status, "application/json", value.into())
}

fn body(status: StatusCode, kind: &'static str, body: Bytes) -> Answer {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A few monitors and people; each holds some kilobytes.
pub(crate) const CONNECTIONS_MAX: usize = 64;
/// For the request's head.
pub(crate) const HEADER_MAX: Duration = Duration::from_secs(5);
/// For the agent to say what it has to say.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(10);
/// For everything, slow readers included.
const CONNECTION_MAX: Duration = Duration::from_secs(60);
/// For what is under way at the end.
const DRAIN: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(100);
