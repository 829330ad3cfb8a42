//! What core asks of the API server about pod objects: patch a status, delete, show a static pod.
//!
//! Many are under way at once. What is urgent, the end of a pod or its readiness, has places of its own, so that a crowd of
//! ordinary changes never stands before it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use podwright_core::model::{FullName, ObjectError, ObjectRef, ObjectRequest, ObjectResult, Pod, PodStatus};
use podwright_core::status_sync::patch;
use serde_json::json;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::client::{Cluster, request};
use crate::error::ApiError;
use crate::trimmed;

/// The API server as the store of pod objects.
pub struct PodObjects {
    cluster: Cluster,
    /// Places for everything.
    places: Semaphore,
    /// Places for what is urgent, when those are taken.
    urgent: Semaphore,
}

impl PodObjects {
    /// Over this connection.
    pub fn new(cluster: Cluster) -> Self {
        Self { cluster, places: Semaphore::new(PLACES), urgent: Semaphore::new(PLACES_URGENT) }
    }

    /// Do one thing to one object.
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
        let answer = self.send(request(Method::PATCH, &path, Some(content)), urgent).await;
        let pod = answered(&answer.map_err(|error| meaning(&error))?)?;
        if pod.metadata.uid.as_deref() != Some(object.uid.as_str()) {
            return Err(no_answer("it tells of another pod"));
        }
        Ok(Some(pod))
    }

    async fn delete(&self, object: &ObjectRef) -> ObjectResult {
        let options = json!({
            "kind": "DeleteOptions", "apiVersion": "v1",
            "gracePeriodSeconds": 0, "preconditions": {"uid": object.uid.as_str()},
        });
        let content = ("application/json", options.to_string().into_bytes());
        let answer = self.send(request(Method::DELETE, &path(&object.full_name)?, Some(content)), true).await;
        // The object as it was, or a Status: gone either way.
        trimmed::kind(&answer.map_err(|error| meaning(&error))?).map_err(|error| no_answer(&error.to_string()))?;
        Ok(None)
    }

    async fn create(&self, pod: &Pod) -> ObjectResult {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let body = serde_json::to_vec(pod).map_err(|error| ObjectError::Refused(error.to_string()))?;
        let answer = self.send(request(Method::POST, &path, Some(("application/json", body))), false).await;
        match answer {
            Ok(body) => answered(&body).map(Some),
            // The name is taken: by an older mirror, or by a pod that has nothing to do with us.
            Err(ApiError::Answer { code: 409, reason, .. }) if reason == "AlreadyExists" => Err(ObjectError::OtherUid),
            Err(error) => Err(meaning(&error)),
        }
    }

    async fn send(&self, request: Request<Vec<u8>>, urgent: bool) -> Result<Bytes, ApiError> {
        let _place = self.place(urgent).await;
        self.cluster.call(request, LIMIT).await
    }

    async fn place(&self, urgent: bool) -> Option<SemaphorePermit<'_>> {
        if !urgent {
            return self.places.acquire().await.ok();
        }
        tokio::select! {
            biased;
            place = self.places.acquire() => place.ok(),
            place = self.urgent.acquire() => place.ok(),
        }
    }
}

fn path(name: &FullName) -> Result<String, ObjectError> {
    // Names come from objects that the server, or our own validation, accepted; no other is put into an address.
    let fine = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b))
    };
    if !fine(&name.namespace) || !fine(&name.name) {
        return Err(ObjectError::Refused(format!("{name} can't be the name of an object")));
    }
    Ok(format!("/api/v1/namespaces/{}/pods/{}", name.namespace, name.name))
}

/// The pod in an answer. What is no pod was said by somebody in between: then nobody knows what was done.
fn answered(body: &[u8]) -> Result<Arc<Pod>, ObjectError> {
    let pod = trimmed::pod(body).map_err(|error| no_answer(&error.to_string()))?;
    if pod.metadata.uid.is_none() || pod.metadata.name.is_none() {
        return Err(no_answer("it is no pod"));
    }
    Ok(Arc::new(pod))
}

fn no_answer(why: &str) -> ObjectError {
    ObjectError::Unavailable { message: ApiError::Garbage(why.into()).to_string(), after: None }
}

/// What an error means to whoever asked.
fn meaning(error: &ApiError) -> ObjectError {
    match error {
        ApiError::Answer { code: 404, message, .. } if !message.contains("namespaces \"") => ObjectError::NotFound,
        ApiError::Answer { code: 404, .. } => ObjectError::Refused(error.to_string()),
        ApiError::Answer { code: 409, message, .. } if is_about_uid(message) => ObjectError::OtherUid,
        ApiError::Answer { code: 409 | 429 | 500..=599, retry_after, .. } => {
            ObjectError::Unavailable { message: error.to_string(), after: *retry_after }
        }
        // Credentials that ended may be renewed in a moment.
        ApiError::Answer { code: 401, .. } => ObjectError::Unavailable { message: error.to_string(), after: None },
        // The UID of an object can't be changed: a patch that names another one is refused as invalid.
        ApiError::Answer { code: 422, message, .. } if is_about_uid(message) => ObjectError::OtherUid,
        ApiError::Answer { .. } => ObjectError::Refused(error.to_string()),
        ApiError::Unreachable(_) | ApiError::Timeout(_) | ApiError::Garbage(_) => {
            ObjectError::Unavailable { message: error.to_string(), after: None }
        }
    }
}

/// How API servers word that the object of this name is another one.
fn is_about_uid(message: &str) -> bool {
    ["UID in the precondition", "UID in precondition", "metadata.uid"].iter().any(|words| message.contains(words))
}

/// Requests under way at once.
const PLACES: usize = 16;
/// More, for what is urgent.
const PLACES_URGENT: usize = 16;
const LIMIT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: u16, message: &str, retry_after: Option<u64>) -> ApiError {
        let retry_after = retry_after.map(Duration::from_secs);
        ApiError::Answer { code, reason: String::new(), message: message.into(), retry_after }
    }

    #[test]
    fn every_answer_has_a_meaning() {
        let unavailable = |error: &ApiError| matches!(meaning(error), ObjectError::Unavailable { .. });
        assert_eq!(meaning(&answer(404, "pods \"a\" not found", None)), ObjectError::NotFound);
        assert!(matches!(meaning(&answer(404, "namespaces \"x\" not found", None)), ObjectError::Refused(_)));
        let conflict = "Precondition failed: UID in precondition: a, UID in object meta: b";
        assert_eq!(meaning(&answer(409, conflict, None)), ObjectError::OtherUid);
        let real = "Operation cannot be fulfilled on Pod \"a\": the UID in the precondition (x) does not match the UID in record";
        assert_eq!(meaning(&answer(409, real, None)), ObjectError::OtherUid);
        let invalid = "Pod \"a\" is invalid: metadata.uid: Invalid value: \"b\": field is immutable";
        assert_eq!(meaning(&answer(422, invalid, None)), ObjectError::OtherUid);
        assert!(matches!(meaning(&answer(422, "spec: Invalid value", None)), ObjectError::Refused(_)));
        assert!(matches!(meaning(&answer(403, "forbidden", None)), ObjectError::Refused(_)));
        assert!(matches!(meaning(&answer(400, "bad", None)), ObjectError::Refused(_)));
        for code in [401, 409, 429, 500, 503, 504] {
            assert!(unavailable(&answer(code, "later", None)), "{code}");
        }
        let throttled = ObjectError::Unavailable { message: "429 : slow".into(), after: Some(Duration::from_secs(2)) };
        assert_eq!(meaning(&answer(429, "slow", Some(2))), throttled);
        assert!(unavailable(&ApiError::Timeout(LIMIT)) && unavailable(&ApiError::Unreachable(String::new())));
    }

    #[test]
    fn no_name_leaves_its_place_in_an_address() {
        let name = |namespace: &str, name: &str| FullName { namespace: namespace.into(), name: name.into() };
        assert_eq!(path(&name("n", "a.b-c")).unwrap(), "/api/v1/namespaces/n/pods/a.b-c");
        for (namespace, pod) in [("n", "a/../b"), ("", "a"), ("n", "a?x=1"), ("n", "A"), ("..%2f", "a")] {
            assert!(path(&name(namespace, pod)).is_err(), "{namespace}/{pod}");
        }
    }
}
