//! A pod as a flat map from path to value; values that differ in every run are masked.

use std::collections::BTreeMap;

use serde_json::Value;

/// `status.containerStatuses[c].state.terminated.exitCode` and so on.
pub(crate) type Fields = BTreeMap<String, Value>;

/// Timestamps: only their presence is compared.
const TIMES: [&str; 6] =
    ["startTime", "lastTransitionTime", "lastProbeTime", "startedAt", "finishedAt", "io/config.seen"];
/// Values assigned by the runtime or the network.
const ASSIGNED: [&str; 4] = ["containerID", "podIP", "hostIP", "ip"];

/// The whole pod: metadata, spec with defaults, status. With `random_restarts`, without the number of restarts.
pub(crate) fn of(pod: &Value, random_restarts: bool) -> Fields {
    let mut fields = Fields::new();
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    for part in ["metadata", "spec", "status"] {
        fields.extend(flat(part, &pod[part], uid));
    }
    if random_restarts {
        for (path, value) in &mut fields {
            if path.ends_with(".restartCount") && *value != 0 {
                *value = "some".into();
            }
            let delay = value.as_str().and_then(|text| text.strip_prefix("back-off ")?.split_once(" restarting"));
            if let Some(rest) = delay.map(|(_, rest)| format!("back-off for a while restarting{rest}")) {
                *value = rest.into();
            }
        }
    }
    fields
}

/// Any value as a masked map.
pub(crate) fn flat(path: &str, value: &Value, uid: &str) -> Fields {
    let mut fields = Fields::new();
    walk(path, value, uid, &mut fields);
    fields
}

fn walk(path: &str, value: &Value, uid: &str, fields: &mut Fields) {
    match value {
        // API clients do not distinguish null from absent.
        Value::Null => {}
        Value::Object(map) => map.iter().for_each(|(key, value)| walk(&format!("{path}.{key}"), value, uid, fields)),
        Value::Array(list) => {
            let name = |item: &Value| ["type", "name"].iter().find_map(|key| item[*key].as_str()).map(str::to_owned);
            for (n, item) in list.iter().enumerate() {
                let of = name(item).unwrap_or_else(|| n.to_string());
                walk(&format!("{path}[{of}]"), item, uid, fields);
            }
            // The order is compared too: users see it, and some programs depend on it.
            let order: Vec<String> = list.iter().filter_map(name).collect();
            if !order.is_empty() {
                fields.insert(format!("{path}.order"), order.join(" ").into());
            }
        }
        Value::String(text) => {
            let is = |key: &&str| path.strip_suffix(*key).is_some_and(|rest| rest.ends_with('.'));
            let shown = match text.as_str() {
                _ if TIMES.iter().any(is) => "a time".to_owned(),
                text if path.starts_with("status.") && ASSIGNED.iter().any(is) => {
                    // The scheme of an id is part of the API.
                    text.split_once("://").map_or_else(|| "given".to_owned(), |(scheme, _)| format!("{scheme}://given"))
                }
                text => masked(text, uid),
            };
            fields.insert(path.to_owned(), shown.into());
        }
        other => {
            fields.insert(path.to_owned(), other.clone());
        }
    }
}

/// Replaces the pod's UID and the runtime's ids in a text.
pub(crate) fn masked(text: &str, uid: &str) -> String {
    let mut shown = if uid.is_empty() { text.to_owned() } else { text.replace(uid, "UID") };
    let id = |part: &str| part.len() == 64 && part.bytes().all(|b| b.is_ascii_hexdigit());
    let ids: Vec<String> =
        shown.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| id(part)).map(str::to_owned).collect();
    for id in ids {
        shown = shown.replace(&id, "ID");
    }
    shown
}

#[test]
fn values_that_differ_in_every_run_are_masked() {
    let pod = serde_json::json!({"metadata": {"uid": "u-1"}, "status": {"startTime": "2026-01-01T00:00:00Z", "message": "of u-1",
        "containerStatuses": [{"name": "c", "containerID": "containerd://abc", "lastState": {}, "ready": false}]}});
    let expected: Fields = [
        ("metadata.uid", Value::from("UID")),
        ("status.startTime", "a time".into()),
        ("status.message", "of UID".into()),
        ("status.containerStatuses[c].name", "c".into()),
        ("status.containerStatuses[c].containerID", "containerd://given".into()),
        ("status.containerStatuses[c].ready", false.into()),
        ("status.containerStatuses.order", "c".into()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect();
    assert_eq!(of(&pod, false), expected);
}
