//! The gate every call of a pod passes, and what it tells people.

use std::time::Duration;

use super::{Ctx, Machine};
use crate::model::{Call, CallId, Effect, KubeEvent, Name, Out, SavedTime, Time};

impl Machine {
    /// Ask for a call unless it is under way, in doubt, or has to wait. The gate every call passes.
    pub(super) fn ask(&mut self, call: impl Into<Call>, limit: Duration, ctx: &mut Ctx<'_>, out: &mut Out) -> bool {
        let call = call.into();
        self.calls.may_send(&call.key(), ctx.now.boot) && self.send(call, limit, ctx, out)
    }

    /// As `ask`, but also beside a call of the same key: a stop with a shorter time.
    pub(super) fn send(&mut self, call: impl Into<Call>, limit: Duration, ctx: &mut Ctx<'_>, out: &mut Out) -> bool {
        let call = call.into();
        if call.changes_runtime() {
            // A plan on old sight starts containers twice; a stop can only be too late.
            let sighted = call.is_stop() || (self.observed.fresh() && !self.calls.in_doubt());
            if !ctx.runtime_up || !sighted {
                return false;
            }
        } else if call.is_image() && !ctx.runtime_up {
            return false;
        }
        *ctx.last_call += 1;
        let id = CallId(*ctx.last_call);
        ctx.owners.insert(id, self.record.uid.clone());
        self.calls.sent(id, call.clone(), ctx.now.boot, limit);
        let (uid, pod) = (self.record.uid.clone(), self.record.pod.clone());
        out.effects.push(Effect::Call { id, uid, pod, call, limit });
        true
    }

    pub(super) fn cancel(&mut self, test: impl Fn(&Call) -> bool, out: &mut Out) {
        for id in self.calls.cancel(test) {
            out.effects.push(Effect::Cancel { id });
        }
    }

    pub(super) fn event(
        &self,
        warning: bool,
        reason: &'static str,
        container: Option<&Name>,
        message: String,
        out: &mut Out,
    ) {
        out.effects.push(Effect::Event(KubeEvent {
            uid: Some(self.record.uid.clone()),
            pod: self.full_name.clone(),
            container: container.cloned(),
            warning,
            reason,
            message,
        }));
    }

    pub(super) fn saved(&self, boot: Time, ctx: &Ctx<'_>) -> SavedTime {
        let left = boot.saturating_sub(ctx.now.boot);
        let wall = jiff::SignedDuration::try_from(left).ok().and_then(|left| ctx.now.wall.checked_add(left).ok());
        SavedTime { boot_id: ctx.config.boot_id.clone(), boot, wall: wall.unwrap_or(ctx.now.wall) }
    }
}
