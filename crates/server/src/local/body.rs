//! Request bodies: JSON or YAML, bounded in size and in time.

use std::time::Duration;

use http::Request;
use http::header::CONTENT_LENGTH;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use podwright_agent::local::POD_BYTES_MAX;
use podwright_agent::sources::documents;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use crate::serve::{HttpResponse, respond_and_drain};
use crate::status_error::StatusError;

/// The parsed body, or the response to a body that is too large, which goes out before the rest of the body is read.
pub(super) enum RequestBody<T> {
    Object(T),
    TooLarge(HttpResponse),
}

/// Reads one document and converts it.
pub(super) async fn read<T: Send + 'static>(
    request: Request<Incoming>,
    convert: impl FnOnce(Value) -> Result<T, StatusError> + Send + 'static,
) -> Result<RequestBody<T>, StatusError> {
    let too_large = || StatusError::too_large(POD_BYTES_MAX);
    let length = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > POD_BYTES_MAX as u64) {
        return Ok(RequestBody::TooLarge(reject_and_drain(too_large(), request)));
    }
    let whole = timeout(BODY_TIMEOUT, Limited::new(request.into_body(), POD_BYTES_MAX).collect()).await;
    let whole = whole.map_err(|_| StatusError::bad_request("the request body was not received in time"))?;
    let bytes = match whole {
        Ok(whole) => whole.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => return Err(too_large()),
        Err(error) => return Err(StatusError::bad_request(format!("the request body could not be read: {error}"))),
    };
    on_large_stack(move || Ok(RequestBody::Object(convert(document(&bytes)?)?))).await
}

fn document(bytes: &[u8]) -> Result<Value, StatusError> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let mut documents = documents(bytes).map_err(|error| StatusError::bad_request(error.to_string()))?;
    match (documents.pop(), documents.is_empty()) {
        (Some(document), true) => Ok(document),
        _ => Err(StatusError::bad_request("a request takes exactly one object")),
    }
}

/// Runs the work on its own thread: a deeply nested document needs a larger stack than the agent's threads have, and a large one
/// takes long to parse. At most [`THREADS_MAX`] at once.
pub(super) async fn on_large_stack<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StatusError> + Send + 'static,
) -> Result<T, StatusError> {
    static THREADS: Semaphore = Semaphore::const_new(THREADS_MAX);
    let failed =
        |why: &dyn std::fmt::Display| StatusError::internal(format!("the request could not be processed: {why}"));
    let permit = THREADS.acquire().await.map_err(|error| failed(&error))?;
    let (sender, result) = oneshot::channel();
    let thread = std::thread::Builder::new().name("read-body".into()).stack_size(STACK);
    let started = thread.spawn(move || {
        let _permit = permit;
        let _ = sender.send(work());
    });
    started.map_err(|error| failed(&error))?;
    result.await.map_err(|error| failed(&error))?
}

/// Decodes a document; the error names the field.
pub(super) fn decode<T: DeserializeOwned>(document: Value) -> Result<T, StatusError> {
    serde_path_to_error::deserialize(&document).map_err(|error| {
        let field = error.path().to_string();
        StatusError::bad_request(format!("{field}: {}", error.into_inner()))
    })
}

/// The error response to a client that may still be sending its body.
pub(super) fn reject_and_drain(error: StatusError, request: Request<Incoming>) -> HttpResponse {
    match hyper::body::Body::is_end_stream(request.body()) {
        true => error.response(),
        false => respond_and_drain(error.response(), request.into_body()),
    }
}

/// For a client that sends slowly.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Bodies parsed at once; each needs a multiple of its size in memory.
const THREADS_MAX: usize = 4;
/// Bytes; only the used part takes memory.
const STACK: usize = 8 << 20;
