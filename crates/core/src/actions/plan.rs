//! The plan for a pod with a ready sandbox: kill unwanted containers, advance init, keep app containers running.

use super::{
    Actions, Fact, Inputs, Kill, KillReason, Start, Waiting, Within, format_pod, is_post_start_done, is_started,
    is_voided,
};
use crate::backoff;
use crate::model::{Backoff, Container, ContainerMemory, Cursor, Name, PodSpec, SandboxId, is_sidecar};
use crate::mutate::{self, Mutant};

/// Progress of the init containers.
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
    /// Kills containers that run in another sandbox, have a newer instance, or are not in the spec.
    pub(super) fn kill_unwanted(&mut self) {
        let seen = self.i.seen;
        let others = seen.sandboxes.iter().filter(|s| s.ready && s.id != *self.sandbox);
        self.out.stop_sandboxes = others.map(|s| s.id.clone()).collect();
        for c in seen.alive() {
            if c.sandbox != *self.sandbox {
                let message = format!("Container {} runs in another sandbox", c.name);
                self.out.kill.push(Kill::new(c, KillReason::PodMustBeRestarted, message));
            } else if !self.in_spec(&c.name)
                || seen.newest_in(self.sandbox, c.name.as_str()).is_some_and(|n| n.id != c.id)
            {
                let message = format!("Container {} is no longer wanted", c.name);
                self.out.kill.push(Kill::new(c, KillReason::Superseded, message));
            }
        }
    }

    /// Ephemeral containers run once, at any time, and do not keep the pod running. An instance whose start was interrupted does not
    /// count.
    pub(super) fn ephemeral(&mut self) {
        for c in self.spec.ephemeral_containers.iter().flatten() {
            let (attempt, existing) = match Fact::of(self.i.seen, self.i.record, &c.name, Within::Any) {
                Fact::Created(created) if created.sandbox == *self.sandbox => {
                    (created.attempt, Some(created.id.clone()))
                }
                Fact::Ended(exit)
                    if is_voided(self.i.record, &c.name, &exit.id) || mutate::is_active(Mutant::EphemeralRestarts) =>
                {
                    (exit.attempt + 1, None)
                }
                // Voided by a former agent, which died before the instance was stopped.
                Fact::Running(seen) if seen.sandbox == *self.sandbox && is_voided(self.i.record, &c.name, &seen.id) => {
                    let message = format!("Container {} was requested to restart, will be restarted", c.name);
                    let kill = Kill::new(seen, KillReason::Requested, message);
                    self.out.kill.push(Kill { replace: true, ..kill });
                    continue;
                }
                // An instance that was created and never observed running was given up: the next attempt has another number.
                Fact::Nothing => (self.memory(&c.name).filter(|m| m.created).map_or(0, |m| m.restarts + 1), None),
                _ => continue,
            };
            self.out.start.push(Start { name: c.name.as_str().into(), attempt, existing, backoff: None });
        }
    }

    /// Moves the cursor past finished init containers, keeps the sidecars before it running, and starts the container at it.
    pub(super) fn init(&mut self) -> Init {
        let inits = self.spec.init_containers.as_deref().unwrap_or_default();
        let mut done = self.cursor(inits).min(inits.len());
        done += inits[done..].iter().take_while(|c| self.init_done(c)).count();
        let cursor = Cursor { sandbox: self.sandbox.clone(), done };
        if self.i.record.cursor.as_ref() != Some(&cursor) {
            self.out.cursor = Some(cursor);
        }
        for c in inits[..done].iter().filter(|c| is_sidecar(c)) {
            self.keep_running(c);
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
                self.keep_running(c);
                Init::Pending
            }
        }
    }

    /// Number of finished init containers, from the journal. For an unknown sandbox it is inferred from the containers in it:
    /// they were created in order.
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

    /// The init container succeeded; a sidecar runs and its postStart hook and startup probe succeeded.
    fn init_done(&self, c: &Container) -> bool {
        let memory = self.memory(&c.name);
        match self.fact(c) {
            Fact::Running(seen) if is_sidecar(c) => {
                is_started(c, memory, &seen.id) && is_post_start_done(c, memory, &seen.id)
            }
            Fact::Ended(exit) => !is_sidecar(c) && exit.code == 0 && !is_voided(self.i.record, &c.name, &exit.id),
            _ => false,
        }
    }

    /// Plans one app container; false once it has finished.
    pub(super) fn app(&mut self, c: &Container) -> bool {
        if let Fact::Nothing | Fact::Ended(_) = self.fact(c)
            && let Fact::Ended(exit) = Fact::of(self.i.seen, self.i.record, &c.name, Within::Any)
            && !is_voided(self.i.record, &c.name, &exit.id)
            && !backoff::should_restart(c, self.spec, exit.code)
        {
            return false;
        }
        self.keep_running(c);
        true
    }

    /// A container that should run: kept if it is healthy, killed if not, started if it does not exist.
    fn keep_running(&mut self, c: &Container) {
        match self.fact(c) {
            Fact::Running(seen) => {
                let kill = self.kill_of(c, seen);
                self.out.kill.extend(kill);
            }
            Fact::Unknown(seen) => {
                let message = format!("Container {} is in unknown state, try killing it before restart", c.name);
                self.out.kill.push(Kill::new(seen, KillReason::Unknown, message));
            }
            fact => {
                if let Some(start) = self.start_of(c, &fact) {
                    self.out.start.push(start);
                }
            }
        }
    }

    /// The start of a container; `None` while it is in back-off or another instance runs.
    fn start_of(&mut self, c: &Container, here: &Fact<'_>) -> Option<Start> {
        // Never two instances of one container: one in another sandbox must be gone first.
        if self.i.seen.alive().any(|alive| alive.name.as_str() == c.name) {
            return None;
        }
        let name = Name::from(c.name.as_str());
        if let Fact::Created(created) = here
            && !self.changed(c, created)
            && !is_voided(self.i.record, &c.name, &created.id)
        {
            return Some(Start { name, attempt: created.attempt, existing: Some(created.id.clone()), backoff: None });
        }
        let backoff = self.backoff(c, &name)?;
        Some(Start { attempt: self.attempt(&c.name), name, existing: None, backoff })
    }

    /// `None`: the container is in back-off. Otherwise the back-off to journal with its start, if it changes.
    fn backoff(&mut self, c: &Container, name: &Name) -> Option<Option<Backoff>> {
        let Fact::Ended(exit) = Fact::of(self.i.seen, self.i.record, &c.name, Within::Any) else { return Some(None) };
        let (now, max) = (self.i.now.wall, self.i.backoff_max);
        let fresh = ContainerMemory::default();
        let memory = self.memory(&c.name).unwrap_or(&fresh);
        // An instance that we killed to replace it did not crash. One whose exit triggered RestartAllContainers did.
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
            format_pod(self.i.pod)
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
