//! Parses YAML or JSON text with several documents into untyped values.
//!
//! Typed objects are decoded from the values, so that decoding does not depend on the format.

use podwright_core::decoded_size::{DecodedSize, DecodedTooLarge};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::MANIFEST_MAX;

/// A text that is neither YAML nor JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// No document.
    #[error("it is empty")]
    Empty,
    /// An error at a position.
    #[error("line {line}, column {column}: {message}")]
    Syntax {
        /// From 1.
        line: u64,
        /// From 1.
        column: u64,
        /// The parser's message.
        message: String,
    },
    /// An error of the parser without a position.
    #[error("{0}")]
    Other(String),
    /// Its documents would take too much memory.
    #[error("{}: {}", .0.path, .0)]
    TooLarge(DecodedTooLarge),
}

/// The documents of a manifest. Empty ones are skipped; a text without any is an error.
pub fn documents(bytes: &[u8]) -> Result<Vec<Value>, ParseError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let (line, column) = position(&bytes[..error.valid_up_to()]);
        ParseError::Syntax { line, column, message: "not UTF-8 text".into() }
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Some(at) = text.find(|c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r' | '\u{85}')) {
        let (line, column) = position(&text.as_bytes()[..at]);
        let message = "a control character, this is not a manifest".into();
        return Err(ParseError::Syntax { line, column, message });
    }
    // Before anything is built: a short text may take much memory.
    DecodedSize::check(&parse::<DecodedSize>(text)?).map_err(ParseError::TooLarge)?;
    let documents = parse(text)?;
    if documents.is_empty() {
        return Err(ParseError::Empty);
    }
    Ok(documents)
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, ParseError> {
    if text.trim_start().starts_with('{') {
        // If neither parser accepts a text that looks like JSON, the error is that of the JSON parser.
        return json(text).or_else(|error| yaml(text).map_err(|_| error));
    }
    yaml(text)
}

fn json<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, ParseError> {
    serde_json::Deserializer::from_str(text).into_iter::<T>().collect::<Result<_, _>>().map_err(|e| {
        ParseError::Syntax {
            line: e.line() as u64,
            column: e.column() as u64,
            message: without_position(&e.to_string()),
        }
    })
}

fn yaml<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, ParseError> {
    let options = serde_saphyr::options! {
        // `defaultMode: 0644` is octal, as in YAML 1.1.
        legacy_octal_numbers: true,
        with_snippet: false,
        // Aliases can multiply the size: the expanded text has the same limit as a manifest.
        budget: serde_saphyr::budget! { max_total_scalar_bytes: usize::try_from(MANIFEST_MAX).unwrap_or(usize::MAX) },
    };
    serde_saphyr::from_multiple_with_options::<T>(text, options).map_err(|error| {
        let message = without_position(&error.to_string());
        match error.location() {
            Some(at) if at.line() > 0 => ParseError::Syntax { line: at.line(), column: at.column(), message },
            _ => ParseError::Other(message),
        }
    })
}

/// The message without the position at its end.
fn without_position(message: &str) -> String {
    let message = message.lines().next().unwrap_or_default();
    // The advice of the library is for programmers.
    let message = message.split(", set DuplicateKeyPolicy").next().unwrap_or_default();
    let end = message.rfind(" at line ").unwrap_or(message.len());
    message[..end].trim_end_matches(['.', ' ']).to_owned()
}

/// Line and column of the byte after these.
fn position(before: &[u8]) -> (u64, u64) {
    let line = before.iter().filter(|b| **b == b'\n').count() + 1;
    let column = before.iter().rev().take_while(|b| **b != b'\n').count() + 1;
    (line as u64, column as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_and_json_with_several_documents_are_parsed() {
        let cases: [(&str, &[Value]); 8] = [
            ("a: 1\n", &[json!({"a": 1})]),
            (
                "# head\n---\na: 1\n---\n---\n# only a comment\n---\nb: [x, 'y']\n",
                &[json!({"a": 1}), json!({"b": ["x", "y"]})],
            ),
            ("mode: 0644\n", &[json!({"mode": 420})]),
            ("on: yes\n", &[json!({"on": true})]),
            ("s: \"0644\"\nv: 1.5\nn: null\n", &[json!({"s": "0644", "v": 1.5, "n": null})]),
            ("{\"a\": [1, 2]}\n{\"b\": \"\\t\"}", &[json!({"a": [1, 2]}), json!({"b": "\t"})]),
            ("{a: 1, b: [c]}", &[json!({"a": 1, "b": ["c"]})]),
            ("base: &x {k: v}\nuse: *x\n", &[json!({"base": {"k": "v"}, "use": {"k": "v"}})]),
        ];
        for (text, expected) in cases {
            assert_eq!(documents(text.as_bytes()).as_deref(), Ok(expected), "{text:?}");
        }
    }

    #[test]
    fn errors_have_a_position() {
        let cases: [(&[u8], &str); 8] = [
            (b"", "it is empty"),
            (b"---\n# nothing\n", "it is empty"),
            (b"a: 1\nb: \xff\xfe\n", "line 2, column 4: not UTF-8 text"),
            (b"\x7fELF\x02\x01", "line 1, column 1: a control character"),
            (b"a: 1\nb: [1, 2\n", "line "),
            (b"a: 1\na: 2\n", "line 2, column 1: "),
            (b"{\"a\": 1,\n \"b\": ", "line 2, column 6: EOF while parsing"),
            (b"a: \"unfinished\nb: 2\n", "line "),
        ];
        for (text, expected) in cases {
            let error = documents(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{:?}: {error}", String::from_utf8_lossy(text));
            assert!(!error.contains('\n') && !error.contains(" at line "), "{error:?}");
        }
    }

    #[test]
    fn a_text_that_takes_much_memory_is_refused_before_it_is_built() {
        let volumes = |count: usize| (0..count).map(|n| format!("- {{name: v{n}}}\n")).collect::<String>();
        assert!(documents(format!("volumes:\n{}", volumes(1000)).as_bytes()).is_ok());
        let error = documents(format!("volumes:\n{}", volumes(20_000)).as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("volumes: the manifest takes "), "{error}");
        let json = format!("{{\"containers\": [{}{{}}]}}", "{},".repeat(100_000));
        let error = documents(json.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("containers: ") && error.contains("the 100001 items of this list"), "{error}");
        let volumes = vec!["*a"; 10_000].join(", ");
        // Refused by this limit, or by that of the parser.
        assert!(documents(format!("a: &a {{}}\nvolumes: [{volumes}]\n").as_bytes()).is_err());
    }

    #[test]
    fn alias_bombs_and_deep_nesting_are_rejected() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for i in 1..10 {
            let inner = vec![format!("*a{}", i - 1); 10].join(", ");
            bomb.push_str(&format!("a{i}: &a{i} [{inner}]\n"));
        }
        assert!(documents(bomb.as_bytes()).is_err());
        let long = "x".repeat(1 << 20);
        let repeated = |times: usize| format!("a: &a {long}\nb: [{}]\n", vec!["*a"; times].join(", "));
        assert!(documents(repeated(5).as_bytes()).is_ok());
        assert!(documents(repeated(20).as_bytes()).is_err(), "a small file that expands to a large pod");
        assert!(documents("[".repeat(100_000).as_bytes()).is_err());
        assert!(documents(format!("{{\"a\":{}", "[".repeat(100_000)).as_bytes()).is_err());
    }
}
