//! Patches of pods: strategic merge patches (Kubernetes: `strategicpatch.StrategicMergePatch`) and JSON merge patches (RFC 7386).
//!
//! A strategic merge patch merges some lists by a key, as containers by their name, where a JSON merge patch replaces them.

use std::collections::{BTreeMap, BTreeSet};

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
            let (list, by) = (as_list(object), MergeBy::Value);
            let before = by.ids(&*list);
            let mut known: BTreeSet<String> = before.keys().cloned().collect();
            list.extend(patch.iter().filter(|value| known.insert(value.to_string())).cloned());
            arrange(list, patch, &before, by);
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
    let orders = patch.iter().filter_map(|(name, order)| {
        let name = name.strip_prefix("$setElementOrder/")?;
        let by = merge_key(name)?;
        let before = fields.get(name).and_then(Value::as_array).map(|list| by.ids(list)).unwrap_or_default();
        Some((name, by, order.as_array()?, before))
    });
    let orders: Vec<_> = orders.collect();
    for (name, value) in plain_fields(patch) {
        match value {
            Value::Null => _ = fields.remove(name),
            value => merge_value(name, fields.entry(name.clone()).or_insert(Value::Null), value, depth + 1)?,
        }
    }
    for (name, by, order, before) in orders {
        if let Some(Value::Array(list)) = fields.get_mut(name) {
            arrange(list, order, &before, by);
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
    let id = |element: &Value| {
        let id = element.get(key).map(Value::to_string);
        id.ok_or_else(|| PatchError::NoKey { field: field.to_owned(), key })
    };
    let (special, plain): (Vec<&Value>, Vec<&Value>) =
        patch.iter().partition(|element| element.get("$patch").is_some());
    let mut deleted = BTreeSet::new();
    let mut is_replaced = false;
    for element in special {
        match element["$patch"].as_str().unwrap_or_default() {
            "replace" => is_replaced = true,
            "delete" => _ = deleted.insert(id(element)?),
            other => return Err(invalid(field, &format!("$patch: {other}"))),
        }
    }
    if is_replaced {
        *list = plain.into_iter().cloned().collect();
        return Ok(());
    }
    list.retain(|known| !known.get(key).is_some_and(|id| deleted.contains(&id.to_string())));
    let before = MergeBy::Key(key).ids(&*list);
    let mut known = before.clone();
    for element in &plain {
        let at = *known.entry(id(element)?).or_insert(list.len());
        if at == list.len() {
            list.push(Value::Null);
        }
        merge_value("", &mut list[at], element, depth + 1)?;
    }
    arrange(list, plain, &before, MergeBy::Key(key));
    Ok(())
}

/// Puts the elements that the order names into it. The others stay before those that followed them (Kubernetes:
/// `normalizeElementOrder`). `before` has the positions of the elements before the patch.
fn arrange<'v>(
    list: &mut Vec<Value>,
    order: impl IntoIterator<Item = &'v Value>,
    before: &BTreeMap<String, usize>,
    by: MergeBy,
) {
    let order = by.ids(order);
    let named = |value: &Value| by.id(value).and_then(|id| order.get(&id).copied());
    let (mut named_values, others): (Vec<Value>, Vec<Value>) =
        std::mem::take(list).into_iter().partition(|value| named(value).is_some());
    named_values.sort_by_cached_key(named);
    let position = |value: &Value| by.id(value).and_then(|id| before.get(&id).copied());
    let mut others = others.into_iter().peekable();
    for value in named_values {
        let at = position(&value);
        let precedes = |other: &Value| matches!((position(other), at), (Some(other), Some(at)) if other < at);
        while let Some(other) = others.next_if(precedes) {
            list.push(other);
        }
        list.push(value);
    }
    list.extend(others);
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

impl MergeBy {
    /// What is equal in two elements of a list that are the same one.
    fn id(self, element: &Value) -> Option<String> {
        match self {
            Self::Key(key) => element.get(key).map(Value::to_string),
            Self::Value => Some(element.to_string()),
        }
    }

    /// The positions of the elements; of several with the same id, that of the first.
    fn ids<'v>(self, list: impl IntoIterator<Item = &'v Value>) -> BTreeMap<String, usize> {
        let mut ids = BTreeMap::new();
        for (at, element) in list.into_iter().enumerate() {
            if let Some(id) = self.id(element) {
                ids.entry(id).or_insert(at);
            }
        }
        ids
    }
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
mod law_tests;
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
                json!([{"name": "e"}, {"name": "d"}]),
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
                json!({"spec": {"$setElementOrder/containers": [{"name": "e"}, {"name": "d"}], "containers": [{"name": "e"}]}}),
                "/spec/containers",
                json!([{"name": "e"}, {"name": "c", "image": "i:1", "args": ["a"]}, {"name": "d"}]),
            ),
            (
                json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]}}),
                "/spec/volumes",
                json!([{"name": "v", "hostPath": {"path": "/"}}]),
            ),
            (json!({"spec": {"tolerations": [{"key": "u"}]}}), "/spec/tolerations", json!([{"key": "u"}])),
            (json!({"metadata": {"finalizers": ["y", "x"]}}), "/metadata/finalizers", json!(["y", "x"])),
            (json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x"]}}), "/metadata/finalizers", json!([])),
            (json!({"metadata": {"labels": {"$patch": "replace", "z": "1"}}}), "/metadata/labels", json!({"z": "1"})),
        ] {
            let mut patched = pod.clone();
            strategic_merge(&mut patched, &patch).unwrap();
            assert_eq!(patched.pointer(path), Some(&expected), "{patch}");
        }
    }

    #[test]
    fn all_elements_with_the_key_of_a_deleted_one_are_deleted() {
        let mut container = json!({"ports": [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 80},
            {"containerPort": 53, "protocol": "TCP"}]});
        strategic_merge(&mut container, &json!({"ports": [{"containerPort": 53, "$patch": "delete"}]})).unwrap();
        assert_eq!(container, json!({"ports": [{"containerPort": 80}]}));
    }

    #[test]
    #[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "a bound of the time taken")]
    fn long_lists_take_linear_time() {
        let env =
            |value: &str| -> Value { (0..40_000).map(|n| json!({"name": format!("V{n}"), "value": value})).collect() };
        let (mut object, began) = (json!({"env": env("1")}), std::time::Instant::now());
        let order: Value = (0..40_000).rev().map(|n| json!({"name": format!("V{n}")})).collect();
        strategic_merge(&mut object, &json!({"env": env("2"), "$setElementOrder/env": order})).unwrap();
        assert_eq!(object["env"][0], json!({"name": "V39999", "value": "2"}));
        assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
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
