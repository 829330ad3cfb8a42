//! Pods submitted to the local API: the same documents, checked by the API server's rules, without the rules of static pods.

use std::sync::Arc;

use serde_json::Value;

use super::unknown::MAX_FINDINGS;
use super::{ManifestError, decode, findings, retain_written, whole, written_requests};
use crate::defaults::default_pod;
use crate::model::Manifest;
use crate::validate::{FieldError, validate_pod};

/// The pods of one document with defaults, or all errors that an API server would report, by field.
pub fn read_submitted(value: Value, origin: &str) -> Result<Vec<Manifest>, Vec<FieldError>> {
    let (mut pods, mut errors) = (Vec::new(), Vec::new());
    for (path, document) in whole(value).map_err(|error| findings::of(&error, ""))? {
        if errors.len() >= MAX_FINDINGS {
            break;
        }
        let mut pod = match decode(&document, &path) {
            Ok(pod) => pod,
            Err(error) => {
                errors.extend(findings::of(&error, &path));
                continue;
            }
        };
        let written = written_requests(&pod);
        default_pod(&mut pod);
        let mut wrong = validate_pod(&pod);
        retain_written(&mut wrong, &written);
        if wrong.is_empty() {
            pods.push(Manifest { pod: Arc::new(pod), origin: origin.into() });
            continue;
        }
        let name = pod.metadata.name.unwrap_or_default();
        errors.extend(findings::of(&ManifestError::Invalid { pod: name, errors: wrong }, &path));
    }
    if errors.is_empty() { Ok(pods) } else { Err(errors) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(pod: &Value) -> Result<Vec<Manifest>, Vec<FieldError>> {
        read_submitted(json!({"kind": "List", "apiVersion": "v1", "items": [pod]}), "stdin")
    }

    #[test]
    fn references_are_allowed_and_validation_applies() {
        let env = json!([{"configMapRef": {"name": "settings"}}]);
        let mut pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "web"},
            "spec": {"containers": [{"name": "c", "image": "i", "envFrom": env}]}});
        let found = read(&pod).unwrap();
        assert_eq!(found[0].pod.metadata.name.as_deref(), Some("web"), "no node's name is added");
        assert_eq!(found[0].pod.spec.as_ref().unwrap().restart_policy.as_deref(), Some("Always"));
        pod["spec"]["containers"][0]["image"] = json!("");
        pod["spec"]["restartPolicy"] = json!("Often");
        let errors = read(&pod).unwrap_err();
        let paths: Vec<&str> = errors.iter().map(|error| error.path.as_str()).collect();
        assert!(
            paths.contains(&"items[0].spec.restartPolicy") && paths.contains(&"items[0].spec.containers[0].image"),
            "{paths:?}"
        );
        pod["spec"] = json!({"containers": 3});
        assert_eq!(read(&pod).unwrap_err()[0].path, "items[0].spec.containers");
    }
}
