//! Hooks of containers: postStart is planned here; the result of both kinds is remembered with the instance.

use std::time::Duration;

use super::PodFacts;
use super::step::PodStep;
use crate::model::{
    Call, CallError, CallKey, ContainerId, HookKind, HookState, Name, RunState, RuntimeCall, find_container,
};

/// Kubernetes has no timeout for postStart; this one bounds the wait for a hook whose result is lost.
const POST_START_LIMIT: Duration = Duration::from_secs(3600);

/// postStart runs once for each instance that runs.
pub(super) fn plan_post_start(step: &mut PodStep<'_, '_>) {
    let running = step.facts.observed.seen.containers.iter().filter(|c| c.state == RunState::Running);
    let running: Vec<_> = running.map(|c| (c.name.clone(), c.id.clone())).collect();
    for (name, id) in running {
        let Some(found) = find_container(&step.facts.record.pod, name.as_str()) else { continue };
        if found.container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()).is_none() {
            continue;
        }
        let lost = !step.facts.calls.busy(&CallKey::Hook(id.clone(), HookKind::PostStart));
        let known = step.facts.record.containers.get(&name).and_then(|memory| memory.post_start.clone());
        if lost && known == Some((id.clone(), HookState::Begun)) {
            // A former agent started it and its result is unknown: it is not started again, and nothing waits for it.
            step.facts.record.edit_container(&name, |memory| memory.post_start = Some((id, HookState::Done)));
        } else if step.ctx.runtime_up && known.is_none_or(|(hooked, _)| hooked != id) {
            let begun = Some((id.clone(), HookState::Begun));
            step.facts.record.edit_container(&name, |memory| memory.post_start = begun);
            let ips = step.facts.ips();
            let call = Call::Runtime(RuntimeCall::Hook { kind: HookKind::PostStart, name, id, handler: None, ips });
            step.request(call, POST_START_LIMIT);
        }
    }
}

/// A hook ended.
pub(super) fn hook_ended(facts: &mut PodFacts, kind: HookKind, name: &Name, id: &ContainerId, state: HookState) {
    facts.record.edit_container(name, |memory| {
        let hook = match kind {
            HookKind::PostStart => &mut memory.post_start,
            HookKind::PreStop => &mut memory.pre_stop,
        };
        // The result of an instance that has been replaced does not apply to the next one.
        if hook.as_ref().is_some_and(|(hooked, _)| hooked == id) {
            *hook = Some((id.clone(), state));
        }
    });
}

pub(super) fn hook_failed(
    step: &mut PodStep<'_, '_>,
    kind: HookKind,
    name: &Name,
    id: &ContainerId,
    error: &CallError,
) {
    // An interrupted preStop hook used up its time; the container of an interrupted postStart hook is being stopped. If the
    // runtime became unavailable during a hook its result is unknown, and the container is not killed for that.
    let state = if error.is_cancelled() || error.is_unavailable() { HookState::Done } else { HookState::Failed };
    hook_ended(step.facts, kind, name, id, state);
    if !error.is_cancelled() {
        let (reason, hook) = match kind {
            HookKind::PostStart => ("FailedPostStartHook", "PostStartHook"),
            HookKind::PreStop => ("FailedPreStopHook", "PreStopHook"),
        };
        step.warn(reason, Some(name), format!("{hook} failed: {}", error.message()));
    }
}
