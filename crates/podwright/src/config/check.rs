//! A configuration against the list of fields: wrong types are errors, unknown and unsupported fields warnings, all by path.

use serde_json::{Map, Value};

use super::fields::{Field, Kind};
use crate::go_duration;

/// What is to be said of a document.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Findings {
    pub(super) errors: Vec<String>,
    pub(super) warnings: Vec<String>,
}

/// Compare a document with its fields.
pub(super) fn check(document: &Value, fields: &[Field]) -> Findings {
    let mut findings = Findings::default();
    match document {
        Value::Object(map) => findings.object(map, fields, "", true),
        other => findings.wrong("the document", "a mapping", other),
    }
    findings
}

impl Findings {
    /// `tell`: unsupported fields are named; not below one that was.
    fn object(&mut self, map: &Map<String, Value>, fields: &[Field], path: &str, tell: bool) {
        for (name, value) in map {
            let here = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let Some(field) = fields.iter().find(|field| field.name == name) else {
                let like = fields.iter().find(|field| field.name.eq_ignore_ascii_case(name));
                let hint = like.map(|field| format!(", did you mean {}?", field.name)).unwrap_or_default();
                self.warnings.push(format!("{here}: unknown field{hint}"));
                continue;
            };
            if value.is_null() {
                continue;
            }
            if tell && !field.honoured {
                self.warnings.push(format!("{here}: not supported yet, it does nothing"));
            }
            self.value(value, field.kind, &here, tell && field.honoured);
        }
    }

    fn value(&mut self, value: &Value, kind: Kind, path: &str, tell: bool) {
        match (kind, value) {
            (Kind::Any, _)
            | (Kind::Bool, Value::Bool(_))
            | (Kind::Float, Value::Number(_))
            | (Kind::Text, Value::String(_)) => {}
            (Kind::Int, Value::Number(number)) if number.is_i64() => {}
            (Kind::Duration, Value::String(text)) => {
                if let Err(error) = go_duration::parse(text) {
                    self.errors.push(format!("{path}: {error}"));
                }
            }
            (Kind::Texts, Value::Array(items)) => {
                self.each(items.iter().enumerate().map(|(i, v)| (format!("{path}[{i}]"), v)), Kind::Text);
            }
            (Kind::TextMap, Value::Object(map)) => {
                self.each(map.iter().map(|(key, v)| (format!("{path}.{key}"), v)), Kind::Text);
            }
            (Kind::BoolMap, Value::Object(map)) => {
                self.each(map.iter().map(|(key, v)| (format!("{path}.{key}"), v)), Kind::Bool);
            }
            (Kind::TextsMap, Value::Object(map)) => {
                self.each(map.iter().map(|(key, v)| (format!("{path}.{key}"), v)), Kind::Texts);
            }
            (Kind::Object(fields), Value::Object(map)) => self.object(map, fields, path, tell),
            (Kind::List(fields), Value::Array(items)) => {
                for (i, item) in items.iter().enumerate() {
                    let here = format!("{path}[{i}]");
                    match item {
                        Value::Object(map) => self.object(map, fields, &here, tell),
                        other => self.wrong(&here, "a mapping", other),
                    }
                }
            }
            (kind, other) => self.wrong(path, kind.name(), other),
        }
    }

    fn each<'a>(&mut self, values: impl Iterator<Item = (String, &'a Value)>, kind: Kind) {
        for (path, value) in values {
            self.value(value, kind, &path, false);
        }
    }

    fn wrong(&mut self, path: &str, wanted: &str, got: &Value) {
        let got = match got {
            Value::Null => "nothing".into(),
            Value::Bool(b) => format!("{b}"),
            Value::Number(n) => format!("the number {n}"),
            Value::String(s) => format!("the text {:?}", s.chars().take(60).collect::<String>()),
            Value::Array(_) => "a list".into(),
            Value::Object(_) => "a mapping".into(),
        };
        self.errors.push(format!("{path}: must be {wanted}, not {got}"));
    }
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Bool => "true or false",
            Self::Int => "a whole number",
            Self::Float => "a number",
            Self::Text => "text (in quotes if it looks like a number)",
            Self::Duration => "a duration like \"20s\"",
            Self::Texts => "a list of texts",
            Self::TextMap => "a mapping to texts",
            Self::TextsMap => "a mapping to lists of texts",
            Self::BoolMap => "a mapping to true or false",
            Self::Object(_) => "a mapping",
            Self::List(_) => "a list",
            Self::Any => "anything",
        }
    }
}
