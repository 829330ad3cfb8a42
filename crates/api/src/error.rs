//! The errors of API calls, and what each means for a retry.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use serde::Deserialize;

/// Why a call to the API server failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The server responded with an HTTP status other than success.
    #[error("{code} {reason}: {message}")]
    Status {
        /// The HTTP status code.
        code: u16,
        /// The `reason` of Kubernetes' Status object: `NotFound`, `Conflict`, …
        reason: String,
        /// The `message` of the Status object, else the start of the body.
        message: String,
        /// The server's `Retry-After`, at most a minute.
        retry_after: Option<Duration>,
    },
    /// The server can't be reached, or the connection was lost during the request.
    #[error("{0}")]
    Unreachable(String),
    /// No response in time. The request may have taken effect, or may still do so.
    #[error("no response within {0:?}")]
    Timeout(Duration),
    /// The response, or the request, is not valid.
    #[error("malformed data: {0}")]
    Malformed(String),
}

impl ApiError {
    /// The HTTP status code, if the server responded.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// The object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// The resource version is too old for a list or watch to continue from.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Status { code: 410, .. })
            || matches!(self, Self::Status { reason, .. } if reason == "Expired" || reason == "Gone")
    }

    /// The delay the server asks for before the next attempt.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// From a response whose status is not success.
    pub(crate) fn from_response(code: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let status: Status = serde_json::from_slice(body).unwrap_or_default();
        let seconds = headers.get(http::header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let seconds = seconds.or(status.details.retry_after_seconds).filter(|seconds| *seconds > 0);
        let message = if status.message.is_empty() { truncated(body) } else { truncated(status.message.as_bytes()) };
        Self::Status {
            code: code.as_u16(),
            reason: if status.reason.is_empty() { code.canonical_reason().unwrap_or("").into() } else { status.reason },
            message,
            retry_after: seconds.map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX)),
        }
    }

    /// From the Status object of a watch's ERROR event.
    pub(crate) fn from_status(body: &[u8]) -> Self {
        let code = serde_json::from_slice::<Status>(body).ok().and_then(|status| status.code);
        let code = code.and_then(|code| StatusCode::from_u16(code).ok()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self::from_response(code, &HeaderMap::new(), body)
    }
}

/// The fields we use of Kubernetes' Status object.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    code: Option<u16>,
    reason: String,
    message: String,
    details: Details,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    retry_after_seconds: Option<u64>,
}

/// The start of a text, with an ellipsis if it was longer.
pub(crate) fn truncated(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(4 * TEXT_MAX)]);
    let short: String = text.chars().take(TEXT_MAX).collect();
    if short.len() < body.len() { format!("{short}…") } else { short }
}

/// Characters of a message. Errors go into log lines and events.
const TEXT_MAX: usize = 500;
/// Bounds the delay that a server can impose.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn response(code: u16, retry: Option<&str>, body: &str) -> ApiError {
        let mut headers = HeaderMap::new();
        if let Some(retry) = retry {
            headers.insert(http::header::RETRY_AFTER, retry.parse().unwrap());
        }
        ApiError::from_response(StatusCode::from_u16(code).unwrap(), &headers, body.as_bytes())
    }

    #[test]
    fn a_status_object_is_decoded_and_any_other_body_is_quoted() {
        let error = response(409, None, r#"{"kind":"Status","reason":"Conflict","message":"changed","code":409}"#);
        assert_eq!(error.to_string(), "409 Conflict: changed");
        let error = response(502, None, "<html>bad gateway</html>");
        assert_eq!(error.to_string(), "502 Bad Gateway: <html>bad gateway</html>");
        assert!(response(500, None, &"x".repeat(5000)).to_string().len() < 600);
    }

    #[test]
    fn retry_after_is_honoured_and_bounded() {
        assert_eq!(response(429, Some("3"), "").retry_after(), Some(Duration::from_secs(3)));
        assert_eq!(response(429, Some("99999"), "").retry_after(), Some(RETRY_AFTER_MAX));
        assert_eq!(response(429, Some("soon"), "").retry_after(), None);
        let body = r#"{"details":{"retryAfterSeconds":2}}"#;
        assert_eq!(response(504, None, body).retry_after(), Some(Duration::from_secs(2)));
    }

    #[test]
    fn gone_is_recognised_by_code_or_reason() {
        assert!(response(410, None, "").is_gone());
        assert!(ApiError::from_status(br#"{"code":410,"reason":"Expired","message":"too old"}"#).is_gone());
        assert!(!ApiError::from_status(br#"{"code":500,"reason":"InternalError"}"#).is_gone());
        assert_eq!(ApiError::from_status(b"nonsense").code(), Some(500));
    }
}
