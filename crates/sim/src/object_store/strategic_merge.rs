//! How an API server applies a strategic merge patch to a pod's status.

use podwright_core::model::PodStatus;
use serde_json::{Map, Value};

/// Lists that are merged, by the field that names their elements.
const KEYS: [(&str, &str); 4] =
    [("conditions", "type"), ("podIPs", "ip"), ("hostIPs", "ip"), ("resourceClaimStatuses", "name")];

/// The status after the patch.
pub(super) fn status(before: &PodStatus, patch: &Value) -> PodStatus {
    let Value::Object(patch) = patch else { panic!("a patch is an object") };
    let (mut touched, mut rest) = (before.clone(), PodStatus::default());
    // Lists that are not in the patch need not be serialized and parsed.
    let is_touched = |list: &str| patch.keys().any(|key| key.strip_prefix("$setElementOrder/").unwrap_or(key) == list);
    if !is_touched("conditions") {
        rest.conditions = touched.conditions.take();
    }
    if !is_touched("containerStatuses") {
        rest.container_statuses = touched.container_statuses.take();
    }
    if !is_touched("initContainerStatuses") {
        rest.init_container_statuses = touched.init_container_statuses.take();
    }
    let mut value = serde_json::to_value(touched).expect("a status is JSON");
    fields(value.as_object_mut().expect("a status is an object"), patch);
    let after: PodStatus = serde_json::from_value(value).expect("a patched status is a status");
    PodStatus {
        conditions: rest.conditions.or(after.conditions),
        container_statuses: rest.container_statuses.or(after.container_statuses),
        init_container_statuses: rest.init_container_statuses.or(after.init_container_statuses),
        ..after
    }
}

fn fields(object: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (name, new) in patch.iter().filter(|(name, _)| !name.starts_with('$')) {
        let key = KEYS.iter().find(|(list, _)| list == name).map(|(_, key)| *key);
        match (object.get_mut(name), new, key) {
            (_, Value::Null, _) => {
                object.remove(name);
            }
            (Some(Value::Object(old)), Value::Object(new), _) => fields(old, new),
            (Some(Value::Array(old)), Value::Array(new), Some(key)) => elements(old, new, key),
            _ => {
                object.insert(name.clone(), new.clone());
            }
        }
    }
    for (name, order) in patch.iter().filter_map(|(name, order)| Some((name.strip_prefix("$setElementOrder/")?, order)))
    {
        let key = KEYS.iter().find(|(list, _)| *list == name).map_or("name", |(_, key)| *key);
        if let (Some(Value::Array(list)), Value::Array(order)) = (object.get_mut(name), order) {
            let index = |e: &Value| order.iter().position(|o| o.get(key) == e.get(key)).unwrap_or(usize::MAX);
            list.sort_by_key(index);
        }
    }
}

fn elements(list: &mut Vec<Value>, patch: &[Value], key: &str) {
    for change in patch {
        let index = list.iter().position(|e| e.get(key) == change.get(key));
        let deletes = change.get("$patch").is_some_and(|p| p == "delete");
        match (index, change) {
            (Some(at), _) if deletes => {
                list.remove(at);
            }
            (None, _) if deletes => {}
            (Some(at), Value::Object(change)) => {
                if let Some(Value::Object(element)) = list.get_mut(at) {
                    fields(element, change);
                }
            }
            _ => list.push(change.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use podwright_core::status_sync::patch;
    use serde_json::json;

    use super::*;

    /// Core's patch turns one status into the other, and keeps fields that core does not know.
    #[test]
    fn a_patch_turns_its_base_into_the_wanted_status() {
        let read = |v: Value| serde_json::from_value::<PodStatus>(v).unwrap();
        let statuses = [
            json!({}),
            json!({"phase": "Running", "podIPs": [{"ip": "1"}, {"ip": "2"}], "podIP": "1"}),
            json!({"phase": "Failed", "reason": "x", "podIPs": [{"ip": "2"}, {"ip": "1"}], "podIP": "2"}),
            json!({"conditions": [{"type": "Ready", "status": "True"}, {"type": "A", "status": "False", "reason": "r"}]}),
            json!({"conditions": [{"type": "A", "status": "True"}], "allocatedResources": {"cpu": "1"}}),
            json!({"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 1}]}),
        ];
        for a in &statuses {
            for b in &statuses {
                let (base, wanted) = (read(a.clone()), read(b.clone()));
                let Some(patch) = patch(&"u".into(), &base, &wanted) else { continue };
                let mut got = status(&base, &patch["status"]);
                // A list without elements is empty instead of absent; that makes no difference.
                got.conditions = got.conditions.filter(|c| !c.is_empty());
                got.pod_ips = got.pod_ips.filter(|c| !c.is_empty());
                assert_eq!(got, wanted, "{a} to {b} by {patch}");
            }
        }
        let base = read(json!({"conditions": [{"type": "Ready", "status": "False"}]}));
        let live =
            read(json!({"conditions": [{"type": "Ready", "status": "False"}, {"type": "Theirs", "status": "True"}]}));
        let wanted = read(json!({"conditions": [{"type": "Ready", "status": "True"}]}));
        let patch = patch(&"u".into(), &base, &wanted).unwrap();
        let got = status(&live, &patch["status"]);
        assert_eq!(got.conditions.map(|c| c.len()), Some(2), "what others added meanwhile stays");
    }
}
