//! In-place resize, which this node does not do: a pod keeps the resources it was admitted with, and says so.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ResourceRequirements;
use serde::Serialize;

use crate::model::{Container, Pod};

/// What the `PodResizePending` condition says.
pub(crate) const MESSAGE: &str = "In-place resize of pods is not supported on this node";

/// The pod as it is to run: as wanted now, with the resources it has. True if others are wanted.
pub(crate) fn refuse(has: &Pod, wanted: Arc<Pod>) -> (Arc<Pod>, bool) {
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

/// What the event says of a refused resize: all that was wanted, as the kubelet words it.
pub(crate) fn told(wanted: &Pod) -> String {
    let spec = wanted.spec.as_ref();
    let all = |containers: Option<&Vec<Container>>| containers.into_iter().flatten().map(wish).collect();
    let wishes = Wishes {
        init_containers: all(spec.and_then(|spec| spec.init_containers.as_ref())),
        containers: all(spec.map(|spec| &spec.containers)),
        generation: wanted.metadata.generation.unwrap_or_default(),
        error: MESSAGE,
    };
    let json = serde_json::to_string(&wishes).unwrap_or_default();
    format!("Pod resize Infeasible: {json}")
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wishes {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<Wish>,
    containers: Vec<Wish>,
    generation: i64,
    error: &'static str,
}

#[derive(Serialize)]
struct Wish {
    name: String,
    resources: ResourceRequirements,
}

fn wish(container: &Container) -> Wish {
    Wish { name: container.name.clone(), resources: container.resources.clone().unwrap_or_default() }
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
    fn everything_is_taken_but_other_resources() {
        assert_eq!(refuse(&pod("a", "1"), pod("b", "1")), (pod("b", "1"), false));
        assert_eq!(refuse(&pod("a", "1"), pod("b", "2")), (pod("b", "1"), true));
    }

    #[test]
    fn the_event_says_all_that_was_wanted() {
        let mut pod = Pod::clone(&pod("a", "2"));
        pod.metadata.generation = Some(3);
        let wanted = r#"{"containers":[{"name":"c","resources":{"requests":{"cpu":"2"}}}],"generation":3,"error":"#;
        assert_eq!(told(&pod), format!("Pod resize Infeasible: {wanted}\"{MESSAGE}\"}}"));
    }
}
