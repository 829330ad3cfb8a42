//! Executes core's requests on pod objects: patch a status, delete a pod, create or delete a mirror pod.
//!
//! Many requests run concurrently. Urgent ones, a pod's termination or its readiness, have additional permits, so that many
//! ordinary changes never delay them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use podwright_core::model::{FullName, ObjectError, ObjectRef, ObjectRequest, ObjectResult, Pod, PodStatus};
use podwright_core::status_sync::patch;
use serde_json::json;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::client::{ApiClient, request};
use crate::error::ApiError;
use crate::trimmed;

/// The pod objects in the API server.
pub struct PodObjects {
    client: ApiClient,
    /// For all requests.
    permits: Semaphore,
    /// For urgent requests when `permits` is exhausted.
    urgent_permits: Semaphore,
}

impl PodObjects {
    /// Sends over this client's connection.
    pub fn new(client: ApiClient) -> Self {
        let (permits, urgent_permits) = (Semaphore::new(CONCURRENT_MAX), Semaphore::new(CONCURRENT_URGENT_MAX));
        Self { client, permits, urgent_permits }
    }

    /// Executes one request.
    pub async fn request(&self, request: ObjectRequest) -> ObjectResult {
        match request {
            ObjectRequest::PatchStatus { object, base, status, urgent } => {
                self.patch_status(&object, &base, &status, urgent).await
            }
            ObjectRequest::Delete { object } | ObjectRequest::DeleteMirror { object } => self.delete(&object).await,
            ObjectRequest::CreateMirror { pod } => self.create(&pod).await,
        }
    }

    async fn patch_status(
        &self,
        object: &ObjectRef,
        base: &PodStatus,
        status: &PodStatus,
        urgent: bool,
    ) -> ObjectResult {
        let Some(body) = patch(&object.uid, base, status) else { return Ok(None) };
        let path = format!("{}/status", path(&object.full_name)?);
        let content = ("application/strategic-merge-patch+json", body.to_string().into_bytes());
        let response = self.send(request(Method::PATCH, &path, Some(content)), urgent).await;
        let pod = decode_pod(&response.map_err(|error| object_error(&error))?)?;
        if pod.metadata.uid.as_deref() != Some(object.uid.as_str()) {
            return Err(malformed("the pod has another UID"));
        }
        Ok(Some(pod))
    }

    async fn delete(&self, object: &ObjectRef) -> ObjectResult {
        let options = json!({
            "kind": "DeleteOptions", "apiVersion": "v1",
            "gracePeriodSeconds": 0, "preconditions": {"uid": object.uid.as_str()},
        });
        let content = ("application/json", options.to_string().into_bytes());
        let response = self.send(request(Method::DELETE, &path(&object.full_name)?, Some(content)), true).await;
        // The deleted object, or a Status: deleted either way.
        trimmed::kind(&response.map_err(|error| object_error(&error))?)
            .map_err(|error| malformed(&error.to_string()))?;
        Ok(None)
    }

    async fn create(&self, pod: &Pod) -> ObjectResult {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let body = serde_json::to_vec(pod).map_err(|error| ObjectError::Refused(error.to_string()))?;
        let response = self.send(request(Method::POST, &path, Some(("application/json", body))), false).await;
        match response {
            Ok(body) => decode_pod(&body).map(Some),
            // The name is taken: by an older mirror pod, or by an unrelated pod.
            Err(ApiError::Status { code: 409, reason, .. }) if reason == "AlreadyExists" => Err(ObjectError::OtherUid),
            Err(error) => Err(object_error(&error)),
        }
    }

    async fn send(&self, request: Request<Vec<u8>>, urgent: bool) -> Result<Bytes, ApiError> {
        let _permit = self.permit(urgent).await;
        self.client.call(request, CALL_TIMEOUT).await
    }

    async fn permit(&self, urgent: bool) -> Option<SemaphorePermit<'_>> {
        if !urgent {
            return self.permits.acquire().await.ok();
        }
        tokio::select! {
            biased;
            permit = self.permits.acquire() => permit.ok(),
            permit = self.urgent_permits.acquire() => permit.ok(),
        }
    }
}

fn path(name: &FullName) -> Result<String, ObjectError> {
    // Names come from objects that the server, or our own validation, accepted; no other may become part of a path.
    let valid = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b))
    };
    if !valid(&name.namespace) || !valid(&name.name) {
        return Err(ObjectError::Refused(format!("{name} is not a valid object name")));
    }
    Ok(format!("/api/v1/namespaces/{}/pods/{}", name.namespace, name.name))
}

/// The pod in a response. Any other body comes from a proxy: whether the request took effect is then unknown.
fn decode_pod(body: &[u8]) -> Result<Arc<Pod>, ObjectError> {
    let pod = trimmed::pod(body).map_err(|error| malformed(&error.to_string()))?;
    if pod.metadata.uid.is_none() || pod.metadata.name.is_none() {
        return Err(malformed("not a pod"));
    }
    Ok(Arc::new(pod))
}

fn malformed(reason: &str) -> ObjectError {
    ObjectError::Unavailable { message: ApiError::Malformed(reason.into()).to_string(), after: None }
}

/// The error of the API call in core's terms.
fn object_error(error: &ApiError) -> ObjectError {
    match error {
        ApiError::Status { code: 404, message, .. } if !message.contains("namespaces \"") => ObjectError::NotFound,
        ApiError::Status { code: 404, .. } => ObjectError::Refused(error.to_string()),
        ApiError::Status { code: 409, message, .. } if is_about_uid(message) => ObjectError::OtherUid,
        ApiError::Status { code: 409 | 429 | 500..=599, retry_after, .. } => {
            ObjectError::Unavailable { message: error.to_string(), after: *retry_after }
        }
        // Expired credentials may be renewed soon.
        ApiError::Status { code: 401, .. } => ObjectError::Unavailable { message: error.to_string(), after: None },
        // The UID is immutable: a patch with another UID is refused as invalid.
        ApiError::Status { code: 422, message, .. } if is_about_uid(message) => ObjectError::OtherUid,
        ApiError::Status { .. } => ObjectError::Refused(error.to_string()),
        ApiError::Unreachable(_) | ApiError::Timeout(_) | ApiError::Malformed(_) => {
            ObjectError::Unavailable { message: error.to_string(), after: None }
        }
    }
}

/// Recognises the API server's messages for an object of this name with another UID.
fn is_about_uid(message: &str) -> bool {
    ["UID in the precondition", "UID in precondition", "metadata.uid"].iter().any(|phrase| message.contains(phrase))
}

const CONCURRENT_MAX: usize = 16;
/// Additional, for urgent requests.
const CONCURRENT_URGENT_MAX: usize = 16;
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    fn response(code: u16, message: &str, retry_after: Option<u64>) -> ApiError {
        let retry_after = retry_after.map(Duration::from_secs);
        ApiError::Status { code, reason: String::new(), message: message.into(), retry_after }
    }

    #[test]
    fn every_status_maps_to_an_object_error() {
        let unavailable = |error: &ApiError| matches!(object_error(error), ObjectError::Unavailable { .. });
        assert_eq!(object_error(&response(404, "pods \"a\" not found", None)), ObjectError::NotFound);
        assert!(matches!(object_error(&response(404, "namespaces \"x\" not found", None)), ObjectError::Refused(_)));
        let conflict = "Precondition failed: UID in precondition: a, UID in object meta: b";
        assert_eq!(object_error(&response(409, conflict, None)), ObjectError::OtherUid);
        let real = "Operation cannot be fulfilled on Pod \"a\": the UID in the precondition (x) does not match the UID in record";
        assert_eq!(object_error(&response(409, real, None)), ObjectError::OtherUid);
        let invalid = "Pod \"a\" is invalid: metadata.uid: Invalid value: \"b\": field is immutable";
        assert_eq!(object_error(&response(422, invalid, None)), ObjectError::OtherUid);
        assert!(matches!(object_error(&response(422, "spec: Invalid value", None)), ObjectError::Refused(_)));
        assert!(matches!(object_error(&response(403, "forbidden", None)), ObjectError::Refused(_)));
        assert!(matches!(object_error(&response(400, "bad", None)), ObjectError::Refused(_)));
        for code in [401, 409, 429, 500, 503, 504] {
            assert!(unavailable(&response(code, "later", None)), "{code}");
        }
        let throttled = ObjectError::Unavailable { message: "429 : slow".into(), after: Some(Duration::from_secs(2)) };
        assert_eq!(object_error(&response(429, "slow", Some(2))), throttled);
        assert!(unavailable(&ApiError::Timeout(CALL_TIMEOUT)) && unavailable(&ApiError::Unreachable(String::new())));
    }

    #[test]
    fn an_invalid_name_does_not_become_another_path() {
        let name = |namespace: &str, name: &str| FullName { namespace: namespace.into(), name: name.into() };
        assert_eq!(path(&name("n", "a.b-c")).unwrap(), "/api/v1/namespaces/n/pods/a.b-c");
        for (namespace, pod) in [("n", "a/../b"), ("", "a"), ("n", "a?x=1"), ("n", "A"), ("..%2f", "a")] {
            assert!(path(&name(namespace, pod)).is_err(), "{namespace}/{pod}");
        }
    }
}
