//! The container of `exec` and `logs` if none is named.

use k8s_openapi::api::core::v1::Pod;

/// Kubernetes: the annotation with the container to use when a request names none.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// The named container; else that of the annotation, else the first. A choice among several is printed to stderr, like kubectl's.
pub(super) fn chosen(pod: &Pod, named: Option<&str>) -> String {
    if let Some(named) = named {
        return named.to_owned();
    }
    let (all, name) = (described(pod), default(pod));
    if all.len() > 1 {
        eprintln!("Defaulted container {name:?} out of: {}", all.join(", "));
    }
    name
}

/// All containers in the order in which they start.
pub(super) fn all(pod: &Pod) -> Vec<String> {
    let Some(spec) = &pod.spec else { return vec![] };
    spec.init_containers.iter().flatten().chain(&spec.containers).map(|container| container.name.clone()).collect()
}

fn default(pod: &Pod) -> String {
    let annotated = pod.metadata.annotations.as_ref().and_then(|all| all.get(DEFAULT_CONTAINER));
    let known = annotated.filter(|name| all(pod).contains(name)).cloned();
    let first = || pod.spec.as_ref().and_then(|spec| spec.containers.first()).map(|container| container.name.clone());
    known.or_else(first).unwrap_or_default()
}

/// kubectl's list: containers, then init containers with a note.
fn described(pod: &Pod) -> Vec<String> {
    let Some(spec) = &pod.spec else { return vec![] };
    let own = spec.containers.iter().map(|container| container.name.clone());
    let init = spec.init_containers.iter().flatten().map(|container| format!("{} (init)", container.name));
    own.chain(init).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_annotated_container_or_the_first_is_the_default() {
        let mut pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": {
            "containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}}))
        .unwrap();
        assert_eq!((default(&pod).as_str(), all(&pod)), ("a", vec!["i".into(), "a".into(), "b".into()]));
        assert_eq!(described(&pod), ["a", "b", "i (init)"]);
        for (annotated, expected) in [("b", "b"), ("x", "a")] {
            pod.metadata.annotations = Some([(DEFAULT_CONTAINER.to_owned(), annotated.to_owned())].into());
            assert_eq!(default(&pod), expected);
        }
        assert_eq!(chosen(&pod, Some("b")), "b");
    }
}
