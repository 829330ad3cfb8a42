//! Gives running containers the resources that are allocated to them, one call after the other.

use std::sync::Arc;

use super::setup::{HOST_LIMIT, Setup};
use super::step::PodStep;
use super::{Ctx, Machine, PodFacts};
use crate::model::{
    ActuatedResources, Call, CallKey, HostCall, MemoryUse, Name, Out, PendingResize, Pod, PodResources,
    ResizeInProgress, ResizeRecord, ResizeRefusal, RunState, RuntimeCall, find_container,
};
use crate::resize::{self, Actuation, PodCgroupValues};

/// State of the resize in progress. Not journaled.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Resizing {
    /// The memory in use allows the limits that are to be set.
    memory_checked: bool,
    /// The limits of the pod's cgroup that the runtime has accepted last.
    #[serde(default)]
    accepted: Option<PodCgroupValues>,
}

impl Resizing {
    /// Requests the next call. True while the cgroup of the pod is too small for containers that are to start.
    pub(super) fn plan(&mut self, setup: &Setup, step: &mut PodStep<'_, '_>) -> bool {
        let facts = &*step.facts;
        let (Some(_), Some(cgroup)) = (&facts.record.resize.in_progress, setup.cgroup_values()) else { return false };
        let actuation = Actuation::new(&facts.record, &facts.observed.seen, cgroup);
        let lowered = actuation.lowered_memory();
        if !actuation.restarts && !self.memory_checked && !lowered.is_empty() {
            let containers = lowered.containers.into_iter().map(|(name, (id, _))| (name, id)).collect();
            step.request(HostCall::ReadMemory { containers }, HOST_LIMIT);
            return false;
        }
        if let Some(raise) = actuation.raise() {
            // A failure is reported; containers start nevertheless.
            let blocks = facts.calls.failures(&CallKey::Resize) == 0;
            self.change_cgroup(raise, cgroup, step);
            return blocks;
        }
        if actuation.restarts {
            return false;
        }
        match actuation.next() {
            Some(Call::Host(call)) => self.change_cgroup(call, cgroup, step),
            Some(call) => drop(step.request(call, step.ctx.config.runtime_request_timeout)),
            None => complete(step),
        }
        false
    }

    /// Requests the change, once the runtime has accepted it: it may have its own bookkeeping, as that of a virtual machine (Go kubelet:
    /// `setPodCgroupConfig`).
    fn change_cgroup(&self, change: HostCall, cgroup: &PodCgroupValues, step: &mut PodStep<'_, '_>) {
        let HostCall::ResizeCgroup { cpu_shares, cpu_quota_us, memory } = change else { return };
        let values = cgroup.changed(cpu_shares, cpu_quota_us, memory);
        let sandboxes = step.facts.observed.seen.sandboxes.iter().filter(|sandbox| sandbox.ready);
        match sandboxes.max_by_key(|sandbox| sandbox.attempt).map(|sandbox| sandbox.id.clone()) {
            Some(id) if self.accepted.as_ref() != Some(&values) => {
                let PodCgroupValues { cpu_shares, cpu_quota_us, memory } = values;
                let call = RuntimeCall::UpdateSandbox { id, cpu_shares, cpu_quota_us, memory };
                step.request(call, step.ctx.config.runtime_request_timeout);
            }
            _ => drop(step.request(change, HOST_LIMIT)),
        }
    }

    /// The runtime accepts these limits of the pod's cgroup.
    pub(super) fn accepted(&mut self, cpu_shares: u64, cpu_quota_us: Option<i64>, memory: Option<i64>) {
        self.accepted = Some(PodCgroupValues { cpu_shares, cpu_quota_us, memory });
    }

    /// Decreases continue only if the memory in use fits into the new limits.
    pub(super) fn memory_read(&mut self, call: &Call, used: &MemoryUse, setup: &Setup, step: &mut PodStep<'_, '_>) {
        let facts = &*step.facts;
        let Some(cgroup) = setup.cgroup_values() else { return };
        let lowered = Actuation::new(&facts.record, &facts.observed.seen, cgroup).lowered_memory();
        match resize::check_memory(&lowered, used) {
            Ok(()) => self.memory_checked = true,
            Err(error) => {
                let message = error.to_string();
                step.facts.call_failed(call, step.ctx.now, super::calls::RETRY, Some(&message));
                self.failed(&message, step);
            }
        }
    }

    /// A step failed. It is tried again, after memory was read again.
    pub(super) fn failed(&mut self, message: &str, step: &mut PodStep<'_, '_>) {
        *self = Self::default();
        let Some(current) = step.facts.record.resize.in_progress.clone() else { return };
        if current.error.as_deref() == Some(message) {
            return;
        }
        let record = &step.facts.record;
        let event = resize::resize_message("error", &record.pod, current.generation, Some(message));
        step.warn("ResizeError", None, event);
        let in_progress = ResizeInProgress { error: Some(message.to_owned()), ..current };
        step.facts.record.set(|r| &mut r.resize.in_progress, Some(in_progress));
    }
}

/// The runtime has given an instance these resources.
pub(super) fn updated(facts: &mut PodFacts, call: &RuntimeCall) {
    let RuntimeCall::UpdateContainer { name, id, resources } = call else { return };
    let Some(attempt) = facts.observed.seen.container(id).map(|c| c.attempt) else { return };
    let allocated =
        find_container(&facts.record.pod, name.as_str()).and_then(|found| found.container.resources.clone());
    let is_allocated = allocated.unwrap_or_default() == **resources;
    let actuated = ActuatedResources { attempt, resources: (**resources).clone() };
    facts.record.edit_container(name, |memory| memory.actuated = (!is_allocated).then_some(actuated));
}

/// All running containers have the allocated resources.
fn complete(step: &mut PodStep<'_, '_>) {
    if step.facts.calls.busy(&CallKey::Resize) {
        return;
    }
    let record = &step.facts.record;
    let generation = record.resize.in_progress.as_ref().and_then(|resize| resize.generation);
    let message = resize::resize_message("completed", &record.pod, generation, None);
    step.notify("ResizeCompleted", None, message);
    step.history("resize completed", "");
    step.facts.record.set(|r| &mut r.resize.in_progress, None);
}

/// Its resources are allocated. What exists of it keeps those it has until they are applied.
pub(crate) fn allocate_resize(machine: &mut Machine, pod: Arc<Pod>, ctx: &Ctx<'_>, out: &mut Out) {
    let facts = &mut machine.facts;
    remember_actuated(facts);
    let generation = facts.record.resize.pending.as_ref().and_then(|pending| pending.generation);
    facts.event(false, "ResizeStarted", None, resize::resize_message("started", &pod, generation, None), out);
    facts.history.record(ctx.now, "resize allocated", "");
    let in_progress = Some(ResizeInProgress { generation, error: None });
    facts.record.set(|r| &mut r.resize, ResizeRecord { pending: None, in_progress });
    facts.record.set(|r| &mut r.pod, pod);
    facts.calls.reset_backoff_of(&CallKey::Resize);
    machine.progress.resizing = Resizing::default();
    machine.progress.setup.pod_changed(facts);
}

/// Its resize is not possible, now or ever.
pub(crate) fn refuse_resize(machine: &mut Machine, pod: &Pod, refusal: ResizeRefusal, ctx: &Ctx<'_>, out: &mut Out) {
    let facts = &mut machine.facts;
    let Some(pending) = facts.record.resize.pending.clone() else { return };
    let is_known = pending.refusal.as_ref().is_some_and(|known| known.infeasible == refusal.infeasible);
    if !is_known {
        let (what, event) = match refusal.infeasible {
            true => ("Infeasible", "ResizeInfeasible"),
            false => ("Deferred", "ResizeDeferred"),
        };
        let message = resize::resize_message(what, pod, pending.generation, Some(&refusal.message));
        facts.event(true, event, None, message, out);
        facts.history.record(ctx.now, &format!("resize is {what}"), &refusal.message);
    }
    let pending = PendingResize { refusal: Some(refusal), ..pending };
    facts.record.set(|r| &mut r.resize.pending, Some(pending));
}

/// A pod of an API keeps the resources it was admitted with until others are allocated.
pub(super) fn keep_allocated(facts: &mut PodFacts, pod: Arc<Pod>, ctx: &Ctx<'_>) -> Arc<Pod> {
    if facts.is_static() || !facts.record.was_admitted() {
        return pod;
    }
    let (kept, desired) = resize::split(&facts.record.pod, pod);
    let generation = kept.metadata.generation;
    let pending = desired.map(|desired| pending(facts, desired, generation, ctx));
    facts.record.set(|r| &mut r.resize.pending, pending);
    kept
}

fn pending(facts: &PodFacts, desired: PodResources, generation: Option<i64>, ctx: &Ctx<'_>) -> PendingResize {
    let known = facts.record.resize.pending.as_ref();
    let same = known.filter(|known| known.desired == desired && known.generation == generation);
    same.cloned().unwrap_or(PendingResize {
        desired,
        generation,
        since: known.map_or(ctx.now.wall, |known| known.since),
        refusal: None,
    })
}

/// Instances that exist, or are being created, have the resources that were allocated until now.
fn remember_actuated(facts: &mut PodFacts) {
    let alive = facts.observed.seen.containers.iter().filter(|c| c.state != RunState::Exited);
    let mut instances: Vec<(Name, u32)> = alive.map(|c| (c.name.clone(), c.attempt)).collect();
    let calls = facts.calls.under_way().map(|(call, _)| call).chain(facts.calls.doubts());
    instances.extend(calls.filter_map(|call| match call {
        Call::Runtime(RuntimeCall::CreateContainer { name, attempt, .. }) => Some((name.clone(), *attempt)),
        _ => None,
    }));
    let pod = Arc::clone(&facts.record.pod);
    for (name, attempt) in instances {
        let Some(found) = find_container(&pod, name.as_str()) else { continue };
        let resources = resize::actuated(&facts.record, &found.container, attempt);
        let actuated = Some(ActuatedResources { attempt, resources });
        facts.record.edit_container(&name, |memory| memory.actuated = actuated);
    }
}
