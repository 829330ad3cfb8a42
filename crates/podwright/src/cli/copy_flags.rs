//! The flags of `podwright cp`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use super::pod_selection::{PodArgumentError, is_other_kind, is_pod_kind};
use super::query_flags::SocketFlags;

/// `podwright cp`
#[derive(Args, Debug)]
pub(crate) struct CopyFlags {
    /// What to copy: a path of this host, or [NAMESPACE/]POD:PATH.
    pub(crate) source: CopyPath,
    /// Where to: a path of this host, or [NAMESPACE/]POD:PATH. An existing directory gets the copy inside of it.
    pub(crate) destination: CopyPath,
    /// The container. [default: that of the annotation kubectl.kubernetes.io/default-container, else the first]
    #[arg(short, long, value_name = "CONTAINER")]
    pub(crate) container: Option<String>,
    /// The namespace. [default: default]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// A path, on this host or in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CopyPath {
    Local(PathBuf),
    Remote { namespace: Option<String>, pod: String, path: String },
}

/// Why an argument of `podwright cp` is not valid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CopyArgumentError {
    #[error("the path is empty: write . for the working directory, or POD:/ for the root directory of a container")]
    EmptyPath,
    #[error("must be PATH, POD:PATH or NAMESPACE/POD:PATH; a local path with a colon begins with / or ./")]
    Form,
    #[error(transparent)]
    Pod(#[from] PodArgumentError),
}

impl FromStr for CopyPath {
    type Err = CopyArgumentError;

    fn from_str(text: &str) -> Result<Self, CopyArgumentError> {
        let remote = text.split_once(':').filter(|_| !text.starts_with(['/', '.']));
        let (pod, path) = match remote {
            None if text.is_empty() => return Err(CopyArgumentError::EmptyPath),
            None => return Ok(Self::Local(text.into())),
            Some((_, "")) => return Err(CopyArgumentError::EmptyPath),
            Some(remote) => remote,
        };
        let (namespace, pod) = match pod.split_once('/') {
            None => (None, pod),
            Some((kind, pod)) if is_pod_kind(kind) => (None, pod),
            Some((kind, _)) if is_other_kind(kind) => {
                return Err(PodArgumentError::OtherKind { kind: kind.to_owned() }.into());
            }
            Some((namespace, pod)) => (Some(namespace.to_owned()), pod),
        };
        if pod.is_empty() || pod.contains('/') {
            return Err(CopyArgumentError::Form);
        }
        Ok(Self::Remote { namespace, pod: pod.to_owned(), path: path.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_written_as_for_kubectl() {
        let remote = |namespace: Option<&str>, pod: &str, path: &str| {
            Ok(CopyPath::Remote { namespace: namespace.map(str::to_owned), pod: pod.into(), path: path.into() })
        };
        for (text, expected) in [
            ("web:/etc", remote(None, "web", "/etc")),
            ("pod/web:a:b", remote(None, "web", "a:b")),
            ("team/web:x", remote(Some("team"), "web", "x")),
            ("a.txt", Ok(CopyPath::Local("a.txt".into()))),
            ("./a:b", Ok(CopyPath::Local("./a:b".into()))),
            ("/tmp/a:b", Ok(CopyPath::Local("/tmp/a:b".into()))),
            ("", Err(CopyArgumentError::EmptyPath)),
            ("web:", Err(CopyArgumentError::EmptyPath)),
            (":/etc", Err(CopyArgumentError::Form)),
            ("a/b/c:/etc", Err(CopyArgumentError::Form)),
            ("deploy/web:/x", Err(PodArgumentError::OtherKind { kind: "deploy".into() }.into())),
        ] {
            assert_eq!(text.parse::<CopyPath>(), expected, "{text}");
        }
    }
}
