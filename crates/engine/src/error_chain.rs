//! Errors as one line, for callers that get text.

/// The error with its sources, from the outside to the cause.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(Some(error), |error| error.source());
    let mut texts: Vec<String> = sources.map(ToString::to_string).collect();
    // A transparent error has the text of its source.
    texts.dedup();
    texts.join(": ")
}
