//! Parses the text of a manifest into pods, with errors and warnings by line and field.

use std::fmt;

use podwright_core::model::Manifest;
use podwright_core::static_pod::{self, FindingKind};
use podwright_core::validate::FieldError;

use super::field_lines::FieldLines;
use super::{Decode, ParseError, documents};

/// An error or warning about a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The line of the field, or of its parent if it is missing; `None`: unknown, or the whole text.
    pub line: Option<u64>,
    /// The path of the field; empty: the whole text.
    pub path: String,
    /// What is wrong, and what to write instead.
    pub message: String,
    /// What it is about.
    pub kind: FindingKind,
}

impl Finding {
    /// An error of the whole text.
    pub fn of_text(message: String) -> Self {
        Self { line: None, path: String::new(), message, kind: FindingKind::Invalid }
    }
}

/// The content of one text.
#[derive(Debug, Default)]
pub struct ParsedManifests {
    /// The valid pods.
    pub pods: Vec<Manifest>,
    /// If there are any, none of the pods may be used.
    pub errors: Vec<Finding>,
    /// Fields without effect.
    pub warnings: Vec<Finding>,
}

/// Parses all documents of a text.
pub fn read_manifests(bytes: &[u8], origin: &str, decode: &Decode) -> ParsedManifests {
    let mut read = ParsedManifests::default();
    let documents = match documents(bytes) {
        Ok(documents) => documents,
        Err(error) => {
            read.errors.push(error.into());
            return read;
        }
    };
    let text = String::from_utf8_lossy(bytes);
    let mut lines = None;
    let mut find = |document: usize, kind: FindingKind, FieldError { path, message }| {
        let lines = lines.get_or_insert_with(|| FieldLines::of(text.strip_prefix('\u{feff}').unwrap_or(&text)));
        Finding { line: lines.line(document, &path), path, message, kind }
    };
    for (n, document) in documents.into_iter().enumerate() {
        // Each finding is searched in the text. More would not be read either.
        if read.errors.len() + read.warnings.len() >= FINDINGS_MAX {
            let message = format!("more than {FINDINGS_MAX} errors and warnings, the rest of the text is not checked");
            read.errors.push(Finding::of_text(message));
            break;
        }
        let warnings = static_pod::warnings_in(&document).into_iter();
        read.warnings.extend(warnings.map(|(kind, warning)| find(n, kind, warning)));
        match decode(document, origin) {
            Ok(pods) => read.pods.extend(pods),
            Err(errors) => read.errors.extend(errors.into_iter().map(|error| find(n, FindingKind::Invalid, error))),
        }
    }
    for findings in [&mut read.errors, &mut read.warnings] {
        findings.sort_by_key(|finding| finding.line);
    }
    read
}

/// Findings of one text; a document may exceed it once.
const FINDINGS_MAX: usize = 1000;

impl From<ParseError> for Finding {
    fn from(error: ParseError) -> Self {
        let (line, message) = match error {
            ParseError::Syntax { line, column, message } => (Some(line), format!("column {column}: {message}")),
            // Its line would be found by parsing the whole text.
            ParseError::TooLarge(error) => {
                return Self { message: error.to_string(), path: error.path, ..Self::of_text(String::new()) };
            }
            error @ (ParseError::Empty | ParseError::Other(_)) => (None, error.to_string()),
        };
        Self { line, ..Self::of_text(message) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.path.is_empty() && self.message.starts_with("column ") { ", " } else { ": " };
        if let Some(line) = self.line {
            write!(f, "line {line}{separator}")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use podwright_core::model::Source;

    use super::*;
    use crate::sources::{Strictness, static_pods};

    const TEXT: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  hostNetwrk: true\n  containers:\n  - name: C\n    image: i\n    ports:\n    - containerPort: http\n---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  restartPolicy: Sometimes\n  volumes: [{name: v, nfs: {server: s, path: /}}]\n  containers:\n  - name: C\n    image: i\n";

    fn findings(text: &str, strictness: Strictness) -> (Vec<String>, Vec<String>) {
        let read = read_manifests(text.as_bytes(), "/m/web.yaml", &static_pods(Source::File, "node", strictness));
        let texts = |findings: &[Finding]| findings.iter().map(ToString::to_string).collect();
        (texts(&read.errors), texts(&read.warnings))
    }

    #[test]
    fn all_errors_are_reported_with_their_lines() {
        let (errors, warnings) = findings(TEXT, Strictness::Lenient);
        assert_eq!(errors.len(), 3, "{errors:?}");
        assert!(errors[0].starts_with("line 10: spec.containers[0].ports[0].containerPort: must be"), "{errors:?}");
        assert!(errors[1].starts_with("line 17: spec.restartPolicy: \"Sometimes\" must be one of"), "{errors:?}");
        assert!(errors[2].starts_with("line 20: spec.containers[0].name: \"C\" must be"), "{errors:?}");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with("line 18: spec.volumes[0].nfs: not supported"), "{warnings:?}");
    }

    #[test]
    fn with_strict_checks_fields_without_effect_are_errors() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  hostNetwrk: true\n  containers: [{name: c, image: i}]\n";
        let (errors, warnings) = findings(text, Strictness::Lenient);
        assert_eq!((errors.len(), warnings.len()), (0, 1));
        assert_eq!(warnings[0], "line 5: spec.hostNetwrk: unknown field, it does nothing, did you mean hostNetwork?");
        let (errors, _) = findings(text, Strictness::Strict);
        assert_eq!(errors, warnings);
    }

    #[test]
    fn a_manifest_with_many_unknown_fields_takes_linear_time() {
        let began = std::time::Instant::now();
        let with_fields = |count: usize| {
            let fields: String = (0..count).map(|n| format!("  f{n}: 1\n")).collect();
            let head = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n";
            format!("{head}{fields}  containers: [{{name: c, image: i}}]\n")
        };
        let (errors, warnings) = findings(&with_fields(8000), Strictness::Lenient);
        assert_eq!((errors.len(), warnings.len()), (0, 100), "{errors:?}");
        let documents = vec![with_fields(150); 12].join("---\n");
        let (errors, _) = findings(&documents, Strictness::Lenient);
        assert_eq!(errors, ["more than 1000 errors and warnings, the rest of the text is not checked"]);
        assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    }

    #[test]
    fn a_text_that_is_not_a_manifest_is_reported_with_its_position() {
        let (errors, _) = findings("a: 1\nb: [1,\n", Strictness::Lenient);
        assert!(errors[0].starts_with("line ") && errors[0].contains(", column "), "{errors:?}");
        let (errors, _) = findings("", Strictness::Lenient);
        assert_eq!(errors, ["it is empty"]);
        let (errors, _) = findings("kind: Service\n", Strictness::Lenient);
        assert!(errors[0].starts_with("line 1: kind: \"Service\""), "{errors:?}");
    }
}
