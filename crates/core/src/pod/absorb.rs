//! What a look at the runtime teaches the record: attempts, exits, the sandbox that counts.
//!
//! The exit of a container is in the record, and so on disk, before anything may remove the container.

use std::collections::BTreeMap;

use super::{Ctx, Machine};
use crate::model::{Call, ContainerMemory, ContainerSeen, Exit, Name, RunState};

impl Machine {
    pub(super) fn absorb(&mut self, ctx: &Ctx<'_>) {
        let before = (self.record.containers.clone(), self.record.sandbox_attempts);
        let attempts = self.sight.seen.sandboxes.iter().map(|s| s.attempt + 1).max().unwrap_or(0);
        self.record.sandbox_attempts = self.record.sandbox_attempts.max(attempts);
        for c in newest_two(&self.sight.seen.containers) {
            let memory = self.record.containers.entry(c.name.clone()).or_default();
            let new_exit = learn(memory, c);
            if new_exit {
                let what = format!("{} exited with {}", c.name, c.exit_code);
                self.story.tell(ctx.now, &what, if c.reason.is_empty() { "its process ended" } else { &c.reason });
            }
        }
        if before != (self.record.containers.clone(), self.record.sandbox_attempts) {
            self.unsaved = true;
        }
        let seen = &self.sight.seen;
        self.killing.retain(|id| seen.container(id).is_some_and(|c| c.state.may_run()));
    }

    /// A look may answer what became of a call in doubt; time may end the waiting.
    pub(super) fn settle_doubts(&mut self, ctx: &Ctx<'_>) {
        if !self.calls.in_doubt() {
            return;
        }
        let seen = &self.sight.seen;
        let answered = |call: &Call| match call {
            Call::RunSandbox { attempt } => seen.sandboxes.iter().any(|s| s.attempt >= *attempt),
            Call::CreateContainer { name, attempt, sandbox, .. } => {
                seen.containers.iter().any(|c| c.name == *name && c.attempt >= *attempt && c.sandbox == *sandbox)
            }
            Call::StartContainer { id, .. } => seen.container(id).is_none_or(|c| c.state != RunState::Created),
            _ => true,
        };
        for call in self.calls.settle(ctx.now.boot, self.sight.fresh(), answered) {
            self.story.tell(ctx.now, "a call in doubt is given up", &format!("{call:?}"));
            match call {
                // The name stays taken in the runtime: the next try gets another.
                Call::RunSandbox { attempt } => self.record.sandbox_attempts = attempt + 1,
                Call::CreateContainer { name, attempt, .. } => {
                    let memory = self.record.containers.entry(name).or_default();
                    (memory.created, memory.restarts) = (true, attempt);
                }
                _ => {}
            }
            self.unsaved = true;
        }
        if self.calls.look_due(ctx.now.boot) {
            self.sight.mark_dirty();
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
    // A newer instance than the one whose end we know.
    if memory.exit.is_some() {
        memory.previous_exit = memory.exit.take();
    }
    if c.state != RunState::Exited {
        return false;
    }
    memory.exit = Some(crate::actions::exit_of(c));
    true
}
