//! What users and controllers do to the pods in the object store.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{EphemeralContainer, PodCondition, PodReadinessGate};
use podwright_core::model::{Pod, PodStatus, PodUid, is_terminal};
use podwright_core::static_pod::CONFIG_SOURCE;

use super::{ObjectStore, StoreEvent, is_mirror, phase, uid_of};
use crate::env::{Env, Scheduled, trace};
use crate::manifest::PodPlan;
use crate::workload;
use crate::world::World;

/// A readiness gate whose condition a controller sets.
const GATE: &str = "example.com/gate";

/// One random action on the objects.
pub(crate) fn act_on_objects(world: &mut World) {
    if world.store.unreachable || (world.store.is_local() && !world.agent.is_running()) {
        return;
    }
    if world.workload.extended && world.store.is_api_server() && world.env.rng.chance(150) {
        return add_ephemeral_container(world);
    }
    match world.env.rng.below(10) {
        0..=3 => create_random_pod(world),
        4..=6 => delete_random_pod(world),
        7 => edit_random_pod(world),
        8 => delete_random_mirror(world),
        _ => flip_random_gate(world),
    }
}

fn create_random_pod(world: &mut World) {
    let mut plan = workload::draw_plan(world);
    plan.source = world.store.source();
    plan.name = format!("w{}", plan.uid);
    if world.workload.extended && world.env.rng.chance(300) {
        plan.claimed_source = Some(*world.env.rng.pick(&["file", "http", "other", ""]));
    }
    world.store.create_pod(&mut world.env, &plan);
}

fn draw_object(world: &mut World, mirror: bool) -> Option<Arc<Pod>> {
    let all: Vec<_> = world.store.objects.values().filter(|pod| is_mirror(pod) == mirror).cloned().collect();
    (!all.is_empty()).then(|| world.env.rng.pick(&all).clone())
}

fn delete_random_pod(world: &mut World) {
    let Some(pod) = draw_object(world, false) else { return create_random_pod(world) };
    let grace = [None, None, Some(0), Some(1), Some(3)][world.env.rng.index(5)];
    world.store.delete_pod(&mut world.env, &uid_of(&pod), grace);
}

fn edit_random_pod(world: &mut World) {
    let Some(pod) = draw_object(world, false) else { return create_random_pod(world) };
    let World { env, store, .. } = world;
    trace!(env, "++ API pod {} gets another image", uid_of(&pod));
    let mut pod = Pod::clone(&pod);
    let image = format!("app:{}", env.rng.below(5));
    if let Some(container) = pod.spec.as_mut().and_then(|s| s.containers.first_mut()) {
        container.image = Some(image);
    }
    pod.metadata.generation = pod.metadata.generation.map(|n| n + 1);
    store.store(env, pod);
}

/// `kubectl debug`.
fn add_ephemeral_container(world: &mut World) {
    let Some(pod) = draw_object(world, false) else { return create_random_pod(world) };
    let script = workload::draw_script(&mut world.env.rng, &mut world.runtime.scripts, "Never", false);
    let mut pod = Pod::clone(&pod);
    let Some(spec) = pod.spec.as_mut() else { return };
    let all = spec.ephemeral_containers.get_or_insert_default();
    let name = format!("debug{}", all.len());
    trace!(
        world.env,
        "++ API pod {} gets the ephemeral container {name}",
        pod.metadata.uid.as_deref().unwrap_or_default()
    );
    all.push(EphemeralContainer {
        name,
        image: Some("app:1".into()),
        image_pull_policy: Some("IfNotPresent".into()),
        command: Some(vec![script.to_string()]),
        ..EphemeralContainer::default()
    });
    pod.metadata.generation = pod.metadata.generation.map(|n| n + 1);
    world.store.store(&mut world.env, pod);
}

/// A user deletes a mirror pod: its deletion timestamp is set, or it is removed at once.
fn delete_random_mirror(world: &mut World) {
    let Some(pod) = draw_object(world, true) else { return create_random_pod(world) };
    let World { env, store, .. } = world;
    trace!(env, "++ mirror {} deleted", uid_of(&pod));
    if env.rng.chance(500) {
        return store.remove(env, &pod);
    }
    store.mark_deleted(env, &pod, 30);
}

fn flip_random_gate(world: &mut World) {
    let Some(pod) = draw_object(world, false) else { return create_random_pod(world) };
    let World { env, store, .. } = world;
    let open = env.rng.chance(500);
    let uid = uid_of(&pod);
    store.set_gate(env, &uid, open);
    // In the end it is open.
    env.after(Duration::from_secs(10), Scheduled::Store(StoreEvent::SetGate { uid, open: true }));
}

impl ObjectStore {
    /// The scheduler binds a pod to this node, or a user submits one to it.
    pub fn create_pod(&mut self, env: &mut Env, plan: &PodPlan) {
        let mut pod = Pod::clone(&plan.manifest().pod);
        if let (Some(claimed), Some(annotations)) = (plan.claimed_source, &mut pod.metadata.annotations) {
            annotations.insert(CONFIG_SOURCE.into(), claimed.into());
        }
        pod.metadata.generation = Some(1);
        pod.status = Some(PodStatus { phase: Some("Pending".into()), ..PodStatus::default() });
        let gated = env.rng.chance(200);
        if let Some(spec) = pod.spec.as_mut().filter(|_| gated) {
            spec.readiness_gates = Some(vec![PodReadinessGate { condition_type: GATE.into() }]);
            let delay = env.rng.millis(0, 20_000);
            let uid = PodUid::from(plan.uid.as_str());
            env.after(delay, Scheduled::Store(StoreEvent::SetGate { uid, open: true }));
        }
        trace!(env, "++ API pod {} created", plan.uid);
        self.store(env, pod);
    }

    /// `kubectl delete`: the deletion timestamp is set and core does the rest; with grace period 0 an API server removes the
    /// object at once.
    pub fn delete_pod(&mut self, env: &mut Env, uid: &PodUid, grace: Option<i64>) {
        let Some(pod) = self.get(uid).cloned() else { return };
        // The object of a pod in a terminal phase is removed at once, unless it has a finalizer.
        let forced = grace == Some(0) || (is_terminal(phase(&pod)) && env.rng.chance(500));
        if forced && !self.is_local() {
            trace!(env, "++ API pod {uid} deleted by force");
            return self.remove(env, &pod);
        }
        let own = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds).unwrap_or(30);
        let before = pod.metadata.deletion_grace_period_seconds;
        let grace = grace.unwrap_or(own).min(before.unwrap_or(i64::MAX));
        if before == Some(grace) {
            return;
        }
        trace!(env, "++ API pod {uid} deleted with grace period {grace}");
        self.mark_deleted(env, &pod, grace);
    }

    fn mark_deleted(&mut self, env: &mut Env, pod: &Pod, grace: i64) {
        let mut pod = pod.clone();
        pod.metadata.deletion_timestamp = Some(env.clock.second());
        pod.metadata.deletion_grace_period_seconds = Some(grace);
        self.store(env, pod);
    }

    pub(crate) fn set_gate(&mut self, env: &mut Env, uid: &PodUid, open: bool) {
        let Some(pod) = self.get(uid).cloned() else { return };
        trace!(env, "++ the readiness gate of {uid} is {}", if open { "open" } else { "closed" });
        let mut status = pod.status.clone().unwrap_or_default();
        let conditions = status.conditions.get_or_insert_default();
        conditions.retain(|c| c.type_ != GATE);
        let value = if open { "True" } else { "False" };
        conditions.push(PodCondition { type_: GATE.into(), status: value.into(), ..PodCondition::default() });
        self.store(env, Pod { status: Some(status), ..Pod::clone(&pod) });
    }
}
