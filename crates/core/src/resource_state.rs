//! The Go kubelet's files with the resources of pods: `allocated_pods_state` (admitted) and `actuated_pods_state` (applied).
//!
//! A Go kubelet that takes a node over restarts containers with `resizePolicy: RestartContainer` if it does not find what they
//! were made with, and exits if a checksum is wrong. This agent has both in its journal, and writes the files for it.
//!
//! ```text
//! {"data":"{\"entries\":{UID:{\"ContainerResources\":{NAME:{limits, requests}},\"PodLevelResources\":null}}}","checksum":N}
//! ```
//! The checksum is FNV-1a over the debug print of the data: `(string)` and the text.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, ResourceRequirements};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::hash::{START, fnv1a};
use crate::model::{Pod, PodStatus, is_sidecar};

/// The file with the resources that were admitted.
pub const ALLOCATED_FILE: &str = "allocated_pods_state";
/// The file with the resources that containers have.
pub const ACTUATED_FILE: &str = "actuated_pods_state";

/// Resources of containers, by pod UID and container name. Go kubelet: `state.PodResourceInfoMap`.
pub type PodResourceInfoMap = BTreeMap<String, BTreeMap<String, ResourceRequirements>>;

/// Why a file can't be used. The Go kubelet exits if it finds such a file.
#[derive(Debug, Error)]
pub enum ResourceStateError {
    /// The file or its data is not JSON of the expected form.
    #[error("not in the form of a checkpoint")]
    Form(#[source] serde_json::Error),
    /// The data does not match its checksum.
    #[error("the checksum is {found}, and must be {wanted}")]
    Checksum {
        /// In the file.
        found: u64,
        /// Of the data.
        wanted: u64,
    },
}

#[derive(Serialize, Deserialize)]
struct Checkpoint {
    data: String,
    checksum: u64,
}

#[derive(Default, Serialize, Deserialize)]
struct Data {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, PodEntry>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PodEntry {
    #[serde(default)]
    container_resources: Option<BTreeMap<String, ResourceRequirements>>,
    #[serde(default)]
    pod_level_resources: Option<ResourceRequirements>,
}

/// The content of a file with these resources.
pub fn encode(pods: &PodResourceInfoMap) -> Result<String, ResourceStateError> {
    let entry = |containers: &BTreeMap<String, ResourceRequirements>| PodEntry {
        container_resources: Some(containers.clone()),
        pod_level_resources: None,
    };
    let entries = pods.iter().map(|(uid, containers)| (uid.clone(), entry(containers))).collect();
    let data = serde_json::to_string(&Data { entries }).map_err(ResourceStateError::Form)?;
    let checksum = checksum(&data);
    serde_json::to_string(&Checkpoint { data, checksum }).map_err(ResourceStateError::Form)
}

/// The resources in a file.
pub fn decode(text: &str) -> Result<PodResourceInfoMap, ResourceStateError> {
    let checkpoint: Checkpoint = serde_json::from_slice(text.as_bytes()).map_err(ResourceStateError::Form)?;
    let wanted = checksum(&checkpoint.data);
    if checkpoint.checksum != wanted {
        return Err(ResourceStateError::Checksum { found: checkpoint.checksum, wanted });
    }
    let data: Data = serde_json::from_slice(checkpoint.data.as_bytes()).map_err(ResourceStateError::Form)?;
    Ok(data.entries.into_iter().map(|(uid, pod)| (uid, pod.container_resources.unwrap_or_default())).collect())
}

/// The admitted resources of containers that can be resized: app containers and sidecars.
pub fn allocated(pod: &Pod) -> BTreeMap<String, ResourceRequirements> {
    let Some(spec) = &pod.spec else { return BTreeMap::new() };
    let sidecars = spec.init_containers.iter().flatten().filter(|c| is_sidecar(c));
    let all = sidecars.chain(&spec.containers);
    all.map(|c| (c.name.clone(), c.resources.clone().unwrap_or_default())).collect()
}

/// The resources that containers have, as their status shows them; the admitted ones if they do not run.
pub fn actuated(pod: &Pod, status: Option<&PodStatus>) -> BTreeMap<String, ResourceRequirements> {
    let mut all = allocated(pod);
    let lists = status.into_iter().flat_map(|s| [&s.init_container_statuses, &s.container_statuses]);
    let running = |status: &ContainerStatus| status.state.as_ref().is_some_and(|state| state.running.is_some());
    for status in lists.flatten().flatten().filter(|status| running(status)) {
        if let (Some(known), Some(resources)) = (all.get_mut(&status.name), &status.resources) {
            known.clone_from(resources);
        }
    }
    all
}

/// Go kubelet: `checksum.New` of a string.
fn checksum(data: &str) -> u64 {
    u64::from(fnv1a(fnv1a(START, b"(string)"), data.as_bytes()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// From the tests of the Go kubelet (`TestStateCheckpoint_formatChanged` and neighbours).
    const OF_GO: &str = r#"{"data":"{\"entries\":{\"pod1\":{\"ContainerResources\":{\"container1\":{\"requests\":{\"cpu\":\"1Ki\",\"memory\":\"1Ki\"}}}}}}","checksum":1178570812}"#;

    #[test]
    fn a_file_of_the_go_kubelet_is_read() {
        let pods = decode(OF_GO).expect("valid");
        assert_eq!(json!(pods), json!({"pod1": {"container1": {"requests": {"cpu": "1Ki", "memory": "1Ki"}}}}));
    }

    #[test]
    fn what_is_written_is_read_back() {
        let pods = decode(OF_GO).expect("valid");
        assert_eq!(decode(&encode(&pods).expect("written")).expect("valid"), pods);
        let empty = encode(&PodResourceInfoMap::new()).expect("written");
        assert!(empty.starts_with(r#"{"data":"{}","#), "{empty}");
        assert!(decode(&empty).expect("valid").is_empty());
    }

    #[test]
    fn damage_is_found() {
        assert!(matches!(decode(&OF_GO.replace("1Ki", "2Ki")), Err(ResourceStateError::Checksum { .. })));
        assert!(matches!(decode("{"), Err(ResourceStateError::Form(_))));
    }

    #[test]
    fn a_container_that_runs_has_the_resources_of_its_status() {
        let wants = |cpu: &str| json!({"requests": {"cpu": cpu}});
        let side = json!({"name": "s", "restartPolicy": "Always"});
        let init = json!({"name": "i", "resources": wants("9")});
        let pod = json!({"spec": {"initContainers": [init, side],
            "containers": [{"name": "a", "resources": wants("2")}, {"name": "b", "resources": wants("2")}]}});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let status = json!({"containerStatuses": [
            {"name": "a", "resources": wants("1"), "state": {"running": {}}},
            {"name": "b", "resources": wants("1"), "state": {"waiting": {}}}]});
        let status: PodStatus = serde_json::from_value(status).expect("a status");
        assert_eq!(json!(allocated(&pod)), json!({"a": wants("2"), "b": wants("2"), "s": {}}));
        assert_eq!(json!(actuated(&pod, Some(&status))), json!({"a": wants("1"), "b": wants("2"), "s": {}}));
    }
}
