//! Extended resources such as `nvidia.com/gpu`: without device plugins nothing on the node provides them.

use super::Rejection;
use crate::config::NodeConfig;
use crate::model::{Pod, Source};
use crate::qos::{is_extended, pod_requests};
use crate::static_pod::CONFIG_SOURCE;

/// Rejects a pod that requests an extended resource, with the Go kubelet's message for a resource without healthy devices
/// (`ManagerImpl.Allocate`). Without this check it would run without the device that it needs.
///
/// Pods of an API server are left to its scheduler, as the Go kubelet does (`removeMissingExtendedResources`): a resource may belong
/// to the cluster, or be advertised in the Node object by another program.
pub(super) fn check(pod: &Pod, config: &NodeConfig) -> Result<(), Rejection> {
    let annotations = pod.metadata.annotations.as_ref();
    let source = annotations.and_then(|map| map.get(CONFIG_SOURCE)).and_then(|text| Source::parse(text));
    if config.sources.contains(&Source::Api) && source.is_none_or(|source| source == Source::Api) {
        return Ok(());
    }
    let requested = pod_requests(pod);
    let missing = requested.iter().find(|(name, amount)| is_extended(name) && !amount.is_zero());
    let Some((name, _)) = missing else { return Ok(()) };
    Err(Rejection {
        reason: "UnexpectedAdmissionError",
        message: format!(
            "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices {name}, which is unexpected"
        ),
    })
}
