//! Changes of a pod's object, by its source.

use std::sync::Arc;

use super::resizing::keep_allocated;
use super::step::PodStep;
use super::{Ctx, KillOptions, Machine, PodFacts, termination};
use crate::model::{Cause, Life, Out, Pod, is_terminal};
use crate::mutate::{self, Mutant};
use crate::status::external_status;

impl Machine {
    /// A new spec. A running pod uses it; a terminating one only uses an earlier deadline.
    pub(crate) fn update(&mut self, pod: Arc<Pod>, origin: Option<String>, ctx: &mut Ctx<'_>, out: &mut Out) {
        let facts = &mut self.facts;
        // This is the spec of the instance that follows this one.
        if facts.record.restart_requested() && facts.is_static() {
            return;
        }
        let pod = keep_allocated(facts, pod, ctx);
        if facts.record.pod != pod {
            // Fields that only the source writes, such as the time at which it first saw the pod, are not recorded as a change.
            if facts.record.pod.spec != pod.spec {
                facts.history.record(ctx.now, "spec updated", "changed by its source");
                facts.end_quarantine("the spec changed", ctx.now);
            }
            let before = Arc::clone(&facts.record.pod);
            facts.record.set(|r| &mut r.pod, pod);
            if mutate::is_active(Mutant::KillIsLost)
                && let Life::Terminating(termination) = &facts.record.life
            {
                let life = if termination.admitted { Life::Syncing } else { Life::Waiting };
                facts.record.set(|r| &mut r.life, life);
            }
            self.progress.setup.pod_changed(facts);
            facts.calls.reset_backoff();
            let bring_up = &mut self.progress.bring_up;
            bring_up.images.pod_changed(&before, &mut bring_up.waiting, &mut PodStep { facts, ctx, out });
        }
        if origin.is_some() {
            self.facts.record.set(|r| &mut r.origin, origin);
        }
        follow_source(&mut self.facts, ctx);
    }

    /// Only the object's status changed. Our own part of it is ignored; the parts of other components are used.
    pub(crate) fn reconcile(&mut self, pod: Arc<Pod>, ctx: &mut Ctx<'_>) {
        let facts = &mut self.facts;
        if external_status(facts.record.pod.status.as_ref()) != external_status(pod.status.as_ref()) {
            let pod = keep_allocated(facts, pod, ctx);
            facts.record.set(|r| &mut r.pod, pod);
        }
        follow_source(facts, ctx);
    }
}

/// Its source has it; a deletion or a terminal phase in its object ends it.
fn follow_source(facts: &mut PodFacts, ctx: &Ctx<'_>) {
    facts.has_config = true;
    let pod = &facts.record.pod;
    if pod.metadata.deletion_timestamp.is_some() {
        if facts.record.termination().is_none() {
            facts.end_quarantine("the pod is to end", ctx.now);
        }
        termination::request(facts, Cause::Deleted, KillOptions::default(), ctx);
    } else if pod.status.as_ref().is_some_and(|s| is_terminal(s.phase.as_deref())) && !facts.is_static() {
        termination::request(facts, Cause::Ended, KillOptions::default(), ctx);
    }
}
