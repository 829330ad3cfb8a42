//! Flags of the kubelet that say what a field of `KubeletConfiguration` says: laid over the file, because a flag wins.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};

use super::duration;
use super::fields::{FIELDS, Kind};
use super::reader::absolute;
use crate::cli::Setting;

/// Make the document say what the flags say. What can't be understood, by flag.
pub(super) fn lay_over(document: &mut Value, settings: &[Setting]) -> Result<(), Vec<String>> {
    let (mut errors, mut seen) = (vec![], BTreeSet::new());
    for Setting { flag, field, value } in settings {
        let kind = FIELDS.iter().find(|known| known.name == *field).map_or(Kind::Any, |known| known.kind);
        match read(field, kind, value) {
            // A list or mapping may come in pieces; the first takes the place of the file's.
            Ok(value) if !seen.insert(*field) => add(&mut document[*field], value),
            Ok(value) => document[*field] = value,
            Err(error) => errors.push(format!("{flag}: {error}")),
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn add(to: &mut Value, more: Value) {
    match (to, more) {
        (Value::Array(to), Value::Array(more)) => to.extend(more),
        (Value::Object(to), Value::Object(more)) => to.extend(more),
        (to, more) => *to = more,
    }
}

fn read(field: &str, kind: Kind, text: &str) -> Result<Value, String> {
    match kind {
        Kind::Bool => match text {
            "1" | "t" | "T" | "true" | "True" | "TRUE" => Ok(true.into()),
            "0" | "f" | "F" | "false" | "False" | "FALSE" => Ok(false.into()),
            _ => Err(format!("must be true or false, not {text:?}")),
        },
        Kind::Int => match text.parse::<i64>() {
            Ok(number) => Ok(number.into()),
            Err(_) => Err(format!("must be a whole number, not {text:?}")),
        },
        Kind::Duration => duration::parse(text).map(|_| text.into()),
        Kind::Texts => Ok(pieces(text).collect()),
        Kind::TextMap => pieces(text).map(pair).collect::<Result<Map<_, _>, _>>().map(Value::Object),
        // A flag's path begins where the program was started, not where the file lies.
        _ if field == "resolvConf" && !text.is_empty() => Ok(absolute(Path::new(text)).display().to_string().into()),
        _ => Ok(text.into()),
    }
}

fn pieces(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|piece| !piece.is_empty())
}

fn pair(piece: &str) -> Result<(String, Value), String> {
    let (key, value) = piece.split_once('=').ok_or_else(|| format!("{piece:?} must be NAME=VALUE"))?;
    Ok((key.trim().to_owned(), value.trim().into()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::SETTINGS;

    fn given(settings: &[(&'static str, &str)]) -> Result<Value, Vec<String>> {
        let one = |(field, value): &(&'static str, &str)| Setting {
            flag: format!("--{field}"),
            field,
            value: (*value).into(),
        };
        let mut document = json!({"maxPods": 1, "clusterDNS": ["10.0.0.9"], "podPidsLimit": 9});
        let settings: Vec<Setting> = settings.iter().map(one).collect();
        lay_over(&mut document, &settings).map(|()| document)
    }

    #[test]
    fn flags_take_the_place_of_fields() {
        let document = given(&[
            ("maxPods", "3"),
            ("failSwapOn", "false"),
            ("clusterDNS", "10.0.0.1, 10.0.0.2"),
            ("clusterDNS", "10.0.0.3"),
            ("kubeReserved", "cpu=200m,memory=1Gi"),
            ("syncFrequency", "1m"),
            ("resolvConf", ""),
        ]);
        let wanted = json!({
            "maxPods": 3, "failSwapOn": false, "clusterDNS": ["10.0.0.1", "10.0.0.2", "10.0.0.3"], "podPidsLimit": 9,
            "kubeReserved": {"cpu": "200m", "memory": "1Gi"}, "syncFrequency": "1m", "resolvConf": "",
        });
        assert_eq!(document, Ok(wanted));
    }

    #[test]
    fn what_is_wrong_is_named_by_its_flag() {
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
    fn every_flag_stands_for_a_field_that_does_something() {
        for (flag, field) in SETTINGS {
            assert!(FIELDS.iter().any(|known| known.name == *field && known.honoured), "--{flag}: {field}");
        }
    }
}
