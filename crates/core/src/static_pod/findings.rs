//! Errors and warnings of a manifest by field.

use serde_json::Value;

use super::unknown::MAX_FINDINGS;
use super::{ManifestError, impossible, instead_of, pods_in, unknown_in};
use crate::fields;
use crate::validate::FieldError;

/// The errors by field. `list` is the path of the list item, ending in a dot.
pub(super) fn of(error: &ManifestError, list: &str) -> Vec<FieldError> {
    let one = |path: String, message: String| vec![FieldError { path, message }];
    match error {
        ManifestError::NotAnObject(_) | ManifestError::TooDeep | ManifestError::Compose => {
            one(String::new(), error.to_string())
        }
        ManifestError::Kind { path, kind, api_version } => one(
            format!("{path}kind"),
            format!("{kind:?} of apiVersion {api_version:?} can't run on a node: {}", instead_of(kind)),
        ),
        ManifestError::Decode { path, message } => one(path.clone(), message.clone()),
        ManifestError::Invalid { errors, .. } => {
            let at = |error: &FieldError| FieldError { path: format!("{list}{}", error.path), ..error.clone() };
            errors.iter().map(at).collect()
        }
        ManifestError::Reference { path, what, .. } => one(
            format!("{list}{path}"),
            format!("a pod of a node alone may not refer to {what}, which only an API server has: remove it"),
        ),
    }
}

/// What an error or warning of a manifest is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingKind {
    /// The document is rejected.
    Invalid,
    /// The field does not exist, and is dropped when the pod is decoded.
    UnknownField,
    /// The field has no effect.
    Unsupported,
    /// The value can never work on a node, though an API server accepts it: a pod with it is rejected, or waits for ever.
    NeverWorks,
}

/// The fields of a document without effect, at most 100 unknown ones and 100 of the other kinds.
pub fn warnings_in(document: &Value) -> Vec<(FindingKind, FieldError)> {
    let unknown = unknown_in(document).into_iter().map(|path| {
        let local =
            path.strip_prefix("items[").and_then(|rest| rest.split_once("].")).map_or(path.as_str(), |(_, p)| p);
        let like = similar_field(local).map_or(String::new(), |name| format!(", did you mean {name}?"));
        (FindingKind::UnknownField, FieldError { message: format!("unknown field, it does nothing{like}"), path })
    });
    let mut warnings: Vec<_> = unknown.collect();
    let most = warnings.len() + MAX_FINDINGS;
    for (list, pod) in pods_in(document).unwrap_or_default() {
        let at = |path: &str, message: String| FieldError { path: format!("{list}{path}"), message };
        warnings.extend(fields::unsupported(pod, MAX_FINDINGS).into_iter().map(|(path, why)| {
            let needed = path.contains("spec.volumes[") || path.contains(".resources.");
            let kind = if needed { FindingKind::NeverWorks } else { FindingKind::Unsupported };
            (kind, at(&path, format!("not supported: {}", why.strip_prefix("not supported: ").unwrap_or(why))))
        }));
        let never = impossible::never_works(pod).into_iter();
        warnings.extend(never.map(|error| (FindingKind::NeverWorks, at(&error.path, error.message))));
        if warnings.len() >= most {
            warnings.truncate(most);
            break;
        }
    }
    warnings
}

/// The field that was likely meant: it differs in case or in few letters.
fn similar_field(path: &str) -> Option<&'static str> {
    let name = path.rsplit('.').next()?;
    // A name that is much longer than all known ones resembles none of them.
    let name = Some(name).filter(|name| name.len() <= 64)?;
    let lower = name.to_lowercase();
    let of_probe = path.rsplit('.').nth(1).is_some_and(|parent| parent.ends_with("Probe"));
    // Searched once: it takes time for a long path.
    let known: Vec<&str> = fields::siblings(path).chain(PROBE_FIELDS.into_iter().filter(|_| of_probe)).collect();
    // A name without its unit: initialDelay, terminationGracePeriod.
    let without_unit = |known: &&&str| known.to_lowercase().strip_suffix("seconds") == Some(lower.as_str());
    let distance = |known: &&&str| edit_distance(&lower, &known.to_lowercase());
    let similar = || known.iter().min_by_key(distance).filter(|known| distance(known) * 4 <= name.len());
    known.iter().find(without_unit).or_else(similar).copied()
}

/// The table of fields has one row for a probe.
const PROBE_FIELDS: [&str; 6] = [
    "initialDelaySeconds",
    "timeoutSeconds",
    "periodSeconds",
    "successThreshold",
    "failureThreshold",
    "terminationGracePeriodSeconds",
];

/// Levenshtein distance.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().take(64).collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let changed = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = changed.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// Rewrites the decoder's message for users: `invalid type: string "a", expected i32`.
pub(super) fn user_message(message: &str) -> String {
    let Some((got, wanted)) = message.strip_prefix("invalid type: ").and_then(|text| text.split_once(", expected "))
    else {
        return message.to_owned();
    };
    let got = match got {
        "map" => "a mapping",
        "sequence" => "a list",
        "null" | "unit value" => "nothing",
        other => other,
    };
    let wanted = match wanted {
        "i32" | "i64" => "a whole number",
        "a boolean" => "true or false",
        "a string" => "text, in quotes if it looks like a number or a word like yes",
        "a sequence" => "a list",
        "a map" => "a mapping",
        other => return format!("must be a mapping ({other}), not {got}"),
    };
    format!("must be {wanted}, not {got}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_without_effect_are_named_with_a_suggestion() {
        let document = json!({"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "a"}, "spec": {
            "hostnetwork": true, "restartPolcy": "Never", "wholly": 1,
            "containers": [{"name": "c", "Image": "i", "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": 1}}}],
        }}]});
        let mut said: Vec<String> = warnings_in(&document).iter().map(|(_, warning)| warning.to_string()).collect();
        said.sort();
        assert_eq!(
            said,
            [
                "items[0].spec.containers[0].Image: unknown field, it does nothing, did you mean image?",
                "items[0].spec.containers[0].resources.limits.nvidia.com/gpu: not supported: nothing on this node provides it, \
                 and the pod is rejected; only pods of an API server may request it",
                "items[0].spec.hostnetwork: unknown field, it does nothing, did you mean hostNetwork?",
                "items[0].spec.restartPolcy: unknown field, it does nothing, did you mean restartPolicy?",
                "items[0].spec.wholly: unknown field, it does nothing",
            ]
        );
    }

    #[test]
    fn a_field_that_the_pod_needs_never_works() {
        for (field, value, kind) in [
            ("volumes", json!([{"name": "v", "hostpath": {}}]), FindingKind::UnknownField),
            ("volumes", json!([{"name": "v", "nfs": {"server": "s", "path": "/"}}]), FindingKind::NeverWorks),
            ("securityContext", json!({"seLinuxChangePolicy": "Recursive"}), FindingKind::Unsupported),
            ("containers", json!([{"name": "c", "image": "Busy Box"}]), FindingKind::NeverWorks),
        ] {
            let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
            spec[field] = value;
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec});
            let kinds: Vec<FindingKind> = warnings_in(&pod).into_iter().map(|(kind, _)| kind).collect();
            assert_eq!(kinds, [kind], "{pod}");
        }
    }

    #[test]
    fn the_number_of_findings_is_bounded() {
        let mut spec: serde_json::Map<_, _> = (0..8000).map(|n| (format!("field{n}"), json!(1))).collect();
        spec.insert("containers".into(), json!([{"name": "c", "image": "i"}]));
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec});
        assert_eq!(warnings_in(&pod).len(), MAX_FINDINGS);
        let list = json!({"apiVersion": "v1", "kind": "List", "items": vec![pod; 20]});
        assert_eq!(warnings_in(&list).len(), MAX_FINDINGS);
    }

    /// The path of each entry would repeat the key: 60,000 times a megabyte.
    #[test]
    #[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "a bound of the time taken")]
    fn entries_below_a_long_key_take_linear_time() {
        let began = std::time::Instant::now();
        let entries = json!({"k".repeat(1 << 20): vec![json!({"a": 1}); 60_000]});
        let managed = json!([{"manager": "m", "fieldsV1": entries}]);
        let metadata = json!({"name": "a", "managedFields": managed});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": entries});
        let warnings = warnings_in(&pod);
        assert_eq!(warnings.len(), 1);
        assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    }

    #[test]
    fn a_wrong_type_has_a_readable_message() {
        for (message, plain) in [
            ("invalid type: string \"a\", expected i32", "must be a whole number, not string \"a\""),
            ("invalid type: map, expected a sequence", "must be a list, not a mapping"),
            ("invalid type: integer `1`, expected PodSpec", "must be a mapping (PodSpec), not integer `1`"),
            ("something else", "something else"),
        ] {
            assert_eq!(user_message(message), plain);
        }
    }
}
