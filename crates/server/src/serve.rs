//! An HTTP/1.1 server that can't be worn out: a bounded number of callers, a time limit on each, one question a connection.
//!
//! Used for the address of `--listen` and for the local API's socket alike; they differ in their doors and in what they answer.
//! An answer that goes on for long says so with a [`Stall`], and is then held only to that.

mod answer;
mod stall;

use std::convert::Infallible;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub(crate) use answer::{Answer, json, numbers, refusing, stream, text};
pub(crate) use stall::Stall;
use stall::{Limited, Patience};

/// Where callers come in.
pub(crate) trait Door: Send + 'static {
    /// What a caller is spoken to over.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Callers at once; more wait in the kernel's own queue.
    const PLACES: usize;
    /// The next caller; `None`: one who was turned away.
    fn next(&self) -> impl Future<Output = io::Result<Option<Self::Stream>>> + Send;
}

impl Door for TcpListener {
    type Stream = TcpStream;
    const PLACES: usize = MONITORS_MAX;

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
    let places = Arc::new(Semaphore::new(D::PLACES));
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
            converse(stream, answer, stop).await;
            drop(place);
        });
    }
}

async fn converse<S, F, A>(stream: S, answer: F, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> A + Clone + Send + 'static,
    A: Future<Output = Answer> + Send + 'static,
{
    let patience = Patience::default();
    let told = patience.clone();
    let service = service_fn(move |request| {
        let (answer, patience) = (contained(answer(request)), told.clone());
        async move {
            let answer = answer.await;
            patience.set(answer.extensions().get::<Stall>().copied());
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_MAX)
        .max_buf_size(BUFFER_MAX)
        // Who holds one open takes a place from others.
        .keep_alive(false)
        .serve_connection(TokioIo::new(Limited::new(stream, patience.clone())), service)
        .with_upgrades();
    tokio::select! {
        _ = connection => {}
        // Who reads too slowly is cut off.
        () = patience.out_after(CONNECTION_MAX) => {}
        () = async { stop.cancelled().await; tokio::time::sleep(DRAIN).await } => {}
    }
}

/// A mistake of ours costs one answer.
async fn contained(answer: impl Future<Output = Answer>) -> Answer {
    match AssertUnwindSafe(answer).catch_unwind().await {
        Ok(answer) => answer,
        Err(_) => {
            tracing::error!("a bug was met while a question was answered");
            text(StatusCode::INTERNAL_SERVER_ERROR, "a bug was met; the agent's log has more")
        }
    }
}

/// A few monitors and people; each holds some kilobytes.
pub(crate) const MONITORS_MAX: usize = 64;
/// For the request's head.
pub(crate) const HEADER_MAX: Duration = Duration::from_secs(5);
/// For the agent to say what it has to say.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(10);
/// For everything, slow readers included, unless the answer is a long one.
const CONNECTION_MAX: Duration = Duration::from_secs(60);
/// Of a head, and of what waits to be written.
const BUFFER_MAX: usize = 16 << 10;
/// For what is under way at the end.
const DRAIN: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(100);
