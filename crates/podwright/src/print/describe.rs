//! The details of a pod, in the layout of `kubectl describe`.

use std::collections::BTreeMap;
use std::fmt::Write;

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use jiff::tz::TimeZone;
use k8s_openapi::api::core::v1::{Event, Pod, PodSpec, PodStatus, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Paint, describe_container, events, plain};

/// The whole output. `of_pod` are the events of this pod.
pub(crate) fn pod(pod: &Pod, of_pod: &[Event], now: Timestamp, paint: Paint) -> String {
    let (no_spec, no_status) = (PodSpec::default(), PodStatus::default());
    let spec = pod.spec.as_ref().unwrap_or(&no_spec);
    let status = pod.status.as_ref().unwrap_or(&no_status);
    let mut out = String::new();
    head(pod, spec, status, &mut out);
    let containers = [
        ("Init Containers", spec.init_containers.as_deref().unwrap_or_default(), &status.init_container_statuses),
        ("Containers", spec.containers.as_slice(), &status.container_statuses),
    ];
    for (title, list, statuses) in containers.into_iter().filter(|(_, list, _)| !list.is_empty()) {
        let _ = writeln!(out, "{title}:");
        for container in list {
            let status = statuses.iter().flatten().find(|s| s.name == container.name);
            describe_container::container(container, status, &mut out);
        }
    }
    conditions(status, &mut out);
    volumes(spec, &mut out);
    field(&mut out, "QoS Class", status.qos_class.as_deref().unwrap_or("<none>"));
    pairs(&mut out, "Node-Selectors", spec.node_selector.as_ref(), "=");
    tolerations(spec, &mut out);
    out.push_str(&events::of_pod(of_pod, now, paint));
    out
}

fn head(pod: &Pod, spec: &PodSpec, status: &PodStatus, out: &mut String) {
    let meta = &pod.metadata;
    let or_none = |text: Option<&str>| plain(text.filter(|t| !t.is_empty()).unwrap_or("<none>"));
    field(out, "Name", &or_none(meta.name.as_deref()));
    field(out, "Namespace", &or_none(meta.namespace.as_deref()));
    field(out, "UID", &or_none(meta.uid.as_deref()));
    let node =
        [spec.node_name.as_deref(), status.host_ip.as_deref()].into_iter().flatten().collect::<Vec<_>>().join("/");
    field(out, "Node", &or_none(Some(&node)));
    if let Some(at) = &status.start_time {
        field(out, "Start Time", &timestamp(at));
    }
    pairs(out, "Labels", meta.labels.as_ref(), "=");
    pairs(out, "Annotations", meta.annotations.as_ref(), ": ");
    let phase = or_none(status.phase.as_deref());
    match (&meta.deletion_timestamp, meta.deletion_grace_period_seconds) {
        (Some(at), grace) => {
            field(out, "Status", &format!("Terminating (until {})", timestamp(at)));
            field(out, "Termination Grace Period", &format!("{}s", grace.unwrap_or_default()));
        }
        (None, _) => field(out, "Status", &phase),
    }
    for (name, value) in [("Reason", &status.reason), ("Message", &status.message)] {
        if let Some(value) = value {
            field(out, name, &plain(value));
        }
    }
    field(out, "IP", status.pod_ip.as_deref().unwrap_or_default());
    for ip in status.pod_ips.iter().flatten().skip(1) {
        field(out, "", &ip.ip);
    }
}

fn conditions(status: &PodStatus, out: &mut String) {
    let Some(conditions) = status.conditions.as_ref().filter(|c| !c.is_empty()) else { return };
    out.push_str("Conditions:\n");
    let _ = writeln!(out, "  {:<30}Status", "Type");
    for condition in conditions {
        let why = [condition.reason.as_deref(), condition.message.as_deref()];
        let why: Vec<String> = why.into_iter().flatten().filter(|t| !t.is_empty()).map(plain).collect();
        let why = if why.is_empty() { String::new() } else { format!("  ({})", why.join(": ")) };
        let _ = writeln!(out, "  {:<30}{}{why}", condition.type_, condition.status);
    }
}

fn volumes(spec: &PodSpec, out: &mut String) {
    let Some(volumes) = spec.volumes.as_ref().filter(|v| !v.is_empty()) else {
        out.push_str("Volumes:            <none>\n");
        return;
    };
    out.push_str("Volumes:\n");
    for volume in volumes {
        let _ = writeln!(out, "  {}:\n    {}", volume.name, kind(volume));
    }
}

fn kind(volume: &Volume) -> String {
    let unset = |text: Option<&str>| text.filter(|t| !t.is_empty()).unwrap_or("<unset>").to_owned();
    if let Some(dir) = &volume.empty_dir {
        let limit = unset(dir.size_limit.as_ref().map(|q| q.0.as_str()));
        return format!("EmptyDir, medium {}, size limit {limit}", unset(dir.medium.as_deref()));
    }
    if let Some(path) = &volume.host_path {
        return format!("HostPath {}, type {}", plain(&path.path), unset(path.type_.as_deref()));
    }
    // Other volume types are named by the field that is set.
    let value = serde_json::to_value(volume).unwrap_or_default();
    let fields = value.as_object().into_iter().flatten();
    fields.map(|(key, _)| key.clone()).find(|key| key != "name").unwrap_or_else(|| "<unknown>".into())
}

fn tolerations(spec: &PodSpec, out: &mut String) {
    let texts = spec.tolerations.iter().flatten().map(|t| {
        let key = t.key.as_deref().unwrap_or_default();
        let value = t.value.as_deref().map(|v| format!("={v}")).unwrap_or_default();
        let effect = t.effect.as_deref().map(|e| format!(":{e}")).unwrap_or_default();
        let operator = t.operator.as_deref().filter(|o| *o == "Exists").map(|_| " op=Exists").unwrap_or_default();
        let seconds = t.toleration_seconds.map(|s| format!(" for {s}s")).unwrap_or_default();
        plain(&format!("{key}{value}{effect}{operator}{seconds}"))
    });
    several(out, "Tolerations", texts.collect());
}

fn field(out: &mut String, name: &str, value: &str) {
    let name = if name.is_empty() { String::new() } else { format!("{name}:") };
    let _ = writeln!(out, "{}", format!("{name:<19} {value}").trim_end());
}

fn several(out: &mut String, name: &str, values: Vec<String>) {
    if values.is_empty() {
        field(out, name, "<none>");
    }
    for (index, value) in values.iter().enumerate() {
        field(out, if index == 0 { name } else { "" }, value);
    }
}

fn pairs(out: &mut String, name: &str, map: Option<&BTreeMap<String, String>>, between: &str) {
    several(
        out,
        name,
        map.into_iter().flatten().map(|(key, value)| plain(&format!("{key}{between}{value}"))).collect(),
    );
}

/// A time in the format of kubectl.
pub(super) fn timestamp(at: &Time) -> String {
    rfc2822::to_string(&at.0.to_zoned(TimeZone::UTC)).unwrap_or_else(|_| at.0.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_parts_of_a_pod_are_described() {
        let container = json!({
            "name": "web", "image": "img:1", "command": ["httpd", "-f"], "args": ["-p", "80"],
            "ports": [{"containerPort": 80, "hostPort": 8080, "protocol": "TCP"}],
            "env": [{"name": "A", "value": "1\u{1b}[31m"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
            "resources": {"limits": {"memory": "64Mi"}, "requests": {"cpu": "50m"}},
            "readinessProbe": {"httpGet": {"port": 80, "path": "/x"}, "periodSeconds": 1},
            "livenessProbe": {"exec": {"command": ["true"]}, "failureThreshold": 5},
            "startupProbe": {"tcpSocket": {"port": 80}},
            "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true, "subPath": "s"}]
        });
        let status = json!({
            "name": "web", "image": "img:1", "imageID": "sha256:1", "containerID": "containerd://1", "ready": false, "restartCount": 2,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
            "lastState": {"terminated": {"exitCode": 3, "reason": "Error", "message": "oh\nno",
                "startedAt": "2024-01-01T00:00:00Z", "finishedAt": "2024-01-01T00:00:05Z"}}
        });
        let value = json!({
            "metadata": {"name": "web-node", "namespace": "default", "uid": "u-1", "labels": {"a": "b"}, "annotations": {"c": "d", "e": "f"}},
            "spec": {"nodeName": "node", "containers": [container],
                "initContainers": [{"name": "side", "image": "img:2", "restartPolicy": "Always"}],
                "volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}, {"name": "h", "hostPath": {"path": "/h"}},
                            {"name": "s", "secret": {"secretName": "x"}}],
                "tolerations": [{"operator": "Exists", "effect": "NoExecute"}]},
            "status": {"phase": "Running", "hostIP": "10.0.0.1", "podIP": "10.1.0.2", "podIPs": [{"ip": "10.1.0.2"}, {"ip": "fd00::2"}],
                "startTime": "2024-01-01T00:00:00Z", "qosClass": "Burstable", "containerStatuses": [status],
                "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "containers with unready status: [web]"},
                               {"type": "PodScheduled", "status": "True"}]}
        });
        let described =
            pod(&serde_json::from_value(value).unwrap(), &[], "2024-01-01T00:01:00Z".parse().unwrap(), Paint::off());
        insta::assert_snapshot!("described", described);
    }
}
