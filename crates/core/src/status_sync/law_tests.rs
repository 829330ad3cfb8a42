//! Laws of merging statuses and of patches, for any statuses.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::merge::merge;
use super::patch::patch;
use crate::model::{PodStatus, is_terminal};
use crate::status::is_our_condition;

/// Statuses with few different values, so that fields of two of them are often equal.
fn status() -> impl Strategy<Value = PodStatus> {
    let phase = prop::sample::select(vec!["Pending", "Running", "Succeeded", "Failed"]);
    let text = proptest::option::of("[a-c]{1,2}");
    let types = prop::sample::select(vec!["Ready", "PodScheduled", "DisruptionTarget", "example.com/gate", "other"]);
    let conditions = prop::collection::btree_map(types, (any::<bool>(), text.clone()), 0..5);
    let ips = prop::sample::subsequence(vec!["10.0.0.1", "10.0.0.2", "::1"], 0..=3).prop_shuffle();
    let containers = prop::collection::vec(("[ab]", 0..3i32), 0..3);
    let resources = prop::collection::btree_map("cpu|memory", "[12]", 0..3);
    (phase, text.clone(), text, conditions, ips, containers, resources).prop_map(
        |(phase, reason, node, conditions, ips, containers, resources)| {
            let condition = |(kind, (met, reason)): (&str, (bool, Option<String>))| {
                let met = if met { "True" } else { "False" };
                json!({"type": kind, "status": met, "reason": reason})
            };
            let container = |(name, restarts): (String, i32)| {
                json!({"name": name, "image": "", "imageID": "", "ready": true, "restartCount": restarts})
            };
            without_empty_lists(json!({
                "phase": phase,
                "reason": reason,
                "nominatedNodeName": node,
                "podIPs": ips.into_iter().map(|ip| json!({"ip": ip})).collect::<Vec<_>>(),
                "conditions": conditions.into_iter().map(condition).collect::<Vec<_>>(),
                "containerStatuses": containers.into_iter().map(container).collect::<Vec<_>>(),
                "allocatedResources": (!resources.is_empty()).then_some(resources),
            }))
        },
    )
}

/// For the API an empty list and no list are the same; so is an empty map.
fn without_empty_lists(mut status: Value) -> PodStatus {
    let empty = |value: &Value| {
        value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty) || value.is_null()
    };
    status.as_object_mut().unwrap().retain(|_, field| !empty(field));
    serde_json::from_value(status).unwrap()
}

/// Conditions in the order of their types: their order has no meaning.
fn sorted(mut status: PodStatus) -> PodStatus {
    if let Some(conditions) = &mut status.conditions {
        conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    }
    status
}

/// The status after an API server has applied a strategic merge patch.
fn apply(base: &PodStatus, patch: Option<&Value>) -> PodStatus {
    let mut status = serde_json::to_value(base).unwrap();
    if let Some(patch) = patch {
        apply_fields(status.as_object_mut().unwrap(), patch["status"].as_object().unwrap());
    }
    sorted(without_empty_lists(status))
}

fn apply_fields(object: &mut Map<String, Value>, changes: &Map<String, Value>) {
    for (name, change) in changes {
        match change {
            Value::Null => drop(object.remove(name)),
            Value::Array(_) if name == "conditions" || name == "podIPs" || name.starts_with('$') => {}
            Value::Object(inner) if object.get(name).is_some_and(Value::is_object) => {
                apply_fields(object.get_mut(name).unwrap().as_object_mut().unwrap(), inner);
            }
            change => drop(object.insert(name.clone(), change.clone())),
        }
    }
    for (list, key) in [("conditions", "type"), ("podIPs", "ip")] {
        let elements = changes.get(list).and_then(Value::as_array);
        // A list that the base does not have is sent without an order.
        let order = changes.get(&format!("$setElementOrder/{list}")).and_then(Value::as_array).or(elements);
        if let Some(order) = order {
            let old = object.get(list).and_then(Value::as_array).cloned().unwrap_or_default();
            object.insert(list.into(), apply_list(key, old, elements.map_or(&[], Vec::as_slice), order));
        }
    }
}

fn apply_list(key: &str, old: Vec<Value>, elements: &[Value], order: &[Value]) -> Value {
    let id = |element: &Value| element[key].as_str().unwrap().to_owned();
    let mut all: BTreeMap<String, Value> = old.into_iter().map(|element| (id(&element), element)).collect();
    for element in elements {
        if element["$patch"] == "delete" {
            all.remove(&id(element));
            continue;
        }
        let entry = all.entry(id(element)).or_insert_with(|| json!({}));
        apply_fields(entry.as_object_mut().unwrap(), element.as_object().unwrap());
    }
    let mut list: Vec<Value> = all.into_values().collect();
    list.sort_by_key(|element| order.iter().position(|name| id(name) == id(element)));
    Value::Array(list)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_patch_turns_its_base_into_the_wanted_status(base in status(), wanted in status()) {
        let patch = patch(&"u".into(), &base, &wanted);
        prop_assert_eq!(patch.is_none(), base == wanted);
        prop_assert_eq!(apply(&base, patch.as_ref()), wanted, "{:?}", patch);
    }

    #[test]
    fn a_patch_keeps_a_condition_that_was_added_meanwhile(base in status(), wanted in status()) {
        let mut live = base.clone();
        let added = json!({"type": "example.com/new", "status": "True"});
        live.conditions.get_or_insert_default().push(serde_json::from_value(added).unwrap());
        let patch = patch(&"u".into(), &base, &wanted);
        let mut patched = apply(&live, patch.as_ref());
        let conditions = patched.conditions.as_mut().unwrap();
        let count = conditions.len();
        conditions.retain(|condition| condition.type_ != "example.com/new");
        prop_assert_eq!(conditions.len() + 1, count);
        patched.conditions = patched.conditions.filter(|conditions| !conditions.is_empty());
        prop_assert_eq!(patched, wanted);
    }

    #[test]
    fn a_second_merge_changes_nothing(local in status(), base in status()) {
        let merged = sorted(merge(&local, &base));
        prop_assert_eq!(sorted(merge(&merged, &base)), merged.clone());
        prop_assert_eq!(sorted(merge(&local, &merged)), merged);
    }

    #[test]
    fn a_merge_keeps_a_terminal_phase_and_the_conditions_of_other_components(local in status(), base in status()) {
        let merged = merge(&local, &base);
        if is_terminal(base.phase.as_deref()) {
            prop_assert_eq!(&merged.phase, &base.phase);
        }
        let find = |status: &PodStatus, kind: &str| {
            status.conditions.iter().flatten().find(|condition| condition.type_ == kind).cloned()
        };
        for kind in ["Ready", "PodScheduled", "DisruptionTarget", "example.com/gate", "other"] {
            let (ours, theirs) = (find(&local, kind), find(&base, kind));
            let expected = match kind {
                "DisruptionTarget" => ours.or(theirs),
                kind if is_our_condition(kind) => ours,
                _ => theirs,
            };
            prop_assert_eq!(find(&merged, kind), expected, "{}", kind);
        }
    }
}
