//! Constructors of HTTP responses: complete bodies, and streams that are produced while the client reads.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt, stream as streams};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::time::timeout;

use super::WriteTimeout;

/// The response type of every handler.
pub(crate) type HttpResponse = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// A plain-text response.
pub(crate) fn text(status: StatusCode, text: impl Into<Bytes>) -> HttpResponse {
    response(status, PLAIN, Full::new(text.into()).boxed_unsync())
}

/// Metrics in the Prometheus text format.
pub(crate) fn prometheus_text(text: impl Into<Bytes>) -> HttpResponse {
    response(StatusCode::OK, PROMETHEUS, Full::new(text.into()).boxed_unsync())
}

/// A JSON response.
pub(crate) fn json(status: StatusCode, value: impl Into<Bytes>) -> HttpResponse {
    response(status, JSON, Full::new(value.into()).boxed_unsync())
}

/// A streaming response. The next part is produced only after the previous one was written.
pub(crate) fn stream(
    json: bool,
    parts: impl Stream<Item = Bytes> + Send + 'static,
    timeout: WriteTimeout,
) -> HttpResponse {
    let body = StreamBody::new(parts.map(|part| Ok(Frame::data(part)))).boxed_unsync();
    let mut response = response(StatusCode::OK, if json { JSON } else { PLAIN }, body);
    response.extensions_mut().insert(timeout);
    response
}

/// The given response for a client that is still sending its body: the response goes out at once, and the rest of the body is
/// read and discarded for up to [`DRAIN_MAX`]. If the connection were closed at once, the client would see a reset instead
/// of the response.
pub(crate) fn respond_and_drain(response: HttpResponse, unread: Incoming) -> HttpResponse {
    let (head, body) = response.into_parts();
    let drained = streams::once(timeout(DRAIN_MAX, drain(unread))).filter_map(|_| async { None });
    let first =
        streams::once(body.collect()).map(|body| Ok(Frame::data(body.map(|b| b.to_bytes()).unwrap_or_default())));
    Response::from_parts(head, StreamBody::new(first.chain(drained)).boxed_unsync())
}

async fn drain(mut unread: Incoming) {
    while let Some(Ok(_)) = unread.frame().await {}
}

fn response(status: StatusCode, kind: &'static str, body: UnsyncBoxBody<Bytes, Infallible>) -> HttpResponse {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

const PLAIN: &str = "text/plain; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";
/// For a client that keeps sending a rejected body.
const DRAIN_MAX: Duration = Duration::from_secs(2);
