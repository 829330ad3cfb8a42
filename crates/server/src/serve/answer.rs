//! What goes out: whole texts, and streams that are made while they are read.

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

use super::Stall;

/// What every answer is.
pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// An answer in plain words.
pub(crate) fn text(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    answer(status, PLAIN, Full::new(text.into()).boxed_unsync())
}

/// An answer for monitors, in the text form of Prometheus.
pub(crate) fn numbers(text: impl Into<Bytes>) -> Answer {
    answer(StatusCode::OK, NUMBERS, Full::new(text.into()).boxed_unsync())
}

/// An answer for programs.
pub(crate) fn json(status: StatusCode, value: impl Into<Bytes>) -> Answer {
    answer(status, JSON, Full::new(value.into()).boxed_unsync())
}

/// An answer that goes on. Nothing is made before what was made is taken.
pub(crate) fn stream(json: bool, parts: impl Stream<Item = Bytes> + Send + 'static, stall: Stall) -> Answer {
    let body = StreamBody::new(parts.map(|part| Ok(Frame::data(part)))).boxed_unsync();
    let mut response = answer(StatusCode::OK, if json { JSON } else { PLAIN }, body);
    response.extensions_mut().insert(stall);
    response
}

/// The same answer to one who is still sending: it goes out at once, and what comes in is thrown away for a moment. Were the
/// connection closed upon them, they would never see why.
pub(crate) fn refusing(refusal: Answer, unread: Incoming) -> Answer {
    let (head, body) = refusal.into_parts();
    let drained = streams::once(timeout(DRAIN_MAX, drain(unread))).filter_map(|_| async { None });
    let first =
        streams::once(body.collect()).map(|body| Ok(Frame::data(body.map(|b| b.to_bytes()).unwrap_or_default())));
    Response::from_parts(head, StreamBody::new(first.chain(drained)).boxed_unsync())
}

async fn drain(mut unread: Incoming) {
    while let Some(Ok(_)) = unread.frame().await {}
}

fn answer(status: StatusCode, kind: &'static str, body: UnsyncBoxBody<Bytes, Infallible>) -> Answer {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

const PLAIN: &str = "text/plain; charset=utf-8";
const NUMBERS: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";
/// For who sends more than is read.
const DRAIN_MAX: Duration = Duration::from_secs(2);
