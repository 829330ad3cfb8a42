//! The text of an error with its sources.

/// The error and its sources, from the outside to the cause, separated by colons, on one line.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(Some(error), |error| error.source());
    let mut texts: Vec<String> = sources.map(ToString::to_string).collect();
    // A transparent error has the text of its source.
    texts.dedup();
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum TestError {
        #[error("write the file")]
        Write(#[source] std::io::Error),
        #[error(transparent)]
        Inner(Box<TestError>),
        #[error("{0}")]
        Repeated(#[source] std::io::Error),
    }

    #[test]
    fn a_text_that_an_error_repeats_is_shown_once() {
        let full = || std::io::Error::other("disk full");
        assert_eq!(error_chain(&TestError::Write(full())), "write the file: disk full");
        assert_eq!(error_chain(&TestError::Inner(Box::new(TestError::Write(full())))), "write the file: disk full");
        assert_eq!(error_chain(&TestError::Repeated(full())), "disk full");
    }
}
