//! The body of a status patch: only what differs, in Kubernetes' strategic merge form, with the UID of the object.
//!
//! Lists of container statuses are atomic and are sent whole; conditions and addresses are merged by their keys, so that
//! elements which another component has added meanwhile stay.

use serde_json::{Map, Value, json};

use crate::model::{PodStatus, PodUid};

/// Lists of a pod's status that the API server merges, with their merge keys.
const MERGED: [(&str, &str); 4] =
    [("conditions", "type"), ("hostIPs", "ip"), ("podIPs", "ip"), ("resourceClaimStatuses", "name")];

/// The patch from `base` to `status`; `None` if they are equal. The API server rejects it for an object of another UID.
pub fn patch(uid: &PodUid, base: &PodStatus, status: &PodStatus) -> Option<Value> {
    if base == status {
        return None;
    }
    let (base, status) = without_equal_fields(base, status);
    let (base, status) = (object(&base), object(&status));
    let changed = changes(&base, &status, true);
    (!changed.is_empty()).then(|| json!({"metadata": {"uid": uid.as_str()}, "status": changed}))
}

/// Both without the large fields that are equal, because writing JSON costs far more than comparing.
fn without_equal_fields(base: &PodStatus, status: &PodStatus) -> (PodStatus, PodStatus) {
    fn drop_same<T: PartialEq>(a: &mut Option<T>, b: &mut Option<T>) {
        if a == b {
            (*a, *b) = (None, None);
        }
    }
    let (mut a, mut b) = (base.clone(), status.clone());
    drop_same(&mut a.conditions, &mut b.conditions);
    drop_same(&mut a.init_container_statuses, &mut b.init_container_statuses);
    drop_same(&mut a.container_statuses, &mut b.container_statuses);
    drop_same(&mut a.ephemeral_container_statuses, &mut b.ephemeral_container_statuses);
    drop_same(&mut a.resources, &mut b.resources);
    drop_same(&mut a.allocated_resources, &mut b.allocated_resources);
    (a, b)
}

fn object(status: &PodStatus) -> Map<String, Value> {
    match serde_json::to_value(status) {
        Ok(Value::Object(object)) => object,
        // Not reached: a status always serialises to a JSON object.
        _ => Map::new(),
    }
}

/// The fields that differ; removed fields are null. Only the status itself (`top`) has lists with merge keys.
fn changes(base: &Map<String, Value>, status: &Map<String, Value>, top: bool) -> Map<String, Value> {
    let mut out = Map::new();
    for (name, new) in status {
        let key = MERGED.iter().find(|(list, _)| top && list == name).map(|(_, key)| *key);
        match (base.get(name), new, key) {
            (Some(old), new, None) if old == new => {}
            (Some(Value::Object(old)), Value::Object(new), _) => {
                out.insert(name.clone(), Value::Object(changes(old, new, false)));
            }
            (Some(Value::Array(old)), Value::Array(new), Some(key)) => merged(name, key, old, new, &mut out),
            _ => {
                out.insert(name.clone(), new.clone());
            }
        }
    }
    for (name, old) in base.iter().filter(|(name, _)| !status.contains_key(*name)) {
        match (old, MERGED.iter().find(|(list, _)| top && list == name)) {
            (Value::Array(old), Some((_, key))) => merged(name, key, old, &[], &mut out),
            _ => {
                out.insert(name.clone(), Value::Null);
            }
        }
    }
    out
}

/// Changed elements, `$patch: delete` for removed ones, and the order of the result.
fn merged(list: &str, key: &str, old: &[Value], new: &[Value], out: &mut Map<String, Value>) {
    let find = |all: &[Value], element: &Value| all.iter().find(|e| e.get(key) == element.get(key)).cloned();
    let mut elements: Vec<Value> = new.iter().filter_map(|new| element(key, find(old, new), new)).collect();
    let gone = old.iter().filter(|old| find(new, old).is_none());
    elements.extend(gone.map(|old| json!({"$patch": "delete", key: old.get(key)})));
    let keys = |all: &[Value]| all.iter().map(|e| e.get(key).cloned()).collect::<Vec<_>>();
    // The first address is the primary one; the order of conditions has no meaning.
    let reordered = list != "conditions" && keys(old) != keys(new);
    if elements.is_empty() && !reordered {
        return;
    }
    let order: Vec<Value> = new.iter().map(|e| json!({key: e.get(key)})).collect();
    out.insert(format!("$setElementOrder/{list}"), Value::Array(order));
    if !elements.is_empty() {
        out.insert(list.to_owned(), Value::Array(elements));
    }
}

fn element(key: &str, old: Option<Value>, new: &Value) -> Option<Value> {
    match (old, new) {
        (Some(old), new) if old == *new => None,
        (Some(Value::Object(old)), Value::Object(fields)) => {
            let mut changed = changes(&old, fields, false);
            changed.insert(key.to_owned(), fields.get(key).cloned().unwrap_or_default());
            Some(Value::Object(changed))
        }
        _ => Some(new.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(base: Value, status: Value) -> Option<Value> {
        let read = |v: Value| serde_json::from_value::<PodStatus>(v).unwrap();
        let whole = patch(&PodUid::from("u"), &read(base), &read(status))?;
        assert_eq!(whole["metadata"], json!({"uid": "u"}), "a patch names its object");
        Some(whole["status"].clone())
    }

    #[test]
    fn only_differences_are_sent() {
        let cases = [
            ("nothing", json!({"phase": "Running"}), json!({"phase": "Running"}), None),
            (
                "a changed field",
                json!({"phase": "Pending"}),
                json!({"phase": "Running"}),
                Some(json!({"phase": "Running"})),
            ),
            (
                "a removed field",
                json!({"phase": "Pending", "reason": "X"}),
                json!({"phase": "Pending"}),
                Some(json!({"reason": null})),
            ),
            (
                "a map loses a key",
                json!({"allocatedResources": {"cpu": "1", "memory": "2"}}),
                json!({"allocatedResources": {"cpu": "1"}}),
                Some(json!({"allocatedResources": {"memory": null}})),
            ),
            (
                "container statuses are sent whole",
                json!({"containerStatuses": [
                    {"name": "a", "image": "i", "imageID": "", "ready": true, "restartCount": 0},
                    {"name": "b", "image": "i", "imageID": "", "ready": true, "restartCount": 0}]}),
                json!({"containerStatuses": [
                    {"name": "a", "image": "i", "imageID": "", "ready": false, "restartCount": 0},
                    {"name": "b", "image": "i", "imageID": "", "ready": true, "restartCount": 0}]}),
                Some(json!({"containerStatuses": [
                    {"name": "a", "image": "i", "imageID": "", "ready": false, "restartCount": 0},
                    {"name": "b", "image": "i", "imageID": "", "ready": true, "restartCount": 0}]})),
            ),
            (
                "container statuses are removed",
                json!({"containerStatuses": []}),
                json!({}),
                Some(json!({"containerStatuses": null})),
            ),
        ];
        for (what, base, status, wanted) in cases {
            assert_eq!(of(base, status), wanted, "{what}");
        }
    }

    #[test]
    fn conditions_are_merged_by_type() {
        let base = json!({"conditions": [
            {"type": "Ready", "status": "False", "reason": "ContainersNotReady"},
            {"type": "Gate", "status": "True"},
            {"type": "PodResizePending", "status": "True"}]});
        let status = json!({"conditions": [
            {"type": "Gate", "status": "True"},
            {"type": "Ready", "status": "True"},
            {"type": "Initialized", "status": "True"}]});
        let wanted = json!({
            "$setElementOrder/conditions": [{"type": "Gate"}, {"type": "Ready"}, {"type": "Initialized"}],
            "conditions": [
                {"type": "Ready", "status": "True", "reason": null},
                {"type": "Initialized", "status": "True"},
                {"$patch": "delete", "type": "PodResizePending"}]});
        assert_eq!(of(base, status), Some(wanted));
    }

    #[test]
    fn the_order_of_addresses_matters_and_that_of_conditions_does_not() {
        let conditions =
            |a: &str, b: &str| json!({"conditions": [{"type": a, "status": "True"}, {"type": b, "status": "True"}]});
        assert_eq!(of(conditions("A", "B"), conditions("B", "A")), None);
        let ips = |a: &str, b: &str| json!({"podIPs": [{"ip": a}, {"ip": b}]});
        let wanted = json!({"$setElementOrder/podIPs": [{"ip": "2"}, {"ip": "1"}]});
        assert_eq!(of(ips("1", "2"), ips("2", "1")), Some(wanted));
    }

    #[test]
    fn addresses_are_merged_by_ip() {
        let wanted = json!({
            "$setElementOrder/podIPs": [{"ip": "2"}],
            "podIPs": [{"ip": "2"}, {"$patch": "delete", "ip": "1"}]});
        assert_eq!(of(json!({"podIPs": [{"ip": "1"}]}), json!({"podIPs": [{"ip": "2"}]})), Some(wanted));
        let gone = json!({"$setElementOrder/podIPs": [], "podIPs": [{"$patch": "delete", "ip": "1"}]});
        assert_eq!(of(json!({"podIPs": [{"ip": "1"}]}), json!({})), Some(gone));
    }
}
