//! Changes of a pod's object, by its source.

use std::sync::Arc;

use super::step::PodStep;
use super::{Ctx, KillOptions, Machine, PodFacts, termination};
use crate::model::{Cause, Life, Out, Pod, is_terminal};
use crate::mutate::{self, Mutant};
use crate::resize;
use crate::status::external_status;

impl Machine {
    /// The newest spec. A pod that runs takes it; a terminating one only takes an earlier deadline.
    pub(crate) fn update(&mut self, pod: Arc<Pod>, origin: Option<String>, ctx: &mut Ctx<'_>, out: &mut Out) {
        #[cfg(test)]
        assert!(!pod.metadata.annotations.iter().flatten().any(|(key, _)| key == "test/panic"), "requested by a test");
        let facts = &mut self.facts;
        // This is the spec of the instance that follows this one.
        if facts.record.restart_requested() && facts.is_static() {
            return;
        }
        let pod = without_resize(facts, pod, out);
        if facts.record.pod != pod {
            // What only the source itself writes, such as when it first saw the pod, is no news.
            if facts.record.pod.spec != pod.spec {
                facts.history.record(ctx.now, "spec updated", "changed by its source");
            }
            let before = Arc::clone(&facts.record.pod);
            facts.record.set(|r| &mut r.pod, pod);
            if mutate::made(Mutant::KillIsLost)
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

    /// Only the object's status changed. Our own comes back all the time: what others write in it is what counts.
    pub(crate) fn reconcile(&mut self, pod: Arc<Pod>, ctx: &mut Ctx<'_>, out: &mut Out) {
        let facts = &mut self.facts;
        if external_status(facts.record.pod.status.as_ref()) != external_status(pod.status.as_ref()) {
            let pod = without_resize(facts, pod, out);
            facts.record.set(|r| &mut r.pod, pod);
        }
        follow_source(facts, ctx);
    }
}

/// A pod of an API keeps the resources it was admitted with; each generation that wants others is refused by an event.
fn without_resize(facts: &mut PodFacts, pod: Arc<Pod>, out: &mut Out) -> Arc<Pod> {
    if facts.is_static() || !facts.record.was_admitted() {
        return pod;
    }
    let (kept, refused) = resize::keep_resources(&facts.record.pod, Arc::clone(&pod));
    let before = facts.record.resize_refused;
    facts.record.set(|r| &mut r.resize_refused, refused);
    if refused && (!before || facts.record.pod.metadata.generation != pod.metadata.generation) {
        facts.event(true, "ResizeInfeasible", None, resize::infeasible_message(&pod), out);
    }
    kept
}

/// Its source has it; a deletion or a terminal phase in its object ends it.
fn follow_source(facts: &mut PodFacts, ctx: &Ctx<'_>) {
    facts.has_config = true;
    let pod = &facts.record.pod;
    if pod.metadata.deletion_timestamp.is_some() {
        termination::request(facts, Cause::Deleted, KillOptions::default(), ctx);
    } else if pod.status.as_ref().is_some_and(|s| is_terminal(s.phase.as_deref())) && !facts.is_static() {
        termination::request(facts, Cause::Ended, KillOptions::default(), ctx);
    }
}
