//! What its source says of a pod, as far as it concerns this one life.

use std::sync::Arc;

use super::{Ctx, KillOptions, Machine};
use crate::model::{Cause, Life, Out, Pod, is_terminal};
use crate::mutate::{self, Mutant};
use crate::resize;
use crate::status::external_status;

impl Machine {
    /// The newest spec. A living pod takes it; a dying one only learns of an earlier end.
    pub(crate) fn update(&mut self, pod: Arc<Pod>, origin: Option<String>, ctx: &mut Ctx<'_>, out: &mut Out) {
        // This is the spec of the life that comes after this one.
        if self.record.restart_requested() && self.is_static() {
            return;
        }
        let pod = self.without_resize(pod, out);
        if self.record.pod != pod {
            // What only the source itself writes, such as when it first saw the pod, is no news for people.
            if self.record.pod.spec != pod.spec {
                self.history.record(ctx.now, "spec updated", "changed by its source");
            }
            let before = std::mem::replace(&mut self.record.pod, pod);
            self.forget_images(&before, out);
            if mutate::made(Mutant::KillIsLost)
                && let Life::Terminating(termination) = &self.record.life
            {
                self.record.life = if termination.admitted { Life::Syncing } else { Life::Waiting };
            }
            self.refresh_volumes();
            self.calls.reset_backoff();
            self.unsaved = true;
        }
        if origin.is_some() && self.record.origin != origin {
            self.record.origin = origin;
            self.unsaved = true;
        }
        self.take_word(ctx);
    }

    /// Only the object's status changed. Ours comes back to us all the time: what others say in it is what counts.
    pub(crate) fn reconcile(&mut self, pod: Arc<Pod>, ctx: &mut Ctx<'_>, out: &mut Out) {
        if external_status(self.record.pod.status.as_ref()) != external_status(pod.status.as_ref()) {
            self.record.pod = self.without_resize(pod, out);
            self.unsaved = true;
        }
        self.take_word(ctx);
    }

    /// A pod of an API keeps the resources it was given; each generation that wants others is told so.
    fn without_resize(&mut self, pod: Arc<Pod>, out: &mut Out) -> Arc<Pod> {
        if self.is_static() || !self.record.was_admitted() {
            return pod;
        }
        let (kept, refused) = resize::keep_resources(&self.record.pod, Arc::clone(&pod));
        let before = std::mem::replace(&mut self.record.resize_refused, refused);
        self.unsaved |= before != refused;
        if refused && (!before || self.record.pod.metadata.generation != pod.metadata.generation) {
            self.event(true, "ResizeInfeasible", None, resize::infeasible_message(&pod), out);
        }
        kept
    }

    /// Its source has it; what that says of its end is done.
    fn take_word(&mut self, ctx: &mut Ctx<'_>) {
        self.has_config = true;
        let meta = &self.record.pod.metadata;
        if meta.deletion_timestamp.is_some() {
            self.kill(Cause::Deleted, KillOptions::default(), ctx);
        } else if self.record.pod.status.as_ref().is_some_and(|s| is_terminal(s.phase.as_deref())) && !self.is_static()
        {
            self.kill(Cause::Ended, KillOptions::default(), ctx);
        }
    }
}
