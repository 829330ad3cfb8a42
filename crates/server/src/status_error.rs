//! Error responses as v1 Status objects (`StatusError` of the Go apimachinery).

use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};
use podwright_agent::local::PodRequestError;
use podwright_core::validate::FieldError;

use crate::serve::{HttpResponse, json, text};

/// A request that failed; sent as a v1 Status.
#[derive(Debug, PartialEq)]
pub(crate) struct StatusError {
    code: StatusCode,
    reason: &'static str,
    message: String,
    details: Option<Box<StatusDetails>>,
}

impl StatusError {
    pub(crate) fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None }
    }

    pub(crate) fn not_found(kind: &str, name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", format!("{kind} {name:?} not found")).about(kind, name)
    }

    pub(crate) fn no_such_path() -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource")
    }

    pub(crate) fn method_not_allowed(hint: &str) -> Self {
        let message = format!("the server does not allow this method on the requested resource{hint}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub(crate) fn conflict(name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on pods {name:?}: {why}");
        Self::new(StatusCode::CONFLICT, "Conflict", message).about("pods", name)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    pub(crate) fn unsupported_media_type(kind: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: \
             application/merge-patch+json, application/strategic-merge-patch+json; not {kind:?}"
        );
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    pub(crate) fn too_large(max: usize) -> Self {
        let message = format!("Request entity too large: limit is {max}");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    pub(crate) fn too_many() -> Self {
        let message = "too many open watches, logs and execs: try again later";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message)
    }

    pub(crate) fn too_many_transfers() -> Self {
        let message = "too many transfers of images at once: try again when one of them has ended";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message)
    }

    pub(crate) fn expired(why: &str) -> Self {
        Self::new(StatusCode::GONE, "Expired", why)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    pub(crate) fn unavailable(message: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
    }

    fn about(mut self, kind: &str, name: &str) -> Self {
        let details = StatusDetails { kind: Some(kind.into()), name: Some(name.into()), ..Default::default() };
        self.details = Some(Box::new(details));
        self
    }

    fn with_causes(mut self, errors: Vec<FieldError>) -> Self {
        let cause = |error: FieldError| StatusCause {
            field: Some(error.path),
            message: Some(error.message),
            reason: Some("FieldValueInvalid".into()),
        };
        self.details.get_or_insert_default().causes = Some(errors.into_iter().map(cause).collect());
        self
    }

    /// Appends to the message.
    pub(crate) fn append(mut self, more: &str) -> Self {
        self.message.push_str(more);
        self
    }

    #[cfg(test)]
    pub(crate) fn message(self) -> String {
        self.message
    }

    pub(crate) fn code(&self) -> StatusCode {
        self.code
    }

    pub(crate) fn status(self) -> Status {
        Status {
            code: Some(self.code.as_u16().into()),
            details: self.details.map(|details| *details),
            message: Some(self.message),
            metadata: Default::default(),
            reason: Some(self.reason.into()),
            status: Some("Failure".into()),
        }
    }

    /// The message as plain text, as the kubelet's API answers.
    pub(crate) fn text_response(self) -> HttpResponse {
        text(self.code, self.message)
    }

    pub(crate) fn response(self) -> HttpResponse {
        let code = self.code;
        let mut response = json(code, serde_json::to_vec(&self.status()).expect("plain data"));
        if code == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<PodRequestError> for StatusError {
    fn from(refusal: PodRequestError) -> Self {
        let message = refusal.to_string();
        let (code, reason) = match &refusal {
            PodRequestError::NotFound { .. } => (StatusCode::NOT_FOUND, "NotFound"),
            PodRequestError::AlreadyExists { .. } | PodRequestError::Taken { .. } => {
                (StatusCode::CONFLICT, "AlreadyExists")
            }
            PodRequestError::Foreign { .. } | PodRequestError::Full { .. } => (StatusCode::FORBIDDEN, "Forbidden"),
            PodRequestError::Conflict { .. } => (StatusCode::CONFLICT, "Conflict"),
            PodRequestError::BadRequest { .. } => (StatusCode::BAD_REQUEST, "BadRequest"),
            PodRequestError::Invalid { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "Invalid"),
            PodRequestError::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge"),
            PodRequestError::Disk { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
        };
        let error = Self::new(code, reason, message);
        match refusal {
            PodRequestError::NotFound { name }
            | PodRequestError::AlreadyExists { name }
            | PodRequestError::Taken { name, .. }
            | PodRequestError::Foreign { name, .. }
            | PodRequestError::Full { name, .. }
            | PodRequestError::Conflict { name, .. } => error.about("pods", &name),
            PodRequestError::Invalid { name, errors } => error.about("Pod", &name).with_causes(errors),
            PodRequestError::BadRequest { .. } | PodRequestError::TooLarge { .. } | PodRequestError::Disk { .. } => {
                error
            }
        }
    }
}
