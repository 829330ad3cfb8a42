//! Effective settings of a container.

use podwright_core::model::{Container, Pod};

/// The container's `runAsUser`, or the pod's.
pub(crate) fn effective_run_as_user(pod: &Pod, container: &Container) -> Option<i64> {
    let own = container.security_context.as_ref().and_then(|sc| sc.run_as_user);
    let pod_context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    own.or_else(|| pod_context.and_then(|sc| sc.run_as_user))
}
