//! Unknown fields of a manifest: those that are missing when the decoded pod is serialised again.

use serde_json::Value;

use super::{decode, pods_in};
use crate::fields::MAX_PATH;
use crate::model::Pod;

/// Paths of the fields of a pod's document that decoding dropped, such as `spec.containers[0].foo`, at most `MAX_FINDINGS`. The pod
/// may have got its node and defaults since.
pub fn unknown_fields(document: &Value, pod: &Pod) -> Vec<String> {
    let known = serde_json::to_value(pod).unwrap_or_default();
    let mut unknown = Vec::new();
    missing(document, &known, "", &mut unknown);
    // Fields of the API server are known and removed from static pods on purpose.
    let below =
        |path: &str, own: &str| path.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    unknown.retain(|path| !SERVERS.iter().any(|own| below(path, own)));
    unknown.truncate(MAX_FINDINGS);
    unknown
}

/// The same for every pod in a document, alone or in a list. Documents that cannot be decoded are skipped; they have their own error.
pub fn unknown_in(document: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    for (path, document) in pods_in(document).unwrap_or_default() {
        if let Ok(pod) = decode(document, &path) {
            unknown.extend(unknown_fields(document, &pod).into_iter().map(|field| format!("{path}{field}")));
        }
        if unknown.len() >= MAX_FINDINGS {
            unknown.truncate(MAX_FINDINGS);
            break;
        }
    }
    unknown
}

fn missing(written: &Value, known: &Value, path: &str, unknown: &mut Vec<String>) {
    // With a margin for the fields of the API server, which are removed. Longer paths are below keys that users choose.
    if unknown.len() >= MAX_FINDINGS + SERVERS.len() || path.len() > MAX_PATH {
        return;
    }
    match (written, known) {
        (Value::Object(written), Value::Object(known)) => {
            for (key, value) in written.iter().filter(|(_, value)| !value.is_null()) {
                let here = match path {
                    "" => key.clone(),
                    _ if key.contains(['.', '/']) => format!("{path}[{key:?}]"),
                    _ => format!("{path}.{key}"),
                };
                match known.get(key) {
                    Some(known) => missing(value, known, &here, unknown),
                    None if unknown.len() < MAX_FINDINGS + SERVERS.len() => unknown.push(here),
                    None => return,
                }
            }
        }
        (Value::Array(written), Value::Array(known)) => {
            for (index, (written, known)) in written.iter().zip(known).enumerate() {
                missing(written, known, &format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}

/// Findings of one document: a manifest could have a million, and each is searched in the text and compared with the known fields.
pub(super) const MAX_FINDINGS: usize = 100;

const SERVERS: [&str; 9] = [
    "status",
    "metadata.creationTimestamp",
    "metadata.deletionTimestamp",
    "metadata.deletionGracePeriodSeconds",
    "metadata.generation",
    "metadata.managedFields",
    "metadata.resourceVersion",
    "metadata.selfLink",
    "metadata.annotations[\"kubernetes.io/config.mirror\"]",
];
