//! Checks a `KubeletConfiguration` document against the list of its fields; findings name the path of the field.

use serde_json::{Map, Value};

use super::diagnostics::Diagnostics;
use super::fields::{Field, Kind};
use crate::go_duration;

/// Checks a document: wrong types are errors, unknown and unsupported fields are warnings.
pub(super) fn check(document: &Value, fields: &[Field]) -> Diagnostics {
    let mut checker = SchemaChecker { diagnostics: Diagnostics::default() };
    match document {
        Value::Object(map) => checker.object(map, fields, "", true),
        other => checker.wrong_type("the document", "a mapping", other),
    }
    checker.diagnostics
}

struct SchemaChecker {
    diagnostics: Diagnostics,
}

impl SchemaChecker {
    /// `warn`: warn about unsupported fields. It is off below an unsupported field, which has its own warning.
    fn object(&mut self, map: &Map<String, Value>, fields: &[Field], path: &str, warn: bool) {
        for (name, value) in map {
            let here = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let Some(field) = fields.iter().find(|field| field.name == name) else {
                let similar = fields.iter().find(|field| field.name.eq_ignore_ascii_case(name));
                let hint = similar.map(|field| format!(", did you mean {}?", field.name)).unwrap_or_default();
                self.diagnostics.warning(&here, format!("unknown field{hint}"));
                continue;
            };
            if value.is_null() {
                continue;
            }
            if warn && !field.supported {
                self.diagnostics.warning(&here, "not supported yet, it has no effect");
            }
            self.value(value, field.kind, &here, warn && field.supported);
        }
    }

    fn value(&mut self, value: &Value, kind: Kind, path: &str, warn: bool) {
        match (kind, value) {
            (Kind::Any, _)
            | (Kind::Bool, Value::Bool(_))
            | (Kind::Float, Value::Number(_))
            | (Kind::String, Value::String(_)) => {}
            (Kind::Int, Value::Number(number)) if number.is_i64() => {}
            (Kind::Duration, Value::String(text)) => {
                if let Err(error) = go_duration::parse(text) {
                    self.diagnostics.error(path, error);
                }
            }
            (Kind::StringList, Value::Array(items)) => {
                self.each(items.iter().enumerate().map(|(i, v)| (format!("{path}[{i}]"), v)), Kind::String);
            }
            (Kind::StringMap, Value::Object(map)) => {
                self.each(map.iter().map(|(key, v)| (format!("{path}.{key}"), v)), Kind::String);
            }
            (Kind::BoolMap, Value::Object(map)) => {
                self.each(map.iter().map(|(key, v)| (format!("{path}.{key}"), v)), Kind::Bool);
            }
            (Kind::StringListMap, Value::Object(map)) => {
                self.each(map.iter().map(|(key, v)| (format!("{path}.{key}"), v)), Kind::StringList);
            }
            (Kind::Object(fields), Value::Object(map)) => self.object(map, fields, path, warn),
            (Kind::List(fields), Value::Array(items)) => {
                for (i, item) in items.iter().enumerate() {
                    let here = format!("{path}[{i}]");
                    match item {
                        Value::Object(map) => self.object(map, fields, &here, warn),
                        other => self.wrong_type(&here, "a mapping", other),
                    }
                }
            }
            (kind, other) => self.wrong_type(path, kind.name(), other),
        }
    }

    fn each<'a>(&mut self, values: impl Iterator<Item = (String, &'a Value)>, kind: Kind) {
        for (path, value) in values {
            self.value(value, kind, &path, false);
        }
    }

    fn wrong_type(&mut self, path: &str, expected: &str, got: &Value) {
        let got = match got {
            Value::Null => "null".into(),
            Value::Bool(b) => format!("{b}"),
            Value::Number(n) => format!("the number {n}"),
            Value::String(s) => format!("the string {:?}", s.chars().take(60).collect::<String>()),
            Value::Array(_) => "a list".into(),
            Value::Object(_) => "a mapping".into(),
        };
        self.diagnostics.error(path, format!("must be {expected}, not {got}"));
    }
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Bool => "true or false",
            Self::Int => "an integer",
            Self::Float => "a number",
            Self::String => "a string (in quotes if it looks like a number)",
            Self::Duration => "a duration like \"20s\"",
            Self::StringList => "a list of strings",
            Self::StringMap => "a mapping to strings",
            Self::StringListMap => "a mapping to lists of strings",
            Self::BoolMap => "a mapping to true or false",
            Self::Object(_) => "a mapping",
            Self::List(_) => "a list",
            Self::Any => "anything",
        }
    }
}
