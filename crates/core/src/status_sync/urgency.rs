//! Urgency of a status patch: changes that other components act on are sent first.

use k8s_openapi::api::core::v1::ContainerStatus;

use crate::model::{PodStatus, is_terminal};

/// From least to most urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// Limited to a few per second.
    Ordinary,
    /// The pod has started to run or has its first address: users and controllers wait for it.
    Started,
    /// A terminal phase or a change of readiness: controllers act on it.
    Urgent,
}

/// Urgency of the patch from `base` to `status`.
pub(super) fn urgency(base: &PodStatus, status: &PodStatus) -> Urgency {
    if is_urgent(base, status) {
        Urgency::Urgent
    } else if is_started(base, status) {
        Urgency::Started
    } else {
        Urgency::Ordinary
    }
}

/// The phase becomes terminal, or readiness changes.
pub(super) fn is_urgent(base: &PodStatus, status: &PodStatus) -> bool {
    let ready =
        |s: &PodStatus| s.conditions.iter().flatten().find(|c| c.type_ == "Ready").is_some_and(|c| c.status == "True");
    (is_terminal(status.phase.as_deref()) && base.phase != status.phase) || ready(base) != ready(status)
}

/// The pod becomes Running or gets its first address. An address before any container was started does not count: another
/// update follows at once.
fn is_started(base: &PodStatus, status: &PodStatus) -> bool {
    let runs = |s: &PodStatus| s.phase.as_deref() == Some("Running");
    let has_ip = |s: &PodStatus| s.pod_ip.as_deref().is_some_and(|ip| !ip.is_empty());
    let was_started =
        |c: &ContainerStatus| c.state.as_ref().is_some_and(|s| s.running.is_some() || s.terminated.is_some());
    let all = || status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    (runs(status) && !runs(base)) || (has_ip(status) && !has_ip(base) && all().any(was_started))
}
