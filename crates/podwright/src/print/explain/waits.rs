//! Everything that a pod waits for: what core reports, and what only the status and the events show.

use k8s_openapi::api::core::v1::ContainerStatus;
use podwright_agent::event_loop::{CorrelatedEvent, Explanation};
use podwright_core::model::history_text::{
    CONTAINER, EXITED, FAILED, POST_START_HOOK, RESTARTED, SANDBOX_CREATED, SANDBOX_CREATION, STARTED, VOLUME_MOUNT,
    container_text,
};
use podwright_core::model::{PodStatus, Transition, is_sidecar};
use podwright_core::pod::{State, Wait};

use super::super::pods::condition;
use super::cause::{NO_RUNTIME, RUNTIME_STARTING};
use super::{find, is_running};

/// Nothing for a pod that is gone.
pub(super) fn of(explanation: &Explanation, events: &[&CorrelatedEvent]) -> Vec<Wait> {
    let mut waits = vec![];
    if explanation.pod.is_none() {
        return waits;
    }
    match (explanation.runtime_up, explanation.runtime_pending) {
        (true, _) => {}
        (false, true) => waits.push(of_pod(
            RUNTIME_STARTING,
            "the agent was just started, and has not queried the container runtime yet",
        )),
        (false, false) => waits.push(of_pod(NO_RUNTIME, "the container runtime does not respond")),
    }
    waits.extend(explanation.waits.iter().cloned());
    if explanation.state != Some(State::Syncing) {
        return waits;
    }
    waits.extend(init_under_way(explanation));
    waits.extend(probes(explanation, events));
    if waits.is_empty() {
        waits.extend(readiness_gate(explanation));
        waits.extend(failed_step(explanation).or_else(|| next_step(explanation)));
    }
    waits
}

fn of_pod(reason: &str, message: &str) -> Wait {
    Wait { container: None, reason: reason.into(), message: message.into(), since: None, until: None }
}

fn of_container(name: &str, reason: &str, message: &str) -> Wait {
    Wait { container: Some(name.into()), ..of_pod(reason, message) }
}

fn status(explanation: &Explanation) -> Option<&PodStatus> {
    explanation.pod.as_ref()?.status.as_ref()
}

fn statuses(explanation: &Explanation) -> impl Iterator<Item = &ContainerStatus> {
    let status = status(explanation).into_iter();
    status.flat_map(|s| s.init_container_statuses.iter().flatten().chain(s.container_statuses.iter().flatten()))
}

/// The probes of running containers that have not passed yet, with their last result.
fn probes(explanation: &Explanation, events: &[&CorrelatedEvent]) -> Vec<Wait> {
    let mut waits = vec![];
    for status in statuses(explanation).filter(|status| is_running(status)) {
        let Some(container) = explanation.pod.as_ref().and_then(|pod| find(pod, &status.name)) else { continue };
        let (reason, probe) = match status.started {
            Some(false) if container.startup_probe.is_some() => ("NotStarted", "Startup"),
            _ if !status.ready && container.readiness_probe.is_some() => ("NotReady", "Readiness"),
            _ => continue,
        };
        let is_about = |shown: &&&CorrelatedEvent| {
            let of = shown.event.container.as_ref().is_some_and(|name| name.as_str() == status.name);
            of && shown.event.reason == "Unhealthy" && shown.event.message.starts_with(probe)
        };
        let last = events.iter().rev().find(is_about).map(|shown| shown.event.message.clone());
        let message = last.unwrap_or_else(|| format!("the {} probe has not passed yet", probe.to_lowercase()));
        waits.push(of_container(&status.name, reason, &message));
    }
    waits
}

/// The running init container; the containers after it wait until it completes.
fn init_under_way(explanation: &Explanation) -> Option<Wait> {
    let inits = explanation.pod.as_ref()?.spec.as_ref()?.init_containers.as_deref()?;
    let statuses = status(explanation)?.init_container_statuses.as_deref()?;
    let plain = |name: &str| inits.iter().any(|c| c.name == name && !is_sidecar(c));
    let (index, status) = statuses.iter().enumerate().find(|(_, status)| plain(&status.name) && is_running(status))?;
    let since = status.state.as_ref()?.running.as_ref()?.started_at.as_ref().map(|time| time.0);
    let message = format!(
        "init container {} of {} is running; the next containers start when it completes",
        index + 1,
        inits.len()
    );
    Some(Wait { since, ..of_container(&status.name, "PodInitializing", &message) })
}

/// A condition that another program has to set before the pod is ready.
fn readiness_gate(explanation: &Explanation) -> Option<Wait> {
    let (spec, status) = (explanation.pod.as_ref()?.spec.as_ref()?, status(explanation)?);
    let gate = spec.readiness_gates.iter().flatten().find(|gate| !condition(status, &gate.condition_type))?;
    let message = format!("the condition {:?} of its readiness gate is not True", gate.condition_type);
    condition(status, "ContainersReady").then(|| of_pod("ReadinessGate", &message))
}

/// A step that failed and is repeated at this moment, so that core lists no time for it.
fn failed_step(explanation: &Explanation) -> Option<Wait> {
    for status in statuses(explanation) {
        let waiting = status.state.as_ref().and_then(|state| state.waiting.as_ref());
        let reason = waiting.and_then(|waiting| waiting.reason.as_deref()).unwrap_or_default();
        if !["", "ContainerCreating", "PodInitializing"].contains(&reason) {
            let message = waiting.and_then(|waiting| waiting.message.as_deref()).unwrap_or_default();
            return Some(of_container(&status.name, reason, message));
        }
    }
    let last = explanation.history.last()?;
    let step = last.what.strip_suffix(FAILED)?;
    let volume = step.strip_prefix(VOLUME_MOUNT);
    match (volume, step) {
        (Some(volume), _) => Some(of_pod("FailedMount", &format!("volume {volume:?}: {}", last.cause))),
        (None, SANDBOX_CREATION) => Some(of_pod("FailedCreatePodSandBox", &last.cause)),
        (None, step) if step.starts_with(POST_START_HOOK) => Some(of_pod("PostStartHookError", &last.cause)),
        _ => None,
    }
}

/// Core does not list steps that take less than a second, and a container is known to run only when it was observed after its
/// start: meanwhile the history shows how far the first container that does not run is.
fn next_step(explanation: &Explanation) -> Option<Wait> {
    let spec = explanation.pod.as_ref()?.spec.as_ref()?;
    let names = spec.init_containers.iter().flatten().chain(&spec.containers).map(|container| container.name.as_str());
    let find = |name: &str| statuses(explanation).find(|status| status.name == name);
    let state = |name: &str| find(name).and_then(|status| status.state.as_ref());
    let is_over = |name: &&str| state(name).is_some_and(|state| state.running.is_some() || state.terminated.is_some());
    let name =
        names.clone().find(|name| !is_over(name)).or_else(|| names.clone().find(|name| restarts(explanation, name)))?;
    let last = |what: &str| {
        let text = container_text(name, what);
        explanation.history.iter().rposition(|line| line.what.starts_with(&text))
    };
    let started = last(STARTED).max(last(RESTARTED));
    let has_sandbox = |line: &Transition| line.what.starts_with(SANDBOX_CREATED) || line.what.starts_with(CONTAINER);
    let has_sandbox = explanation.forgotten > 0 || explanation.history.iter().any(has_sandbox);
    Some(if started.is_some() && started > last(EXITED) {
        of_container(name, "Started", "was just started, its state is being read")
    } else if !has_sandbox {
        of_pod("ContainerCreating", "the sandbox is being created")
    } else {
        of_container(name, "ContainerCreating", "the container is being created")
    })
}

/// The container has exited and is started again.
fn restarts(explanation: &Explanation, name: &str) -> bool {
    let status = statuses(explanation).find(|status| status.name == name);
    let ended = status.and_then(|status| Some((status, status.state.as_ref()?.terminated.as_ref()?)));
    ended.is_some_and(|(status, ended)| super::cause::is_restarted(explanation, status, ended.exit_code))
}
