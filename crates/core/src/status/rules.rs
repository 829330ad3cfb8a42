//! Illegal transitions of a status, and the status of a finished pod.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, PodCondition};

use super::conditions::DISRUPTION;
use super::containers::{exit_code, is_running};
use super::phase::{FAILED, PENDING, SUCCEEDED};
use super::second;
use crate::backoff;
use crate::model::{Container, Pod, PodSpec, PodStatus, is_sidecar, is_terminal};

/// A transition that must not be published.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum IllegalTransition {
    /// A container that terminated for good is no longer terminated.
    #[error("terminated container {name} attempted illegal transition to non-terminated state")]
    Revived {
        /// Name of the container.
        name: String,
    },
    /// A terminal phase changes.
    #[error("the phase {from} is final, it cannot become {to}")]
    Phase {
        /// The terminal phase.
        from: String,
        /// The new phase.
        to: String,
    },
}

/// Returns the new status with the fields that never change, or rejects it. For status updates, not for deletions.
/// `replaced`: we killed an instance of this container to replace it, regardless of the policy.
pub fn check_transition(
    old: &PodStatus,
    mut new: PodStatus,
    pod: &Pod,
    replaced: impl Fn(&str) -> bool,
) -> Result<PodStatus, IllegalTransition> {
    if is_terminal(old.phase.as_deref()) && old.phase != new.phase {
        let text = |phase: &Option<String>| phase.clone().unwrap_or_default();
        return Err(IllegalTransition::Phase { from: text(&old.phase), to: text(&new.phase) });
    }
    if let Some(spec) = &pod.spec
        && let Some(name) = revived(old, &new, spec, replaced)
    {
        return Err(IllegalTransition::Revived { name });
    }
    if old.start_time.is_some() {
        new.start_time.clone_from(&old.start_time);
    }
    new.observed_generation = new.observed_generation.max(old.observed_generation);
    Ok(new)
}

/// Withholds a terminal phase, with its reason, message and `DisruptionTarget`, until no container runs; sets the pod to not
/// ready.
pub fn withhold_terminal_phase(old: &PodStatus, mut new: PodStatus, may_run: bool, now: Timestamp) -> PodStatus {
    if may_run && is_terminal(new.phase.as_deref()) && !is_terminal(old.phase.as_deref()) {
        new.phase = Some(old.phase.clone().unwrap_or_else(|| PENDING.into()));
        new.reason.clone_from(&old.reason);
        new.message.clone_from(&old.message);
        let had = old.conditions.iter().flatten().any(|c| c.type_ == DISRUPTION);
        new.conditions.iter_mut().for_each(|all| all.retain(|c| c.type_ != DISRUPTION || had));
    }
    set_not_ready(new, now)
}

/// The final status of a pod that is cleaned up: containers without a known exit have failed. Not for static pods.
pub fn finished(mut status: PodStatus, now: Timestamp) -> PodStatus {
    let lists =
        [&mut status.init_container_statuses, &mut status.container_statuses, &mut status.ephemeral_container_statuses];
    for container in lists.into_iter().flatten().flatten().filter(|c| is_running(c)) {
        let terminated = ContainerStateTerminated {
            exit_code: 137,
            reason: Some("ContainerStatusUnknown".into()),
            message: Some("The container could not be located when the pod was terminated".into()),
            ..ContainerStateTerminated::default()
        };
        container.state = Some(ContainerState { terminated: Some(terminated), ..ContainerState::default() });
        container.ready = false;
        container.started = container.started.map(|_| false);
    }
    if !is_terminal(status.phase.as_deref()) {
        status.phase = Some(FAILED.into());
    }
    set_not_ready(status, now)
}

/// `activeDeadlineSeconds` have passed since the start time.
pub fn active_deadline_exceeded(pod: &Pod, status: &PodStatus, now: Timestamp) -> bool {
    let allowed = pod.spec.as_ref().and_then(|spec| spec.active_deadline_seconds);
    let (Some(allowed), Some(start)) = (allowed, &status.start_time) else { return false };
    now.duration_since(start.0) >= SignedDuration::from_secs(allowed)
}

fn set_not_ready(mut status: PodStatus, now: Timestamp) -> PodStatus {
    let reason = match status.phase.as_deref() {
        Some(SUCCEEDED) => "PodCompleted",
        Some(FAILED) => "PodFailed",
        _ => return status,
    };
    let open = |c: &&mut PodCondition| {
        ["Ready", "ContainersReady"].contains(&c.type_.as_str()) && c.reason.as_deref() != Some(reason)
    };
    for condition in status.conditions.iter_mut().flatten().filter(open) {
        if condition.status != "False" {
            condition.last_transition_time = Some(second(now));
        }
        condition.status = "False".into();
        condition.reason = Some(reason.into());
        condition.message = None;
    }
    status
}

/// A container that had terminated for good and no longer is. Init containers of pods that may restart run again in a new sandbox,
/// regardless of their exit code.
fn revived(old: &PodStatus, new: &PodStatus, spec: &PodSpec, replaced: impl Fn(&str) -> bool) -> Option<String> {
    if spec.restart_policy.as_deref().unwrap_or("Always") == "Always" || backoff::may_restart_all(spec) {
        return None;
    }
    let dead = |container: &Container, before: &Option<Vec<ContainerStatus>>, after: &Option<Vec<ContainerStatus>>| {
        let find = |list: &Option<Vec<ContainerStatus>>| {
            list.iter().flatten().find(|s| s.name == container.name).map(exit_code)
        };
        let ended = find(before).flatten().is_some_and(|code| !backoff::should_restart(container, spec, code));
        ended && find(after) == Some(None) && !replaced(&container.name)
    };
    let never = spec.restart_policy.as_deref() == Some("Never");
    let inits = spec.init_containers.iter().flatten().filter(|c| never && !is_sidecar(c));
    let mut inits = inits.filter(|c| dead(c, &old.init_container_statuses, &new.init_container_statuses));
    let mut apps = spec.containers.iter().filter(|c| dead(c, &old.container_statuses, &new.container_statuses));
    inits.next().or_else(|| apps.next()).map(|c| c.name.clone())
}
