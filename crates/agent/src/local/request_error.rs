//! Requests that the store rejects.

use std::io;

use podwright_core::model::Source;
use podwright_core::validate::FieldError;

/// A rejected request; each variant is one of the API server's reasons.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodRequestError {
    /// No pod of this name.
    #[error("pods {name:?} not found")]
    NotFound {
        /// The pod's name.
        name: String,
    },
    /// A pod of this name exists.
    #[error("pods {name:?} already exists")]
    AlreadyExists {
        /// The pod's name.
        name: String,
    },
    /// Another source has a pod of this name.
    #[error("pods {name:?} already exists: it comes from {}", origin_of(*from, origin))]
    Taken {
        /// The pod's name.
        name: String,
        /// The source of the pod.
        from: Source,
        /// The file or URL it comes from.
        origin: String,
    },
    /// The pod belongs to another source and must be changed there.
    #[error("pods {name:?} is forbidden: it comes from {}: {}", origin_of(*from, origin), remedy(*from, origin))]
    Foreign {
        /// The pod's name.
        name: String,
        /// The source of the pod.
        from: Source,
        /// The file or URL it comes from.
        origin: String,
    },
    /// A precondition failed, or the pod changed in the meantime.
    #[error("Operation cannot be fulfilled on pods {name:?}: {why}")]
    Conflict {
        /// The pod's name.
        name: String,
        /// The failed condition.
        why: String,
    },
    /// A malformed request.
    #[error("{why}")]
    BadRequest {
        /// What is wrong.
        why: String,
    },
    /// The pod is invalid.
    #[error("Pod {name:?} is invalid: {}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Invalid {
        /// The pod's name.
        name: String,
        /// All errors.
        errors: Vec<FieldError>,
    },
    /// Too many pods.
    #[error("pods {name:?} is forbidden: {max} pods are kept already, delete some first")]
    Full {
        /// The pod's name.
        name: String,
        /// The limit.
        max: usize,
    },
    /// The pod is too large.
    #[error("Request entity too large: limit is {max}")]
    TooLarge {
        /// The limit in bytes.
        max: usize,
    },
    /// The write to disk failed, so the request was not applied.
    #[error("the pod can't be written to disk: {message}")]
    Disk {
        /// The system's error.
        message: String,
    },
}

impl PodRequestError {
    pub(super) fn disk(error: &io::Error) -> Self {
        Self::Disk { message: error.to_string() }
    }
}

fn origin_of(source: Source, origin: &str) -> String {
    match source {
        Source::File => format!("the manifest {origin}"),
        Source::Url => format!("the manifest at {origin}"),
        Source::Api => "the API server".into(),
        Source::Local => "the local API".into(),
    }
}

fn remedy(source: Source, origin: &str) -> String {
    match source {
        Source::File => format!("edit or remove {origin}"),
        Source::Url => "change what is served there".into(),
        Source::Api => "ask the API server".into(),
        Source::Local => "its file is lost, and it is terminating".into(),
    }
}
