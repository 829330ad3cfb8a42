//! Messages of events about a resize (Go kubelet: `events.podResizeMessage`).

use k8s_openapi::api::core::v1::ResourceRequirements;
use serde::Serialize;

use crate::model::{Container, Pod};

/// `Pod resize started: {…}`: what happened, all resources of the pod, and the error, if there is one.
pub(crate) fn resize_message(what: &str, pod: &Pod, generation: Option<i64>, error: Option<&str>) -> String {
    let spec = pod.spec.as_ref();
    let all = |containers: Option<&Vec<Container>>| containers.into_iter().flatten().map(resources_of).collect();
    let summary = ResizeSummary {
        init_containers: all(spec.and_then(|spec| spec.init_containers.as_ref())),
        containers: all(spec.map(|spec| &spec.containers)),
        generation: generation.unwrap_or_default(),
        error,
    };
    let json = serde_json::to_string(&summary).unwrap_or_default();
    format!("Pod resize {what}: {json}")
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResizeSummary<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<ContainerResources>,
    containers: Vec<ContainerResources>,
    generation: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

#[derive(Serialize)]
struct ContainerResources {
    name: String,
    resources: ResourceRequirements,
}

fn resources_of(container: &Container) -> ContainerResources {
    ContainerResources { name: container.name.clone(), resources: container.resources.clone().unwrap_or_default() }
}
