//! Inputs of a pod: from its source, its users, the runtime. Each changes only what is known; the plan follows.

use std::collections::BTreeSet;

use super::waits::wall_time;
use super::{Ctx, KillOptions, Machine, Quarantine, termination};
use crate::actions::Waiting;
use crate::eviction::EVICTED;
use crate::model::{
    Call, CallError, Cause, Effect, KubeEvent, Life, Name, Now, Out, PodSeen, PodSnapshot, Record, Seq, Time,
    history_text, spec_of,
};
use crate::status;

impl Machine {
    /// Its termination is requested. The first request ends a quarantine; a repetition, such as that of a new process, does not: the
    /// agent may have died in this termination.
    pub(crate) fn kill(&mut self, cause: Cause, options: KillOptions, ctx: &Ctx<'_>) {
        if self.facts.record.termination().is_none() {
            self.facts.end_quarantine("the pod is to end", ctx.now);
        }
        termination::request(&mut self.facts, cause, options, ctx);
    }

    /// Eviction, shutdown or a user ends it. An eviction is reported once.
    pub(crate) fn end_by_others(&mut self, cause: Cause, options: KillOptions, ctx: &Ctx<'_>, out: &mut Out) {
        let evicted = options.evicted.as_ref().filter(|_| self.facts.record.termination().is_none());
        if let Some((_, message)) = evicted {
            let facts = &self.facts;
            out.effects.push(Effect::Event(KubeEvent {
                annotations: options.annotations.clone(),
                uid: Some(facts.record.uid.clone()),
                pod: facts.full_name().clone(),
                container: None,
                warning: true,
                reason: EVICTED,
                message: message.clone(),
            }));
        }
        self.kill(cause, options, ctx);
    }

    /// No source has it any more: it is terminated.
    pub(crate) fn removed(&mut self, cause: Cause, options: KillOptions, ctx: &Ctx<'_>) {
        self.facts.has_config = false;
        self.kill(cause, options, ctx);
        termination::mark_deleted(&mut self.facts);
    }

    /// A new instance under this UID was requested while this one terminates.
    pub(crate) fn request_restart(&mut self) {
        termination::request_restart(&mut self.facts);
    }

    /// A user requests the restart of containers. For a static pod that is terminating or terminated, unless its manifest was
    /// removed, this is a new instance. An object whose phase is terminal gets no new instance.
    pub(crate) fn restart_containers(&mut self, container: Option<Name>, ctx: &Ctx<'_>) {
        let facts = &mut self.facts;
        if facts.record.termination().is_some() {
            if facts.is_static() && facts.has_config && !facts.record.restart_requested() {
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
            facts.history.record(ctx.now, &history_text::restart_requested(&name), "by a user");
            self.progress.bring_up.request_restart(name);
        }
        facts.calls.reset_backoff();
    }

    /// The pod is admitted (`None`), or has to wait for this reason.
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

    /// Details of a rejection for the history that the status does not have.
    pub(crate) fn record_rejection(&mut self, detail: &str, ctx: &Ctx<'_>) {
        self.facts.history.record(ctx.now, history_text::REJECTED, detail);
    }

    pub(crate) fn admitted(&mut self) {
        self.facts.record.change_life(Life::admit);
    }

    /// The observed state may be outdated.
    pub(crate) fn mark_outdated(&mut self) {
        self.facts.observed.mark_dirty();
    }

    /// A runtime event concerns this pod.
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
                if facts.observed.observed(seq, result, ctx.now.boot) {
                    self.progress.observation_changed(facts, ctx.now);
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

    /// An internal error occurred in this pod, or the agent died while handling it: reported once, and nothing is done for the
    /// pod.
    pub(crate) fn quarantine(&mut self, quarantine: Quarantine, now: Now, out: &mut Out) {
        let facts = &mut self.facts;
        let Quarantine { why, until, is_hold } = &quarantine;
        let (reason, message) = match until {
            None => ("InternalError", format!("an internal error was met: {why}; the pod is left as it is")),
            Some(until) => {
                let until = wall_time(*until, now).strftime("%FT%TZ");
                let reason = if *is_hold { status::HELD } else { "AgentDied" };
                (reason, format!("{why}; the pod is left as it is until {until}, or until its spec changes"))
            }
        };
        if facts.quarantine.replace(quarantine).is_some() {
            return;
        }
        facts.history.record(now, "quarantined", &message);
        out.effects.push(Effect::SaveQuarantinedRecord { record: Box::new(facts.record().clone()) });
        let last = facts.record.status.as_ref().or(facts.record.pod.status.as_ref());
        let status = status::quarantined(last, reason, message.clone(), now.wall);
        facts.record.set(|r| &mut r.status, Some(status));
        out.effects.push(Effect::StatusChanged(Box::new(PodSnapshot::of(&facts.record))));
        let history = &facts.history;
        out.records.extend(facts.record.take_unsaved(|| history.tail()).map(Record::Put));
        facts.event(true, "Quarantined", None, message, out);
    }
}
