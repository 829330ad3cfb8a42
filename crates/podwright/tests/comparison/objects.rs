//! Labels, annotations, paths and cgroups that both kubelets set in the runtime: a kubelet that takes over a node finds its pods by them.

use std::path::Path;

use podwright_testbed::Scratch;
use serde_json::{Map, Value, json};

use super::fields::{self, Fields};
use crate::suite::cri;

/// Running pods whose runtime objects are compared; chosen for the number of their fields.
pub(crate) const COMPARED: [&str; 3] = ["init-ok", "http", "sidecar-probed"];

/// Labels, annotations, logs, mounts and cgroup of a pod's sandbox and of its running containers.
pub(crate) fn of(scratch: &Scratch, socket: &Path, pod: &Value) -> Fields {
    let uid = pod["metadata"]["uid"].as_str().expect("a UID");
    let described = cri::described(socket, uid);
    let placed = |path: &str| placed(scratch, path);
    let mut containers = Map::new();
    for status in described.containers.iter().filter(|status| status.finished_at == 0) {
        let mounts: Map<String, Value> = status
            .mounts
            .iter()
            .map(|mount| {
                (mount.container_path.clone(), json!({"from": placed(&mount.host_path), "readOnly": mount.readonly}))
            })
            .collect();
        let name = status.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default();
        let value = json!({"labels": status.labels, "annotations": read(&json!(status.annotations)), "mounts": mounts,
            "log": placed(&status.log_path), "attempt": status.metadata.as_ref().map(|m| m.attempt)});
        containers.insert(name, value);
    }
    let (status, config) = (&described.sandbox, &described.config);
    let metadata = status.metadata.as_ref().expect("metadata");
    let metadata = json!({"name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid, "attempt": metadata.attempt});
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let sandbox = json!({"labels": status.labels, "annotations": read(&json!(status.annotations)), "metadata": metadata,
        "hostname": text(&config["hostname"]), "logs": placed(&text(&config["log_directory"])),
        "cgroup": text(&config["linux"]["cgroup_parent"]).replace(&scratch.cgroup_root(), "")});
    fields::flat("runtime", &json!({"sandbox": sandbox, "containers": containers}), uid)
}

/// Parses annotations whose value is JSON, because the order of the fields does not matter.
fn read(annotations: &Value) -> Value {
    let all = annotations.as_object().into_iter().flatten();
    let read = all.map(|(key, value)| {
        let object = value.as_str().filter(|text| text.starts_with(['{', '[']));
        (key.clone(), object.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_else(|| value.clone()))
    });
    Value::Object(read.collect())
}

/// Removes what differs for each run: the directory of the test, the root directory, and the random last part of a file name.
fn placed(scratch: &Scratch, path: &str) -> String {
    let path = path.strip_prefix(&*scratch.path().to_string_lossy()).unwrap_or(path);
    let path = match path.split_once("/pods/") {
        Some((_, below)) if !path.contains("/logs/") => format!("pods/{below}"),
        _ => path.to_owned(),
    };
    match path.rsplit_once('/') {
        Some((dir, _)) if dir.contains("/containers/") => format!("{dir}/…"),
        _ => path,
    }
}
