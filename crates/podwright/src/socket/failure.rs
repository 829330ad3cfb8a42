//! Refusals in the shape every Kubernetes client knows: a v1 Status.

use http::StatusCode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusDetails};

use crate::listen::server::{Answer, json};

/// A question that gets no answer, and why.
#[derive(Debug, PartialEq)]
pub(super) struct Failure {
    code: StatusCode,
    reason: &'static str,
    message: String,
    details: Option<Box<StatusDetails>>,
}

impl Failure {
    pub(super) fn not_found(kind: &str, name: &str) -> Self {
        let details = StatusDetails { kind: Some(kind.into()), name: Some(name.into()), ..Default::default() };
        let message = format!("{kind} {name:?} not found");
        Self { code: StatusCode::NOT_FOUND, reason: "NotFound", message, details: Some(Box::new(details)) }
    }

    pub(super) fn no_such_path() -> Self {
        let message = "the server could not find the requested resource".into();
        Self { code: StatusCode::NOT_FOUND, reason: "NotFound", message, details: None }
    }

    pub(super) fn method() -> Self {
        let message = "the server does not allow this method on the requested resource".into();
        Self { code: StatusCode::METHOD_NOT_ALLOWED, reason: "MethodNotAllowed", message, details: None }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self { code: StatusCode::BAD_REQUEST, reason: "BadRequest", message: message.into(), details: None }
    }

    pub(super) fn no_answer(message: &str) -> Self {
        Self {
            code: StatusCode::SERVICE_UNAVAILABLE,
            reason: "ServiceUnavailable",
            message: message.into(),
            details: None,
        }
    }

    /// With more to say.
    pub(super) fn and(mut self, more: &str) -> Self {
        self.message.push_str(more);
        self
    }

    pub(super) fn answer(self) -> Answer {
        let status = Status {
            code: Some(self.code.as_u16().into()),
            details: self.details.map(|details| *details),
            message: Some(self.message),
            metadata: Default::default(),
            reason: Some(self.reason.into()),
            status: Some("Failure".into()),
        };
        json(self.code, serde_json::to_vec(&status).expect("plain data"))
    }
}
