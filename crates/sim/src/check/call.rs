//! Checks of every call that core sends.

use podwright_core::backoff;
use podwright_core::model::{
    Call, CallId, ContainerId, HookKind, HostCall, PodRecord, PodUid, RunState, RuntimeCall, SandboxId, full_name,
    is_sidecar,
};

use super::cgroup::is_outside_cgroup;
use super::objects::check_start_allowed_by_object;
use super::runtime::MINIMUM_STOP;
use super::{Checks, Truth};
use crate::manifest::{find, is_ephemeral, source_of};
use crate::runtime::image_id;

pub(super) fn check_call(checks: &mut Checks, truth: &Truth<'_>, uid: &PodUid, call: &Call) {
    let Some(record) = checks.latest.get(uid).cloned() else {
        return checks.violate("no call without a record", format!("{uid} {call:?}"));
    };
    let duplicate = checks.calls.values().any(|(u, c)| u == uid && c.key() == call.key());
    if duplicate && !matches!(call, Call::Runtime(RuntimeCall::StopContainer { .. })) {
        checks.violate("5 one call of a kind at a time", format!("{uid} {call:?}"));
    }
    if call.changes_runtime() && !call.is_stop() {
        check_observation(checks, truth, uid, call);
    }
    if is_setting_up(call) {
        check_start_allowed_by_object(checks, truth, uid, &format!("{call:?}"));
    }
    if is_setting_up(call) && record.termination().is_some() {
        checks.violate("1 nothing is started in a terminating pod", format!("{uid} {call:?}"));
    }
    match call {
        Call::Runtime(RuntimeCall::RunSandbox { .. } | RuntimeCall::StartContainer { .. }) => {
            check_start(checks, truth, uid, call, &record);
            check_source(checks, uid, &record);
        }
        Call::Runtime(RuntimeCall::CreateContainer { name, sandbox, image_id, .. }) => {
            check_start(checks, truth, uid, call, &record);
            check_rerun(checks, truth, uid, name.as_str(), sandbox, &record);
            check_image(checks, uid, name.as_str(), image_id, &record);
        }
        Call::Runtime(RuntimeCall::StopContainer { id, .. }) => check_stop(checks, truth, uid, id, &record),
        Call::Runtime(RuntimeCall::StopSandbox { id }) => check_sandbox_stop(checks, truth, uid, id, &record),
        Call::Runtime(RuntimeCall::RemoveContainer { id, .. }) => check_removal(checks, truth, uid, id),
        Call::Runtime(RuntimeCall::RemoveSandbox { id }) => {
            let inside: Vec<_> = truth.runtime.inside(id).map(|(c, _)| c.clone()).collect();
            inside.iter().for_each(|c| check_removal(checks, truth, uid, c));
        }
        Call::Runtime(RuntimeCall::Hook { kind, id, name, .. }) => {
            check_hook(checks, truth, uid, *kind, id, name.as_str(), &record)
        }
        Call::Host(HostCall::RemoveCgroup | HostCall::RemoveVolumes)
            if !record.is_terminated() || truth.runtime.alive(uid).next().is_some() =>
        {
            checks.violate("7 nothing that a container uses is removed", format!("{uid} {call:?}"));
        }
        Call::Host(HostCall::RemoveDirs | HostCall::RemoveLogs) if !record.is_finished() => {
            checks.violate("7 nothing that a container uses is removed", format!("{uid} {call:?}"));
        }
        _ => {}
    }
}

/// Removals are not cancelled.
pub(super) fn check_cancel(checks: &mut Checks, id: &CallId) {
    let call = checks.calls.get(id).map(|(_, call)| call);
    let removal = |c: &&Call| {
        matches!(
            c,
            Call::Host(HostCall::RemoveVolumes | HostCall::RemoveCgroup | HostCall::RemoveDirs | HostCall::RemoveLogs)
        )
    };
    if let Some(call) = call.filter(removal) {
        let text = format!("{call:?} is cancelled");
        checks.violate("7 clean-up is not interrupted", text);
    }
}

/// No call based on an observation older than the pod's last call, and none while a start is in doubt.
fn check_observation(checks: &mut Checks, truth: &Truth<'_>, uid: &PodUid, call: &Call) {
    let now = truth.clock.now;
    let doubt = checks.in_doubt.iter().find(|(of, _, until)| of == uid && now < *until);
    if let Some((_, doubted, _)) = doubt {
        let text = format!("{uid} {call:?} while {:?} is in doubt", doubted.key());
        checks.violate("16 no call while a start is in doubt", text);
    }
    let returned = checks.returned.get(uid).copied();
    let absent = checks.listed.as_ref().filter(|(_, pods)| !pods.contains(uid)).map(|(requested, _)| *requested);
    let observed = checks.observed.get(uid).copied().max(absent);
    if observed.is_none() || observed < returned {
        let text = format!("{uid} {call:?}: observed at event {observed:?}, last call came back at {returned:?}");
        checks.violate("16 no call on an old observation", text);
    }
}

fn check_start(checks: &mut Checks, truth: &Truth<'_>, uid: &PodUid, call: &Call, record: &PodRecord) {
    if !record.was_admitted() {
        checks.violate("10 the admission is recorded before anything starts", format!("{uid} {call:?}"));
    }
    let name = full_name(&record.pod);
    let mut others = truth.runtime.containers.values().filter(|c| c.uid != *uid && c.state.may_run());
    let same =
        |sandbox: &SandboxId| truth.runtime.sandboxes.get(sandbox).is_some_and(|s| s.full_name == name && s.labelled);
    if let Some(other) = others.find(|c| same(&c.sandbox)) {
        let text = format!("{uid} {call:?} while {} of {} runs", other.name, other.uid);
        checks.violate("4 one static pod per full name", text);
    }
}

/// The source in the annotations of a sandbox is the pod's: an agent that lost its journal trusts it.
fn check_source(checks: &mut Checks, uid: &PodUid, record: &PodRecord) {
    let named = source_of(&record.pod);
    if named != Some(record.source) {
        checks.violate("12 the sandbox names the pod's source", format!("{uid} of {:?}: {named:?}", record.source));
    }
}

/// A container is created from the image in the newest spec.
fn check_image(checks: &mut Checks, uid: &PodUid, name: &str, id: &str, record: &PodRecord) {
    let wanted = find(&record.pod, name).and_then(|(container, _)| container.image.clone()).unwrap_or_default();
    if id != image_id(&wanted) {
        checks.violate("6 the newest image is used", format!("{uid} {name} of {id} instead of {wanted}"));
    }
}

/// A container that exited for good is not started again, also not by a later agent process.
fn check_rerun(
    checks: &mut Checks,
    truth: &Truth<'_>,
    uid: &PodUid,
    name: &str,
    sandbox: &SandboxId,
    record: &PodRecord,
) {
    let Some((container, init)) = find(&record.pod, name) else {
        return checks.violate("only the pod's containers are created", format!("{uid} {name}"));
    };
    let incarnation = checks.incarnation(uid);
    let ran = truth
        .runtime
        .ever(uid)
        .filter(|(_, c)| c.name.as_str() == name && c.incarnation == incarnation && c.began.is_some());
    let Some((id, newest)) = ran.max_by_key(|(_, c)| (c.began, c.made)) else { return };
    if newest.state.may_run() {
        let text = format!("{uid} {name}: {id} runs");
        return checks.violate("one container per name", text);
    }
    let Some(spec) = &record.pod.spec else { return };
    let again = is_sidecar(&container) && init || backoff::should_restart(&container, spec, newest.exit_code);
    let again = again && !is_ephemeral(&record.pod, name);
    let elsewhere = init && newest.sandbox != *sandbox && spec.restart_policy.as_deref() != Some("Never");
    // Also if the voided instance is a later one that never ran: creating it was right.
    let void = record.containers.get(name).and_then(|m| m.voided.as_ref());
    let voided = truth.runtime.ever(uid).any(|(other, c)| Some(other) == void && c.made >= newest.made);
    if !again && !elsewhere && !voided && !checks.record_lost.contains(uid) {
        let text = format!("{uid} {name}: {id} exited for good with {}", newest.exit_code);
        checks.violate("10 a container that exited for good never runs again", text);
    }
}

/// A running container is stopped only for a reason.
fn check_stop(checks: &mut Checks, truth: &Truth<'_>, uid: &PodUid, id: &ContainerId, record: &PodRecord) {
    checks.first_stops.entry(id.clone()).or_insert(truth.clock.now);
    let Some(c) = truth.runtime.containers.get(id).filter(|c| c.state.may_run()) else { return };
    if c.uid != *uid {
        return checks.violate("11 no call on another pod's container", format!("{uid} stops {id} of {}", c.uid));
    }
    if let Some(deadline) = truth.deadline(record) {
        let stops = |call: &Call| matches!(call, Call::Runtime(RuntimeCall::StopContainer { id: stopped, .. }) if stopped == id);
        let under_way = checks.calls.values().any(|(_, call)| stops(call));
        let before = checks.stop_deadlines.insert(id.clone(), deadline);
        if under_way && before.is_some_and(|before| deadline >= before) {
            checks.violate("14 a stop is sent again only for an earlier deadline", format!("{uid} {id}"));
        }
        return check_hook_first(checks, truth, uid, id, record);
    }
    let spec = find(&record.pod, c.name.as_str()).map(|(spec, _)| podwright_core::hash::container_hash(&spec));
    let state = record.containers.get(&c.name);
    let sandbox = truth.runtime.sandboxes.get(&c.sandbox);
    let other_sandbox = truth.runtime.sandboxes_of(uid).any(|(other, s)| *other != c.sandbox && s.ready);
    let reason = state.is_some_and(|m| m.voided.as_ref() == Some(id))
        || checks.unhealthy.contains(id)
        || spec.is_none()
        || spec != c.hash
        || !sandbox.is_some_and(|s| s.ready)
        || other_sandbox
        || is_outside_cgroup(checks, &c.sandbox)
        || c.state == RunState::Unknown
        || checks.restarts.contains(uid)
        || truth.runtime.alive(uid).any(|(other, o)| other != id && o.name == c.name);
    if !reason {
        checks.violate("10 no running container is stopped without a reason", format!("{uid} {id} = {}", c.name));
    }
}

/// TERM is sent after the preStop hook ended, or at the deadline.
fn check_hook_first(checks: &mut Checks, truth: &Truth<'_>, uid: &PodUid, id: &ContainerId, record: &PodRecord) {
    let hooks = |call: &Call| matches!(call, Call::Runtime(RuntimeCall::Hook { kind: HookKind::PreStop, id: hooked, .. }) if hooked == id);
    // A container that was being stopped before its pod terminated has a deadline of its own.
    let terminating = checks.history.terminating.get(uid);
    let of_pod = checks.pre_stop_began.get(id).zip(terminating).is_some_and(|(began, since)| began >= since);
    let early = truth.deadline(record).is_some_and(|d| truth.clock.now < d);
    if early && of_pod && checks.calls.values().any(|(_, call)| hooks(call)) {
        checks.violate("8 a stop waits for the preStop hook", format!("{uid} {id}"));
    }
}

/// A sandbox is stopped when nothing runs in it, or at the deadline.
fn check_sandbox_stop(checks: &mut Checks, truth: &Truth<'_>, uid: &PodUid, id: &SandboxId, record: &PodRecord) {
    let alive = truth.runtime.inside(id).any(|(_, c)| c.state.may_run());
    let other_ready = truth.runtime.sandboxes_of(uid).any(|(other, s)| other != id && s.ready);
    let ready = truth.runtime.sandboxes.get(id).is_some_and(|s| s.ready);
    let overdue = truth.deadline(record).is_some_and(|d| truth.clock.now >= d);
    if alive && !overdue && !checks.disturbed.contains(uid) {
        checks.violate("8 StopPodSandbox waits for the containers", format!("{uid} {id}"));
    }
    let running = truth.runtime.inside(id).filter(|(_, c)| c.state.may_run());
    let mut stops = running.filter_map(|(id, _)| Some((id, checks.first_stops.get(id)?)));
    let hasty = stops.find(|(_, sent)| truth.clock.now < **sent + MINIMUM_STOP).map(|(id, _)| id.clone());
    if let Some(container) = hasty.filter(|_| record.termination().is_some()) {
        let text = format!("{uid} {id}: {container} was stopped less than two seconds before");
        checks.violate("8 a container has two seconds between TERM and KILL", text);
    }
    let ours = alive || record.cursor.as_ref().is_some_and(|c| c.sandbox == *id);
    if ready && ours && record.termination().is_none() && !other_ready && !is_outside_cgroup(checks, id) {
        checks.violate("10 no running container is stopped without a reason", format!("{uid} sandbox {id}"));
    }
}

/// An exit is recorded before its container is removed.
fn check_removal(checks: &mut Checks, truth: &Truth<'_>, uid: &PodUid, id: &ContainerId) {
    let Some(c) = truth.runtime.containers.get(id) else { return };
    if c.state.may_run() {
        return checks.violate("10 no running container is removed", format!("{uid} {id} = {}", c.name));
    }
    if c.state == RunState::Exited
        && c.began.is_some()
        && !checks.exits.contains(id)
        && !checks.record_lost.contains(uid)
    {
        checks.violate("10 an exit is recorded before its container is removed", format!("{uid} {id} = {}", c.name));
    }
}

fn check_hook(
    checks: &mut Checks,
    truth: &Truth<'_>,
    uid: &PodUid,
    kind: HookKind,
    id: &ContainerId,
    name: &str,
    record: &PodRecord,
) {
    if kind == HookKind::PreStop {
        checks.pre_stop_began.insert(id.clone(), truth.clock.now);
    }
    let state = record.containers.get(name);
    let recorded =
        state.and_then(|m| if kind == HookKind::PreStop { m.pre_stop.as_ref() } else { m.post_start.as_ref() });
    if recorded.is_none_or(|(hooked, _)| hooked != id) {
        checks.violate("14 a hook is recorded before it runs", format!("{uid} {kind:?} of {id} = {name}"));
    }
}

/// It creates something for the pod.
fn is_setting_up(call: &Call) -> bool {
    matches!(
        call,
        Call::Runtime(
            RuntimeCall::RunSandbox { .. } | RuntimeCall::CreateContainer { .. } | RuntimeCall::StartContainer { .. }
        ) | Call::Host(HostCall::PrepareContainer { .. })
            | Call::Runtime(RuntimeCall::ImageStatus { .. } | RuntimeCall::PullImage { .. })
            | Call::Host(HostCall::MakeCgroup | HostCall::MakeDirs | HostCall::MountVolume { .. })
    )
}
