//! Why a command fails, and its exit code.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use http::StatusCode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;

use crate::cli::PodArgumentError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// The socket does not exist, or no process listens on it.
    #[error("cannot connect to the agent on {}: is `podwright run` running, with the same --run-dir? ({source})", socket.display())]
    NoAgent { socket: PathBuf, source: io::Error },
    /// The agent or the file system denied access.
    #[error("permission denied on {}: only root and the user of the agent have access", socket.display())]
    Denied { socket: PathBuf },
    /// The agent closed the connection before it responded.
    #[error("the agent on {} ended during the request, which may have been carried out: is `podwright run` running?", socket.display())]
    Ended { socket: PathBuf },
    /// The agent responded with an error.
    #[error("{message}")]
    Refused {
        /// HTTP status code.
        code: u16,
        message: String,
    },
    /// The arguments are not valid.
    #[error("{0}")]
    Usage(String),
    /// `--timeout` has passed.
    #[error("timed out waiting for {what}{}", explain_suffix(reason.as_deref()))]
    TimedOut {
        what: String,
        /// The first line of `podwright explain`; `None`: unknown.
        reason: Option<String>,
    },
    /// The output cannot be written or encoded.
    #[error("write the output: {0}")]
    Write(String),
    /// The connection failed, or the response is not valid.
    #[error("request to the agent on {} failed: {cause}", socket.display())]
    Connection { socket: PathBuf, cause: String },
}

fn explain_suffix(reason: Option<&str>) -> String {
    reason.map(|reason| format!("\n{reason}\n(`podwright explain` shows more)")).unwrap_or_default()
}

impl From<PodArgumentError> for ClientError {
    fn from(error: PodArgumentError) -> Self {
        Self::Usage(error.to_string())
    }
}

impl ClientError {
    /// No pod has this name.
    pub(super) fn no_pods(names: &[&str], namespace: Option<&str>) -> Self {
        let place = namespace.map_or("any namespace".into(), |namespace| format!("namespace {namespace:?}"));
        let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
        Self::Refused { code: 404, message: format!("pods {} not found in {place}", names.join(", ")) }
    }

    /// The error of a response that is not a success.
    pub(super) fn from_response(status: StatusCode, body: &[u8]) -> Self {
        let message = serde_json::from_slice::<Status>(body).ok().and_then(|status| status.message);
        let message = message.unwrap_or_else(|| format!("the agent responded with {status}"));
        Self::Refused { code: status.as_u16(), message }
    }

    /// 2 for wrong usage, else 1.
    pub(super) fn exit_code(&self) -> ExitCode {
        if matches!(self, Self::Usage(_)) { ExitCode::from(crate::cli::EXIT_USAGE) } else { ExitCode::FAILURE }
    }

    /// How to continue after a watch failed; `None`: the error is final.
    pub(super) fn watch_resume(&self) -> Option<WatchResume> {
        match self {
            Self::Refused { code: 410, .. } => Some(WatchResume::FromStart),
            Self::Connection { .. } | Self::Ended { .. } => Some(WatchResume::FromLastVersion),
            _ => None,
        }
    }

    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: 404, .. })
    }
}

/// How a watch is opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchResume {
    /// The agent has dropped the versions that were missed.
    FromStart,
    FromLastVersion,
}
