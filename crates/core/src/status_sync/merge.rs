//! Merges our status with the fields of the object that other components own.

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition};

use crate::backoff;
use crate::model::{PodSpec, PodStatus, is_terminal};
use crate::status::{copy_external_fields, is_our_condition};

/// Set by eviction and by other components: local wins if we have one.
const DISRUPTION: &str = "DisruptionTarget";

/// The status to write to an object that has `base`: local, with the conditions and fields of other components unchanged.
pub fn merge(local: &PodStatus, base: &PodStatus) -> PodStatus {
    let mut status = local.clone();
    let mut own = status.conditions.take().unwrap_or_default();
    own.retain(|c| is_our_condition(&c.type_) || c.type_ == DISRUPTION);
    let has = |type_: &str| own.iter().any(|c| c.type_ == type_);
    let theirs = base.conditions.iter().flatten().filter(|c| !is_our_condition(&c.type_) && !has(&c.type_));
    let mut all: Vec<PodCondition> = theirs.cloned().collect();
    all.extend(own);
    status.conditions = (!all.is_empty()).then_some(all);
    copy_external_fields(base, &mut status);
    if base.qos_class.is_some() {
        status.qos_class.clone_from(&base.qos_class);
    }
    // A terminal phase is final, whichever component set it.
    if is_terminal(base.phase.as_deref()) && base.phase != status.phase {
        status.phase.clone_from(&base.phase);
        status.reason.clone_from(&base.reason);
        status.message.clone_from(&base.message);
    }
    status
}

/// The API server rejects a status in which a container that terminated for good, by its restart policy, is no longer
/// terminated. Such a termination stays in the status that is sent, whatever the container's state is now.
pub fn keep_final_terminations(spec: &PodSpec, base: &PodStatus, status: &mut PodStatus) {
    if backoff::may_restart_all(spec) {
        return;
    }
    let again = |name: &str, code| {
        let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
        all.find(|c| c.name == name).is_some_and(|c| backoff::should_restart(c, spec, code))
    };
    let lists = [
        (&base.init_container_statuses, &mut status.init_container_statuses),
        (&base.container_statuses, &mut status.container_statuses),
        (&base.ephemeral_container_statuses, &mut status.ephemeral_container_statuses),
    ];
    for (last, new) in lists {
        for last in last.iter().flatten().filter(|s| exit_code(s).is_some_and(|code| !again(&s.name, code))) {
            let revived = new.iter_mut().flatten().filter(|s| s.name == last.name && exit_code(s).is_none());
            revived.for_each(|s| s.clone_from(last));
        }
    }
}

fn exit_code(status: &ContainerStatus) -> Option<i32> {
    Some(status.state.as_ref()?.terminated.as_ref()?.exit_code)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> PodStatus {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn each_component_keeps_its_conditions_and_fields() {
        let cond = |type_: &str, status: &str| json!({"type": type_, "status": status});
        let cases = [
            (
                "conditions of other components come from the object",
                json!({"conditions": [cond("Ready", "True"), cond("Old", "True")]}),
                json!({"conditions": [cond("Ready", "False"), cond("Gate", "True")]}),
                json!({"conditions": [cond("Gate", "True"), cond("Ready", "True")]}),
            ),
            (
                "a condition of local that no longer holds is removed",
                json!({"conditions": [cond("Ready", "True")]}),
                json!({"conditions": [cond("PodResizePending", "True")]}),
                json!({"conditions": [cond("Ready", "True")]}),
            ),
            (
                "our DisruptionTarget wins",
                json!({"conditions": [cond("DisruptionTarget", "True")]}),
                json!({"conditions": [cond("DisruptionTarget", "False")]}),
                json!({"conditions": [cond("DisruptionTarget", "True")]}),
            ),
            (
                "fields of other components stay",
                json!({"phase": "Running", "nominatedNodeName": "old", "qosClass": "BestEffort"}),
                json!({"phase": "Pending", "resourceClaimStatuses": [{"name": "c"}], "qosClass": "Burstable"}),
                json!({"phase": "Running", "resourceClaimStatuses": [{"name": "c"}], "qosClass": "Burstable"}),
            ),
            (
                "a terminal phase is never reverted",
                json!({"phase": "Running"}),
                json!({"phase": "Failed", "reason": "NodeLost"}),
                json!({"phase": "Failed", "reason": "NodeLost"}),
            ),
        ];
        for (what, local, base, wanted) in cases {
            assert_eq!(merge(&read(local), &read(base)), read(wanted), "{what}");
        }
    }

    #[test]
    fn a_final_termination_is_not_reverted() {
        let ended = |name: &str, code: i32| json!({"name": name, "state": {"terminated": {"exitCode": code}}});
        let waiting = |name: &str| json!({"name": name, "state": {"waiting": {"reason": "ContainerCreating"}}});
        let list = |s: Value| json!({"containerStatuses": [s]});
        let rule = json!({"action": "Restart", "exitCodes": {"operator": "In", "values": [9]}});
        let cases = [
            ("Never", json!({}), 1, true),
            ("Never", json!({}), 0, true),
            ("OnFailure", json!({}), 0, true),
            ("OnFailure", json!({}), 1, false),
            ("Always", json!({}), 0, false),
            ("Never", json!({"restartPolicy": "Never", "restartPolicyRules": [rule]}), 9, false),
            ("Never", json!({"restartPolicy": "Never", "restartPolicyRules": [rule]}), 1, true),
        ];
        for (policy, mut container, code, stays) in cases {
            container["name"] = json!("c");
            let spec = serde_json::from_value(json!({"restartPolicy": policy, "containers": [container]})).unwrap();
            let (base, mut new) = (read(list(ended("c", code))), read(list(waiting("c"))));
            keep_final_terminations(&spec, &base, &mut new);
            assert_eq!(new == base, stays, "{policy} {container} {code}");
            let mut other = read(list(ended("c", 7)));
            keep_final_terminations(&spec, &base, &mut other);
            assert_eq!(other, read(list(ended("c", 7))), "another exit code replaces it");
        }
    }
}
