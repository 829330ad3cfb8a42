//! Shared by all reads of objects that pods refer to: checked path segments, retries while authorization catches up, errors that do
//! not quote secrets.

use std::time::Duration;

use crate::error::ApiError;

/// Retries a request that is refused with 403: the kubelet sees a pod a moment before the server's Node authorizer knows that the
/// pod is assigned to this node.
pub(crate) async fn retry_forbidden<T, F>(mut attempt: impl FnMut() -> F) -> Result<T, ApiError>
where
    F: Future<Output = Result<T, ApiError>>,
{
    for _ in 0..FORBIDDEN_RETRIES {
        match attempt().await {
            Err(error) if error.code() == Some(403) => tokio::time::sleep(FORBIDDEN_DELAY).await,
            result => return result,
        }
    }
    attempt().await
}

/// Checks a name before it becomes part of a URL path. Names come from pod specs, and an invalid one must not address another path.
pub(crate) fn path_segment(name: &str) -> Result<&str, ApiError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b':' | b'_');
    let valid = !name.is_empty() && name.len() <= 253 && name.bytes().all(plain) && name != "." && name != "..";
    valid.then_some(name).ok_or_else(|| ApiError::Malformed(format!("{name:?} is not a valid object name")))
}

/// The position of a decode error without serde's text, which quotes the response: that may be a secret.
pub(crate) fn decode_error(error: &serde_json::Error) -> ApiError {
    ApiError::Malformed(format!("invalid JSON at line {}, column {}", error.line(), error.column()))
}

/// A server that is reachable answers in milliseconds.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(10);
const FORBIDDEN_RETRIES: u32 = 10;
const FORBIDDEN_DELAY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_name_does_not_become_another_path() {
        for bad in ["", "..", "a/b", "a?b", "a%2fb", "a b", &"x".repeat(300)] {
            assert!(path_segment(bad).is_err(), "{bad:?}");
        }
        assert!(path_segment("kube-root-ca.crt").is_ok() && path_segment("system:x").is_ok());
    }
}
