//! Patches of pods: strategic merge patches (Kubernetes: `strategicpatch.StrategicMergePatch`) and JSON merge patches (RFC 7386).
//!
//! A strategic merge patch merges some lists by a key, as containers by their name, where a JSON merge patch replaces them.

use serde_json::{Map, Value};

/// Why a patch cannot be applied.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// An element of a list that is merged by a key has none.
    #[error("{field}: an element of the patch has no {key:?}")]
    NoKey {
        /// The list.
        field: String,
        /// The merge key.
        key: &'static str,
    },
    /// A directive that does not exist.
    #[error("{field}: {directive} is not a valid directive of a strategic merge patch")]
    Directive {
        /// Where it is.
        field: String,
        /// The directive and its value.
        directive: String,
    },
    /// Objects inside of each other.
    #[error("the patch has more than {DEPTH_MAX} levels")]
    TooDeep,
}

/// Applies a strategic merge patch to a Pod.
pub fn strategic_merge(object: &mut Value, patch: &Value) -> Result<(), PatchError> {
    merge_value("", object, patch, 0)
}

/// Applies a JSON merge patch.
pub fn json_merge(object: &mut Value, patch: &Value) -> Result<(), PatchError> {
    json_merge_at(object, patch, 0)
}

fn json_merge_at(object: &mut Value, patch: &Value, depth: usize) -> Result<(), PatchError> {
    check_depth(depth)?;
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return Ok(());
    };
    let fields = as_map(object);
    for (name, value) in patch {
        match value {
            Value::Null => _ = fields.remove(name),
            value => json_merge_at(fields.entry(name.clone()).or_insert(Value::Null), value, depth + 1)?,
        }
    }
    Ok(())
}

/// `field` is the name of the field that holds the value.
fn merge_value(field: &str, object: &mut Value, patch: &Value, depth: usize) -> Result<(), PatchError> {
    check_depth(depth)?;
    match (patch, merge_key(field)) {
        (Value::Object(patch), _) => merge_map(field, object, patch, depth),
        (Value::Array(patch), Some(MergeBy::Key(key))) => merge_list(field, key, object, patch, depth),
        (Value::Array(patch), Some(MergeBy::Value)) => {
            let list = as_list(object);
            patch.iter().for_each(|value| {
                if !list.contains(value) {
                    list.push(value.clone());
                }
            });
            Ok(())
        }
        (patch, _) => {
            *object = patch.clone();
            Ok(())
        }
    }
}

fn merge_map(field: &str, object: &mut Value, patch: &Map<String, Value>, depth: usize) -> Result<(), PatchError> {
    match patch.get("$patch").map(|directive| directive.as_str().unwrap_or_default()) {
        None | Some("merge") => {}
        Some("replace") => {
            *object = Value::Object(plain_fields(patch).map(|(name, value)| (name.clone(), value.clone())).collect());
            return Ok(());
        }
        Some("delete") => {
            *object = Value::Object(Map::new());
            return Ok(());
        }
        Some(other) => return Err(invalid(field, &format!("$patch: {other}"))),
    }
    let fields = as_map(object);
    if let Some(Value::Array(retained)) = patch.get("$retainKeys") {
        fields.retain(|name, _| retained.iter().any(|key| key.as_str() == Some(name.as_str())));
    }
    for (name, value) in patch.iter().filter(|(name, _)| name.starts_with("$deleteFromPrimitiveList/")) {
        let name = name.trim_start_matches("$deleteFromPrimitiveList/");
        let gone = value.as_array().ok_or_else(|| invalid(name, "$deleteFromPrimitiveList"))?;
        if let Some(Value::Array(list)) = fields.get_mut(name) {
            list.retain(|value| !gone.contains(value));
        }
    }
    for (name, value) in plain_fields(patch) {
        match value {
            Value::Null => _ = fields.remove(name),
            value => merge_value(name, fields.entry(name.clone()).or_insert(Value::Null), value, depth + 1)?,
        }
    }
    for (name, order) in patch.iter().filter(|(name, _)| name.starts_with("$setElementOrder/")) {
        let name = name.trim_start_matches("$setElementOrder/");
        if let (Some(Value::Array(list)), Value::Array(order)) = (fields.get_mut(name), order) {
            set_order(list, order, merge_key(name));
        }
    }
    Ok(())
}

fn merge_list(
    field: &str,
    key: &'static str,
    object: &mut Value,
    patch: &[Value],
    depth: usize,
) -> Result<(), PatchError> {
    let list = as_list(object);
    let directive = |element: &Value| element.get("$patch").and_then(Value::as_str).map(str::to_owned);
    if patch.iter().any(|element| directive(element).as_deref() == Some("replace")) {
        *list = patch.iter().filter(|element| directive(element).is_none()).cloned().collect();
        return Ok(());
    }
    for element in patch {
        let id = element.get(key).ok_or_else(|| PatchError::NoKey { field: field.to_owned(), key })?;
        let at = list.iter().position(|known| known.get(key) == Some(id));
        match (directive(element).as_deref(), at) {
            (Some("delete"), Some(at)) => _ = list.remove(at),
            (Some("delete"), None) => {}
            (None | Some("merge"), Some(at)) => merge_value("", &mut list[at], element, depth + 1)?,
            (None | Some("merge"), None) => {
                let mut new = Value::Null;
                merge_value("", &mut new, element, depth + 1)?;
                list.push(new);
            }
            (Some(other), _) => return Err(invalid(field, &format!("$patch: {other}"))),
        }
    }
    Ok(())
}

/// Sorts the elements that the order names; the others follow in their old order.
fn set_order(list: &mut [Value], order: &[Value], by: Option<MergeBy>) {
    let position = |value: &Value| {
        let same = |wanted: &&Value| match by {
            Some(MergeBy::Key(key)) => wanted.get(key) == value.get(key),
            _ => *wanted == value,
        };
        order.iter().position(|wanted| same(&wanted)).unwrap_or(order.len())
    };
    list.sort_by_key(position);
}

/// The fields that are not directives.
fn plain_fields(patch: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    patch.iter().filter(|(name, _)| !name.starts_with('$'))
}

fn invalid(field: &str, directive: &str) -> PatchError {
    PatchError::Directive { field: field.to_owned(), directive: directive.to_owned() }
}

fn check_depth(depth: usize) -> Result<(), PatchError> {
    if depth > DEPTH_MAX { Err(PatchError::TooDeep) } else { Ok(()) }
}

fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("it is an object now")
}

fn as_list(value: &mut Value) -> &mut Vec<Value> {
    if !value.is_array() {
        *value = Value::Array(vec![]);
    }
    value.as_array_mut().expect("it is an array now")
}

/// How the elements of a list are matched.
#[derive(Clone, Copy, Debug)]
enum MergeBy {
    Key(&'static str),
    /// A list of texts that are added.
    Value,
}

/// Kubernetes: the tags `patchMergeKey` of the fields of a Pod, whose names are unique among them. Other lists are replaced.
fn merge_key(field: &str) -> Option<MergeBy> {
    Some(match field {
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets"
        | "resourceClaims"
        | "schedulingGates" => MergeBy::Key("name"),
        "volumeMounts" => MergeBy::Key("mountPath"),
        "volumeDevices" => MergeBy::Key("devicePath"),
        "ports" => MergeBy::Key("containerPort"),
        "hostAliases" => MergeBy::Key("ip"),
        "topologySpreadConstraints" => MergeBy::Key("topologyKey"),
        "ownerReferences" => MergeBy::Key("uid"),
        "conditions" => MergeBy::Key("type"),
        "finalizers" => MergeBy::Value,
        _ => return None,
    })
}

/// A pod has far fewer; the recursion must not exhaust the stack.
const DEPTH_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_are_merged_by_their_keys() {
        let pod = json!({"metadata": {"labels": {"a": "1", "b": "2"}, "finalizers": ["x"]},
            "spec": {"containers": [{"name": "c", "image": "i:1", "args": ["a"]}, {"name": "d"}],
                     "volumes": [{"name": "v", "emptyDir": {}}], "tolerations": [{"key": "t"}]}});
        for (patch, path, expected) in [
            (json!({"metadata": {"labels": {"a": null, "c": "3"}}}), "/metadata/labels", json!({"b": "2", "c": "3"})),
            (
                json!({"spec": {"containers": [{"name": "c", "image": "i:2"}]}}),
                "/spec/containers",
                json!([{"name": "c", "image": "i:2", "args": ["a"]}, {"name": "d"}]),
            ),
            (
                json!({"spec": {"containers": [{"name": "c", "$patch": "delete"}, {"name": "e"}]}}),
                "/spec/containers",
                json!([{"name": "d"}, {"name": "e"}]),
            ),
            (
                json!({"spec": {"containers": [{"$patch": "replace"}, {"name": "e"}]}}),
                "/spec/containers",
                json!([{"name": "e"}]),
            ),
            (
                json!({"spec": {"$setElementOrder/containers": [{"name": "e"}, {"name": "d"}, {"name": "c"}],
                                "containers": [{"name": "e"}]}}),
                "/spec/containers",
                json!([{"name": "e"}, {"name": "d"}, {"name": "c", "image": "i:1", "args": ["a"]}]),
            ),
            (
                json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]}}),
                "/spec/volumes",
                json!([{"name": "v", "hostPath": {"path": "/"}}]),
            ),
            (json!({"spec": {"tolerations": [{"key": "u"}]}}), "/spec/tolerations", json!([{"key": "u"}])),
            (json!({"metadata": {"finalizers": ["y", "x"]}}), "/metadata/finalizers", json!(["x", "y"])),
            (json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x"]}}), "/metadata/finalizers", json!([])),
            (json!({"metadata": {"labels": {"$patch": "replace", "z": "1"}}}), "/metadata/labels", json!({"z": "1"})),
        ] {
            let mut patched = pod.clone();
            strategic_merge(&mut patched, &patch).unwrap();
            assert_eq!(patched.pointer(path), Some(&expected), "{patch}");
        }
    }

    #[test]
    fn a_json_merge_patch_replaces_lists() {
        let mut pod = json!({"a": {"b": [1, 2], "c": 3}, "d": 4});
        json_merge(&mut pod, &json!({"a": {"b": [5], "c": null}, "d": {"e": null, "f": 6}})).unwrap();
        assert_eq!(pod, json!({"a": {"b": [5]}, "d": {"f": 6}}));
    }

    #[test]
    fn invalid_patches_are_refused() {
        let merge = |patch: Value| strategic_merge(&mut json!({"spec": {}}), &patch);
        assert!(matches!(merge(json!({"spec": {"containers": [{"image": "i"}]}})), Err(PatchError::NoKey { .. })));
        assert!(matches!(merge(json!({"spec": {"$patch": "explode"}})), Err(PatchError::Directive { .. })));
        let deep = (0..100).fold(json!(1), |inner, _| json!({"a": inner}));
        assert_eq!(merge(deep.clone()), Err(PatchError::TooDeep));
        assert_eq!(json_merge(&mut json!({}), &deep), Err(PatchError::TooDeep));
    }
}
