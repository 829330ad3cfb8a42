//! A pod that terminates or has terminated: why, and what still runs.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus};
use podwright_agent::event_loop::Explanation;
use podwright_core::pod::Wait;

use super::{Headline, is_sidecar};
use crate::print::{age, seconds};

/// A pod whose containers are being stopped.
pub(super) fn terminating(waits: &[Wait], now: Timestamp) -> Option<Headline> {
    let end = waits.iter().find(|wait| wait.reason == "Terminating")?;
    let killed = end.until.filter(|until| *until > now);
    let killed = killed.map(|until| format!(", killed in {}", age(seconds(now, until)))).unwrap_or_default();
    let hook = waits.iter().find(|wait| wait.reason == "PreStopHook");
    let failed = waits.iter().find(|wait| wait.reason == "FailedKillPod");
    Some(match (failed, hook.and_then(|hook| hook.container.as_ref().map(|name| (hook, name)))) {
        (Some(failed), _) => Headline::of_wait(failed, &format!("cannot be stopped: {}", failed.message)),
        (None, Some((hook, name))) => {
            Headline::of_wait(hook, &format!("is terminating: the preStop hook of {name} runs{killed}"))
        }
        (None, None) => Headline::of_wait(end, &format!("is terminating: {}{killed}", end.message)),
    })
}

/// A pod that has terminated without success, or that a user stopped.
pub(super) fn ended(explanation: &Explanation, waits: &[Wait]) -> Option<Headline> {
    if let Some(stopped) = waits.iter().find(|wait| ["Stopped", "NodeShutdown"].contains(&wait.reason.as_str())) {
        return Some(Headline::of_wait(stopped, &format!("has terminated: {}", stopped.message)));
    }
    let status =
        explanation.pod.as_ref()?.status.as_ref().filter(|status| status.phase.as_deref() == Some("Failed"))?;
    if let Some(reason) = status.reason.as_deref().filter(|reason| !reason.is_empty()) {
        let message = status.message.as_deref().unwrap_or_default();
        let detail = if message.is_empty() { String::new() } else { format!(": {message}") };
        return Some(Headline::new(&format!("has failed: {reason}{detail}"), reason, message));
    }
    // Sidecars end with the pod: how they did is no cause.
    let init = status.init_container_statuses.iter().flatten().filter(|init| !is_sidecar(explanation, &init.name));
    let init = init.map(|container| (container, "init container "));
    let mut all = init.chain(status.container_statuses.iter().flatten().map(|container| (container, "")));
    all.find_map(|(container, kind)| {
        let ended = failure(container)?;
        let oom = ended.reason.as_deref() == Some("OOMKilled");
        let (reason, how) = match ended.reason.as_deref() {
            _ if oom => ("OOMKilled", "was killed because it used more memory than its limit (OOMKilled)".to_owned()),
            Some("StartError" | "ContainerCannotRun") => {
                ("StartError", format!("could not be started: {}", ended.message.as_deref().unwrap_or_default()))
            }
            _ => ("Failed", format!("exited with {}, and restartPolicy does not allow a restart", ended.exit_code)),
        };
        Some(Headline::new(&format!("has failed: {kind}{} {how}", container.name), reason, ""))
    })
}

fn failure(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    container.state.as_ref()?.terminated.as_ref().filter(|ended| ended.exit_code != 0)
}
