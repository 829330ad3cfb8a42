//! One text from whatever source: its pods, and everything that is to be said of it, by line and field.

use std::fmt;

use podwright_core::model::Manifest;
use podwright_core::static_pod;
use podwright_core::validate::FieldError;

use super::lines::Lines;
use super::{Decode, documents};

/// One thing to say about a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The line of the field, or of what it should be in; `None`: of the whole, or not known.
    pub line: Option<u64>,
    /// Which field; empty: the whole.
    pub path: String,
    /// What is wrong with it, and what to write instead.
    pub message: String,
}

/// What a text is.
#[derive(Debug, Default)]
pub struct Read {
    /// Its pods, as far as they are good.
    pub pods: Vec<Manifest>,
    /// What is wrong: none of its pods counts.
    pub errors: Vec<Finding>,
    /// Fields that do nothing.
    pub warnings: Vec<Finding>,
}

/// Read all documents of a text.
pub fn read(bytes: &[u8], origin: &str, decode: &Decode) -> Read {
    let mut read = Read::default();
    let documents = match documents(bytes) {
        Ok(documents) => documents,
        Err(error) => {
            read.errors.push(Finding::of_text(error));
            return read;
        }
    };
    let text = String::from_utf8_lossy(bytes);
    let mut lines = None;
    let mut find = |document: usize, FieldError { path, message }| {
        let lines = lines.get_or_insert_with(|| Lines::of(text.strip_prefix('\u{feff}').unwrap_or(&text)));
        Finding { line: lines.line(document, &path), path, message }
    };
    for (n, document) in documents.into_iter().enumerate() {
        read.warnings.extend(static_pod::warnings_in(&document).into_iter().map(|warning| find(n, warning)));
        match decode(document, origin) {
            Ok(pods) => read.pods.extend(pods),
            Err(errors) => read.errors.extend(errors.into_iter().map(|error| find(n, error))),
        }
    }
    for findings in [&mut read.errors, &mut read.warnings] {
        findings.sort_by_key(|finding| finding.line);
    }
    read
}

impl Finding {
    /// The parser's own words may begin with the place.
    fn of_text(error: String) -> Self {
        let line = error.strip_prefix("line ").and_then(|rest| rest.split([',', ':']).next()?.parse().ok());
        let message = match line {
            Some(line) => error.strip_prefix(&format!("line {line}, ")).unwrap_or(&error).to_owned(),
            None => error,
        };
        Self { line, path: String::new(), message }
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

    fn said(text: &str, strictness: Strictness) -> (Vec<String>, Vec<String>) {
        let read = read(text.as_bytes(), "/m/web.yaml", &static_pods(Source::File, "node", strictness));
        let texts = |findings: &[Finding]| findings.iter().map(ToString::to_string).collect();
        (texts(&read.errors), texts(&read.warnings))
    }

    #[test]
    fn everything_wrong_is_said_with_its_line() {
        let (errors, warnings) = said(TEXT, Strictness::Lenient);
        assert_eq!(errors.len(), 3, "{errors:?}");
        assert!(errors[0].starts_with("line 10: spec.containers[0].ports[0].containerPort: must be"), "{errors:?}");
        assert!(errors[1].starts_with("line 17: spec.restartPolicy: \"Sometimes\" must be one of"), "{errors:?}");
        assert!(errors[2].starts_with("line 20: spec.containers[0].name: \"C\" must be"), "{errors:?}");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with("line 18: spec.volumes[0].nfs: not supported"), "{warnings:?}");
    }

    #[test]
    fn strictly_what_does_nothing_is_wrong() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  hostNetwrk: true\n  containers: [{name: c, image: i}]\n";
        let (errors, warnings) = said(text, Strictness::Lenient);
        assert_eq!((errors.len(), warnings.len()), (0, 1));
        assert_eq!(warnings[0], "line 5: spec.hostNetwrk: unknown field, it does nothing, did you mean hostNetwork?");
        let (errors, _) = said(text, Strictness::Strict);
        assert_eq!(errors, warnings);
    }

    #[test]
    fn a_text_that_is_no_manifest_says_where_it_stops_being_one() {
        let (errors, _) = said("a: 1\nb: [1,\n", Strictness::Lenient);
        assert!(errors[0].starts_with("line ") && errors[0].contains(", column "), "{errors:?}");
        let (errors, _) = said("", Strictness::Lenient);
        assert_eq!(errors, ["it is empty"]);
        let (errors, _) = said("kind: Service\n", Strictness::Lenient);
        assert!(errors[0].starts_with("line 1: kind: \"Service\""), "{errors:?}");
    }
}
