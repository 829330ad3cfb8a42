//! Refusals in the shape every Kubernetes client knows: a v1 Status.

use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};
use podwright_agent::local::Refusal;
use podwright_core::validate::FieldError;

use crate::serve::{Answer, json};

/// A question that gets no answer, and why.
#[derive(Debug, PartialEq)]
pub(crate) struct Failure {
    code: StatusCode,
    reason: &'static str,
    message: String,
    details: Option<Box<StatusDetails>>,
}

impl Failure {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None }
    }

    pub(crate) fn not_found(kind: &str, name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", format!("{kind} {name:?} not found")).about(kind, name)
    }

    pub(super) fn no_such_path() -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource")
    }

    pub(super) fn method(more: &str) -> Self {
        let message = format!("the server does not allow this method on the requested resource{more}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub(super) fn conflict(name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on pods {name:?}: {why}");
        Self::new(StatusCode::CONFLICT, "Conflict", message).about("pods", name)
    }

    pub(super) fn too_large(max: usize) -> Self {
        let message = format!("Request entity too large: limit is {max}");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    pub(super) fn too_many() -> Self {
        let message = "too many watches, logs and execs at once: try again when others have ended";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message)
    }

    pub(super) fn expired(why: &str) -> Self {
        Self::new(StatusCode::GONE, "Expired", why)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    pub(super) fn no_answer(message: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
    }

    fn about(mut self, kind: &str, name: &str) -> Self {
        let details = StatusDetails { kind: Some(kind.into()), name: Some(name.into()), ..Default::default() };
        self.details = Some(Box::new(details));
        self
    }

    fn because(mut self, errors: Vec<FieldError>) -> Self {
        let cause = |error: FieldError| StatusCause {
            field: Some(error.path),
            message: Some(error.message),
            reason: Some("FieldValueInvalid".into()),
        };
        self.details.get_or_insert_default().causes = Some(errors.into_iter().map(cause).collect());
        self
    }

    /// With more to say.
    pub(super) fn and(mut self, more: &str) -> Self {
        self.message.push_str(more);
        self
    }

    #[cfg(test)]
    pub(crate) fn message(self) -> String {
        self.message
    }

    pub(super) fn status(self) -> Status {
        Status {
            code: Some(self.code.as_u16().into()),
            details: self.details.map(|details| *details),
            message: Some(self.message),
            metadata: Default::default(),
            reason: Some(self.reason.into()),
            status: Some("Failure".into()),
        }
    }

    pub(super) fn answer(self) -> Answer {
        let code = self.code;
        let mut answer = json(code, serde_json::to_vec(&self.status()).expect("plain data"));
        if code == StatusCode::TOO_MANY_REQUESTS {
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        answer
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        let (code, reason) = match &refusal {
            Refusal::NotFound { .. } => (StatusCode::NOT_FOUND, "NotFound"),
            Refusal::AlreadyExists { .. } | Refusal::Taken { .. } => (StatusCode::CONFLICT, "AlreadyExists"),
            Refusal::Foreign { .. } | Refusal::Full { .. } => (StatusCode::FORBIDDEN, "Forbidden"),
            Refusal::Conflict { .. } => (StatusCode::CONFLICT, "Conflict"),
            Refusal::BadRequest { .. } => (StatusCode::BAD_REQUEST, "BadRequest"),
            Refusal::Invalid { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "Invalid"),
            Refusal::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge"),
            Refusal::Disk { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
        };
        let failure = Self::new(code, reason, message);
        match refusal {
            Refusal::NotFound { name }
            | Refusal::AlreadyExists { name }
            | Refusal::Taken { name, .. }
            | Refusal::Foreign { name, .. }
            | Refusal::Full { name, .. }
            | Refusal::Conflict { name, .. } => failure.about("pods", &name),
            Refusal::Invalid { name, errors } => failure.about("Pod", &name).because(errors),
            Refusal::BadRequest { .. } | Refusal::TooLarge { .. } | Refusal::Disk { .. } => failure,
        }
    }
}
