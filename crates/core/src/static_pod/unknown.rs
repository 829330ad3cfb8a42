//! Unknown fields of a manifest: those that are missing when the decoded pod is serialised again.

use serde_json::Value;

use super::documents;
use crate::model::Pod;

/// Paths of the fields of a pod's document that decoding dropped, such as `spec.containers[0].foo`. The pod may have
/// got its node and defaults since.
pub fn unknown_fields(document: &Value, pod: &Pod) -> Vec<String> {
    let known = serde_json::to_value(pod).unwrap_or_default();
    let mut unknown = Vec::new();
    missing(document, &known, "", &mut unknown);
    // Fields of the API server are known and removed from static pods on purpose.
    unknown.retain(|path| !SERVERS.iter().any(|own| path == own || path.starts_with(&format!("{own}."))));
    unknown
}

/// The same for every pod in a document, alone or in a list. Documents that cannot be decoded are skipped; they have their own error.
pub fn unknown_in(document: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    for (path, document) in documents(document.clone()).unwrap_or_default() {
        if let Ok(pod) = serde_json::from_value(document.clone()) {
            unknown.extend(unknown_fields(&document, &pod).into_iter().map(|field| format!("{path}{field}")));
        }
    }
    unknown
}

fn missing(written: &Value, known: &Value, path: &str, unknown: &mut Vec<String>) {
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
                    None => unknown.push(here),
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
