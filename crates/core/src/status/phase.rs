//! The phase of a pod (the kubelet's `getPhase`).

use k8s_openapi::api::core::v1::ContainerStatus;

use super::containers::{Statuses, exit_code, is_running, is_waiting, terminated_before};
use crate::backoff;
use crate::model::{Container, PodSpec, is_sidecar};

/// Some container has not been started.
pub(super) const PENDING: &str = "Pending";
/// All containers were started, and at least one runs or will be restarted.
pub(super) const RUNNING: &str = "Running";
/// All app containers exited with 0 and will not be restarted.
pub(super) const SUCCEEDED: &str = "Succeeded";
/// The pod finished and some container failed.
pub(super) const FAILED: &str = "Failed";

pub(super) fn terminal(phase: Option<&str>) -> Option<&'static str> {
    [SUCCEEDED, FAILED].into_iter().find(|p| Some(*p) == phase)
}

/// The phase that follows from the containers. `ended`: all have exited and none will be restarted.
pub(super) fn of(spec: &PodSpec, statuses: &Statuses, ended: bool) -> &'static str {
    let apps: Vec<(&Container, &ContainerStatus)> =
        spec.containers.iter().filter_map(|c| Some((c, statuses.app(&c.name)?))).collect();
    let all_succeeded = !apps.is_empty() && apps.iter().all(|(_, s)| exit_code(s) == Some(0));
    if ended {
        return if all_succeeded { SUCCEEDED } else { FAILED };
    }
    let inits = || spec.init_containers.iter().flatten().filter_map(|c| Some((c, statuses.init(&c.name)?)));
    let plain = || inits().filter(|(c, _)| !is_sidecar(c));
    let sidecars = || inits().filter(|(c, _)| is_sidecar(c));
    if plain().any(|(c, s)| exit_code(s).is_some_and(|code| code != 0 && !backoff::should_restart(c, spec, code))) {
        return FAILED;
    }
    let unstarted = |s: &ContainerStatus| is_waiting(s) && !terminated_before(s);
    // Once app containers exist, a restarting sidecar does not make the pod Pending again.
    let sidecar_pending = sidecars().any(|(_, s)| if is_running(s) { s.started != Some(true) } else { unstarted(s) })
        && !statuses.initialized;
    let any_unstarted = apps.iter().any(|(_, s)| unstarted(s)) || sidecars().any(|(_, s)| unstarted(s));
    if plain().any(|(_, s)| exit_code(s) != Some(0)) || sidecar_pending || any_unstarted {
        return PENDING;
    }
    let running = apps.iter().any(|(_, s)| is_running(s)) || sidecars().any(|(_, s)| is_running(s));
    // A waiting container with a previous termination waits for its restart.
    let comes_back =
        |c: &Container, s: &ContainerStatus| exit_code(s).is_none_or(|code| backoff::should_restart(c, spec, code));
    if apps.is_empty() {
        PENDING
    } else if running || apps.iter().any(|(c, s)| comes_back(c, s)) {
        RUNNING
    } else if all_succeeded {
        SUCCEEDED
    } else {
        FAILED
    }
}
