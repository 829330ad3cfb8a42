//! What an observation teaches the record: attempts, exits, the fate of calls in doubt.
//!
//! The exit of a container is in the record, and so on disk, before anything may remove the container.

use std::collections::{BTreeMap, BTreeSet};

use super::{Ctx, PodFacts};
use crate::actions;
use crate::model::{
    Call, CallKey, ContainerId, ContainerMemory, ContainerSeen, Exit, HookState, Name, Now, RunState, RuntimeCall,
};
use crate::mutate::{self, Mutant};

/// Takes over what the runtime shows: attempts, exits, hooks that another agent began.
pub(super) fn absorb(facts: &mut PodFacts, now: Now) {
    let attempts = facts.observed.seen.sandboxes.iter().map(|s| s.attempt + 1).max().unwrap_or(0);
    let attempts = facts.record.sandbox_attempts.max(attempts);
    facts.record.set(|r| &mut r.sandbox_attempts, attempts);
    let known = |(name, memory): (&Name, &ContainerMemory)| memory.created.then(|| name.clone());
    let known: BTreeSet<Name> = facts.record.containers.iter().filter_map(known).collect();
    for c in newest_two(&facts.observed.seen.containers) {
        let mut new_exit = false;
        facts.record.edit_container(&c.name, |memory| {
            if c.state == RunState::Running && !known.contains(&c.name) {
                // Ours are observed before they run: another agent began this one, and its hook.
                memory.post_start = Some((c.id.clone(), HookState::Done));
            }
            new_exit = learn(memory, c);
        });
        if new_exit {
            let what = format!("container {} exited with code {}", c.name, c.exit_code);
            facts.history.record(now, &what, &c.reason);
        }
    }
}

/// What this call was to create may surface under its name at any time: the next try gets another name.
pub(super) fn leave_behind(facts: &mut PodFacts, call: Call) {
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
pub(super) fn start_is_settled(facts: &mut PodFacts, name: &Name) {
    if facts.record.containers.get(name).is_some_and(|memory| memory.starting.is_some()) {
        facts.record.edit_container(name, |memory| memory.starting = None);
    }
}

/// A start that was cut off, by the agent's own death or by a deadline, leaves an instance that the runtime ended itself, before
/// or just after its process began: that exit code says nothing, and the instance is replaced whatever the policy. Returns the
/// instances whose start has a definite result now.
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
        start_is_settled(facts, &name);
        settled.push(id.clone());
        // The runtime may have removed it meanwhile: then its exit is in the record.
        let exit = facts.record.containers.get(&name).and_then(|memory| memory.exit.as_ref());
        let never_started = exit.is_some_and(|exit| exit.id == id && exit.started_at.is_none());
        if state == Some((RunState::Exited, false)) || (state.is_none() && never_started) {
            facts.history.record(now, &format!("container {name} is replaced"), "its start was interrupted");
            facts.record.edit_container(&name, |memory| memory.voided = Some(id));
        }
    }
    settled
}

/// An instance that ran and that the runtime no longer lists has ended, with an unknown exit code. Only the last status says that
/// it ran, and the next one will not: so it is written down.
pub(super) fn absorb_disappeared(facts: &mut PodFacts, now: Now) {
    if !facts.observed.fresh() {
        return;
    }
    let names: Vec<Name> = facts.record.containers.keys().cloned().collect();
    for name in names {
        let Some(exit) = actions::disappeared_exit(&facts.observed.seen, &facts.record, name.as_str()) else {
            continue;
        };
        facts.history.record(now, &format!("container {name} disappeared"), "the runtime no longer lists it");
        facts.record.edit_container(&name, |memory| {
            memory.previous_exit = memory.exit.take();
            memory.exit = Some(exit);
        });
    }
}

/// An observation may show what became of a call in doubt; time may end the waiting.
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
        facts.history.record(ctx.now, &format!("{} is given up", call.key()), "its result stayed unknown");
        leave_behind(facts, call);
    }
    if facts.calls.look_due(ctx.now.boot) {
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

/// Learn from one instance; instances come oldest first. True if this is a newly seen exit.
fn learn(memory: &mut ContainerMemory, c: &ContainerSeen) -> bool {
    memory.created = true;
    memory.restarts = memory.restarts.max(c.attempt);
    let known = |exit: &Option<Exit>| exit.as_ref().is_some_and(|e| e.id == c.id);
    if known(&memory.exit) || known(&memory.previous_exit) {
        return false;
    }
    // An older one than that whose end we know: it was known once, and is not removed yet.
    if memory.exit.as_ref().is_some_and(|exit| c.attempt < exit.attempt) {
        return false;
    }
    // A newer instance than the one whose end we know.
    if memory.exit.is_some() {
        memory.previous_exit = memory.exit.take();
    }
    if c.state != RunState::Exited || mutate::made(Mutant::ExitNotRecorded) {
        return false;
    }
    memory.exit = Some(actions::exit_of(c));
    true
}
