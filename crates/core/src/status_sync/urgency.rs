//! What news is worth: what others wait for is told first.

use k8s_openapi::api::core::v1::ContainerStatus;

use crate::model::{PodStatus, is_terminal};

/// How long news may wait, the least urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// It can wait for its turn in a crowd.
    Ordinary,
    /// The pod has begun to run, or is first reached somewhere: people and controllers look for it.
    Begins,
    /// Its end, or a change of its readiness: others act on it.
    Urgent,
}

/// What it is worth to tell this status to a store that has that one.
pub(super) fn urgency(base: &PodStatus, status: &PodStatus) -> Urgency {
    if is_urgent(base, status) {
        Urgency::Urgent
    } else if begins(base, status) {
        Urgency::Begins
    } else {
        Urgency::Ordinary
    }
}

/// The end of a pod, or a change of its readiness: others wait for this.
pub(super) fn is_urgent(base: &PodStatus, status: &PodStatus) -> bool {
    let ready =
        |s: &PodStatus| s.conditions.iter().flatten().find(|c| c.type_ == "Ready").is_some_and(|c| c.status == "True");
    (is_terminal(status.phase.as_deref()) && base.phase != status.phase) || ready(base) != ready(status)
}

/// It runs now, or has its first address. An address before anything was started is followed by more at once.
fn begins(base: &PodStatus, status: &PodStatus) -> bool {
    let runs = |s: &PodStatus| s.phase.as_deref() == Some("Running");
    let has_ip = |s: &PodStatus| s.pod_ip.as_deref().is_some_and(|ip| !ip.is_empty());
    let was_started =
        |c: &ContainerStatus| c.state.as_ref().is_some_and(|s| s.running.is_some() || s.terminated.is_some());
    let all = || status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    (runs(status) && !runs(base)) || (has_ip(status) && !has_ip(base) && all().any(was_started))
}
