//! Why the store does not do what was asked.

use std::io;

use podwright_core::model::Source;
use podwright_core::validate::FieldError;

/// Each is one of the API server's reasons.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such pod.
    #[error("pods {name:?} not found")]
    NotFound {
        /// Its name.
        name: String,
    },
    /// There is one already.
    #[error("pods {name:?} already exists")]
    AlreadyExists {
        /// Its name.
        name: String,
    },
    /// Another source has a pod of this name.
    #[error("pods {name:?} already exists: it comes from {}", origin_of(*from, origin))]
    Taken {
        /// Its name.
        name: String,
        /// Whose it is.
        from: Source,
        /// The file or URL it comes from.
        origin: String,
    },
    /// It belongs to another source, which has to be told.
    #[error("pods {name:?} is forbidden: it comes from {}: {}", origin_of(*from, origin), remedy(*from, origin))]
    Foreign {
        /// Its name.
        name: String,
        /// Whose it is.
        from: Source,
        /// The file or URL it comes from.
        origin: String,
    },
    /// Someone else was faster, or something else is meant.
    #[error("Operation cannot be fulfilled on pods {name:?}: {why}")]
    Conflict {
        /// Its name.
        name: String,
        /// What does not fit.
        why: String,
    },
    /// It makes no sense as it is.
    #[error("{why}")]
    BadRequest {
        /// What is wrong.
        why: String,
    },
    /// It breaks rules.
    #[error("Pod {name:?} is invalid: {}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Invalid {
        /// Its name.
        name: String,
        /// All that is wrong.
        errors: Vec<FieldError>,
    },
    /// No room for more pods.
    #[error("pods {name:?} is forbidden: {max} pods are kept already, delete some first")]
    Full {
        /// Its name.
        name: String,
        /// How many there may be.
        max: usize,
    },
    /// One pod of this size is too much.
    #[error("Request entity too large: limit is {max}")]
    TooLarge {
        /// In bytes.
        max: usize,
    },
    /// It could not be written down, so it was not done.
    #[error("the pod can't be kept on disk: {message}")]
    Disk {
        /// What the system said.
        message: String,
    },
}

impl Refusal {
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
        Source::Local => "its file is lost, and it is ending".into(),
    }
}
