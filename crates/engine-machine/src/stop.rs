//! The stop requests of one container that has, or may have, a process.
//!
//! Each caller has the deadline of its own timeout, and the earliest one of the callers that still wait counts: a shorter timeout
//! shortens the grace period, a longer one extends nothing while the first caller waits. A caller that goes away takes its deadline
//! along, so it never causes a SIGKILL. A removal and the stop of the sandbox kill at once and have no caller who could go away.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::mutate::{MachineMutant, made};
use super::{Failure, MachineEffect, MachineTime, WaiterId};

/// The stop requests of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stop {
    /// Callers of StopContainer, each with the end of its timeout.
    waiters: BTreeMap<WaiterId, MachineTime>,
    /// The sandbox is being stopped.
    sandbox_stops: bool,
    /// The container is to be removed after its exit, with the callers of the removal.
    removal: Option<BTreeSet<WaiterId>>,
    /// When it was last killed, or its launch aborted.
    killed: Option<MachineTime>,
}

impl Stop {
    /// StopContainer.
    pub(super) fn request(&mut self, waiter: WaiterId, timeout: Duration, now: MachineTime) {
        self.waiters.insert(waiter, now.saturating_add(timeout));
    }

    /// The sandbox is being stopped.
    pub(super) fn force(&mut self) {
        self.sandbox_stops = true;
    }

    /// RemoveContainer, or the removal of the sandbox, which has no waiter of its own here.
    pub(super) fn remove(&mut self, waiter: Option<WaiterId>) {
        self.removal.get_or_insert_default().extend(waiter);
    }

    /// The caller is gone. A removal goes on without it.
    pub(super) fn abandon(&mut self, waiter: WaiterId) {
        if !made(MachineMutant::AbandonKeepsDeadline) {
            self.waiters.remove(&waiter);
        }
        self.removal.as_mut().map(|waiters| waiters.remove(&waiter));
    }

    /// There is a reason to end the container.
    pub(super) fn is_requested(&self) -> bool {
        self.is_forced() || !self.waiters.is_empty()
    }

    /// The container is to be ended without a grace period.
    pub(super) fn is_forced(&self) -> bool {
        self.sandbox_stops || self.removal.is_some()
    }

    /// The container is to be removed after its exit.
    pub(super) fn is_removal(&self) -> bool {
        self.removal.is_some()
    }

    /// It was killed, or its launch aborted, before.
    pub(super) fn is_killed(&self) -> bool {
        self.killed.is_some()
    }

    /// It is time to kill: the first time when a request demands it, then again every [`KILL_AGAIN`]. Notes that it is done.
    pub(super) fn take_kill(&mut self, now: MachineTime) -> bool {
        let due = match self.killed {
            Some(last) => last.saturating_add(KILL_AGAIN) <= now,
            None => self.is_forced() || self.waiters.values().any(|deadline| *deadline <= now),
        };
        if due {
            self.killed = Some(now);
        }
        due
    }

    /// An aborted launch succeeded nevertheless: the process is to be killed at once.
    pub(super) fn kill_again_now(&mut self, now: MachineTime) -> bool {
        let again = self.killed.is_some();
        self.killed = again.then_some(now);
        again
    }

    /// When the rules have to be applied again.
    pub(super) fn next_wake(&self) -> Option<MachineTime> {
        match self.killed {
            Some(last) => Some(last.saturating_add(KILL_AGAIN)),
            None => self.waiters.values().min().copied(),
        }
    }

    /// The exit was observed: every caller is answered. Returns the callers of the removal that follows, if one does.
    pub(super) fn answer(self, out: &mut Vec<MachineEffect>) -> Option<BTreeSet<WaiterId>> {
        let count = if made(MachineMutant::OneWaiterAnswered) { 1 } else { self.waiters.len() };
        out.extend(self.waiters.into_keys().take(count).map(|waiter| MachineEffect::Answer(waiter, Ok(()))));
        self.removal
    }

    /// Answers the callers of StopContainer before the exit was observed.
    pub(super) fn answer_early(&mut self, out: &mut Vec<MachineEffect>) {
        out.extend(std::mem::take(&mut self.waiters).into_keys().map(|waiter| MachineEffect::Answer(waiter, Ok(()))));
    }
}

/// Answers all callers with one result.
pub(super) fn answer_all(
    waiters: impl IntoIterator<Item = WaiterId>,
    result: Result<(), &Failure>,
    out: &mut Vec<MachineEffect>,
) {
    for waiter in waiters {
        out.push(MachineEffect::Answer(waiter, result.map_err(|failure| failure.clone().into())));
    }
}

/// A SIGKILL is repeated while the process lives: one that was sent between fork and exec of a child, or through a descriptor that
/// was lost with a crash, must not be the last.
pub(super) const KILL_AGAIN: Duration = Duration::from_secs(5);
