//! Kubelet flags that set a field of `KubeletConfiguration`: they override the file.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};

use super::fields::{self, Kind};
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
    #[error("{0:?} must be NAME{1}VALUE")]
    Pair(String, char),
}

/// Sets the fields of the document that the flags name. Returns all errors, each with its flag.
pub(super) fn apply_to(document: &mut Value, settings: &[FieldFlag]) -> Result<(), Vec<String>> {
    let (mut errors, mut seen) = (vec![], BTreeSet::new());
    for FieldFlag { flag, field, value } in settings {
        let kind = fields::find(field).map_or(Kind::Any, |known| known.kind);
        match (parse(field, kind, value), place(document, field)) {
            // A list or map may be given in several flags; the first replaces the value of the file.
            (Ok(value), Some(place)) if !seen.insert(*field) => append(place, value),
            (Ok(value), Some(place)) => *place = value,
            (Ok(_), None) => errors.push(format!("{flag}: {field} of the file is not a mapping")),
            (Err(error), _) => errors.push(format!("{flag}: {error}")),
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// The value of a field, which is created with the mappings around it. `None`: one of those is something else.
fn place<'a>(document: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    let mut here = document;
    for name in path.split('.') {
        if here.is_null() {
            *here = Value::Object(Map::new());
        }
        here = here.as_object_mut()?.entry(name).or_insert(Value::Null);
    }
    Some(here)
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
        Kind::Duration => {
            let length = text.strip_prefix('-').filter(|_| MAY_BE_NEGATIVE.contains(&field)).unwrap_or(text);
            Ok(go_duration::parse(length).map(|_| text.into())?)
        }
        Kind::StringList => Ok(pieces(text).collect()),
        Kind::StringMap => {
            let separator = if THRESHOLDS.contains(&field) { '<' } else { '=' };
            pieces(text).map(|piece| pair(piece, separator)).collect::<Result<Map<_, _>, _>>().map(Value::Object)
        }
        // A relative path in a flag is relative to the working directory, not to the configuration file.
        _ if PATHS.contains(&field) && !text.is_empty() => Ok(absolute(Path::new(text)).display().to_string().into()),
        _ => Ok(text.into()),
    }
}

/// Fields with the path of a file.
const PATHS: [&str; 4] = ["resolvConf", "authentication.x509.clientCAFile", "tlsCertFile", "tlsPrivateKeyFile"];

/// Fields with pairs such as `memory.available<100Mi` (Go kubelet: `LangleSeparatedMapStringString`).
const THRESHOLDS: [&str; 2] = ["evictionHard", "evictionSoft"];

/// Durations that switch something off if they are negative.
const MAY_BE_NEGATIVE: [&str; 1] = ["volumeStatsAggPeriod"];

fn pieces(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|piece| !piece.is_empty())
}

fn pair(piece: &str, separator: char) -> Result<(String, Value), FieldFlagError> {
    let (key, value) = piece.split_once(separator).ok_or_else(|| FieldFlagError::Pair(piece.to_owned(), separator))?;
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
    fn thresholds_of_eviction_are_pairs_with_a_less_than_sign() {
        let document = given(&[
            ("evictionHard", "memory.available<100Mi, nodefs.available<10%"),
            ("evictionHard", "pid.available<5%"),
            ("evictionSoft", "memory.available < 200Mi"),
            ("evictionSoftGracePeriod", "memory.available=1m30s"),
            ("evictionMinimumReclaim", "memory.available=50Mi,nodefs.available=5%"),
            ("volumeStatsAggPeriod", "-1s"),
        ]);
        let expected = json!({
            "maxPods": 1, "clusterDNS": ["10.0.0.9"], "podPidsLimit": 9,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "10%", "pid.available": "5%"},
            "evictionSoft": {"memory.available": "200Mi"}, "evictionSoftGracePeriod": {"memory.available": "1m30s"},
            "evictionMinimumReclaim": {"memory.available": "50Mi", "nodefs.available": "5%"}, "volumeStatsAggPeriod": "-1s",
        });
        assert_eq!(document, Ok(expected));
        assert_eq!(given(&[("evictionHard", "")]).unwrap()["evictionHard"], json!({}), "no thresholds, no defaults");
        for (field, value, error) in [
            ("evictionHard", "memory.available=100Mi", "\"memory.available=100Mi\" must be NAME<VALUE"),
            ("evictionMinimumReclaim", "memory.available<1Mi", "\"memory.available<1Mi\" must be NAME=VALUE"),
            ("nodeStatusUpdateFrequency", "-1s", "\"-1s\" is negative"),
        ] {
            assert_eq!(given(&[(field, value)]), Err(vec![format!("--{field}: {error}")]));
        }
    }

    #[test]
    fn flags_reach_fields_below_others() {
        let document = given(&[
            ("authentication.anonymous.enabled", "true"),
            ("authentication.webhook.cacheTTL", "1m"),
            ("authentication.anonymous.enabled", "false"),
        ]);
        let expected = json!({"anonymous": {"enabled": false}, "webhook": {"cacheTTL": "1m"}});
        assert_eq!(document.unwrap()["authentication"], expected);
        assert!(given(&[("maxPods.x", "1")]).is_err(), "a number has no fields");
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
            assert!(fields::find(field).is_some_and(|known| known.supported), "--{flag}: {field}");
        }
    }
}
