//! Patches from the existing to the desired Node object, as strategic merge patches.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::quantity::Amount;

use super::{ATTACH_ANNOTATION, NodeFacts};

/// Labels that are updated at every start; others are set only at creation.
const OWN_LABELS: [&str; 5] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// Patch for an existing object: labels and the annotation, never taints.
pub fn registration_patch(had: &Node, facts: &NodeFacts) -> Option<Value> {
    let has = |map: &Option<BTreeMap<String, String>>, key: &str, value: &str| {
        map.as_ref().and_then(|map| map.get(key)).is_some_and(|had| had == value)
    };
    let wanted = OWN_LABELS.iter().filter_map(|key| Some((*key, facts.labels.get(*key)?)));
    let labels: Map<String, Value> = wanted
        .filter(|(key, value)| !has(&had.metadata.labels, key, value))
        .map(|(key, value)| (key.to_owned(), json!(value)))
        .collect();
    let mut metadata = Map::new();
    if !labels.is_empty() {
        metadata.insert("labels".into(), labels.into());
    }
    if !has(&had.metadata.annotations, ATTACH_ANNOTATION, "true") {
        metadata.insert("annotations".into(), json!({ATTACH_ANNOTATION: "true"}));
    }
    (!metadata.is_empty()).then(|| json!({"metadata": metadata}))
}

/// Patch from status `had` to `wanted`; `None`: they are equal and no `heartbeat` is due.
pub fn status_patch(had: &NodeStatus, wanted: &NodeStatus, heartbeat: bool) -> Option<Value> {
    let mut status = Map::new();
    let conditions = conditions(had, wanted, heartbeat);
    if !conditions.is_empty() {
        status.insert("conditions".into(), value(&conditions));
    }
    if had.addresses != wanted.addresses {
        // The merge key is the type, and two addresses may have the same: the list is replaced whole.
        let all = wanted.addresses.iter().flatten().map(value);
        status.insert("addresses".into(), [json!({"$patch": "replace"})].into_iter().chain(all).collect());
    }
    for (name, had, wanted) in
        [("capacity", &had.capacity, &wanted.capacity), ("allocatable", &had.allocatable, &wanted.allocatable)]
    {
        let had = |key: &str| had.as_ref().and_then(|map| map.get(key));
        let differs = wanted.iter().flatten().filter(|(key, amount)| !had(key).is_some_and(|had| is_same(had, amount)));
        let differs: Map<String, Value> = differs.map(|(key, amount)| (key.clone(), json!(amount.0))).collect();
        if !differs.is_empty() {
            status.insert(name.into(), differs.into());
        }
    }
    if kubelet_port(had) != kubelet_port(wanted) {
        let port = kubelet_port(wanted);
        status.insert("daemonEndpoints".into(), json!({"kubeletEndpoint": {"Port": port}}));
    }
    if had.node_info != wanted.node_info {
        status.insert("nodeInfo".into(), merged(value(&had.node_info), value(&wanted.node_info)));
    }
    if had.features != wanted.features {
        status.insert("features".into(), merged(value(&had.features), value(&wanted.features)));
    }
    // The server does not store an empty list.
    let same = |had: &[Value], wanted: &[Value]| had == wanted;
    let list = |items: Value| items.as_array().cloned().unwrap_or_default();
    for (name, had, wanted) in [
        ("images", value(&had.images), value(&wanted.images)),
        ("runtimeHandlers", value(&had.runtime_handlers), value(&wanted.runtime_handlers)),
    ] {
        if !same(&list(had), &list(wanted.clone())) {
            status.insert(name.into(), wanted);
        }
    }
    (!status.is_empty()).then(|| json!({"status": status}))
}

/// The server stores zero for none.
fn kubelet_port(status: &NodeStatus) -> i32 {
    let endpoints = status.daemon_endpoints.as_ref();
    endpoints.and_then(|all| all.kubelet_endpoint.as_ref()).map_or(0, |endpoint| endpoint.port)
}

/// Servers normalise quantities: 1048576Ki is returned as 1Gi.
fn is_same(a: &Quantity, b: &Quantity) -> bool {
    a == b || matches!((Amount::try_from(a), Amount::try_from(b)), (Ok(a), Ok(b)) if a == b)
}

/// Merge patch between two objects: removed fields are null.
fn merged(had: Value, mut wanted: Value) -> Value {
    if let (Some(had), Some(wanted)) = (had.as_object(), wanted.as_object_mut()) {
        for gone in had.keys() {
            wanted.entry(gone.clone()).or_insert(Value::Null);
        }
    }
    wanted
}

/// The changed conditions; all of ours for a heartbeat.
fn conditions<'a>(had: &NodeStatus, wanted: &'a NodeStatus, heartbeat: bool) -> Vec<&'a NodeCondition> {
    let said = |c: &NodeCondition| (c.status.clone(), c.reason.clone(), c.message.clone());
    let had = |kind: &str| had.conditions.iter().flatten().find(|c| c.type_ == kind).map(said);
    let wanted: Vec<&NodeCondition> = wanted.conditions.iter().flatten().collect();
    let changed = wanted.iter().any(|c| had(&c.type_) != Some(said(c)));
    if changed || heartbeat { wanted } else { vec![] }
}

fn value(of: &impl Serialize) -> Value {
    // Plain data always serialises.
    serde_json::to_value(of).unwrap_or_default()
}
