//! In-place resize is not supported: a pod keeps the resources it was admitted with, and reports that.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ResourceRequirements;
use serde::Serialize;

use crate::model::{Container, Pod};

/// Message of the `PodResizePending` condition.
pub(crate) const MESSAGE: &str = "In-place resize of pods is not supported on this node";

/// The updated pod with its old resources. True if the update changes them.
pub(crate) fn keep_resources(has: &Pod, wanted: Arc<Pod>) -> (Arc<Pod>, bool) {
    let (Some(old), Some(new)) = (&has.spec, &wanted.spec) else { return (wanted, false) };
    let mut spec = new.clone();
    spec.resources.clone_from(&old.resources);
    keep(&old.containers, &mut spec.containers);
    if let (Some(old), Some(new)) = (&old.init_containers, &mut spec.init_containers) {
        keep(old, new);
    }
    if spec == *new {
        return (wanted, false);
    }
    let pod = Pod { metadata: wanted.metadata.clone(), spec: Some(spec), status: wanted.status.clone() };
    (Arc::new(pod), true)
}

/// Message of the event for a refused resize, with all requested resources, as the kubelet writes it.
pub(crate) fn infeasible_message(wanted: &Pod) -> String {
    let spec = wanted.spec.as_ref();
    let all = |containers: Option<&Vec<Container>>| containers.into_iter().flatten().map(resources_of).collect();
    let request = ResizeRequest {
        init_containers: all(spec.and_then(|spec| spec.init_containers.as_ref())),
        containers: all(spec.map(|spec| &spec.containers)),
        generation: wanted.metadata.generation.unwrap_or_default(),
        error: MESSAGE,
    };
    let json = serde_json::to_string(&request).unwrap_or_default();
    format!("Pod resize Infeasible: {json}")
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResizeRequest {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<ContainerResources>,
    containers: Vec<ContainerResources>,
    generation: i64,
    error: &'static str,
}

#[derive(Serialize)]
struct ContainerResources {
    name: String,
    resources: ResourceRequirements,
}

fn resources_of(container: &Container) -> ContainerResources {
    ContainerResources { name: container.name.clone(), resources: container.resources.clone().unwrap_or_default() }
}

fn keep(old: &[Container], new: &mut [Container]) {
    for container in new {
        if let Some(had) = old.iter().find(|c| c.name == container.name) {
            container.resources.clone_from(&had.resources);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(image: &str, cpu: &str) -> Arc<Pod> {
        let requests = json!({"requests": {"cpu": cpu}});
        let value = json!({"metadata": {"name": "p"}, "spec": {"containers": [
            {"name": "c", "image": image, "resources": requests}]}});
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn an_update_is_applied_except_for_resources() {
        assert_eq!(keep_resources(&pod("a", "1"), pod("b", "1")), (pod("b", "1"), false));
        assert_eq!(keep_resources(&pod("a", "1"), pod("b", "2")), (pod("b", "1"), true));
    }

    #[test]
    fn the_event_contains_all_requested_resources() {
        let mut pod = Pod::clone(&pod("a", "2"));
        pod.metadata.generation = Some(3);
        let wanted = r#"{"containers":[{"name":"c","resources":{"requests":{"cpu":"2"}}}],"generation":3,"error":"#;
        assert_eq!(infeasible_message(&pod), format!("Pod resize Infeasible: {wanted}\"{MESSAGE}\"}}"));
    }
}
