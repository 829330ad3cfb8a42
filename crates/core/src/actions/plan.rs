//! The plan for a pod whose sandbox is ready: strays go, init moves on, app containers are kept up.

use super::{
    Actions, Fact, Inputs, Kill, KillReason, Start, Waiting, Within, is_hooked, is_started, is_voided, pod_text,
};
use crate::backoff;
use crate::model::{Backoff, Container, ContainerMemory, Cursor, Name, PodSpec, SandboxId, is_sidecar};

/// How far the init containers are.
pub(super) enum Init {
    Failed,
    Pending,
    Done,
}

/// The plan for a pod whose sandbox is ready.
pub(super) struct Plan<'a> {
    pub(super) i: &'a Inputs<'a>,
    pub(super) spec: &'a PodSpec,
    pub(super) sandbox: &'a SandboxId,
    pub(super) out: Actions,
}

impl<'a> Plan<'a> {
    /// Whatever lives in another sandbox, beside a newer instance of itself, or without a place in the spec, goes.
    pub(super) fn strays(&mut self) {
        let seen = self.i.seen;
        let others = seen.sandboxes.iter().filter(|s| s.ready && s.id != *self.sandbox);
        self.out.stop_sandboxes = others.map(|s| s.id.clone()).collect();
        for c in seen.alive() {
            if c.sandbox != *self.sandbox {
                let message = format!("Container {} lives in another sandbox", c.name);
                self.out.kill.push(Kill::new(c, KillReason::PodMustBeRestarted, message));
            } else if !self.in_spec(&c.name)
                || seen.newest_in(self.sandbox, c.name.as_str()).is_some_and(|n| n.id != c.id)
            {
                let message = format!("Container {} is not wanted any more", c.name);
                self.out.kill.push(Kill::new(c, KillReason::Superseded, message));
            }
        }
    }

    /// Ephemeral containers run once, at any time, and keep nothing alive.
    pub(super) fn ephemeral(&mut self) {
        for c in self.spec.ephemeral_containers.iter().flatten() {
            let (attempt, existing) = match Fact::of(self.i.seen, self.i.record, &c.name, Within::Any) {
                Fact::Created(made) if made.sandbox == *self.sandbox => (made.attempt, Some(made.id.clone())),
                // One that was made and never seen to run was given up: the next has another name.
                Fact::Nothing => (self.memory(&c.name).filter(|m| m.created).map_or(0, |m| m.restarts + 1), None),
                _ => continue,
            };
            self.out.start.push(Start { name: c.name.as_str().into(), attempt, existing, backoff: None });
        }
    }

    /// Moves the cursor over what is done, keeps the sidecars before it running, and starts what stands at it.
    pub(super) fn init(&mut self) -> Init {
        let inits = self.spec.init_containers.as_deref().unwrap_or_default();
        let mut done = self.cursor(inits).min(inits.len());
        done += inits[done..].iter().take_while(|c| self.init_done(c)).count();
        let cursor = Cursor { sandbox: self.sandbox.clone(), done };
        if self.i.record.cursor.as_ref() != Some(&cursor) {
            self.out.cursor = Some(cursor);
        }
        for c in inits[..done].iter().filter(|c| is_sidecar(c)) {
            self.keep_up(c);
        }
        let Some(c) = inits.get(done) else { return Init::Done };
        match self.fact(c) {
            Fact::Ended(exit)
                if !is_sidecar(c)
                    && !is_voided(self.i.record, &c.name, &exit.id)
                    && !backoff::should_restart(c, self.spec, exit.code) =>
            {
                Init::Failed
            }
            _ => {
                self.keep_up(c);
                Init::Pending
            }
        }
    }

    /// Where init stands: the journal's word. For a sandbox it doesn't know, the containers in it tell: they were made in order.
    fn cursor(&self, inits: &[Container]) -> usize {
        if let Some(cursor) = self.i.record.cursor.as_ref().filter(|c| c.sandbox == *self.sandbox) {
            return cursor.done;
        }
        let exists = |c: &Container| !matches!(self.fact(c), Fact::Nothing);
        match self.spec.containers.iter().any(exists) {
            true => inits.len(),
            false => inits.iter().rposition(exists).unwrap_or(0),
        }
    }

    /// An init container has done its part: it succeeded, or, as a sidecar, it is up, its hook and startup probe included.
    fn init_done(&self, c: &Container) -> bool {
        let memory = self.memory(&c.name);
        match self.fact(c) {
            Fact::Running(seen) if is_sidecar(c) => is_started(c, memory, &seen.id) && is_hooked(c, memory, &seen.id),
            Fact::Ended(exit) => !is_sidecar(c) && exit.code == 0 && !is_voided(self.i.record, &c.name, &exit.id),
            _ => false,
        }
    }

    /// One app container; false once it is done for good.
    pub(super) fn app(&mut self, c: &Container) -> bool {
        if let Fact::Nothing | Fact::Ended(_) = self.fact(c)
            && let Fact::Ended(exit) = Fact::of(self.i.seen, self.i.record, &c.name, Within::Any)
            && !is_voided(self.i.record, &c.name, &exit.id)
            && !backoff::should_restart(c, self.spec, exit.code)
        {
            return false;
        }
        self.keep_up(c);
        true
    }

    /// A container that should run: left alone if it does well, killed if it doesn't, started if it isn't there.
    fn keep_up(&mut self, c: &Container) {
        match self.fact(c) {
            Fact::Running(seen) => {
                let kill = self.why_kill(c, seen);
                self.out.kill.extend(kill);
            }
            Fact::Unknown(seen) => {
                let message = format!("Container {} is in unknown state, try killing it before restart", c.name);
                self.out.kill.push(Kill::new(seen, KillReason::Unknown, message));
            }
            fact => {
                if let Some(start) = self.bring_up(c, &fact) {
                    self.out.start.push(start);
                }
            }
        }
    }

    /// The start that is missing, unless the container has to wait for its turn.
    fn bring_up(&mut self, c: &Container, here: &Fact<'_>) -> Option<Start> {
        // Never two processes of one container: a stray in another sandbox has to be gone first.
        if self.i.seen.alive().any(|alive| alive.name.as_str() == c.name) {
            return None;
        }
        let name = Name::from(c.name.as_str());
        if let Fact::Created(made) = here
            && !self.changed(c, made)
            && !is_voided(self.i.record, &c.name, &made.id)
        {
            return Some(Start { name, attempt: made.attempt, existing: Some(made.id.clone()), backoff: None });
        }
        let backoff = self.backoff(c, &name)?;
        Some(Start { attempt: self.attempt(&c.name), name, existing: None, backoff })
    }

    /// `None`: the container has to wait. Else the backoff to remember with its start, if that changes.
    fn backoff(&mut self, c: &Container, name: &Name) -> Option<Option<Backoff>> {
        let Fact::Ended(exit) = Fact::of(self.i.seen, self.i.record, &c.name, Within::Any) else { return Some(None) };
        let (now, max) = (self.i.now.wall, self.i.backoff_max);
        let fresh = ContainerMemory::default();
        let memory = self.memory(&c.name).unwrap_or(&fresh);
        // What we killed to replace it is no crash. What made everything restart by its own end is.
        let killed = memory.voided.as_ref() == Some(&exit.id) && !backoff::restarts_all(c, exit.code);
        let (wait, next) = match (killed, &memory.previous_exit) {
            (false, _) => (backoff::wait(memory, &exit), Some(backoff::next(memory, &exit, now, max))),
            (true, Some(before)) => {
                (backoff::wait_after_kill(memory, &exit), Some(backoff::next(memory, before, now, max)))
            }
            (true, None) => (None, None),
        };
        let Some(wait) = wait.filter(|_| !self.i.restart_now.contains(name)) else { return Some(next) };
        let until = backoff::expires(&wait, now);
        if until <= now {
            return Some(next);
        }
        let message = format!(
            "back-off {} restarting failed container={} pod={}",
            backoff::go_duration(wait.delay),
            c.name,
            pod_text(self.i.pod)
        );
        self.out.waiting.insert(name.clone(), Waiting { reason: "CrashLoopBackOff".into(), message });
        self.out.wake_at = Some(self.out.wake_at.map_or(until, |at| at.min(until)));
        None
    }

    fn attempt(&self, name: &str) -> u32 {
        let remembered = self.memory(name).filter(|m| m.created || m.exit.is_some()).map(|m| m.restarts);
        let shown = self.i.seen.containers.iter().filter(|c| c.name.as_str() == name).map(|c| c.attempt);
        shown.chain(remembered).max().map_or(0, |last| last.saturating_add(1))
    }

    fn fact(&self, c: &Container) -> Fact<'a> {
        Fact::of(self.i.seen, self.i.record, &c.name, Within::Sandbox(self.sandbox))
    }

    pub(super) fn memory(&self, name: &str) -> Option<&'a ContainerMemory> {
        self.i.record.containers.get(name)
    }

    fn in_spec(&self, name: &Name) -> bool {
        let ephemeral = self.spec.ephemeral_containers.iter().flatten().map(|c| &c.name);
        let inits = self.spec.init_containers.iter().flatten().map(|c| &c.name);
        inits.chain(self.spec.containers.iter().map(|c| &c.name)).chain(ephemeral).any(|n| n == name.as_str())
    }
}
