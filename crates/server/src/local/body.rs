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
use tokio::time::timeout;

use super::failure::Failure;
use crate::serve::{Answer, refusing};

/// Either what was sent, or the answer to who sent too much, which goes out before the rest is read.
pub(super) enum Sent {
    /// The document; `Null` if nothing was sent.
    Document(Value),
    /// The answer.
    Refused(Answer),
}

/// Read one document.
pub(super) async fn read(request: Request<Incoming>) -> Result<Sent, Failure> {
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
    if bytes.is_empty() {
        return Ok(Sent::Document(Value::Null));
    }
    let mut documents = documents(&bytes).map_err(Failure::bad_request)?;
    match (documents.pop(), documents.is_empty()) {
        (Some(document), true) => Ok(Sent::Document(document)),
        _ => Err(Failure::bad_request("one object a request")),
    }
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
