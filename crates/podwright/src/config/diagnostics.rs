//! The errors and warnings of a configuration. All are collected, so that a user sees them at once.

use std::fmt::Display;

/// Each line begins with the field or flag it is about.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Diagnostics {
    pub(super) errors: Vec<String>,
    pub(super) warnings: Vec<String>,
}

impl Diagnostics {
    pub(super) fn error(&mut self, field: &str, error: impl Display) {
        self.errors.push(format!("{field}: {error}"));
    }

    pub(super) fn warning(&mut self, field: &str, warning: impl Display) {
        self.warnings.push(format!("{field}: {warning}"));
    }

    /// An integer within bounds. `default` if none is given, and after an error.
    pub(super) fn integer(&mut self, field: &str, given: Option<i64>, default: usize, min: usize, max: usize) -> usize {
        let Some(given) = given else { return default };
        match usize::try_from(given) {
            Ok(given) if (min..=max).contains(&given) => given,
            _ => {
                self.error(field, format!("must be between {min} and {max}, not {given}"));
                default
            }
        }
    }
}
