//! What a caller sends: bounded in size and in time, JSON or YAML.

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

use super::failure::Failure;
use crate::serve::{Answer, refusing};

/// Either what was sent, or the answer to who sent too much, which goes out before the rest is read.
pub(super) enum Sent<T> {
    /// What was made of it.
    Object(T),
    /// The answer.
    Refused(Answer),
}

/// Read one document, and make of it what is wanted.
pub(super) async fn read<T: Send + 'static>(
    request: Request<Incoming>,
    make: impl FnOnce(Value) -> Result<T, Failure> + Send + 'static,
) -> Result<Sent<T>, Failure> {
    let too_large = || Failure::too_large(POD_BYTES_MAX);
    let length = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > POD_BYTES_MAX as u64) {
        return Ok(Sent::Refused(drained(too_large(), request)));
    }
    let whole = timeout(BODY_MAX, Limited::new(request.into_body(), POD_BYTES_MAX).collect()).await;
    let whole = whole.map_err(|_| Failure::bad_request("the body did not come in time"))?;
    let bytes = match whole {
        Ok(whole) => whole.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => return Err(too_large()),
        Err(error) => return Err(Failure::bad_request(format!("the body could not be read: {error}"))),
    };
    apart(move || Ok(Sent::Object(make(document(&bytes)?)?))).await
}

fn document(bytes: &[u8]) -> Result<Value, Failure> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let mut documents = documents(bytes).map_err(Failure::bad_request)?;
    match (documents.pop(), documents.is_empty()) {
        (Some(document), true) => Ok(document),
        _ => Err(Failure::bad_request("one object a request")),
    }
}

/// On a thread of its own: what is nested deeply needs a larger stack than the agent's threads have, and what is large takes its
/// time. A few at once.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> Result<T, Failure> + Send + 'static) -> Result<T, Failure> {
    static THREADS: Semaphore = Semaphore::const_new(THREADS_MAX);
    let failed = |why: &dyn std::fmt::Display| Failure::internal(format!("the body could not be read: {why}"));
    let one = THREADS.acquire().await.map_err(|error| failed(&error))?;
    let (answer, answered) = oneshot::channel();
    let thread = std::thread::Builder::new().name("read-body".into()).stack_size(STACK);
    let started = thread.spawn(move || {
        let _one = one;
        let _ = answer.send(work());
    });
    started.map_err(|error| failed(&error))?;
    answered.await.map_err(|error| failed(&error))?
}

/// A typed object from a document.
pub(super) fn decode<T: DeserializeOwned>(document: Value) -> Result<T, Failure> {
    serde_path_to_error::deserialize(document).map_err(|error| {
        let field = error.path().to_string();
        Failure::bad_request(format!("{field}: {}", error.into_inner()))
    })
}

/// A refusal to one who may still be sending.
pub(super) fn drained(failure: Failure, request: Request<Incoming>) -> Answer {
    match hyper::body::Body::is_end_stream(request.body()) {
        true => failure.answer(),
        false => refusing(failure.answer(), request.into_body()),
    }
}

/// For a body that drips.
const BODY_MAX: Duration = Duration::from_secs(30);
/// Bodies that are read at once; each may take some times its size.
const THREADS_MAX: usize = 4;
/// Only what is used of it takes memory.
const STACK: usize = 8 << 20;
