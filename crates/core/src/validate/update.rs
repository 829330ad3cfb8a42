//! Updates of an existing pod (`ValidatePodUpdate`): images, a shorter active deadline, more tolerations and metadata may change.

use k8s_openapi::api::core::v1::{PodSpec, Toleration};
use serde_json::Value;

use super::{FieldError, FieldErrors, validate_pod};
use crate::model::Pod;

/// All errors of the update from `old` to `new`, which has its defaults. Metadata that the server owns is not checked.
pub fn validate_pod_update(new: &Pod, old: &Pod) -> Vec<FieldError> {
    let mut errors = validate_pod(new);
    errors.extend(validate_change(new, old));
    errors
}

/// The changes from `old` to `new` that are not allowed; neither pod is validated alone.
pub fn validate_change(new: &Pod, old: &Pod) -> Vec<FieldError> {
    let mut errors = FieldErrors { errors: Vec::new() };
    let empty = PodSpec::default();
    let (now, before) = (new.spec.as_ref().unwrap_or(&empty), old.spec.as_ref().unwrap_or(&empty));
    if same_containers(now, before, &mut errors) {
        same_rest(now, before, &mut errors);
    }
    active_deadline(now.active_deadline_seconds, before.active_deadline_seconds, &mut errors);
    more_tolerations(now, before, &mut errors);
    errors.errors
}

fn same_containers(new: &PodSpec, old: &PodSpec, errors: &mut FieldErrors) -> bool {
    let count = |list: &Option<Vec<_>>| list.as_ref().map_or(0, Vec::len);
    let before = errors.errors.len();
    if new.containers.len() != old.containers.len() {
        errors.add("spec.containers", "pod updates may not add or remove containers");
    }
    if count(&new.init_containers) != count(&old.init_containers) {
        errors.add("spec.initContainers", "pod updates may not add or remove containers");
    }
    errors.errors.len() == before
}

/// Compares the fields that may not change; each difference is named.
fn same_rest(new: &PodSpec, old: &PodSpec, errors: &mut FieldErrors) {
    let mut rest = (new.clone(), old.clone());
    for side in [&mut rest.0, &mut rest.1] {
        side.active_deadline_seconds = None;
        side.tolerations = None;
        for container in side.containers.iter_mut().chain(side.init_containers.iter_mut().flatten()) {
            container.image = None;
        }
    }
    // A negative grace period may become 1.
    if old.termination_grace_period_seconds.is_some_and(|old| old < 0)
        && new.termination_grace_period_seconds == Some(1)
    {
        rest.1.termination_grace_period_seconds = Some(1);
    }
    if rest.0 == rest.1 {
        return;
    }
    let mut paths = Vec::new();
    differing(
        &serde_json::to_value(&rest.0).unwrap_or_default(),
        &serde_json::to_value(&rest.1).unwrap_or_default(),
        "spec",
        &mut paths,
    );
    for path in paths {
        errors.add(path, format!("{MAY_CHANGE}: delete the pod and create it again"));
    }
}

fn differing(a: &Value, b: &Value, path: &str, paths: &mut Vec<String>) {
    match (a, b) {
        _ if a == b || paths.len() >= PATHS_MAX => {}
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
                let (a, b) = (a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null));
                differing(a, b, &format!("{path}.{key}"), paths);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                differing(a, b, &format!("{path}[{i}]"), paths);
            }
        }
        _ => paths.push(path.to_owned()),
    }
}

fn active_deadline(new: Option<i64>, old: Option<i64>, errors: &mut FieldErrors) {
    match (new, old) {
        (Some(new), Some(old)) if new > old => {
            errors
                .add("spec.activeDeadlineSeconds", format!("{new} must be less than or equal to previous value {old}"));
        }
        (None, Some(_)) => {
            errors.add("spec.activeDeadlineSeconds", "must not update from a positive integer to nil value")
        }
        _ => {}
    }
}

fn more_tolerations(new: &PodSpec, old: &PodSpec, errors: &mut FieldErrors) {
    let timeless = |t: &Toleration| Toleration { toleration_seconds: None, ..t.clone() };
    let kept = |t: &Toleration| new.tolerations.iter().flatten().any(|n| timeless(n) == timeless(t));
    if !old.tolerations.iter().flatten().all(kept) {
        errors.add("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds");
    }
}

const MAY_CHANGE: &str = "pod updates may not change fields other than `spec.containers[*].image`, \
                          `spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations` (only additions)";
/// Bound of the message.
const PATHS_MAX: usize = 20;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::defaults::default_pod;

    fn pod(spec: Value) -> Pod {
        let mut pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
        default_pod(&mut pod);
        pod
    }

    fn base() -> Value {
        json!({"containers": [{"name": "a", "image": "x:1"}], "activeDeadlineSeconds": 100,
               "tolerations": [{"key": "k", "operator": "Exists"}]})
    }

    fn changed(path: &str, value: Value) -> Vec<String> {
        let mut spec = base();
        let (parent, field) = path.rsplit_once('/').unwrap();
        spec.pointer_mut(parent).unwrap()[field] = value;
        validate_pod_update(&pod(spec), &pod(base())).iter().map(|error| error.path.clone()).collect()
    }

    #[test]
    fn updates_that_an_api_server_accepts_are_accepted() {
        let more =
            json!([{"key": "k", "operator": "Exists", "tolerationSeconds": 3, "effect": null}, {"operator": "Exists"}]);
        for (path, value) in [
            ("/containers/0/image", json!("x:2")),
            ("/activeDeadlineSeconds", json!(50)),
            ("/tolerations", json!([{"key": "k", "operator": "Exists"}, {"operator": "Exists"}])),
        ] {
            assert_eq!(changed(path, value), Vec::<String>::new(), "{path}");
        }
        assert!(!changed("/tolerations", more).is_empty(), "seconds need an effect");
    }

    #[test]
    fn all_other_updates_are_rejected_with_the_field() {
        for (path, value, field) in [
            ("/containers/0/command", json!(["sh"]), "spec.containers[0].command"),
            ("/containers/0/name", json!("b"), "spec.containers[0].name"),
            ("/containers", json!([{"name": "a", "image": "x"}, {"name": "b", "image": "x"}]), "spec.containers"),
            ("/activeDeadlineSeconds", json!(101), "spec.activeDeadlineSeconds"),
            ("/activeDeadlineSeconds", Value::Null, "spec.activeDeadlineSeconds"),
            ("/tolerations", json!([]), "spec.tolerations"),
            ("/hostNetwork", json!(true), "spec.hostNetwork"),
            ("/containers/0/image", json!(""), "spec.containers[0].image"),
        ] {
            assert_eq!(changed(path, value), [field]);
        }
    }
}
