//! Reading single facts from a Pod object.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::FullName;

/// Namespace and name of a pod.
pub fn full_name(pod: &Pod) -> FullName {
    FullName {
        namespace: pod.metadata.namespace.as_deref().unwrap_or("default").into(),
        name: pod.metadata.name.as_deref().unwrap_or_default().into(),
    }
}

/// The spec of a pod that has been decoded: every source rejects pods without one.
pub(crate) fn spec_of(pod: &Pod) -> &PodSpec {
    pod.spec.as_ref().expect("every source rejects a pod without a spec")
}

/// The phase is Succeeded or Failed, and never changes again.
pub fn is_terminal(phase: Option<&str>) -> bool {
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Compares two resource versions. Only numbers can be compared; anything else is never older.
pub(crate) fn is_older_version(this: Option<&str>, that: Option<&str>) -> bool {
    let number = |version: Option<&str>| version?.parse::<u64>().ok();
    number(this).zip(number(that)).is_some_and(|(this, that)| this < that)
}

/// Removes the resource version, so that any version that comes next counts as newer. Used when the API server's history was
/// reset and old versions have no meaning.
pub(crate) fn clear_resource_version(pod: &mut Arc<Pod>) {
    Arc::make_mut(pod).metadata.resource_version = None;
}
