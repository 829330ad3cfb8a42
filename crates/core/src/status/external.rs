//! The part of a pod's status that other components write: the scheduler, controllers and webhooks.

use super::is_our_condition;
use crate::model::{PodStatus, is_terminal};

/// Conditions and fields of other components, and a terminal phase that one of them set. The rest is empty.
pub(crate) fn external_status(status: Option<&PodStatus>) -> PodStatus {
    let mut external = PodStatus::default();
    let Some(status) = status else { return external };
    let conditions = status.conditions.iter().flatten().filter(|c| !is_our_condition(&c.type_));
    external.conditions = Some(conditions.cloned().collect());
    copy_external_fields(status, &mut external);
    if is_terminal(status.phase.as_deref()) {
        external.phase.clone_from(&status.phase);
    }
    external
}

/// Copies the fields that this agent never writes.
pub(crate) fn copy_external_fields(from: &PodStatus, to: &mut PodStatus) {
    to.extended_resource_claim_status.clone_from(&from.extended_resource_claim_status);
    to.node_allocatable_resource_claim_statuses.clone_from(&from.node_allocatable_resource_claim_statuses);
    to.nominated_node_name.clone_from(&from.nominated_node_name);
    to.resize.clone_from(&from.resize);
    to.resource_claim_statuses.clone_from(&from.resource_claim_statuses);
    to.volume_health.clone_from(&from.volume_health);
}
