//! Kubelet flags that set a field of `KubeletConfiguration`: they override the file.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};

use super::fields::{FIELDS, Kind};
use super::inputs::absolute;
use crate::go_duration;
use crate::run_flags::kubelet_flags::FieldFlag;

/// Why the value of a flag cannot be used.
#[derive(Debug, thiserror::Error)]
enum FieldFlagError {
    #[error("must be true or false, not {0:?}")]
    Bool(String),
    #[error("must be an integer, not {0:?}")]
    Integer(String),
    #[error(transparent)]
    Duration(#[from] go_duration::GoDurationError),
    #[error("{0:?} must be NAME=VALUE")]
    Pair(String),
}

/// Sets the fields of the document that the flags name. Returns all errors, each with its flag.
pub(super) fn apply_to(document: &mut Value, settings: &[FieldFlag]) -> Result<(), Vec<String>> {
    let (mut errors, mut seen) = (vec![], BTreeSet::new());
    for FieldFlag { flag, field, value } in settings {
        let kind = FIELDS.iter().find(|known| known.name == *field).map_or(Kind::Any, |known| known.kind);
        match parse(field, kind, value) {
            // A list or map may be given in several flags; the first replaces the value of the file.
            Ok(value) if !seen.insert(*field) => append(&mut document[*field], value),
            Ok(value) => document[*field] = value,
            Err(error) => errors.push(format!("{flag}: {error}")),
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn append(to: &mut Value, more: Value) {
    match (to, more) {
        (Value::Array(to), Value::Array(more)) => to.extend(more),
        (Value::Object(to), Value::Object(more)) => to.extend(more),
        (to, more) => *to = more,
    }
}

fn parse(field: &str, kind: Kind, text: &str) -> Result<Value, FieldFlagError> {
    match kind {
        Kind::Bool => match text {
            "1" | "t" | "T" | "true" | "True" | "TRUE" => Ok(true.into()),
            "0" | "f" | "F" | "false" | "False" | "FALSE" => Ok(false.into()),
            _ => Err(FieldFlagError::Bool(text.to_owned())),
        },
        Kind::Int => match text.parse::<i64>() {
            Ok(number) => Ok(number.into()),
            Err(_) => Err(FieldFlagError::Integer(text.to_owned())),
        },
        Kind::Duration => Ok(go_duration::parse(text).map(|_| text.into())?),
        Kind::StringList => Ok(pieces(text).collect()),
        Kind::StringMap => pieces(text).map(pair).collect::<Result<Map<_, _>, _>>().map(Value::Object),
        // A relative path in a flag is relative to the working directory, not to the configuration file.
        _ if field == "resolvConf" && !text.is_empty() => Ok(absolute(Path::new(text)).display().to_string().into()),
        _ => Ok(text.into()),
    }
}

fn pieces(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|piece| !piece.is_empty())
}

fn pair(piece: &str) -> Result<(String, Value), FieldFlagError> {
    let (key, value) = piece.split_once('=').ok_or_else(|| FieldFlagError::Pair(piece.to_owned()))?;
    Ok((key.trim().to_owned(), value.trim().into()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::run_flags::kubelet_flags::FIELD_FLAGS;

    fn given(settings: &[(&'static str, &str)]) -> Result<Value, Vec<String>> {
        let one = |(field, value): &(&'static str, &str)| FieldFlag {
            flag: format!("--{field}"),
            field,
            value: (*value).into(),
        };
        let mut document = json!({"maxPods": 1, "clusterDNS": ["10.0.0.9"], "podPidsLimit": 9});
        let settings: Vec<FieldFlag> = settings.iter().map(one).collect();
        apply_to(&mut document, &settings).map(|()| document)
    }

    #[test]
    fn flags_replace_fields() {
        let document = given(&[
            ("maxPods", "3"),
            ("failSwapOn", "false"),
            ("clusterDNS", "10.0.0.1, 10.0.0.2"),
            ("clusterDNS", "10.0.0.3"),
            ("kubeReserved", "cpu=200m,memory=1Gi"),
            ("syncFrequency", "1m"),
            ("resolvConf", ""),
        ]);
        let expected = json!({
            "maxPods": 3, "failSwapOn": false, "clusterDNS": ["10.0.0.1", "10.0.0.2", "10.0.0.3"], "podPidsLimit": 9,
            "kubeReserved": {"cpu": "200m", "memory": "1Gi"}, "syncFrequency": "1m", "resolvConf": "",
        });
        assert_eq!(document, Ok(expected));
    }

    #[test]
    fn errors_name_the_flag() {
        let errors =
            given(&[("maxPods", "many"), ("failSwapOn", "no"), ("kubeReserved", "cpu"), ("syncFrequency", "5")]);
        let errors = errors.unwrap_err();
        for (error, flag) in
            errors.iter().zip(["--maxPods: ", "--failSwapOn: ", "--kubeReserved: ", "--syncFrequency: "])
        {
            assert!(error.starts_with(flag), "{errors:?}");
        }
        assert_eq!(errors.len(), 4);
    }

    #[test]
    fn every_flag_sets_a_supported_field() {
        for (flag, field) in FIELD_FLAGS {
            assert!(FIELDS.iter().any(|known| known.name == *field && known.supported), "--{flag}: {field}");
        }
    }
}
