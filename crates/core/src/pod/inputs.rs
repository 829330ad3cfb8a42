//! What a pod is told: by its source, by people, by the runtime. Each changes only what is known; the plan follows.

use std::collections::BTreeSet;

use super::{Ctx, KillOptions, Machine};
use crate::actions::Waiting;
use crate::model::PodSnapshot;
use crate::model::{Call, CallError, Cause, Effect, Name, Now, Out, PodSeen, Seq, Termination, Time, spec_of};
use crate::mutate::{self, Mutant};
use crate::status;

impl Machine {
    /// The end is asked for. The first cause stays, the deadline only moves earlier.
    pub(crate) fn kill(&mut self, cause: Cause, options: KillOptions, ctx: &mut Ctx<'_>) {
        self.waiters.extend(options.waiter);
        if self.record.is_terminated() {
            if matches!(cause, Cause::Deleted | Cause::Orphan) {
                self.note_deleted();
            }
            return;
        }
        let before = self.record.termination().cloned();
        let (grace, shortened) = self.effective_grace(before.as_ref().map(|e| e.grace), options.grace);
        let due = ctx.now.boot + if mutate::made(Mutant::GraceTwice) { grace * 2 } else { grace };
        let deadline = match &before {
            Some(_) if mutate::made(Mutant::DeadlineMovesLater) => due,
            Some(e) => e.deadline.resume(&ctx.config.boot_id).min(due),
            None => due,
        };
        if before.is_none() || shortened {
            let why = format!("{}, grace period {} s", termination_cause(cause), grace.as_secs());
            self.history.record(
                ctx.now,
                if before.is_none() { "termination requested" } else { "deadline moved earlier" },
                &why,
            );
        }
        let deleted = matches!(cause, Cause::Deleted | Cause::Orphan);
        let termination = Termination {
            admitted: self.record.was_admitted(),
            restart_requested: self.record.restart_requested(),
            cause: before.as_ref().map_or(cause, |e| e.cause),
            deleted: deleted || before.as_ref().is_some_and(|e| e.deleted),
            grace,
            deadline: self.saved(deadline, ctx),
            status_override: options.evicted.or(before.as_ref().and_then(|e| e.status_override.clone())),
        };
        self.unsaved |= self.record.life.begin_termination(termination);
    }

    /// Eviction, shutdown or a person wants its end. That it is evicted is told once.
    pub(crate) fn end_by_others(&mut self, cause: Cause, options: KillOptions, ctx: &mut Ctx<'_>, out: &mut Out) {
        let evicted = options.evicted.as_ref().filter(|_| self.record.termination().is_none());
        if let Some((_, message)) = evicted {
            self.event(true, "Evicted", None, message.clone(), out);
        }
        self.kill(cause, options, ctx);
    }

    /// Its source has it no more.
    pub(crate) fn removed(&mut self, cause: Cause, ctx: &mut Ctx<'_>) {
        self.has_config = false;
        self.kill(cause, KillOptions::default(), ctx);
        self.note_deleted();
    }

    /// It was deleted, or left config: its content goes, and a new life under its UID may begin after this one.
    pub(super) fn note_deleted(&mut self) {
        if let Some(ending) = self.record.life.termination_mut().filter(|e| !e.deleted) {
            ending.deleted = true;
            self.unsaved = true;
        }
    }

    /// Only the runtime knows it: it can only be ended.
    pub(crate) fn orphaned(&mut self, options: KillOptions, ctx: &mut Ctx<'_>) {
        self.has_config = false;
        self.kill(Cause::Orphan, options, ctx);
    }

    /// A new life under this UID was asked for while this one ends.
    pub(crate) fn request_restart(&mut self) {
        if let Some(termination) = self.record.life.termination_mut() {
            termination.restart_requested = true;
            self.unsaved = true;
        }
    }

    /// A person wants containers to begin anew; of a pod that a person stopped, all of it. An object whose phase is terminal has
    /// no other life: that is for static pods.
    pub(crate) fn restart_containers(&mut self, container: Option<Name>, ctx: &Ctx<'_>) {
        if self.record.termination().is_some_and(|e| e.cause == Cause::Stopped) {
            if self.is_static() && !self.record.restart_requested() {
                self.history.record(ctx.now, "restart of the pod requested", "by a user");
                self.note_deleted();
                self.request_restart();
            }
            return;
        }
        let names: BTreeSet<Name> = match container {
            Some(name) => BTreeSet::from([name]),
            None => spec_of(&self.record.pod).containers.iter().map(|c| Name::from(c.name.as_str())).collect(),
        };
        for name in names {
            self.history.record(ctx.now, &format!("restart of container {name} requested"), "by a user");
            self.bring_up.restart_now.insert(name);
        }
        self.calls.reset_backoff();
    }

    /// It may start, or it must wait, and this is why.
    pub(crate) fn hold(&mut self, hold: Option<Waiting>, ctx: &Ctx<'_>) {
        if self.hold != hold {
            match &hold {
                Some(w) => {
                    self.history.record(ctx.now, &format!("waiting: {}", w.reason), &w.message);
                    // Nothing of it runs; nobody asks for probes while it is held.
                    self.probing.stop_all();
                }
                None => self.history.record(ctx.now, "admitted", ""),
            }
            self.hold = hold;
        }
    }

    /// What stands in the way of its admission, in more detail than the status may say.
    pub(crate) fn record_rejection(&mut self, detail: &str, ctx: &Ctx<'_>) {
        self.history.record(ctx.now, "rejected", detail);
    }

    pub(crate) fn admitted(&mut self) {
        self.unsaved |= self.record.life.admit();
    }

    /// What is known of it is not the truth any more.
    pub(crate) fn look_again(&mut self) {
        self.observed.mark_dirty();
    }

    pub(crate) fn hint(&mut self, now: Time) {
        self.observed.hint(self.calls.any(Call::changes_runtime), now);
    }

    pub(crate) fn absent_from_list(&mut self, seq: Seq) {
        self.observed.absent(seq);
    }

    pub(crate) fn observed(&mut self, seq: Seq, result: Result<PodSeen, CallError>, ctx: &mut Ctx<'_>, out: &mut Out) {
        let unavailable = result.as_ref().is_err_and(CallError::is_unavailable);
        if unavailable {
            self.observed.lost(seq);
            return;
        }
        let troubled = self.observed.trouble().is_some();
        if self.observed.observed(seq, result.map_err(|e| e.message().to_owned()), ctx.now.boot) {
            self.absorb(ctx);
        }
        if let Some((2, message)) = self.observed.trouble() {
            let message = format!("the runtime does not report this pod: {message}");
            self.event(true, "FailedSync", None, message, out);
        } else if troubled && self.observed.trouble().is_none() {
            self.history.record(ctx.now, "observed again", "the runtime reports this pod again");
        }
    }

    /// A bug was met in this pod: it is told once, and nothing is done for it any more.
    pub(crate) fn quarantine(&mut self, why: &str, now: Now, out: &mut Out) {
        if self.quarantine.replace(why.to_owned()).is_some() {
            return;
        }
        out.effects.push(Effect::KeepAside { record: Box::new(self.record.clone()) });
        self.record.status = Some(status::quarantined(self.record.status.as_ref(), why, now.wall));
        out.effects.push(Effect::StatusChanged(Box::new(PodSnapshot::of(&self.record))));
        self.event(
            true,
            "Quarantined",
            None,
            format!("an internal error was met: {why}; the pod is left as it is"),
            out,
        );
    }
}

/// Why a pod terminates, for its history.
pub(super) fn termination_cause(cause: Cause) -> &'static str {
    match cause {
        Cause::Deleted => "the pod was deleted",
        Cause::Evicted => "the pod is evicted",
        Cause::Removed => "its manifest was removed",
        Cause::Ended => "no container is to be restarted",
        Cause::Orphan => "no source has this pod",
        Cause::Stopped => "stopped by a user",
    }
}
