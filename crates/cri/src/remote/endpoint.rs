//! The endpoint of a runtime as users write it: `unix:///run/containerd/containerd.sock`, or only the path.

use std::path::PathBuf;

/// An invalid runtime endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("container runtime endpoint {endpoint:?}: {problem}")]
pub struct EndpointError {
    endpoint: String,
    problem: &'static str,
}

/// The path of the socket.
pub(super) fn socket_path(endpoint: &str) -> Result<PathBuf, EndpointError> {
    let invalid =
        |problem| Err(EndpointError { endpoint: endpoint.chars().take(ENDPOINT_CHARS_SHOWN).collect(), problem });
    let path = match endpoint.split_once("://") {
        Some(("unix", path)) => path,
        Some(_) => return invalid("only unix sockets are supported: use unix:///path/of.sock"),
        None => endpoint.strip_prefix("unix:").unwrap_or(endpoint),
    };
    if path.is_empty() {
        return invalid("it has no socket path: use unix:///path/of.sock");
    }
    if !path.starts_with('/') {
        return invalid("the socket's path must be absolute: unix:///path/of.sock, with three slashes");
    }
    if path.ends_with('/') {
        return invalid("it is a directory, not a socket");
    }
    if path.contains('\0') {
        return invalid("the socket's path contains a NUL byte");
    }
    if path.len() > SOCKET_PATH_BYTES_MAX {
        return invalid("the socket's path is longer than the kernel's limit of 107 bytes");
    }
    Ok(PathBuf::from(path))
}

/// `sun_path` of Linux, without the terminating NUL.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// An invalid endpoint may be a whole file; the error quotes its start.
const ENDPOINT_CHARS_SHOWN: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_and_path_are_the_same_socket() {
        for endpoint in ["unix:///run/x.sock", "/run/x.sock", "unix:/run/x.sock"] {
            assert_eq!(socket_path(endpoint), Ok(PathBuf::from("/run/x.sock")), "{endpoint}");
        }
    }

    #[test]
    fn an_invalid_endpoint_is_refused_and_quoted() {
        let long = format!("unix:///{}", "x".repeat(107));
        for endpoint in ["", "unix://", "unix://run/x.sock", "tcp://1.2.3.4:5", "run/x.sock", "/run/", "/a\0b", &long] {
            let error = socket_path(endpoint).expect_err(endpoint).to_string();
            assert!(error.contains(&format!("{endpoint:?}")), "{error}");
        }
        assert!(socket_path(&format!("/{}", "x".repeat(106))).is_ok());
    }
}
