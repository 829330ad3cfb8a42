//! `oom_score_adj`: the order in which the kernel kills when memory runs out.

use super::class::{BEST_EFFORT, GUARANTEED, qos_class};
use super::resources::{container_requests, containers_requests, pod_level_requests};
use crate::model::{Container, Pod, is_sidecar};

/// The `oom_score_adj` of a container's processes.
///
/// The kernel's score of a process is its share of memory in thousandths plus this. A burstable container's value is such
/// that the score exceeds 1000 when it uses more than its request; a pod-level request beyond its containers' is divided among them.
/// A sidecar is never killed before the app container with the smallest request.
pub fn oom_score_adj(pod: &Pod, container: &Container, node_memory_bytes: i64) -> i64 {
    if is_node_critical(pod) {
        return GUARANTEED_ADJ;
    }
    match qos_class(pod) {
        GUARANTEED => return GUARANTEED_ADJ,
        BEST_EFFORT => return BEST_EFFORT_ADJ,
        _ => {}
    }
    let Some(spec) = pod.spec.as_ref().filter(|_| node_memory_bytes > 0) else { return BEST_EFFORT_ADJ - 1 };
    let share = unclaimed_share(pod);
    let adj = |request: i64| {
        let claimed = i128::from(request) + i128::from(share);
        let adj = 1000 - 1000 * claimed / i128::from(node_memory_bytes);
        i64::try_from(adj).unwrap_or(i64::MIN)
    };
    let mut result = adj(memory_request(container));
    let restartable_init =
        is_sidecar(container) && spec.init_containers.iter().flatten().any(|c| c.name == container.name);
    if restartable_init && let Some(least) = spec.containers.iter().map(memory_request).min() {
        result = result.min(adj(least));
    }
    // Always above guaranteed pods, whose score can reach 1000 + GUARANTEED_ADJ, and below best effort.
    result.clamp(1000 + GUARANTEED_ADJ, BEST_EFFORT_ADJ - 1)
}

fn is_node_critical(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    if spec.priority_class_name.as_deref() != Some("system-node-critical") {
        return false;
    }
    let annotations = pod.metadata.annotations.as_ref();
    let has = |key: &str| annotations.and_then(|a| a.get(key)).map(String::as_str);
    has("kubernetes.io/config.source").is_some_and(|source| source != "api")
        || has("kubernetes.io/config.mirror").is_some()
        || spec.priority.is_some_and(|priority| priority >= SYSTEM_CRITICAL_PRIORITY)
}

fn memory_request(container: &Container) -> i64 {
    container_requests(container).get("memory").map_or(0, |amount| amount.value())
}

/// The part of the pod-level request that no container requests, per container.
fn unclaimed_share(pod: &Pod) -> i64 {
    let Some(whole) = pod_level_requests(pod).get("memory").copied().filter(|m| !m.is_zero()) else { return 0 };
    let claimed = containers_requests(pod).get("memory").map_or(0, |amount| amount.value());
    let spec = pod.spec.as_ref().expect("a pod with requests has a spec");
    let containers = spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len);
    (whole.value() - claimed) / i64::try_from(containers.max(1)).unwrap_or(i64::MAX)
}

const GUARANTEED_ADJ: i64 = -997;
const BEST_EFFORT_ADJ: i64 = 1000;
/// Kubernetes: the priority from which a pod is critical.
const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;
