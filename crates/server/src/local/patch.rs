//! PATCH of a pod: strategic merge patches, as `kubectl apply`, `label`, `annotate` and `edit` send them, and JSON merge patches.

use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, StatusCode};
use hyper::body::Incoming;
use podwright_agent::feed::PodView;
use podwright_agent::local::PodRequestError;
use podwright_core::decoded_size::DecodedSize;
use podwright_core::model::FullName;
use podwright_core::strategic_merge::{PatchError, json_merge, strategic_merge};
use serde::Deserialize;
use serde_json::Value;

use super::body::{RequestBody, on_large_stack, read};
use super::router::{LocalState, with_code};
use super::write::{SubmittedPod, WriteOptions, with_warnings};
use crate::query::QueryParams;
use crate::serve::HttpResponse;
use crate::status_error::StatusError;

/// Applies the patch to the newest pod, again if another client was faster.
pub(super) async fn patch(
    state: &LocalState,
    of: FullName,
    mut params: QueryParams,
    request: Request<Incoming>,
) -> Result<HttpResponse, StatusError> {
    let merge = merge_function(request.headers())?;
    let options = WriteOptions::parse(&mut params)?;
    params.flag("force")?;
    params.finish()?;
    let document = match read(request, Ok).await? {
        RequestBody::Object(document) => document,
        RequestBody::TooLarge(response) => return Ok(response),
    };
    if !document.is_object() {
        return Err(StatusError::bad_request("the patch must be an object"));
    }
    let document = Arc::new(document);
    let own_version = document.pointer("/metadata/resourceVersion").is_some_and(|version| !version.is_null());
    for attempt in 1.. {
        let (view, document, for_pod) = (state.pod(&of)?, Arc::clone(&document), options.clone());
        let patched = on_large_stack(move || SubmittedPod::of(patched(&view, &document, merge)?, &for_pod));
        let SubmittedPod { pod, warnings, .. } = patched.await?;
        match state.api.store.update(of.clone(), pod, options.dry_run).await {
            Err(PodRequestError::Conflict { .. }) if !own_version && attempt < ATTEMPTS_MAX => {}
            written => return Ok(with_warnings(with_code(StatusCode::OK, &*written?), &warnings)),
        }
    }
    unreachable!("the last attempt returns")
}

/// The pod with the patch, if that is not too large.
fn patched(view: &PodView, patch: &Value, merge: Merge) -> Result<Value, StatusError> {
    let mut object = serde_json::to_value(view).expect("plain data");
    merge(&mut object, patch).map_err(|error| StatusError::bad_request(error.to_string()))?;
    let size = DecodedSize::deserialize(&object).expect("any value has a size");
    match DecodedSize::check(&[size]) {
        Ok(()) => Ok(object),
        Err(error) => Err(StatusError::bad_request(format!("{}: {error}", error.path))),
    }
}

type Merge = fn(&mut Value, &Value) -> Result<(), PatchError>;

fn merge_function(headers: &HeaderMap) -> Result<Merge, StatusError> {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match kind.split(';').next().unwrap_or_default().trim() {
        "application/strategic-merge-patch+json" => Ok(strategic_merge),
        "application/merge-patch+json" => Ok(json_merge),
        other => Err(StatusError::unsupported_media_type(other)),
    }
}

/// Kubernetes: `MaxRetryWhenPatchConflicts`.
const ATTEMPTS_MAX: usize = 5;
