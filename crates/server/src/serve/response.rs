//! Constructors of HTTP responses: complete bodies, and streams that are produced while the client reads.

use std::convert::Infallible;
use std::io::{self, Write};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::{Stream, StreamExt, stream as streams};
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, VARY};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::time::timeout;

use super::WriteTimeout;

/// The body of every response. An error ends it without its regular end, so that the client does not take it for complete.
pub(crate) type ResponseBody = UnsyncBoxBody<Bytes, io::Error>;
/// The response type of every handler.
pub(crate) type HttpResponse = Response<ResponseBody>;

/// A plain-text response.
pub(crate) fn text(status: StatusCode, text: impl Into<Bytes>) -> HttpResponse {
    response(status, PLAIN, complete(text))
}

/// Metrics in the Prometheus text format; see [`compressed`].
pub(crate) fn prometheus_text(text: impl Into<Bytes>) -> HttpResponse {
    let text = text.into();
    let mut response = response(StatusCode::OK, PROMETHEUS, complete(text.clone()));
    response.extensions_mut().insert(Compressible(text));
    response
}

/// The body of a response that may be compressed.
#[derive(Clone)]
struct Compressible(Bytes);

/// Compresses metrics with gzip for a client that accepts it, as Prometheus' handler does. Other responses stay as they are.
pub(crate) fn compressed(mut response: HttpResponse, request: &HeaderMap) -> HttpResponse {
    let Some(Compressible(text)) = response.extensions_mut().remove() else { return response };
    if !accepts_gzip(request) {
        return response;
    }
    let mut encoder = GzEncoder::new(Vec::with_capacity(text.len() / 8), Compression::fast());
    let Ok(body) = encoder.write_all(&text).and_then(|()| encoder.finish()) else { return response };
    response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    response.map(|_| complete(body))
}

/// Whether the client accepts gzip; `q=0` refuses it.
fn accepts_gzip(request: &HeaderMap) -> bool {
    let values = request.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let refused = parts.any(|weight| {
            weight.strip_prefix("q=").is_some_and(|weight| weight.parse::<f32>().is_ok_and(|weight| weight <= 0.0))
        });
        named && !refused
    })
}

/// A JSON response.
pub(crate) fn json(status: StatusCode, value: impl Into<Bytes>) -> HttpResponse {
    response(status, JSON, complete(value))
}

/// 429, for a client that should come back later.
pub(crate) fn too_many(message: &'static str) -> HttpResponse {
    let mut response = text(StatusCode::TOO_MANY_REQUESTS, message);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// A streaming response. The next part is produced only after the previous one was written.
pub(crate) fn stream(
    json: bool,
    parts: impl Stream<Item = Bytes> + Send + 'static,
    timeout: WriteTimeout,
) -> HttpResponse {
    try_stream(json, parts.map(Ok), timeout)
}

/// A streaming response that may break off with an error.
pub(crate) fn try_stream(
    json: bool,
    parts: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    timeout: WriteTimeout,
) -> HttpResponse {
    try_frames(json, parts.map(|part| part.map(Frame::data)), timeout)
}

/// The same with trailers, which are sent to a client that accepts them if a header announces them.
pub(crate) fn try_frames(
    json: bool,
    frames: impl Stream<Item = io::Result<Frame<Bytes>>> + Send + 'static,
    timeout: WriteTimeout,
) -> HttpResponse {
    let body = StreamBody::new(frames).boxed_unsync();
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

/// A body of these bytes.
pub(crate) fn complete(bytes: impl Into<Bytes>) -> ResponseBody {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

fn response(status: StatusCode, kind: &'static str, body: ResponseBody) -> HttpResponse {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_used_only_where_it_is_accepted() {
        for (header, accepted) in [
            ("gzip", true),
            ("deflate, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip; q=0.0, br", false),
            ("identity", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(header));
            assert_eq!(accepts_gzip(&headers), accepted, "{header}");
            let response = compressed(prometheus_text("up 1\n"), &headers);
            assert_eq!(response.headers().contains_key(CONTENT_ENCODING), accepted, "{header}");
            assert!(!compressed(text(StatusCode::OK, "ok"), &headers).headers().contains_key(CONTENT_ENCODING));
        }
    }
}
