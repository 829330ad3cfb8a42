//! Where a runtime listens, as people write it: `unix:///run/containerd/containerd.sock`, or the path alone.

use std::path::PathBuf;

/// An endpoint that cannot be a runtime's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("container runtime endpoint {endpoint:?}: {problem}")]
pub struct EndpointError {
    endpoint: String,
    problem: &'static str,
}

/// The path of the socket.
pub(super) fn socket_path(endpoint: &str) -> Result<PathBuf, EndpointError> {
    let wrong =
        |problem| Err(EndpointError { endpoint: endpoint.chars().take(ENDPOINT_CHARS_SHOWN).collect(), problem });
    let path = match endpoint.split_once("://") {
        Some(("unix", path)) => path,
        Some(_) => return wrong("only unix sockets are spoken to; write unix:///path/of.sock"),
        None => endpoint.strip_prefix("unix:").unwrap_or(endpoint),
    };
    if path.is_empty() {
        return wrong("it names no socket; write unix:///path/of.sock");
    }
    if !path.starts_with('/') {
        return wrong("the socket's path must be absolute: unix:///path/of.sock, with three slashes");
    }
    if path.ends_with('/') {
        return wrong("it names a directory, not a socket");
    }
    if path.contains('\0') {
        return wrong("the socket's path contains a NUL byte");
    }
    if path.len() > SOCKET_PATH_BYTES_MAX {
        return wrong("the socket's path is longer than the 107 bytes the kernel takes");
    }
    Ok(PathBuf::from(path))
}

/// `sun_path` of Linux, without the NUL at its end.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// A mistaken endpoint can be a whole file; enough of it to be recognised.
const ENDPOINT_CHARS_SHOWN: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_name_the_same_socket() {
        for endpoint in ["unix:///run/x.sock", "/run/x.sock", "unix:/run/x.sock"] {
            assert_eq!(socket_path(endpoint), Ok(PathBuf::from("/run/x.sock")), "{endpoint}");
        }
    }

    #[test]
    fn a_wrong_endpoint_is_refused_by_name() {
        let long = format!("unix:///{}", "x".repeat(107));
        for endpoint in ["", "unix://", "unix://run/x.sock", "tcp://1.2.3.4:5", "run/x.sock", "/run/", "/a\0b", &long] {
            let error = socket_path(endpoint).expect_err(endpoint).to_string();
            assert!(error.contains(&format!("{endpoint:?}")), "{error}");
        }
        assert!(socket_path(&format!("/{}", "x".repeat(106))).is_ok());
    }
}
