//! Inputs of a pod: from its source, its users, the runtime. Each changes only what is known; the plan follows.

use std::collections::BTreeSet;

use super::{Ctx, KillOptions, Machine, termination};
use crate::actions::Waiting;
use crate::model::{
    Call, CallError, Cause, Effect, Life, Name, Now, Out, PodSeen, PodSnapshot, Record, Seq, Time, spec_of,
};
use crate::status;

impl Machine {
    /// Its termination is requested.
    pub(crate) fn kill(&mut self, cause: Cause, options: KillOptions, ctx: &Ctx<'_>) {
        self.waiters.extend(options.waiter);
        termination::request(&mut self.facts, cause, options, ctx);
    }

    /// Eviction, shutdown or a user ends it. An eviction is reported once.
    pub(crate) fn end_by_others(&mut self, cause: Cause, options: KillOptions, ctx: &Ctx<'_>, out: &mut Out) {
        let evicted = options.evicted.as_ref().filter(|_| self.facts.record.termination().is_none());
        if let Some((_, message)) = evicted {
            self.facts.event(true, "Evicted", None, message.clone(), out);
        }
        self.kill(cause, options, ctx);
    }

    /// No source has it (any more): it can only be ended.
    pub(crate) fn removed(&mut self, cause: Cause, options: KillOptions, ctx: &Ctx<'_>) {
        self.facts.has_config = false;
        self.kill(cause, options, ctx);
        termination::mark_deleted(&mut self.facts);
    }

    /// A new instance under this UID was requested while this one terminates.
    pub(crate) fn request_restart(&mut self) {
        termination::request_restart(&mut self.facts);
    }

    /// A user wants containers restarted; of a pod that a user stopped, all of it. An object whose phase is terminal has no other
    /// instance: that is for static pods.
    pub(crate) fn restart_containers(&mut self, container: Option<Name>, ctx: &Ctx<'_>) {
        let facts = &mut self.facts;
        if facts.record.termination().is_some_and(|e| e.cause == Cause::Stopped) {
            if facts.is_static() && !facts.record.restart_requested() {
                facts.history.record(ctx.now, "restart of the pod requested", "by a user");
                termination::mark_deleted(facts);
                termination::request_restart(facts);
            }
            return;
        }
        let names: BTreeSet<Name> = match container {
            Some(name) => BTreeSet::from([name]),
            None => spec_of(&facts.record.pod).containers.iter().map(|c| Name::from(c.name.as_str())).collect(),
        };
        for name in names {
            facts.history.record(ctx.now, &format!("restart of container {name} requested"), "by a user");
            self.progress.bring_up.request_restart(name);
        }
        facts.calls.reset_backoff();
    }

    /// It may start, or it must wait, and this is why.
    pub(crate) fn hold(&mut self, hold: Option<Waiting>, ctx: &Ctx<'_>) {
        if self.facts.hold != hold {
            match &hold {
                Some(w) => {
                    self.facts.history.record(ctx.now, &format!("waiting: {}", w.reason), &w.message);
                    // Nothing of it runs, and no probe is planned while it is held.
                    self.progress.probing.stop_all();
                }
                None => self.facts.history.record(ctx.now, "admitted", ""),
            }
            self.facts.hold = hold;
        }
    }

    /// What stands in the way of its admission, in more detail than the status may say.
    pub(crate) fn record_rejection(&mut self, detail: &str, ctx: &Ctx<'_>) {
        self.facts.history.record(ctx.now, "rejected", detail);
    }

    pub(crate) fn admitted(&mut self) {
        self.facts.record.change_life(Life::admit);
    }

    /// What is known of it may be out of date.
    pub(crate) fn look_again(&mut self) {
        self.facts.observed.mark_dirty();
    }

    /// The runtime's events say that something happened to it.
    pub(crate) fn hint(&mut self, now: Time) {
        self.facts.observed.hint(self.facts.calls.any(Call::changes_runtime), now);
    }

    pub(crate) fn absent_from_list(&mut self, seq: Seq) {
        self.facts.observed.absent(seq);
    }

    pub(crate) fn observed(&mut self, seq: Seq, result: Result<PodSeen, CallError>, ctx: &Ctx<'_>, out: &mut Out) {
        let facts = &mut self.facts;
        let troubled = facts.observed.trouble().is_some();
        match result {
            Err(error) if error.is_unavailable() => facts.observed.lost(seq, error.message(), ctx.now.boot),
            result => {
                let result = result.map_err(|error| error.message().to_owned());
                if facts.observed.observed(seq, result, ctx.now.boot) {
                    self.progress.absorb(facts, ctx.now);
                }
            }
        }
        if let Some((2, message)) = facts.observed.trouble() {
            let message = format!("the runtime does not report this pod: {message}");
            facts.event(true, "FailedSync", None, message, out);
        } else if troubled && facts.observed.trouble().is_none() {
            facts.history.record(ctx.now, "observed again", "the runtime reports this pod again");
        }
    }

    /// Objects that the pod refers to have changed.
    pub(crate) fn objects_changed(&mut self) {
        self.progress.objects_changed(&mut self.facts);
    }

    /// An internal error was met in this pod: it is reported once, and nothing is done for the pod any more.
    pub(crate) fn quarantine(&mut self, why: &str, now: Now, out: &mut Out) {
        let facts = &mut self.facts;
        if facts.quarantine.replace(why.to_owned()).is_some() {
            return;
        }
        out.effects.push(Effect::KeepAside { record: Box::new(facts.record().clone()) });
        let status = status::quarantined(facts.record.status.as_ref(), why, now.wall);
        facts.record.set(|r| &mut r.status, Some(status));
        out.effects.push(Effect::StatusChanged(Box::new(PodSnapshot::of(&facts.record))));
        let history = &facts.history;
        out.records.extend(facts.record.take_unsaved(|| history.tail()).map(Record::Put));
        let message = format!("an internal error was met: {why}; the pod is left as it is");
        facts.event(true, "Quarantined", None, message, out);
    }
}
