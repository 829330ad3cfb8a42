//! Stops of containers: the preStop hook, the order of sidecars, one deadline, at least two seconds between TERM and KILL.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::PodFacts;
use super::super::step::PodStep;
use super::super::stuck::OVERDUE;
use super::MIN_STOP_TIMEOUT;
use crate::model::{
    Call, CallKey, ContainerId, ContainerSeen, HookKind, HookState, Name, RunState, RuntimeCall, SandboxId, Time,
    find_container, is_sidecar,
};
use crate::mutate::{self, Mutant};

/// A stop is sent again only if its deadline moved earlier by more than this.
const MIN_GAIN: Duration = Duration::from_millis(500);

/// Containers that are being stopped, and sandboxes that were.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(in crate::pod) struct ContainerStops {
    stops: BTreeMap<ContainerId, Stop>,
    /// The deadline of the whole pod, while it terminates.
    #[serde(default)]
    pod_deadline: Option<Time>,
    /// Sandboxes this process has stopped: stopping a dead one too releases its network.
    stopped_sandboxes: BTreeSet<SandboxId>,
}

/// The stop of one container instance.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Stop {
    deadline: Time,
    /// The text of its Killing event; empty for the default.
    why: String,
    reported: bool,
    /// When this process sent the first stop since the last outage of the runtime. That may be long after the deadline.
    #[serde(default)]
    sent_at: Option<Time>,
    /// When the runtime will send KILL, by the stop that is under way.
    kill_at: Option<Time>,
    /// A stop returned: the next one needs an observation in between.
    returned: bool,
}

impl ContainerStops {
    /// Begins to stop one container, or moves its deadline earlier.
    pub(in crate::pod) fn add(&mut self, id: &ContainerId, deadline: Time, why: &str) {
        let stop = self.stops.entry(id.clone()).or_insert_with(|| Stop {
            deadline,
            why: why.to_owned(),
            reported: false,
            sent_at: None,
            kill_at: None,
            returned: false,
        });
        stop.deadline = stop.deadline.min(deadline);
    }

    /// Forgets the containers that have stopped.
    pub(in crate::pod) fn retain(&mut self, alive: impl Fn(&ContainerId) -> bool) {
        self.stops.retain(|id, _| alive(id));
    }

    /// A stop returned, whatever its result.
    pub(in crate::pod) fn returned(&mut self, id: &ContainerId) {
        if let Some(stop) = self.stops.get_mut(id) {
            (stop.kill_at, stop.returned) = (None, true);
        }
    }

    /// The runtime returned from an outage: a stop that was sent before may never have reached it.
    pub(in crate::pod) fn runtime_is_back(&mut self) {
        self.stops.values_mut().for_each(|stop| stop.sent_at = None);
    }

    pub(in crate::pod) fn sandbox_stopped(&mut self, id: SandboxId) {
        self.stopped_sandboxes.insert(id);
    }

    /// This process has stopped it.
    pub(in crate::pod) fn is_sandbox_stopped(&self, id: &SandboxId) -> bool {
        self.stopped_sandboxes.contains(id)
    }

    pub(super) fn set_pod_deadline(&mut self, deadline: Time) {
        self.pod_deadline = Some(deadline);
    }

    pub(in crate::pod) fn wake(&self, now: Time) -> Option<Time> {
        let moments = |s: &Stop| [s.deadline, s.deadline + MIN_STOP_TIMEOUT, s.deadline + OVERDUE];
        let sandbox = self.pod_deadline.map(|at| at + MIN_STOP_TIMEOUT);
        let sent = self.stops.values().filter_map(|s| s.sent_at).map(|at| at + MIN_STOP_TIMEOUT);
        self.stops.values().flat_map(moments).chain(sent).chain(sandbox).filter(|at| *at > now).min()
    }

    /// Every container that still runs has had its time between TERM and KILL, also if its stop was sent late.
    pub(super) fn all_overdue(&self, alive: &[ContainerId], now: Time) -> bool {
        let overdue = |stop: &Stop| stop.sent_at.is_some_and(|sent| now >= sent.max(stop.deadline) + MIN_STOP_TIMEOUT);
        alive.iter().all(|id| self.stops.get(id).is_some_and(overdue))
    }

    pub(in crate::pod) fn deadline_of(&self, id: &ContainerId) -> Option<Time> {
        self.stops.get(id).map(|stop| stop.deadline)
    }

    /// Takes the next step of every stop.
    pub(in crate::pod) fn proceed(&mut self, step: &mut PodStep<'_, '_>) {
        for (id, stop) in &mut self.stops {
            let Some(container) = step.facts.observed.seen.container(id).filter(|c| c.state.may_run()).cloned() else {
                continue;
            };
            stop.report(&container, step);
            let hook_done = stop.run_pre_stop(&container, step);
            let in_order = step.facts.record.termination().is_none() || may_stop_now(step.facts, &container);
            let due = step.now().boot >= stop.deadline && (in_order || !mutate::is_active(Mutant::FloorPerContainer));
            if (hook_done && in_order) || due {
                stop.send(&container, step);
            }
        }
    }
}

impl Stop {
    fn report(&mut self, container: &ContainerSeen, step: &mut PodStep<'_, '_>) {
        if !std::mem::replace(&mut self.reported, true) {
            let message = match self.why.as_str() {
                "" => format!("Stopping container {}", container.name),
                why => why.to_owned(),
            };
            step.notify("Killing", Some(&container.name), message);
        }
    }

    /// Sends StopContainer, or sends it again if the deadline moved earlier since.
    fn send(&mut self, container: &ContainerSeen, step: &mut PodStep<'_, '_>) {
        let now = step.now().boot;
        let left = Duration::from_secs(self.deadline.saturating_sub(now).as_secs()).max(MIN_STOP_TIMEOUT);
        let key = CallKey::Stop(container.id.clone());
        let due = match self.kill_at {
            // The time left is cut to whole seconds: only a deadline that moved counts.
            Some(before) => self.deadline.max(now + MIN_STOP_TIMEOUT) + MIN_GAIN < before,
            None => (!self.returned || step.facts.observed.fresh()) && step.facts.calls.may_send(&key, now),
        };
        let call = RuntimeCall::StopContainer { name: container.name.clone(), id: container.id.clone(), timeout: left };
        if due && step.send(call, step.ctx.config.runtime_request_timeout + left) {
            self.kill_at = Some(now + left);
            self.sent_at.get_or_insert(now);
        }
    }

    /// Runs the preStop hook once for this instance. True if the stop does not wait for it (any more).
    fn run_pre_stop(&self, container: &ContainerSeen, step: &mut PodStep<'_, '_>) -> bool {
        let (now, deadline) = (step.now().boot, self.deadline);
        let key = CallKey::Hook(container.id.clone(), HookKind::PreStop);
        let known = step.facts.record.containers.get(&container.name).and_then(|m| m.pre_stop.clone());
        match known.filter(|(id, _)| *id == container.id) {
            // The deadline cuts it short; one that a former agent began is never begun again.
            Some((_, HookState::Begun)) if step.facts.calls.busy(&key) => {
                if now >= deadline {
                    step.cancel(|c| c.key() == key);
                }
                false
            }
            Some(_) => true,
            None => {
                let Some(handler) = pre_stop_handler(step.facts, container) else { return true };
                if container.state != RunState::Running || now >= deadline {
                    return true;
                }
                // Its stop has to wait for the runtime too.
                if !step.ctx.runtime_up {
                    return false;
                }
                if !mutate::is_active(Mutant::HookNotJournaled) {
                    let begun = Some((container.id.clone(), HookState::Begun));
                    step.facts.record.edit_container(&container.name, |memory| memory.pre_stop = begun);
                }
                let call = Call::Runtime(RuntimeCall::Hook {
                    kind: HookKind::PreStop,
                    name: container.name.clone(),
                    id: container.id.clone(),
                    handler,
                    ips: step.facts.ips(),
                });
                !step.send(call, deadline - now)
            }
        }
    }
}

/// `Some(None)`: the spec has a hook; `Some(Some)`: only the container's annotation has one.
fn pre_stop_handler(facts: &PodFacts, container: &ContainerSeen) -> Option<Option<String>> {
    match find_container(&facts.record.pod, container.name.as_str()) {
        Some(found) => found.container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref()).map(|_| None),
        None => container.pre_stop.clone().map(Some),
    }
}

/// App containers stop first, then sidecars in reverse order. That needs a fresh observation: a container whose start was under
/// way may run by now.
fn may_stop_now(facts: &PodFacts, container: &ContainerSeen) -> bool {
    let Some(mine) = sidecar_index(facts, &container.name) else { return true };
    let sure = facts.observed.fresh() && !facts.calls.starting() && !facts.calls.in_doubt();
    let before = |i: usize| if mutate::is_active(Mutant::SidecarsForward) { i >= mine } else { i <= mine };
    sure && facts.observed.seen.alive().all(|other| sidecar_index(facts, &other.name).is_some_and(before))
}

fn sidecar_index(facts: &PodFacts, name: &Name) -> Option<usize> {
    let init = facts.record.pod.spec.as_ref()?.init_containers.as_ref()?;
    init.iter().position(|c| c.name == name.as_str() && is_sidecar(c))
}
