//! A pod's cgroup, and what runs outside of it.

use super::{Ctx, Machine};
use crate::model::{Out, spec_of};

impl Machine {
    /// The cgroup is there. Whatever runs already when it had to be made runs outside of its limits.
    pub(super) fn cgroup_is_there(&mut self, made: bool, ctx: &Ctx<'_>) {
        self.setup.cgroup = true;
        if made && self.observed.seen.alive().next().is_some() {
            self.history.record(ctx.now, "the cgroup of the pod was missing", "containers outside of it are restarted");
            let ready = self.observed.seen.sandboxes.iter().filter(|s| s.ready);
            self.setup.outside_pod_cgroup = ready.map(|s| s.id.clone()).collect();
            self.void_outside();
        }
    }

    /// What runs outside is to be started again, also by an agent that never heard why; unless the pod's policy is Never.
    fn void_outside(&mut self) {
        if spec_of(&self.record.pod).restart_policy.as_deref() == Some("Never") {
            return;
        }
        for c in self.observed.seen.alive().filter(|c| self.setup.outside_pod_cgroup.contains(&c.sandbox)) {
            let memory = self.record.containers.entry(c.name.clone()).or_default();
            if memory.voided.as_ref() != Some(&c.id) {
                memory.voided = Some(c.id.clone());
                self.unsaved = true;
            }
        }
    }

    /// End what runs outside of the pod's cgroup, sandbox included. The plan brings it back inside, unless its policy is Never.
    /// True while there is something left to end.
    pub(super) fn bring_inside(&mut self, ctx: &mut Ctx<'_>, out: &mut Out) -> bool {
        let seen = &self.observed.seen;
        self.setup.outside_pod_cgroup.retain(|id| seen.sandboxes.iter().any(|s| s.id == *id && s.ready));
        if self.setup.outside_pod_cgroup.is_empty() {
            return false;
        }
        let outside = self.observed.seen.alive().filter(|c| self.setup.outside_pod_cgroup.contains(&c.sandbox));
        let outside: Vec<_> = outside.map(|c| (c.name.clone(), c.id.clone(), c.sandbox.clone())).collect();
        self.void_outside();
        for (name, id, _) in &outside {
            let message = format!("Container {name} runs outside of its pod's cgroup, which was missing");
            self.kill_container(id, ctx.now.boot + self.own_grace(), &message);
        }
        self.continue_kills(ctx, out);
        for id in self.setup.outside_pod_cgroup.clone() {
            if !outside.iter().any(|(.., sandbox)| *sandbox == id) {
                self.stop_sandbox(&id, ctx, out);
            }
        }
        true
    }
}
