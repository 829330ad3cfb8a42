//! Objects that are no pods: what to write instead. Their users know them from clusters, or from `podman kube play`.

/// What to write for an object of this kind.
pub fn instead_of(kind: &str) -> &'static str {
    match kind {
        "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" | "ReplicationController" | "Job" => {
            "write a Pod with the metadata and spec of its spec.template"
        }
        "CronJob" => "write a Pod with the metadata and spec of its spec.jobTemplate.spec.template",
        "ConfigMap" | "Secret" => {
            "write its values into env of the container, or mount files of this host with a hostPath volume"
        }
        "Service" | "Ingress" => "declare a hostPort in the ports of the container",
        "PersistentVolume" | "PersistentVolumeClaim" => "mount a directory of this host with a hostPath volume",
        "Namespace" => "remove it, namespaces need not be created",
        _ => "write a Pod (or a List of Pods) of apiVersion v1",
    }
}
