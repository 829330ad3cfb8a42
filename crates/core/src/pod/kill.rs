//! Ending containers: hooks at once, stops in their turn, one deadline for all, then the sandbox.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::stuck::OVERDUE;
use super::{Ctx, KillOptions, Machine};
use crate::model::{
    Call, CallKey, Cause, ContainerId, ContainerSeen, HookKind, HookState, HostCall, Life, Name, Out, RunState,
    RuntimeCall, SandboxId, Time, find_container, is_sidecar, spec_of,
};
use crate::mutate::{self, Mutant};

/// The last of the last: a container gets at least this long between TERM and KILL.
const FLOOR: Duration = Duration::from_secs(2);
/// The grace of an orphan whose own is not known before the first look. Nothing is done before that, and no label has more.
pub(crate) const GRACE_OF_LABELS: Duration = Duration::from_secs(24 * 3600);
/// A stop is sent again only for a gain that matters.
const GAIN: Duration = Duration::from_millis(500);

/// Containers that are being ended.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Killing {
    kills: BTreeMap<ContainerId, Kill>,
    /// The deadline of the whole pod, while it ends.
    #[serde(default)]
    ends: Option<Time>,
    /// Sandboxes this process has stopped: stopping a dead one too releases its network.
    pub(super) stopped_sandboxes: BTreeSet<SandboxId>,
}

/// The end of one container instance.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Kill {
    deadline: Time,
    why: String,
    told: bool,
    /// When the runtime will send KILL, by the stop that is under way.
    kill_at: Option<Time>,
    /// A stop came back: the next one needs a look in between.
    returned: bool,
}

impl Killing {
    pub(super) fn retain(&mut self, alive: impl Fn(&ContainerId) -> bool) {
        self.kills.retain(|id, _| alive(id));
    }

    /// A stop came back, well or not.
    pub(super) fn stop_returned(&mut self, id: &ContainerId) {
        if let Some(kill) = self.kills.get_mut(id) {
            (kill.kill_at, kill.returned) = (None, true);
        }
    }

    pub(super) fn wake(&self, now: Time) -> Option<Time> {
        let moments = |k: &Kill| [k.deadline, k.deadline + FLOOR, k.deadline + OVERDUE];
        let sandbox = self.ends.map(|at| at + FLOOR);
        self.kills.values().flat_map(moments).chain(sandbox).filter(|at| *at > now).min()
    }

    pub(super) fn deadline_of(&self, id: &ContainerId) -> Option<Time> {
        self.kills.get(id).map(|kill| kill.deadline)
    }
}

impl Machine {
    /// The plan of a terminating pod.
    pub(super) fn plan_kill(&mut self, ctx: &mut Ctx<'_>, out: &mut Out) {
        // Nothing new comes up: what only prepares is interrupted; what the runtime may still bring up is waited for.
        self.cancel(interruptible, out);
        self.plan_probes(ctx, out);
        if !self.observed.known() {
            return;
        }
        self.take_grace_of_labels(ctx);
        let Life::Terminating(termination) = &self.record.life else { return };
        let deadline = termination.deadline.resume(&ctx.config.boot_id);
        let why = self.kill_message();
        self.killing.ends = Some(deadline);
        let alive: Vec<_> = self.observed.seen.alive().map(|c| c.id.clone()).collect();
        for id in &alive {
            self.kill_container(id, deadline, &why);
        }
        self.continue_kills(ctx, out);
        let overdue = ctx.now.boot >= deadline + FLOOR;
        if (alive.is_empty() && self.observed.fresh() && !self.calls.starting()) || overdue {
            self.stop_all_sandboxes(ctx, out);
        }
        if self.nothing_left() {
            self.unsaved |= self.record.life.terminated();
        }
    }

    /// Its spec is lost; its containers carry the grace they were made with.
    fn take_grace_of_labels(&mut self, ctx: &mut Ctx<'_>) {
        if self.record.termination().is_some_and(|e| e.cause == Cause::Orphan && e.grace == GRACE_OF_LABELS) {
            let grace = self.observed.seen.alive().filter_map(|c| c.grace).max().unwrap_or(FLOOR);
            let grace = grace.min(GRACE_OF_LABELS - FLOOR);
            self.kill(Cause::Orphan, KillOptions { grace: Some(grace), ..KillOptions::default() }, ctx);
        }
    }

    /// Seen after our last call: nothing runs, nothing can come up any more.
    fn nothing_left(&self) -> bool {
        let stopped = |id: &SandboxId| self.killing.stopped_sandboxes.contains(id);
        self.observed.fresh()
            && !self.calls.any(|c| c.changes_runtime())
            && !self.calls.in_doubt()
            && self.observed.seen.is_stopped()
            && self.observed.seen.sandboxes.iter().all(|s| stopped(&s.id))
    }

    fn stop_all_sandboxes(&mut self, ctx: &mut Ctx<'_>, out: &mut Out) {
        let sandboxes = self.observed.seen.sandboxes.iter();
        let stop: Vec<_> = sandboxes
            .filter(|s| s.ready || !self.killing.stopped_sandboxes.contains(&s.id))
            .map(|s| s.id.clone())
            .collect();
        for id in stop {
            // One that we stopped and that still looks ready needs a new look first.
            if !self.killing.stopped_sandboxes.contains(&id) || self.observed.fresh() {
                self.stop_sandbox(&id, ctx, out);
            }
        }
    }

    /// What a call in doubt brought up after the end is stopped. True if there was something.
    pub(super) fn stop_surfaced(&mut self, ctx: &mut Ctx<'_>, out: &mut Out) -> bool {
        let ready: Vec<_> = self.observed.seen.sandboxes.iter().filter(|s| s.ready).map(|s| s.id.clone()).collect();
        if self.observed.fresh() {
            for id in &ready {
                self.stop_sandbox(id, ctx, out);
            }
        }
        !ready.is_empty()
    }

    /// Begin to end one container, or move its deadline earlier.
    pub(super) fn kill_container(&mut self, id: &ContainerId, deadline: Time, why: &str) {
        let kill = self.killing.kills.entry(id.clone()).or_insert_with(|| Kill {
            deadline,
            why: why.to_owned(),
            told: false,
            kill_at: None,
            returned: false,
        });
        kill.deadline = kill.deadline.min(deadline);
    }

    /// Every kill takes the step it can take now.
    pub(super) fn continue_kills(&mut self, ctx: &mut Ctx<'_>, out: &mut Out) {
        let ids: Vec<ContainerId> = self.killing.kills.keys().cloned().collect();
        for id in ids {
            let Some(container) = self.observed.seen.container(&id).filter(|c| c.state.may_run()).cloned() else {
                continue;
            };
            self.tell_kill(&container, out);
            let hooked = self.pre_stop(&container, ctx, out);
            let turn = self.record.termination().is_none() || self.its_turn(&container);
            let kill = &self.killing.kills[&id];
            let due = ctx.now.boot >= kill.deadline && (turn || !mutate::made(Mutant::FloorPerContainer));
            if (hooked && turn) || due {
                self.stop_container(&container, ctx, out);
            }
        }
    }

    fn tell_kill(&mut self, container: &ContainerSeen, out: &mut Out) {
        let kill = self.killing.kills.get_mut(&container.id).expect("only kills are continued");
        if !std::mem::replace(&mut kill.told, true) {
            let message = match kill.why.as_str() {
                "" => format!("Stopping container {}", container.name),
                why => why.to_owned(),
            };
            self.event(false, "Killing", Some(&container.name), message, out);
        }
    }

    /// Send the stop, or send it again if the deadline moved earlier since.
    fn stop_container(&mut self, container: &ContainerSeen, ctx: &mut Ctx<'_>, out: &mut Out) {
        let kill = &self.killing.kills[&container.id];
        let left = Duration::from_secs(kill.deadline.saturating_sub(ctx.now.boot).as_secs()).max(FLOOR);
        let kill_at = ctx.now.boot + left;
        let key = CallKey::Stop(container.id.clone());
        let send = match kill.kill_at {
            // The time that is left was cut to whole seconds: only a deadline that moved is news.
            Some(before) => kill.deadline.max(ctx.now.boot + FLOOR) + GAIN < before,
            None => (!kill.returned || self.observed.fresh()) && self.calls.may_send(&key, ctx.now.boot),
        };
        let call = Call::Runtime(RuntimeCall::StopContainer {
            name: container.name.clone(),
            id: container.id.clone(),
            timeout: left,
        });
        if send && self.send(call, ctx.config.runtime_request_timeout + left, ctx, out) {
            let kill = self.killing.kills.get_mut(&container.id).expect("looked up above");
            kill.kill_at = Some(kill_at);
        }
    }

    /// Run the preStop hook once for this instance. True when there is nothing left to wait for.
    fn pre_stop(&mut self, container: &ContainerSeen, ctx: &mut Ctx<'_>, out: &mut Out) -> bool {
        let deadline = self.killing.kills[&container.id].deadline;
        let key = CallKey::Hook(container.id.clone(), HookKind::PreStop);
        let known = self.record.containers.get(&container.name).and_then(|m| m.pre_stop.clone());
        match known.filter(|(id, _)| *id == container.id) {
            // The deadline cuts it short; one that a former agent began is never begun again.
            Some((_, HookState::Begun)) if self.calls.busy(&key) => {
                if ctx.now.boot >= deadline {
                    self.cancel(|c| c.key() == key, out);
                }
                false
            }
            Some(_) => true,
            None => {
                let Some(handler) = self.pre_stop_handler(container) else { return true };
                if container.state != RunState::Running || ctx.now.boot >= deadline {
                    return true;
                }
                // Its stop has to wait for the runtime too.
                if !ctx.runtime_up {
                    return false;
                }
                let memory = self.record.containers.entry(container.name.clone()).or_default();
                if !mutate::made(Mutant::HookNotJournaled) {
                    memory.pre_stop = Some((container.id.clone(), HookState::Begun));
                    self.unsaved = true;
                }
                let call = Call::Runtime(RuntimeCall::Hook {
                    kind: HookKind::PreStop,
                    name: container.name.clone(),
                    id: container.id.clone(),
                    handler,
                    ips: self.ips(),
                });
                !self.send(call, deadline - ctx.now.boot, ctx, out)
            }
        }
    }

    /// `Some(None)`: the spec has a hook; `Some(Some)`: only the container's annotation knows one.
    fn pre_stop_handler(&self, container: &ContainerSeen) -> Option<Option<String>> {
        match find_container(&self.record.pod, container.name.as_str()) {
            Some(found) => found.container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref()).map(|_| None),
            None => container.pre_stop.clone().map(Some),
        }
    }

    /// App containers end first, sidecars then in reverse order. Only the stop waits its turn; whether it has come needs fresh
    /// sight: a container whose start was under way may run by now.
    fn its_turn(&self, container: &ContainerSeen) -> bool {
        let Some(mine) = self.sidecar_index(&container.name) else { return true };
        let sure = self.observed.fresh() && !self.calls.starting() && !self.calls.in_doubt();
        let before = |i: usize| if mutate::made(Mutant::SidecarsForward) { i >= mine } else { i <= mine };
        sure && self.observed.seen.alive().all(|other| self.sidecar_index(&other.name).is_some_and(before))
    }

    fn sidecar_index(&self, name: &Name) -> Option<usize> {
        let init = self.record.pod.spec.as_ref()?.init_containers.as_ref()?;
        init.iter().position(|c| c.name == name.as_str() && is_sidecar(c))
    }

    fn kill_message(&self) -> String {
        match self.record.termination().and_then(|e| e.status_override.as_ref()) {
            Some((_, message)) => message.clone(),
            None => String::new(),
        }
    }

    /// The pod's own grace for the end of one container, else two seconds.
    pub(super) fn own_grace(&self) -> Duration {
        let seconds = spec_of(&self.record.pod).termination_grace_period_seconds;
        seconds.map_or(FLOOR, |s| Duration::from_secs(u64::try_from(s).unwrap_or(0)))
    }
}

/// Calls that the end of the pod interrupts.
fn interruptible(call: &Call) -> bool {
    matches!(
        call,
        Call::Runtime(
            RuntimeCall::PullImage { .. }
                | RuntimeCall::ImageStatus { .. }
                | RuntimeCall::Hook { kind: HookKind::PostStart, .. }
        ) | Call::Host(HostCall::PrepareContainer { .. } | HostCall::MakeDirs | HostCall::MountVolume { .. })
    )
}
