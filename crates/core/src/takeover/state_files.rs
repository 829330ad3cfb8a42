//! The Go kubelet's state files in its root directory, and what they say about pods that run.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Consequence, TakeoverFinding};
use crate::model::{Pod, PodUid, is_terminal};
use crate::resource_state::{ACTUATED_FILE, ALLOCATED_FILE, allocated, decode};

/// The files that are read, below the root directory; that of device plugins below `/var/lib/kubelet`.
pub const STATE_FILES: [&str; 6] = [
    ALLOCATED_FILE,
    ACTUATED_FILE,
    "cpu_manager_state",
    "memory_manager_state",
    "device-plugins/kubelet_internal_checkpoint",
    "dra_manager_state",
];

/// Names in the root directory that one of the two agents, or the administrator's tools, use.
pub const KNOWN_NAMES: [&str; 30] = [
    "actuated_pods_state",
    "agent.lock",
    "allocated_pods_state",
    "bootstrap-kubeconfig",
    "cgroup-driver",
    "checkpoints",
    "config.yaml",
    "cpu_manager_state",
    "device-plugins",
    "dra_health_state",
    "dra_manager_state",
    "engine",
    "graceful_node_shutdown_state",
    "image_manager",
    "instance-config.yaml",
    "journal",
    "kubeadm-flags.env",
    "kubeconfig",
    "kubelet.conf",
    "manifests",
    "memory_manager_state",
    "pki",
    "plugin-containers",
    "plugins",
    "plugins_registry",
    "pod-resources",
    "pods",
    "pods-api",
    "quarantine",
    "volume-plugins",
];

/// Names in the root directory that no agent is known to use.
pub fn check_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<TakeoverFinding> {
    let known =
        |name: &str| KNOWN_NAMES.contains(&name) || name.starts_with("journal.corrupt-") || name.starts_with('.');
    let unknown = names.into_iter().filter(|name| !known(name));
    let finding = |name: &str| format!("unknown name in the root directory: {name}; this agent leaves it alone");
    unknown.map(|name| TakeoverFinding::of_node(Consequence::Note, finding(name))).collect()
}

/// What a state file says about the pods that run.
pub fn check_state_file(name: &str, content: &str, pods: &BTreeMap<PodUid, &Pod>) -> Vec<TakeoverFinding> {
    match name {
        ALLOCATED_FILE | ACTUATED_FILE => resources(name, content, pods),
        "cpu_manager_state" => cpus(content, pods),
        "memory_manager_state" => memory(content, pods),
        "dra_manager_state" => claims(content, pods),
        _ => devices(content, pods),
    }
}

fn unreadable(name: &str, error: impl std::fmt::Display) -> Vec<TakeoverFinding> {
    let message = format!("{name} can't be read, and the Go kubelet would not start with it: {error}");
    vec![TakeoverFinding::of_node(Consequence::Note, message)]
}

/// A resize that is not complete: this agent takes the resources of the spec as those that containers have.
fn resources(name: &str, content: &str, pods: &BTreeMap<PodUid, &Pod>) -> Vec<TakeoverFinding> {
    let known = match decode(content) {
        Ok(known) => known,
        Err(error) => return unreadable(name, error),
    };
    let mut findings = vec![];
    for (uid, pod) in live(pods) {
        let (Some(known), wanted) = (known.get(uid.as_str()), allocated(pod)) else { continue };
        for (container, resources) in &wanted {
            if known.get(container).is_some_and(|known| known != resources) {
                let message = format!("container {container} is being resized ({name}): let the resize end first");
                findings.push(TakeoverFinding::of_pod(Consequence::Loss, pod, message));
            }
        }
    }
    findings
}

fn cpus(content: &str, pods: &BTreeMap<PodUid, &Pod>) -> Vec<TakeoverFinding> {
    let state: Value = match serde_json::from_str(content) {
        Ok(state) => state,
        Err(error) => return unreadable("cpu_manager_state", error),
    };
    let mut findings = vec![];
    for (uid, pod) in live(pods) {
        for (container, set) in state["entries"][uid.as_str()].as_object().into_iter().flatten() {
            let set = set.as_str().unwrap_or_default();
            let message = format!(
                "container {container} has the CPUs {set} for itself: no static CPU policy, others may use them"
            );
            findings.push(TakeoverFinding::of_pod(Consequence::Loss, pod, message));
        }
    }
    findings.extend(policy("cpu_manager_state", &state));
    findings
}

fn memory(content: &str, pods: &BTreeMap<PodUid, &Pod>) -> Vec<TakeoverFinding> {
    let state: Value = match serde_json::from_str(content) {
        Ok(state) => state,
        Err(error) => return unreadable("memory_manager_state", error),
    };
    let mut findings = vec![];
    for (uid, pod) in live(pods) {
        for container in state["entries"][uid.as_str()].as_object().into_iter().flat_map(|all| all.keys()) {
            let message = format!("container {container} has memory of its own NUMA nodes: no static memory policy");
            findings.push(TakeoverFinding::of_pod(Consequence::Loss, pod, message));
        }
    }
    findings.extend(policy("memory_manager_state", &state));
    findings
}

/// A policy that this agent does not have.
fn policy(name: &str, state: &Value) -> Option<TakeoverFinding> {
    let policy = state["policyName"].as_str().unwrap_or_default();
    let is_none = policy.is_empty() || policy.eq_ignore_ascii_case("none");
    let message = format!("{name} is of the policy {policy:?}, which this agent does not have; the file is left alone");
    (!is_none).then(|| TakeoverFinding::of_node(Consequence::Note, message))
}

fn devices(content: &str, pods: &BTreeMap<PodUid, &Pod>) -> Vec<TakeoverFinding> {
    let state: Value = match serde_json::from_str(content) {
        Ok(state) => state,
        Err(error) => {
            let message = format!("the checkpoint of devices can't be read: {error}");
            return vec![TakeoverFinding::of_node(Consequence::Note, message)];
        }
    };
    let mut findings = vec![];
    for entry in state["Data"]["PodDeviceEntries"].as_array().into_iter().flatten() {
        let text = |key: &str| entry[key].as_str().unwrap_or_default();
        if let Some((_, pod)) = live(pods).find(|(uid, _)| uid.as_str() == text("PodUID")) {
            let (container, resource) = (text("ContainerName"), text("ResourceName"));
            let message = format!("container {container} has devices of {resource}: no device plugins");
            findings.push(TakeoverFinding::of_pod(Consequence::Loss, pod, message));
        }
    }
    findings
}

fn claims(content: &str, pods: &BTreeMap<PodUid, &Pod>) -> Vec<TakeoverFinding> {
    let data = serde_json::from_str::<Value>(content).map(|state| state["Data"].as_str().unwrap_or("{}").to_owned());
    let state: Value = match data.and_then(|data| serde_json::from_str(&data)) {
        Ok(state) => state,
        Err(error) => return unreadable("dra_manager_state", error),
    };
    let mut findings = BTreeSet::new();
    for claim in state["ClaimInfoStateList"].as_array().into_iter().flatten() {
        let name = claim["ClaimName"].as_str().unwrap_or_default();
        let users = claim["PodUIDs"].as_object().into_iter().flat_map(|uids| uids.keys());
        for (_, pod) in users.filter_map(|user| live(pods).find(|(uid, _)| uid.as_str() == user)) {
            let message = format!("it uses the resource claim {name}: no dynamic resource allocation");
            findings.insert(TakeoverFinding::of_pod(Consequence::Loss, pod, message));
        }
    }
    findings.into_iter().collect()
}

fn live<'a>(pods: &'a BTreeMap<PodUid, &'a Pod>) -> impl Iterator<Item = (&'a PodUid, &'a Pod)> {
    let ended = |pod: &Pod| pod.status.as_ref().is_some_and(|status| is_terminal(status.phase.as_deref()));
    pods.iter().filter(move |(_, pod)| !ended(pod)).map(|(uid, pod)| (uid, *pod))
}
