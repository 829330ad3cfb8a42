//! What a look at the runtime teaches the record: attempts, exits, the sandbox that counts.
//!
//! The exit of a container is in the record, and so on disk, before anything may remove the container.

use std::collections::{BTreeMap, BTreeSet};

use super::{Ctx, Machine};
use crate::actions;
use crate::model::{Call, CallKey, ContainerMemory, ContainerSeen, Exit, HookState, Name, RunState, RuntimeCall};
use crate::mutate::{self, Mutant};

impl Machine {
    pub(super) fn absorb(&mut self, ctx: &Ctx<'_>) {
        let before = (self.record.containers.clone(), self.record.sandbox_attempts);
        let attempts = self.observed.seen.sandboxes.iter().map(|s| s.attempt + 1).max().unwrap_or(0);
        self.record.sandbox_attempts = self.record.sandbox_attempts.max(attempts);
        let known = |(name, memory): (&Name, &ContainerMemory)| memory.created.then(|| name.clone());
        let known: BTreeSet<Name> = self.record.containers.iter().filter_map(known).collect();
        for c in newest_two(&self.observed.seen.containers) {
            let memory = self.record.containers.entry(c.name.clone()).or_default();
            if c.state == RunState::Running && !known.contains(&c.name) {
                // Ours are seen before they run: another agent began this one, and its hook.
                memory.post_start = Some((c.id.clone(), HookState::Done));
            }
            let new_exit = learn(memory, c);
            if new_exit {
                let what = format!("container {} exited with code {}", c.name, c.exit_code);
                self.history.record(ctx.now, &what, &c.reason);
            }
        }
        if before != (self.record.containers.clone(), self.record.sandbox_attempts) {
            self.unsaved = true;
        }
        let seen = &self.observed.seen;
        self.killing.retain(|id| seen.container(id).is_some_and(|c| c.state.may_run()));
    }

    /// What this call was to make may surface under its name at any time: the next try gets another name.
    pub(super) fn leave_behind(&mut self, call: Call) {
        match call {
            Call::Runtime(RuntimeCall::RunSandbox { attempt }) => self.record.sandbox_attempts = attempt + 1,
            Call::Runtime(RuntimeCall::CreateContainer { name, attempt, .. }) => {
                let memory = self.record.containers.entry(name).or_default();
                (memory.created, memory.restarts) = (true, attempt);
            }
            _ => {}
        }
        self.unsaved = true;
    }

    /// The start of this container has a definite end.
    pub(super) fn start_is_settled(&mut self, name: &Name) {
        if let Some(memory) = self.record.containers.get_mut(name)
            && memory.starting.take().is_some()
        {
            self.unsaved = true;
        }
    }

    /// A start that was cut off, by the agent's own death or by a deadline, leaves an instance that the runtime ended itself, before
    /// or just after its process began: that is nobody's exit code, and the instance is replaced whatever the policy.
    pub(super) fn settle_starts(&mut self, ctx: &Ctx<'_>) {
        if !self.observed.fresh() || self.record.termination().is_some() {
            return;
        }
        let open = self.record.containers.iter().filter_map(|(name, m)| Some((name.clone(), m.starting.clone()?)));
        let open: Vec<_> = open.filter(|(_, id)| !self.calls.unsettled(&CallKey::Instance(id.clone()))).collect();
        for (name, id) in open {
            let state = self.observed.seen.container(&id).map(|c| (c.state, c.started_at.is_some()));
            if state == Some((RunState::Created, false)) {
                continue;
            }
            self.start_is_settled(&name);
            self.bring_up.sent_again.remove(&id);
            if state == Some((RunState::Exited, false)) {
                self.history.record(ctx.now, &format!("container {name} is replaced"), "its start was interrupted");
                self.record.containers.entry(name).or_default().voided = Some(id);
                self.unsaved = true;
            }
        }
    }

    /// An instance that ran and is nowhere now has ended, and nobody can say how. Only the last status tells that it ran, and
    /// the next one will not: so it is written down.
    pub(super) fn absorb_lost(&mut self, ctx: &Ctx<'_>) {
        if !self.observed.fresh() {
            return;
        }
        let names: Vec<Name> = self.record.containers.keys().cloned().collect();
        for name in names {
            let Some(exit) = actions::disappeared_exit(&self.observed.seen, &self.record, name.as_str()) else {
                continue;
            };
            self.history.record(ctx.now, &format!("container {name} disappeared"), "the runtime no longer lists it");
            let memory = self.record.containers.entry(name).or_default();
            memory.previous_exit = memory.exit.take();
            memory.exit = Some(exit);
            self.unsaved = true;
        }
    }

    /// A look may answer what became of a call in doubt; time may end the waiting.
    pub(super) fn settle_doubts(&mut self, ctx: &mut Ctx<'_>) {
        if !self.calls.in_doubt() {
            return;
        }
        let seen = &self.observed.seen;
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
        let (given_up, last_look) = self.calls.settle(ctx.now.boot, self.observed.fresh(), answered);
        if last_look {
            self.observed.acted(ctx.seq.draw());
        }
        for call in given_up {
            self.history.record(ctx.now, &format!("{} is given up", call.key()), "its result stayed unknown");
            self.leave_behind(call);
        }
        if self.calls.look_due(ctx.now.boot) {
            self.observed.mark_dirty();
        }
    }
}

/// The two newest instances of each name, the older one first: what `state` and `lastState` tell of.
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
    // An older one than that whose end we know: it was known once, and has not gone yet.
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
    memory.exit = Some(crate::actions::exit_of(c));
    true
}
