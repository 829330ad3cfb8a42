//! What an API server's answer means for whoever asked.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use serde::Deserialize;

/// Why a call on the API server did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The server answered, and not with what was wanted.
    #[error("{code} {reason}: {message}")]
    Answer {
        /// The HTTP status.
        code: u16,
        /// Kubernetes' word for it: `NotFound`, `Conflict`, …
        reason: String,
        /// For people.
        message: String,
        /// How long the server wants to be left alone.
        retry_after: Option<Duration>,
    },
    /// The server can't be reached, or the connection was lost on the way.
    #[error("{0}")]
    Unreachable(String),
    /// No answer in time. What was asked may have been done, or be done later.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The answer can't be read.
    #[error("the answer makes no sense: {0}")]
    Garbage(String),
}

impl ApiError {
    /// The HTTP status, if there was an answer.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Answer { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// The server has no such object.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// The resource version is too old for a list or watch to go on from.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Answer { code: 410, .. })
            || matches!(self, Self::Answer { reason, .. } if reason == "Expired" || reason == "Gone")
    }

    /// How long the server wants to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Answer { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// From an answer that is no success.
    pub(crate) fn from_answer(code: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let status: Status = serde_json::from_slice(body).unwrap_or_default();
        let seconds = headers.get(http::header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let seconds = seconds.or(status.details.retry_after_seconds).filter(|seconds| *seconds > 0);
        let message = if status.message.is_empty() { beginning(body) } else { beginning(status.message.as_bytes()) };
        Self::Answer {
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
        Self::from_answer(code, &HeaderMap::new(), body)
    }
}

/// Kubernetes' Status object, as far as it matters here.
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

/// Enough of a text to know what it is.
fn beginning(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(4 * TEXT_MAX)]);
    let short: String = text.chars().take(TEXT_MAX).collect();
    if short.len() < body.len() { format!("{short}…") } else { short }
}

/// Longer texts are cut: an error is said, not printed out.
const TEXT_MAX: usize = 500;
/// No server may silence a node for longer.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: u16, retry: Option<&str>, body: &str) -> ApiError {
        let mut headers = HeaderMap::new();
        if let Some(retry) = retry {
            headers.insert(http::header::RETRY_AFTER, retry.parse().unwrap());
        }
        ApiError::from_answer(StatusCode::from_u16(code).unwrap(), &headers, body.as_bytes())
    }

    #[test]
    fn a_status_object_is_read_and_anything_else_is_quoted() {
        let error = answer(409, None, r#"{"kind":"Status","reason":"Conflict","message":"changed","code":409}"#);
        assert_eq!(error.to_string(), "409 Conflict: changed");
        let error = answer(502, None, "<html>bad gateway</html>");
        assert_eq!(error.to_string(), "502 Bad Gateway: <html>bad gateway</html>");
        assert!(answer(500, None, &"x".repeat(5000)).to_string().len() < 600);
    }

    #[test]
    fn the_wait_a_server_wants_is_taken_and_bounded() {
        assert_eq!(answer(429, Some("3"), "").retry_after(), Some(Duration::from_secs(3)));
        assert_eq!(answer(429, Some("99999"), "").retry_after(), Some(RETRY_AFTER_MAX));
        assert_eq!(answer(429, Some("soon"), "").retry_after(), None);
        let body = r#"{"details":{"retryAfterSeconds":2}}"#;
        assert_eq!(answer(504, None, body).retry_after(), Some(Duration::from_secs(2)));
    }

    #[test]
    fn gone_is_known_by_code_or_word() {
        assert!(answer(410, None, "").is_gone());
        assert!(ApiError::from_status(br#"{"code":410,"reason":"Expired","message":"too old"}"#).is_gone());
        assert!(!ApiError::from_status(br#"{"code":500,"reason":"InternalError"}"#).is_gone());
        assert_eq!(ApiError::from_status(b"nonsense").code(), Some(500));
    }
}
