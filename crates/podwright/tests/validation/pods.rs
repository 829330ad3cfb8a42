//! The tested pods: a plain pod with one field changed at a time, and combinations of fields.
//!
//! A table line is a path and a JSON list of values, each of which makes one pod. `null` removes the field.

use serde_json::{Value, json};

use crate::tables;

/// A pod and the description of its change.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) pod: Value,
}

/// Short names of paths, their initial values, and the full paths.
const PLACES: &[(&str, &str, &str)] = &[
    ("meta", "metadata", "{}"),
    ("spec", "spec", "{}"),
    ("pod", "spec/securityContext", "{}"),
    ("c", "spec/containers/0", "{}"),
    ("second", "spec/containers/1", r#"{"name": "second", "image": "i:1"}"#),
    ("init", "spec/initContainers/0", r#"{"name": "init", "image": "i:1"}"#),
    ("side", "spec/initContainers/0", r#"{"name": "side", "image": "i:1", "restartPolicy": "Always"}"#),
    ("port", "spec/containers/0/ports/0", r#"{"containerPort": 80}"#),
    ("env", "spec/containers/0/env/0", r#"{"name": "E"}"#),
    ("from", "spec/containers/0/envFrom/0", "{}"),
    ("live", "spec/containers/0/livenessProbe", r#"{"tcpSocket": {"port": 80}}"#),
    ("ready", "spec/containers/0/readinessProbe", r#"{"exec": {"command": ["true"]}}"#),
    ("start", "spec/containers/0/startupProbe", r#"{"exec": {"command": ["true"]}}"#),
    ("http", "spec/containers/0/livenessProbe", r#"{"httpGet": {"port": 80}}"#),
    ("hooks", "spec/containers/0/lifecycle", "{}"),
    ("sec", "spec/containers/0/securityContext", "{}"),
    ("res", "spec/containers/0/resources", "{}"),
    ("whole", "spec/resources", "{}"),
    ("mount", "spec/containers/0/volumeMounts/0", r#"{"name": "v", "mountPath": "/m"}"#),
    ("volume", "spec/volumes/0", r#"{"name": "v"}"#),
    ("source", "spec/volumes/0/projected/sources/0", "{}"),
    ("down", "spec/volumes/0/downwardAPI/items/0", r#"{"path": "f"}"#),
    ("item", "spec/volumes/0/configMap/items/0", r#"{"key": "k", "path": "f"}"#),
    ("tol", "spec/tolerations/0", "{}"),
    ("alias", "spec/hostAliases/0", r#"{"ip": "10.0.0.1", "hostnames": ["h"]}"#),
    ("dns", "spec/dnsConfig", "{}"),
    (
        "spread",
        "spec/topologySpreadConstraints/0",
        r#"{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}"#,
    ),
    (
        "near",
        "spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0",
        r#"{"matchExpressions": [{"key": "k", "operator": "Exists"}]}"#,
    ),
    (
        "apart",
        "spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution/0",
        r#"{"topologyKey": "zone"}"#,
    ),
];

/// Every pod of the tables.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (place, values) in tables::ALL.iter().flat_map(|table| table.iter()) {
        let list: Vec<Value> = serde_json::from_str(values).unwrap_or_else(|e| panic!("{place}: {values}: {e}"));
        for value in list {
            let name = format!("{place} = {value}");
            cases.push(Case { pod: changed(place, value), name });
        }
    }
    cases
}

/// The plain pod with one change.
fn changed(place: &str, value: Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
    let (short, rest) = place.split_once('/').unwrap_or((place, ""));
    let found = PLACES.iter().find(|(name, _, _)| *name == short);
    let (_, pointer, before) = found.unwrap_or_else(|| panic!("no place is called {short}"));
    if short == "mount" {
        pod["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    }
    let at = at_pointer(&mut pod, pointer);
    merge(at, serde_json::from_str(before).expect("JSON"));
    if short == "volume" || short == "down" || short == "item" || short == "source" {
        let volume = &mut pod["spec"]["volumes"][0];
        volume["name"] = json!("v");
        if short == "item" {
            volume["configMap"]["name"] = json!("m");
        }
    }
    let at = at_pointer(&mut pod, pointer);
    match rest {
        "" => merge(at, value),
        rest => set(at, rest, value),
    }
    pod
}

fn set(at: &mut Value, path: &str, value: Value) {
    match path.rsplit_once('/') {
        Some((above, last)) => set(at_pointer(at, above), last, value),
        None if value.is_null() => {
            at.as_object_mut().map(|object| object.remove(path));
        }
        None => *step(at, path) = value,
    }
}

/// The value at a path of keys and indexes, created if absent.
fn at_pointer<'a>(from: &'a mut Value, path: &str) -> &'a mut Value {
    path.split('/').fold(from, step)
}

fn step<'a>(at: &'a mut Value, key: &str) -> &'a mut Value {
    match key.parse::<usize>() {
        Ok(n) => {
            if !at.is_array() {
                *at = json!([]);
            }
            let list = at.as_array_mut().expect("it is one now");
            while list.len() <= n {
                list.push(json!({}));
            }
            &mut list[n]
        }
        Err(_) => &mut at[key],
    }
}

/// Merges one object into another recursively; null removes.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                if value.is_null() {
                    into.remove(&key);
                } else {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (into, from) => *into = from,
    }
}
