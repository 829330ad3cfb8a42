//! Labels and annotations of sandboxes and containers. They are exactly the Go kubelet's, so that either agent can take over
//! a node from the other.

use std::collections::BTreeMap;

use podwright_core::hash::container_hash;
use podwright_core::model::{Container, Pod};
use podwright_core::static_pod::{MANIFEST_HASH, manifest_hash};
use podwright_cri::labels::{self, Owner};

use crate::pod_spec::{pod_name, pod_namespace, pod_uid};

/// The pod's own labels, and those that identify the pod.
pub(super) fn sandbox_labels(pod: &Pod) -> BTreeMap<String, String> {
    let mut all = pod.metadata.labels.clone().unwrap_or_default();
    all.extend(owner(pod, None).to_labels());
    all
}

/// The pod's own annotations, including `kubernetes.io/config.source`; of a static pod also the hash of its manifest.
pub(super) fn sandbox_annotations(pod: &Pod) -> BTreeMap<String, String> {
    let mut all = pod.metadata.annotations.clone().unwrap_or_default();
    if let Some(hash) = manifest_hash(pod) {
        all.insert(MANIFEST_HASH.to_owned(), hash.to_owned());
    }
    all
}

/// The labels that identify the pod and the container.
pub(super) fn container_labels(pod: &Pod, container: &Container) -> BTreeMap<String, String> {
    owner(pod, Some(&container.name)).to_labels()
}

/// The fields needed to compare and to stop the container when its pod is no longer known.
pub(super) fn container_annotations(pod: &Pod, container: &Container, attempt: u32) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> = [
        (labels::CONTAINER_HASH, container_hash(container)),
        (labels::RESTART_COUNT, attempt.to_string()),
        (labels::TERMINATION_MESSAGE_PATH, container.termination_message_path.clone().unwrap_or_default()),
        (labels::TERMINATION_MESSAGE_POLICY, container.termination_message_policy.clone().unwrap_or_default()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    let mut insert = |key: &str, value: Option<String>| {
        all.extend(value.map(|value| (key.to_owned(), value)));
    };
    insert(labels::POD_DELETION_GRACE_PERIOD, pod.metadata.deletion_grace_period_seconds.map(|s| s.to_string()));
    let grace = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    insert(labels::POD_TERMINATION_GRACE_PERIOD, grace.map(|seconds| seconds.to_string()));
    let pre_stop = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    insert(labels::PRE_STOP_HANDLER, pre_stop.and_then(|handler| serde_json::to_string(handler).ok()));
    let ports = container.ports.as_ref().filter(|ports| !ports.is_empty());
    insert(labels::CONTAINER_PORTS, ports.and_then(|ports| serde_json::to_string(ports).ok()));
    all
}

fn owner<'a>(pod: &'a Pod, container: Option<&'a str>) -> Owner<'a> {
    Owner { name: pod_name(pod), namespace: pod_namespace(pod), uid: pod_uid(pod), container }
}
