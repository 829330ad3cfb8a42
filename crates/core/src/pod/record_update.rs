//! Updates the record from an observation: attempts, exits, results of calls in doubt.
//!
//! The exit of a container is in the record, and so on disk, before anything may remove the container.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ContainerStatus;

use super::{Ctx, PodFacts};
use crate::actions;
use crate::model::history_text::{EXITED, container_text};
use crate::model::{
    Call, CallKey, ContainerId, ContainerMemory, ContainerSeen, Exit, HookState, Name, Now, RunState, RuntimeCall,
    find_container,
};
use crate::mutate::{self, Mutant};

/// Copies attempts, exits and hooks of another agent from the observed state to the record.
pub(super) fn update_record(facts: &mut PodFacts, now: Now) {
    let attempts = facts.observed.seen.sandboxes.iter().map(|s| s.attempt + 1).max().unwrap_or(0);
    let attempts = facts.record.sandbox_attempts.max(attempts);
    facts.record.set(|r| &mut r.sandbox_attempts, attempts);
    let known = |(name, memory): (&Name, &ContainerMemory)| memory.created.then(|| (name.clone(), memory.restarts));
    let known: BTreeMap<Name, u32> = facts.record.containers.iter().filter_map(known).collect();
    for c in newest_two(&facts.observed.seen.containers) {
        let mut new_exit = false;
        facts.record.edit_container(&c.name, |memory| {
            if c.state == RunState::Running && known.get(&c.name).is_none_or(|last| c.attempt > *last) {
                // Our own instances are observed before they run. Another agent started this one, and its hook.
                memory.post_start = Some((c.id.clone(), HookState::Done));
            }
            new_exit = update_container(memory, c);
        });
        if new_exit {
            let what = container_text(&c.name, format_args!("{EXITED} with code {}", c.exit_code));
            facts.history.record(now, &what, &c.reason);
        }
    }
    adopt_verdicts(facts);
}

/// Takes over what the last status says of probes of instances that run: another agent ran them, and containers stay ready.
pub(super) fn adopt_verdicts(facts: &mut PodFacts) {
    let statuses = facts.record.status.iter().flat_map(|s| [&s.init_container_statuses, &s.container_statuses]);
    let statuses: Vec<&ContainerStatus> = statuses.flatten().flatten().collect();
    let mut adopted = vec![];
    for c in facts.observed.seen.containers.iter().filter(|c| c.state == RunState::Running) {
        let Some(status) = statuses.iter().find(|s| id_in(s).is_some_and(|id| id == c.id.as_str())) else { continue };
        let Some(spec) = find_container(&facts.record.pod, c.name.as_str()).map(|found| found.container) else {
            continue;
        };
        let started = spec.startup_probe.is_some() && status.started == Some(true);
        let ready = spec.readiness_probe.is_some() && status.ready;
        if started || ready {
            adopted.push((c.name.clone(), c.id.clone(), started, ready));
        }
    }
    for (name, id, started, ready) in adopted {
        facts.record.edit_container(&name, |memory| {
            if started {
                memory.started = Some(id.clone());
            }
            if ready && memory.ready.as_ref().is_none_or(|(known, _)| *known != id) {
                memory.ready = Some((id, true));
            }
        });
    }
}

/// The runtime's id of the instance that a status is about.
pub(super) fn id_in(status: &ContainerStatus) -> Option<&str> {
    let id = status.container_id.as_deref()?;
    Some(id.split_once("://").map_or(id, |(_, id)| id))
}

/// The object of this call may still appear under its name at any time: the next attempt gets another name.
pub(super) fn skip_attempt(facts: &mut PodFacts, call: Call) {
    match call {
        Call::Runtime(RuntimeCall::RunSandbox { attempt }) => {
            facts.record.set(|r| &mut r.sandbox_attempts, attempt + 1);
        }
        Call::Runtime(RuntimeCall::CreateContainer { name, attempt, .. }) => {
            facts.record.edit_container(&name, |memory| (memory.created, memory.restarts) = (true, attempt));
        }
        _ => {}
    }
}

/// The start of this container has a definite result.
pub(super) fn clear_starting(facts: &mut PodFacts, name: &Name) {
    if facts.record.containers.get(name).is_some_and(|memory| memory.starting.is_some()) {
        facts.record.edit_container(name, |memory| memory.starting = None);
    }
}

/// A start that was interrupted, by the end of the agent or by a deadline, leaves an instance that the runtime itself ended
/// before or just after its process started. That exit code has no meaning, and the instance is replaced regardless of the
/// restart policy. Returns the instances whose start has a definite result now.
pub(super) fn settle_starts(facts: &mut PodFacts, now: Now) -> Vec<ContainerId> {
    if !facts.observed.fresh() || facts.record.termination().is_some() {
        return vec![];
    }
    let open = facts.record.containers.iter().filter_map(|(name, m)| Some((name.clone(), m.starting.clone()?)));
    let open: Vec<_> = open.filter(|(_, id)| !facts.calls.unsettled(&CallKey::Instance(id.clone()))).collect();
    let mut settled = vec![];
    for (name, id) in open {
        let state = facts.observed.seen.container(&id).map(|c| (c.state, c.started_at.is_some()));
        if state == Some((RunState::Created, false)) {
            continue;
        }
        clear_starting(facts, &name);
        settled.push(id.clone());
        // The runtime may have removed it meanwhile: then its exit is in the record.
        let exit = facts.record.containers.get(&name).and_then(|memory| memory.exit.as_ref());
        let never_started = exit.is_some_and(|exit| exit.id == id && exit.started_at.is_none());
        let interrupted = state == Some((RunState::Exited, false)) || (state.is_none() && never_started);
        if interrupted && !mutate::is_active(Mutant::CutOffIsExit) {
            facts.history.record(now, &container_text(&name, "is replaced"), "its start was interrupted");
            facts.record.edit_container(&name, |memory| memory.voided = Some(id));
        }
    }
    settled
}

/// An instance that ran and that the runtime no longer lists has exited, with an unknown exit code. Only the last status shows
/// that it ran, and the next one will not: so the exit is journaled.
pub(super) fn record_disappeared(facts: &mut PodFacts, now: Now) {
    if !facts.observed.fresh() {
        return;
    }
    let names: Vec<Name> = facts.record.containers.keys().cloned().collect();
    for name in names {
        let Some(exit) = actions::disappeared_exit(&facts.observed.seen, &facts.record, name.as_str()) else {
            continue;
        };
        facts.history.record(now, &container_text(&name, "disappeared"), "the runtime no longer lists it");
        facts.record.edit_container(&name, |memory| {
            memory.previous_exit = memory.exit.take();
            memory.exit = Some(exit);
        });
    }
}

/// Resolves calls in doubt whose result the observation shows, or whose time is over.
pub(super) fn settle_doubts(facts: &mut PodFacts, ctx: &mut Ctx<'_>) {
    if !facts.calls.in_doubt() {
        return;
    }
    let seen = &facts.observed.seen;
    let answered = |call: &Call| match call {
        Call::Runtime(RuntimeCall::RunSandbox { attempt }) => seen.sandboxes.iter().any(|s| s.attempt >= *attempt),
        Call::Runtime(RuntimeCall::CreateContainer { name, attempt, sandbox, .. }) => {
            seen.containers.iter().any(|c| c.name == *name && c.attempt >= *attempt && c.sandbox == *sandbox)
        }
        Call::Runtime(RuntimeCall::StartContainer { id, .. }) => {
            seen.container(id).is_none_or(|c| c.state != RunState::Created)
        }
        _ => true,
    };
    let (given_up, observe_again) = facts.calls.settle(ctx.now.boot, facts.observed.fresh(), answered);
    if observe_again {
        facts.observed.acted(ctx.seq.draw());
    }
    for call in given_up {
        facts.history.record(ctx.now, &format!("{} is no longer awaited", call.key()), "its result stayed unknown");
        skip_attempt(facts, call);
    }
    if facts.calls.observation_due(ctx.now.boot) {
        facts.observed.mark_dirty();
    }
}

/// The two newest instances of each name, the older one first: what `state` and `lastState` show.
pub(super) fn newest_two(containers: &[ContainerSeen]) -> Vec<&ContainerSeen> {
    let mut count: BTreeMap<&Name, u8> = BTreeMap::new();
    let mut newest: Vec<_> = containers
        .iter()
        .filter(|c| {
            let n = count.entry(&c.name).or_default();
            *n += 1;
            *n <= 2
        })
        .collect();
    newest.reverse();
    newest
}

/// Updates the record from one instance; instances come oldest first. True if its exit is new.
fn update_container(memory: &mut ContainerMemory, c: &ContainerSeen) -> bool {
    memory.created = true;
    memory.restarts = memory.restarts.max(c.attempt);
    let known = |exit: &Option<Exit>| exit.as_ref().is_some_and(|e| e.id == c.id);
    if known(&memory.exit) || known(&memory.previous_exit) {
        return false;
    }
    // Older than the instance whose exit is known: it was handled before and is not removed yet.
    if memory.exit.as_ref().is_some_and(|exit| c.attempt < exit.attempt) {
        return false;
    }
    // Newer than the instance whose exit is known.
    if memory.exit.is_some() {
        memory.previous_exit = memory.exit.take();
    }
    if c.state != RunState::Exited || mutate::is_active(Mutant::ExitNotRecorded) {
        return false;
    }
    memory.exit = Some(actions::exit_of(c));
    true
}
