//! YAML or JSON text to plain values: several documents, clear errors with line and column.
//!
//! Values only: typed objects are made from them, so that there is one way to decode a pod whatever it was written in.

use serde_json::Value;

use super::MANIFEST_MAX;

/// The documents of a manifest. Empty ones don't count; a text without any is an error.
pub fn documents(bytes: &[u8]) -> Result<Vec<Value>, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let (line, column) = place(&bytes[..error.valid_up_to()]);
        format!("line {line}, column {column}: not UTF-8 text")
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Some(at) = text.find(|c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r' | '\u{85}')) {
        let (line, column) = place(&text.as_bytes()[..at]);
        return Err(format!("line {line}, column {column}: a control character, this is no manifest"));
    }
    let documents = if text.trim_start().starts_with('{') {
        // A text that looks like JSON gets JSON's word on what is wrong with it.
        json(text).or_else(|error| yaml(text).map_err(|_| error))?
    } else {
        yaml(text)?
    };
    if documents.is_empty() {
        return Err("it is empty".into());
    }
    Ok(documents)
}

fn json(text: &str) -> Result<Vec<Value>, String> {
    serde_json::Deserializer::from_str(text)
        .into_iter::<Value>()
        .collect::<Result<_, _>>()
        .map_err(|e| format!("line {}, column {}: {}", e.line(), e.column(), strip_place(&e.to_string())))
}

fn yaml(text: &str) -> Result<Vec<Value>, String> {
    let options = serde_saphyr::options! {
        // `defaultMode: 0644` is octal to everyone who writes manifests.
        legacy_octal_numbers: true,
        with_snippet: false,
        // Aliases repeat what was said once: all of it together may have what a manifest may.
        budget: serde_saphyr::budget! { max_total_scalar_bytes: usize::try_from(MANIFEST_MAX).unwrap_or(usize::MAX) },
    };
    serde_saphyr::from_multiple_with_options::<Value>(text, options).map_err(|error| {
        let message = strip_place(&error.to_string());
        match error.location() {
            Some(at) if at.line() > 0 => format!("line {}, column {}: {message}", at.line(), at.column()),
            _ => message,
        }
    })
}

/// The message without the place at its end, which stands before it already.
fn strip_place(message: &str) -> String {
    let message = message.lines().next().unwrap_or_default();
    let end = message.rfind(" at line ").unwrap_or(message.len());
    message[..end].trim_end_matches(['.', ' ']).to_owned()
}

/// Line and column of the byte after these.
fn place(before: &[u8]) -> (usize, usize) {
    let line = before.iter().filter(|b| **b == b'\n').count() + 1;
    let column = before.iter().rev().take_while(|b| **b != b'\n').count() + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_and_json_with_several_documents_are_read_as_people_mean_them() {
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
    fn what_is_wrong_is_said_with_its_place() {
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
            let error = documents(text).unwrap_err();
            assert!(error.starts_with(expected), "{:?}: {error}", String::from_utf8_lossy(text));
            assert!(!error.contains('\n') && !error.contains(" at line "), "{error:?}");
        }
    }

    #[test]
    fn bombs_and_towers_are_refused() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for i in 1..10 {
            let inner = vec![format!("*a{}", i - 1); 10].join(", ");
            bomb.push_str(&format!("a{i}: &a{i} [{inner}]\n"));
        }
        assert!(documents(bomb.as_bytes()).is_err());
        let long = "x".repeat(1 << 20);
        let repeated = |times: usize| format!("a: &a {long}\nb: [{}]\n", vec!["*a"; times].join(", "));
        assert!(documents(repeated(5).as_bytes()).is_ok());
        assert!(documents(repeated(20).as_bytes()).is_err(), "a small file that makes a large pod");
        assert!(documents("[".repeat(100_000).as_bytes()).is_err());
        assert!(documents(format!("{{\"a\":{}", "[".repeat(100_000)).as_bytes()).is_err());
    }
}
