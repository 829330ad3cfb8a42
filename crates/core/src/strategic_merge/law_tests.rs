//! Laws of patches, for any two pods: the patch that leads from one to the other, written as `kubectl` writes it.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

/// Pods with few different values, so that two of them often have the same parts.
fn pod() -> impl Strategy<Value = Value> {
    let labels = prop::collection::btree_map("[a-c]", "[12]", 0..3);
    let finalizers = prop::sample::subsequence(vec!["x", "y", "z"], 0..=3).prop_shuffle();
    let tolerations = prop::collection::vec("[kl]".prop_map(|key| json!({"key": key})), 0..3);
    let containers = (names(), prop::collection::vec(container(), 3));
    let volumes = (names(), prop::collection::vec(volume(), 3));
    let node = proptest::option::of("[mn]");
    (labels, finalizers, tolerations, containers, volumes, node).prop_map(
        |(labels, finalizers, tolerations, containers, volumes, node)| {
            let mut pod = json!({
                "metadata": {"labels": labels, "finalizers": finalizers},
                "spec": {"containers": named(containers), "volumes": named(volumes), "tolerations": tolerations},
            });
            if let Some(node) = node {
                pod["spec"]["nodeName"] = node.into();
            }
            without_empty(&mut pod);
            pod
        },
    )
}

fn names() -> impl Strategy<Value = Vec<&'static str>> {
    prop::sample::subsequence(vec!["c", "d", "e"], 0..=3).prop_shuffle()
}

/// The elements under these names, in this order.
fn named((names, elements): (Vec<&str>, Vec<Value>)) -> Value {
    let one = |(name, mut element): (&str, Value)| {
        element["name"] = name.into();
        element
    };
    names.into_iter().zip(elements).map(one).collect()
}

fn container() -> impl Strategy<Value = Value> {
    let env = (names(), prop::collection::vec("[12]".prop_map(|value| json!({"value": value})), 3));
    let ports = prop::sample::subsequence(vec![80, 81, 443], 0..=3).prop_shuffle();
    let args = prop::collection::vec("[ab]", 0..3);
    (proptest::option::of("[ij]:1"), env, ports, args).prop_map(|(image, env, ports, args)| {
        let ports: Value = ports.into_iter().map(|port| json!({"containerPort": port})).collect();
        json!({"image": image, "env": named(env), "ports": ports, "args": args})
    })
}

fn volume() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"emptyDir": {"medium": "Memory"}})),
        "/[ab]".prop_map(|path| json!({"hostPath": {"path": path}})),
    ]
}

/// An API server does not store these.
fn without_empty(value: &mut Value) {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(without_empty);
            fields.retain(|_, field| !is_empty(field));
        }
        Value::Array(list) => list.iter_mut().for_each(without_empty),
        _ => {}
    }
}

/// Kubernetes: `CreateTwoWayMergePatch`.
fn strategic_diff(from: &Map<String, Value>, to: &Map<String, Value>) -> Map<String, Value> {
    let mut patch: Map<String, Value> =
        from.keys().filter(|name| !to.contains_key(*name)).map(|name| (name.clone(), Value::Null)).collect();
    for (name, new) in to {
        match (from.get(name), new, merge_key(name)) {
            (Some(old), new, _) if old == new => {}
            (Some(Value::Object(old)), Value::Object(new), _) => {
                patch.insert(name.clone(), strategic_diff(old, new).into());
            }
            (Some(Value::Array(old)), Value::Array(new), Some(MergeBy::Key(key))) => {
                patch.insert(name.clone(), elements_diff(key, old, new).into());
                let order: Value = new.iter().map(|element| json!({key: element[key]})).collect();
                patch.insert(format!("$setElementOrder/{name}"), order);
            }
            (Some(Value::Array(old)), Value::Array(new), Some(MergeBy::Value)) => {
                let missing = |of: &[Value], from: &[Value]| -> Value {
                    of.iter().filter(|value| !from.contains(value)).cloned().collect()
                };
                patch.insert(format!("$deleteFromPrimitiveList/{name}"), missing(old, new));
                patch.insert(name.clone(), missing(new, old));
                patch.insert(format!("$setElementOrder/{name}"), new.clone().into());
            }
            (_, new, _) => drop(patch.insert(name.clone(), new.clone())),
        }
    }
    patch
}

fn elements_diff(key: &str, old: &[Value], new: &[Value]) -> Vec<Value> {
    let find = |list: &'_ [Value], element: &Value| list.iter().position(|other| other[key] == element[key]);
    let gone = old.iter().filter(|element| find(new, element).is_none());
    let gone = gone.map(|element| json!({key: element[key], "$patch": "delete"}));
    let changed = new.iter().filter_map(|element| match find(old, element).map(|at| &old[at]) {
        Some(known) if known == element => None,
        Some(known) => {
            let mut patch = strategic_diff(known.as_object().unwrap(), element.as_object().unwrap());
            patch.insert(key.into(), element[key].clone());
            Some(patch.into())
        }
        None => Some(element.clone()),
    });
    gone.chain(changed).collect()
}

/// RFC 7386.
fn json_diff(from: &Value, to: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (from, to) else { return to.clone() };
    let gone = old.keys().filter(|name| !new.contains_key(*name)).map(|name| (name.clone(), Value::Null));
    let changed = new.iter().filter(|(name, value)| old.get(*name) != Some(*value));
    let changed = changed.map(|(name, value)| (name.clone(), json_diff(old.get(name).unwrap_or(&Value::Null), value)));
    gone.chain(changed).collect::<Map<_, _>>().into()
}

fn merged(object: &Value, patch: &Value) -> Value {
    let mut object = object.clone();
    strategic_merge(&mut object, patch).unwrap();
    object
}

fn json_merged(object: &Value, patch: &Value) -> Value {
    let mut object = object.clone();
    json_merge(&mut object, patch).unwrap();
    object
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_patch_from_one_pod_to_another_gives_the_other(from in pod(), to in pod()) {
        let patch = Value::from(strategic_diff(from.as_object().unwrap(), to.as_object().unwrap()));
        let mut patched = merged(&from, &patch);
        prop_assert_eq!(&merged(&patched, &patch), &patched, "applied twice: {}", patch);
        without_empty(&mut patched);
        prop_assert_eq!(&patched, &to, "{}", patch);
        let patch = json_diff(&from, &to);
        prop_assert_eq!(json_merged(&from, &patch), to, "{}", patch);
    }

    #[test]
    fn a_pod_as_a_patch_adds_its_parts_once(from in pod(), patch in pod()) {
        let once = merged(&from, &patch);
        prop_assert_eq!(&merged(&once, &patch), &once);
        // All parts of the patch are there now: nothing is left to change but the order of lists.
        let named = |pod: &Value| -> Vec<Value> {
            pod["spec"]["containers"].as_array().into_iter().flatten().map(|c| c["name"].clone()).collect()
        };
        let (all, wanted) = (named(&once), named(&patch));
        prop_assert!(wanted.iter().chain(&named(&from)).all(|name| all.iter().filter(|n| *n == name).count() == 1));
        prop_assert_eq!(json_merged(&json_merged(&from, &patch), &patch), json_merged(&from, &patch));
    }

    #[test]
    fn an_empty_patch_changes_nothing(pod in pod()) {
        let fields = pod.as_object().unwrap();
        prop_assert_eq!(strategic_diff(fields, fields), Map::new());
        prop_assert_eq!(&merged(&pod, &json!({})), &pod);
        prop_assert_eq!(&json_merged(&pod, &json!({})), &pod);
    }
}
