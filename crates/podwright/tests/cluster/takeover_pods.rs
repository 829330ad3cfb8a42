//! The pods of a node that changes hands: every kind of container, probe and volume that both agents support.

use std::path::Path;

use podwright_testbed::image::BUSYBOX;
use serde_json::{Value, json};

use crate::suite::{one, sh, sleeper};

/// One pod, and what a handover must keep.
pub(crate) struct TakeoverPod {
    pub(crate) name: String,
    pub(crate) spec: Value,
    pub(crate) kind: Kind,
}

/// What a handover must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Everything; it is ready.
    Ready,
    /// Everything; it is not ready, and must not become so.
    NotReady,
    /// Its final status.
    Ended,
    /// It restarts by itself: its restart count never goes back.
    Looping,
}

/// One pod of each kind. `witness` is a directory that pods write to; `port` is free on the host.
pub(crate) fn of_every_kind(witness: &Path, port: u16) -> Vec<TakeoverPod> {
    let pod = |name: &str, kind: Kind, spec: Value| TakeoverPod { name: name.to_owned(), spec, kind };
    vec![
        pod("ready-always", Kind::Ready, one(&sleeper("c"))),
        pod("ready-never", Kind::Ready, with_policy(one(&sleeper("c")), "Never")),
        pod("ready-on-failure", Kind::Ready, with_policy(one(&sleeper("c")), "OnFailure")),
        pod(
            "ready-two",
            Kind::Ready,
            json!({"terminationGracePeriodSeconds": 1,
            "containers": [sleeper("a"), sleeper("b")]}),
        ),
        pod("ready-sidecar", Kind::Ready, sidecars(witness)),
        pod("ready-probes", Kind::Ready, probes(witness)),
        pod("ready-slow-probe", Kind::Ready, readiness(&json!(["true"]), 10)),
        pod("not-ready", Kind::NotReady, readiness(&json!(["false"]), 1)),
        pod("ready-hook", Kind::Ready, hooks(witness)),
        pod("ready-volumes", Kind::Ready, volumes(witness)),
        pod("ready-host-network", Kind::Ready, host_network()),
        pod("ready-host-port", Kind::Ready, host_port(port)),
        pod("ready-guaranteed", Kind::Ready, resources(&json!({"cpu": "20m", "memory": "32Mi"}))),
        pod("ready-burstable", Kind::Ready, resources(&json!({"memory": "64Mi"}))),
        pod("ready-fs-group", Kind::Ready, fs_group()),
        pod("looping", Kind::Looping, one(&sh("c", "exit 1"))),
        pod("ended-well", Kind::Ended, with_policy(one(&sh("c", "echo done; exit 0")), "Never")),
        pod("ended-badly", Kind::Ended, with_policy(one(&sh("c", "exit 3")), "Never")),
    ]
}

/// A plain pod that is ready.
pub(crate) fn plain(name: &str) -> TakeoverPod {
    TakeoverPod { name: name.to_owned(), spec: one(&sleeper("c")), kind: Kind::Ready }
}

/// A static pod with a readiness probe.
pub(crate) fn static_pod(name: &str, namespace: &str) -> Value {
    let metadata = json!({"name": name, "namespace": namespace, "labels": {"tier": "static"}});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": readiness(&json!(["true"]), 1)})
}

fn with_policy(mut spec: Value, policy: &str) -> Value {
    spec["restartPolicy"] = json!(policy);
    spec
}

fn readiness(command: &Value, period: u32) -> Value {
    let mut spec = one(&sleeper("c"));
    spec["containers"][0]["readinessProbe"] =
        json!({"exec": {"command": command}, "periodSeconds": period, "timeoutSeconds": 10});
    spec
}

fn append(file: &str) -> Value {
    json!({"command": ["sh", "-c", format!("echo x >> /w/{file}")]})
}

fn mount_witness(spec: &mut Value, witness: &Path) {
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            let mounts = &mut container["volumeMounts"];
            if mounts.is_null() {
                *mounts = json!([]);
            }
            mounts.as_array_mut().expect("a list").push(json!({"name": "w", "mountPath": "/w"}));
        }
    }
    let volumes = &mut spec["volumes"];
    if volumes.is_null() {
        *volumes = json!([]);
    }
    volumes.as_array_mut().expect("a list").push(json!({"name": "w", "hostPath": {"path": witness}}));
}

fn sidecars(witness: &Path) -> Value {
    let mut side = sleeper("side");
    side["restartPolicy"] = json!("Always");
    side["startupProbe"] = json!({"exec": append("side-startup"), "periodSeconds": 1, "timeoutSeconds": 10});
    side["readinessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 10});
    let mut spec = one(&sleeper("c"));
    spec["initContainers"] = json!([sh("setup", "echo x >> /w/inits"), side]);
    mount_witness(&mut spec, witness);
    spec
}

fn probes(witness: &Path) -> Value {
    let mut spec = one(&sleeper("c"));
    let c = &mut spec["containers"][0];
    c["startupProbe"] = json!({"exec": append("startup"), "periodSeconds": 1, "timeoutSeconds": 10});
    c["readinessProbe"] = json!({"exec": append("readiness"), "periodSeconds": 1, "timeoutSeconds": 10});
    c["livenessProbe"] = json!({"exec": append("liveness"), "periodSeconds": 1, "timeoutSeconds": 10});
    mount_witness(&mut spec, witness);
    spec
}

fn hooks(witness: &Path) -> Value {
    let mut spec = one(&sleeper("c"));
    spec["containers"][0]["lifecycle"] =
        json!({"postStart": {"exec": append("post-start")}, "preStop": {"exec": append("pre-stop")}});
    mount_witness(&mut spec, witness);
    spec
}

fn volumes(witness: &Path) -> Value {
    let mut c = sleeper("c");
    c["volumeMounts"] = json!([
        {"name": "disk", "mountPath": "/disk"}, {"name": "memory", "mountPath": "/memory"},
        {"name": "config", "mountPath": "/config"}, {"name": "secret", "mountPath": "/secret"},
        {"name": "all", "mountPath": "/all"}, {"name": "down", "mountPath": "/down"},
        {"name": "config", "mountPath": "/part", "subPath": "key"},
        {"name": "disk", "mountPath": "/sub", "subPath": "inside"},
    ]);
    let labels = json!({"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}});
    let mut spec = one(&c);
    spec["volumes"] = json!([
        {"name": "disk", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "config", "configMap": {"name": "m"}}, {"name": "secret", "secret": {"secretName": "s"}},
        {"name": "all", "projected": {"sources": [{"configMap": {"name": "m"}}, {"secret": {"name": "s"}},
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}]}},
        {"name": "down", "downwardAPI": {"items": [labels]}},
    ]);
    spec["automountServiceAccountToken"] = json!(true);
    mount_witness(&mut spec, witness);
    spec
}

fn host_network() -> Value {
    let mut spec = one(&sleeper("c"));
    spec["hostNetwork"] = json!(true);
    spec
}

fn host_port(port: u16) -> Value {
    let mut spec = one(&sleeper("c"));
    spec["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": port}]);
    spec
}

/// With a restart at each resize: an agent that forgets what a container was made with restarts it.
fn resources(limits: &Value) -> Value {
    let mut spec = one(&sleeper("c"));
    let c = &mut spec["containers"][0];
    c["resources"] = json!({"limits": limits});
    c["resizePolicy"] = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"},
                               {"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    spec
}

fn fs_group() -> Value {
    json!({"terminationGracePeriodSeconds": 1, "securityContext": {"fsGroup": 2000},
           "containers": [{"name": "c", "image": BUSYBOX, "command": ["sh", "-c", "while :; do sleep 0.2; done"],
                           "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
           "volumes": [{"name": "v", "emptyDir": {}}]})
}
