//! What people and controllers do to the API server's pods.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PodCondition, PodReadinessGate};
use podwright_core::model::{Pod, PodStatus, PodUid, is_terminal};

use super::{Wire, is_mirror, phase, uid_of};
use crate::manifest::PodPlan;
use crate::world::{Item, World, trace};

/// A condition somebody else sets.
pub(crate) const GATE: &str = "example.com/gate";

impl World {
    /// One thing happens to the objects.
    pub(crate) fn act_on_objects(&mut self) {
        if self.keeper.away || (self.keeper.is_local() && self.node.is_none()) {
            return;
        }
        match self.rng.below(10) {
            0..=3 => self.create_object(),
            4..=6 => self.delete_one(),
            7 => self.edit_one(),
            8 => self.delete_mirror(),
            _ => self.flip_a_gate(),
        }
    }

    fn create_object(&mut self) {
        let mut plan = self.draw_plan();
        plan.source = self.keeper.source;
        plan.name = format!("w{}", plan.uid);
        self.create_pod(&plan);
    }

    /// The scheduler gave this node a pod.
    pub fn create_pod(&mut self, plan: &PodPlan) {
        let mut pod = Pod::clone(&plan.manifest().pod);
        pod.metadata.generation = Some(1);
        pod.status = Some(PodStatus { phase: Some("Pending".into()), ..PodStatus::default() });
        let gated = self.rng.chance(200);
        if let Some(spec) = pod.spec.as_mut().filter(|_| gated) {
            spec.readiness_gates = Some(vec![PodReadinessGate { condition_type: GATE.into() }]);
            let delay = self.rng.millis(0, 20_000);
            let uid = PodUid::from(plan.uid.as_str());
            self.after(delay, Item::Wire(Wire::Gate { uid, open: true }));
        }
        let pod = self.keeper.store(pod);
        trace!(self, "++ API pod {} created", plan.uid);
        self.show(&pod);
    }

    fn draw_object(&mut self, mirror: bool) -> Option<Arc<Pod>> {
        let all: Vec<_> = self.keeper.objects.values().filter(|pod| is_mirror(pod) == mirror).cloned().collect();
        (!all.is_empty()).then(|| self.rng.pick(&all).clone())
    }

    fn delete_one(&mut self) {
        let Some(pod) = self.draw_object(false) else { return self.create_object() };
        let grace = [None, None, Some(0), Some(1), Some(3)][self.rng.index(5)];
        self.delete_pod(&uid_of(&pod), grace);
    }

    /// `kubectl delete`: a time is set, and whoever runs the pod does the rest; with grace 0 the object goes at once.
    pub fn delete_pod(&mut self, uid: &PodUid, grace: Option<i64>) {
        let Some(pod) = self.keeper.get(uid).cloned() else { return };
        // What has ended goes at once, unless somebody holds it.
        let forced = grace == Some(0) || (is_terminal(phase(&pod)) && self.rng.chance(500));
        if forced && !self.keeper.is_local() {
            trace!(self, "++ API pod {uid} deleted by force");
            return self.remove_object(&pod);
        }
        let own = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds).unwrap_or(30);
        let before = pod.metadata.deletion_grace_period_seconds;
        let grace = grace.unwrap_or(own).min(before.unwrap_or(i64::MAX));
        if before == Some(grace) {
            return;
        }
        trace!(self, "++ API pod {uid} deleted with grace {grace}");
        let mut pod = Pod::clone(&pod);
        pod.metadata.deletion_timestamp = Some(self.clock.second());
        pod.metadata.deletion_grace_period_seconds = Some(grace);
        let pod = self.keeper.store(pod);
        self.show(&pod);
    }

    fn edit_one(&mut self) {
        let Some(pod) = self.draw_object(false) else { return self.create_object() };
        trace!(self, "++ API pod {} gets another image", uid_of(&pod));
        let mut pod = Pod::clone(&pod);
        let image = format!("app:{}", self.rng.below(5));
        if let Some(container) = pod.spec.as_mut().and_then(|s| s.containers.first_mut()) {
            container.image = Some(image);
        }
        pod.metadata.generation = pod.metadata.generation.map(|n| n + 1);
        let pod = self.keeper.store(pod);
        self.show(&pod);
    }

    /// Somebody deletes a mirror: its time is set, or it goes at once.
    fn delete_mirror(&mut self) {
        let Some(pod) = self.draw_object(true) else { return self.create_object() };
        trace!(self, "++ mirror {} deleted", uid_of(&pod));
        if self.rng.chance(500) {
            return self.remove_object(&pod);
        }
        let mut pod = Pod::clone(&pod);
        pod.metadata.deletion_timestamp = Some(self.clock.second());
        pod.metadata.deletion_grace_period_seconds = Some(30);
        let pod = self.keeper.store(pod);
        self.show(&pod);
    }

    fn flip_a_gate(&mut self) {
        let Some(pod) = self.draw_object(false) else { return self.create_object() };
        let open = self.rng.chance(500);
        self.set_gate(&uid_of(&pod), open);
        // In the end it is open.
        let uid = uid_of(&pod);
        self.after(Duration::from_secs(10), Item::Wire(Wire::Gate { uid, open: true }));
    }

    pub(super) fn set_gate(&mut self, uid: &PodUid, open: bool) {
        let Some(pod) = self.keeper.get(uid).cloned() else { return };
        trace!(self, "++ the gate of {uid} is {}", if open { "open" } else { "closed" });
        let mut status = pod.status.clone().unwrap_or_default();
        let conditions = status.conditions.get_or_insert_default();
        conditions.retain(|c| c.type_ != GATE);
        let word = if open { "True" } else { "False" };
        conditions.push(PodCondition { type_: GATE.into(), status: word.into(), ..PodCondition::default() });
        let pod = self.keeper.store(Pod { status: Some(status), ..Pod::clone(&pod) });
        self.show(&pod);
    }
}
