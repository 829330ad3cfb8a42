//! Every field and resource that a container can be given of its pod: as variables and as files, with the pod's network and with the
//! host's. The containers write them to their termination messages, with the digits of addresses replaced.

use serde_json::{Value, json};

use super::cases::{Compared, is_succeeded, pod};
use crate::suite::sh;

const VARIABLES: [(&str, &str); 11] = [
    ("NAME", "metadata.name"),
    ("NAMESPACE", "metadata.namespace"),
    ("UID", "metadata.uid"),
    ("LABEL", "metadata.labels['none']"),
    ("ANNOTATION", "metadata.annotations['none']"),
    ("NODE", "spec.nodeName"),
    ("ACCOUNT", "spec.serviceAccountName"),
    ("HOST_IP", "status.hostIP"),
    ("HOST_IPS", "status.hostIPs"),
    ("POD_IP", "status.podIP"),
    ("POD_IPS", "status.podIPs"),
];
const FILES: [&str; 7] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "metadata.labels",
    "metadata.annotations",
    "metadata.labels['none']",
    "metadata.annotations['none']",
];
/// Each with its divisor.
const RESOURCES: [(&str, &str); 10] = [
    ("limits.cpu", "0"),
    ("limits.cpu", "1m"),
    ("requests.cpu", "0"),
    ("requests.cpu", "1m"),
    ("limits.memory", "0"),
    ("limits.memory", "1Mi"),
    ("requests.memory", "1k"),
    ("limits.ephemeral-storage", "1Mi"),
    ("requests.ephemeral-storage", "0"),
    ("limits.hugepages-2Mi", "0"),
];

pub(crate) fn cases() -> Vec<Compared> {
    let names = [("downward-env", false, false), ("downward-env-host", false, true)];
    let files = [("downward-files", true, false), ("downward-files-host", true, true)];
    let case = |(name, files, host)| Compared { name, spec: spec(files, host), until: is_succeeded };
    names.into_iter().chain(files).map(case).collect()
}

fn spec(files: bool, host: bool) -> Value {
    // With and without resources of its own: the second gets the node's.
    let limited = json!({"limits": {"cpu": "250m", "memory": "64Mi", "ephemeral-storage": "1Gi"},
        "requests": {"cpu": "1500u", "memory": "32Mi", "ephemeral-storage": "1G"}});
    let containers = [("limited", limited), ("free", json!({}))].map(|(name, resources)| {
        let mut container = if files { reads_files(name) } else { reads_variables(name) };
        container["resources"] = resources;
        container
    });
    let mut pod = pod("Never", json!([]), json!(containers));
    if host {
        pod["hostNetwork"] = json!(true);
    }
    if files {
        let volume = |name: &str| json!({"name": name, "downwardAPI": {"items": items(name)}});
        pod["volumes"] = json!([volume("limited"), volume("free")]);
    }
    pod
}

fn reads_variables(name: &str) -> Value {
    let fields = VARIABLES
        .iter()
        .map(|(name, path)| json!({"name": format!("F_{name}"), "valueFrom": {"fieldRef": {"fieldPath": path}}}));
    let resources = RESOURCES.iter().enumerate().map(|(n, (resource, divisor))| {
        json!({"name": format!("R_{n}"), "valueFrom": {"resourceFieldRef": {"resource": resource, "divisor": divisor}}})
    });
    let addresses = r"sed -E '/_IPS?=/s/[0-9a-f]+([.:])/N\1/g; /_IPS?=/s/([.:])[0-9a-f]+/\1N/g'";
    let mut container = sh(name, &format!("env | grep '^[FR]_' | sort | {addresses} > /dev/termination-log"));
    container["env"] = fields.chain(resources).collect();
    container
}

/// The annotations of a static pod have the time at which it was seen.
fn reads_files(name: &str) -> Value {
    let script = "cd /d; for f in *; do echo \"$f: $(grep -v kubernetes.io/config $f)\"; done > /dev/termination-log";
    let mut container = sh(name, script);
    container["volumeMounts"] = json!([{"name": name, "mountPath": "/d"}]);
    container
}

fn items(container: &str) -> Vec<Value> {
    let fields = FILES.iter().enumerate();
    let fields = fields.map(|(n, path)| json!({"path": format!("f{n}"), "fieldRef": {"fieldPath": path}}));
    let resources = RESOURCES.iter().enumerate().map(|(n, (resource, divisor))| {
        let resource = json!({"containerName": container, "resource": resource, "divisor": divisor});
        json!({"path": format!("r{n}"), "resourceFieldRef": resource})
    });
    fields.chain(resources).collect()
}
