//! Computes the next actions for a pod: containers to start, containers to kill and why, whether to create a sandbox.
//!
//! ```text
//!  no sandbox ──▶ would anything run in one? ── no ──▶ kill_pod
//!                        │ yes
//!                        ▼
//!  sandbox ──▶ ephemeral · init in order, by the cursor ──▶ app containers in parallel ──▶ all finished: kill_pod
//! ```
//!
//! A pure function of its inputs; each observation gives a new plan. Progress through the init containers is the journaled
//! cursor of the current sandbox. It is inferred from existing containers only for a sandbox without a cursor (another agent
//! created it, or the journal was lost). The rules are those of the kubelet's `computePodActions`.

mod facts;
mod kill_reason;
mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::backoff;
use crate::model::{
    Backoff, Container, ContainerId, ContainerMemory, Cursor, HookState, Name, Now, Pod, PodRecord, PodSeen, PodSpec,
    ProbeKind, SandboxId, SandboxSeen, is_sidecar,
};

pub(crate) use facts::exit_of;
pub(crate) use facts::{Fact, Within, disappeared_exit};
pub(crate) use kill_reason::{Kill, KillReason};
use plan::{Init, Plan};

/// Inputs of the plan. Only for pods that are not terminating.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inputs<'a> {
    /// The pod as its source has it.
    pub pod: &'a Pod,
    /// The state in the runtime, observed after our last call.
    pub seen: &'a PodSeen,
    /// The pod's journaled state.
    pub record: &'a PodRecord,
    /// Containers whose liveness or startup probe failed past its threshold.
    pub probes: &'a BTreeMap<Name, ProbeFailure>,
    /// Containers whose restart a user requested: running ones are replaced, the back-off of waiting ones is skipped. The caller
    /// removes a name when it sends the resulting kill or start.
    pub restart_now: &'a BTreeSet<Name>,
    /// Time of the plan, for back-offs.
    pub now: Now,
    /// Upper bound of the crash back-off.
    pub backoff_max: Duration,
    /// The hash that detects a changed definition; containers carry it as a label.
    pub hash: fn(&Container) -> String,
}

/// A probe that failed past its threshold.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ProbeFailure {
    /// The probed instance: the result does not apply to the next one.
    pub id: ContainerId,
    /// Liveness or startup.
    pub kind: ProbeKind,
}

/// The plan. Kills come first; everything else may run in parallel.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Actions {
    /// All containers have finished: nothing runs that should be kept and nothing is to be started. Sidecars that still run are
    /// stopped with the pod.
    pub kill_pod: bool,
    /// Create a sandbox with this attempt number. Only if nothing has to be stopped before.
    pub create_sandbox: Option<u32>,
    /// The dead sandbox that the new one replaces; its network is torn down first.
    pub replaces: Option<SandboxId>,
    /// Ready sandboxes that are not the current one.
    pub stop_sandboxes: Vec<SandboxId>,
    /// Containers to kill.
    pub kill: Vec<Kill>,
    /// Containers to start in the current sandbox.
    pub start: Vec<Start>,
    /// Containers in back-off, with the reason for `state.waiting`.
    pub waiting: BTreeMap<Name, Waiting>,
    /// When the first back-off ends.
    pub wake_at: Option<Timestamp>,
    /// The new cursor, if it moved. Journaled before the calls are sent.
    pub cursor: Option<Cursor>,
    /// `RestartAllContainers`: these instances are journaled as `voided` before the calls are sent.
    pub restart_all: BTreeMap<Name, ContainerId>,
}

/// One container to start.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Start {
    /// Name in the spec.
    pub name: Name,
    /// Restart count of the new instance.
    pub attempt: u32,
    /// A container that is created and only has to be started.
    pub existing: Option<ContainerId>,
    /// The crash back-off to journal with this start; `None` leaves it unchanged.
    pub backoff: Option<Backoff>,
}

/// `state.waiting` of a container.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Waiting {
    /// `CrashLoopBackOff`, `ErrImagePull`, …
    pub reason: String,
    /// Details for the user.
    pub message: String,
}

/// The current sandbox: the cursor's while it is ready, else the newest, if that is ready. A sandbox that appears late, from a
/// call with an unknown result, never replaces one in use.
pub(crate) fn current_sandbox<'a>(seen: &'a PodSeen, record: &PodRecord) -> Option<&'a SandboxSeen> {
    let ours = record.cursor.as_ref().and_then(|cursor| seen.sandboxes.iter().find(|s| s.id == cursor.sandbox));
    ours.filter(|s| s.ready).or_else(|| seen.sandbox().filter(|s| s.ready))
}

/// The startup probe of this instance has passed, or the container has none.
pub(crate) fn is_started(container: &Container, memory: Option<&ContainerMemory>, id: &ContainerId) -> bool {
    container.startup_probe.is_none() || memory.is_some_and(|m| m.started.as_ref() == Some(id))
}

/// The postStart hook of this instance has succeeded, or the container has none. Until then it is not reported as running.
pub(crate) fn is_post_start_done(container: &Container, memory: Option<&ContainerMemory>, id: &ContainerId) -> bool {
    let hook = container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref());
    let done = |(hooked, state): &(ContainerId, HookState)| hooked == id && *state == HookState::Done;
    hook.is_none() || memory.and_then(|m| m.post_start.as_ref()).is_some_and(done)
}

/// A container exited with `RestartAllContainers`, and not all containers have been restarted since.
pub(crate) fn is_restarting_all(spec: &PodSpec, seen: &PodSeen, record: &PodRecord) -> bool {
    let Some(sandbox) = current_sandbox(seen, record) else { return false };
    spec.init_containers.iter().flatten().chain(&spec.containers).any(|c| {
        matches!(Fact::of(seen, record, &c.name, Within::Sandbox(&sandbox.id)), Fact::Ended(exit)
            if backoff::restarts_all(c, exit.code) && !is_voided(record, &c.name, &exit.id))
    })
}

/// The instance is being replaced: its exit does not count.
pub(crate) fn is_voided(record: &PodRecord, name: &str, id: &ContainerId) -> bool {
    record.containers.get(name).is_some_and(|m| m.voided.as_ref() == Some(id))
}

/// Compares the spec with the observed state and plans the difference.
pub(crate) fn pod_actions(i: &Inputs<'_>) -> Actions {
    let Some(spec) = &i.pod.spec else { return Actions { kill_pod: true, ..Actions::default() } };
    let Some(sandbox) = current_sandbox(i.seen, i.record) else { return without_sandbox(i, spec) };
    if is_restarting_all(spec, i.seen, i.record) {
        return restart_all(i, spec, sandbox);
    }
    let mut plan = Plan { i, spec, sandbox: &sandbox.id, out: Actions::default() };
    plan.kill_unwanted();
    plan.ephemeral();
    let keep_running = match plan.init() {
        Init::Failed => false,
        Init::Pending => true,
        // Every app container is planned, also if the first one already keeps the pod running.
        Init::Done => spec.containers.iter().filter(|c| plan.app(c)).count() > 0,
    };
    if !keep_running {
        let Actions { stop_sandboxes, kill, cursor, .. } = plan.out;
        return Actions { kill_pod: true, stop_sandboxes, kill, cursor, ..Actions::default() };
    }
    plan.out
}

/// No sandbox is ready: containers in dead sandboxes are killed, and a new sandbox is created if something would run in it.
fn without_sandbox(i: &Inputs<'_>, spec: &PodSpec) -> Actions {
    let kill = i.seen.alive().map(|c| Kill::new(c, KillReason::PodMustBeRestarted, String::new()));
    let mut out = Actions {
        kill: kill.collect(),
        stop_sandboxes: i.seen.sandboxes.iter().filter(|s| s.ready).map(|s| s.id.clone()).collect(),
        ..Actions::default()
    };
    if !wants_sandbox(i, spec) {
        out.kill_pod = true;
        return out;
    }
    if !out.kill.is_empty() || !out.stop_sandboxes.is_empty() {
        return out;
    }
    let last = i.seen.sandbox();
    // Back-off for sandboxes that die at once: 1 s after creation, then 2 s, 4 s, … 64 s.
    let pause = last.map(|s| (s.created_at, Duration::from_secs(1 << s.attempt.min(6))));
    let not_before = pause.map(|(since, delay)| backoff::expires(&Backoff { delay, since }, i.now.wall));
    if not_before.is_some_and(|at| i.now.wall < at) {
        out.wake_at = not_before;
        return out;
    }
    let seen_attempts = i.seen.sandboxes.iter().map(|s| s.attempt + 1).max().unwrap_or(0);
    out.create_sandbox = Some(i.record.sandbox_attempts.max(seen_attempts));
    out.replaces = last.map(|s| s.id.clone());
    out
}

/// Would anything run in a new sandbox? A container that finished in any sandbox does not run again.
fn wants_sandbox(i: &Inputs<'_>, spec: &PodSpec) -> bool {
    let fact = |c: &Container| Fact::of(i.seen, i.record, &c.name, Within::Any);
    let over = |c: &Container| match fact(c) {
        Fact::Ended(exit) => (!is_voided(i.record, &c.name, &exit.id) && !backoff::should_restart(c, spec, exit.code))
            .then_some(exit.code),
        _ => None,
    };
    let mut inits = spec.init_containers.iter().flatten();
    // A start that was interrupted is replaced whatever the policy: no process ran.
    let ran = |c: &Container| match fact(c) {
        Fact::Ended(exit) => exit.started_at.is_some() || !is_voided(i.record, &c.name, &exit.id),
        fact => fact.ran(),
    };
    if spec.restart_policy.as_deref() == Some("Never") && inits.clone().chain(&spec.containers).any(ran) {
        return false;
    }
    let init_failed = inits.any(|c| !is_sidecar(c) && over(c).is_some_and(|code| code != 0));
    !init_failed && spec.containers.iter().any(|c| over(c).is_none())
}

/// First kills all containers, then marks their exits as void and starts the pod again in the same sandbox.
fn restart_all(i: &Inputs<'_>, spec: &PodSpec, sandbox: &SandboxSeen) -> Actions {
    let names = || spec.init_containers.iter().flatten().chain(&spec.containers).map(|c| c.name.as_str());
    let alive = i.seen.alive().filter(|c| names().any(|name| name == c.name.as_str()));
    let kill: Vec<Kill> = alive
        .map(|c| Kill {
            grace: Some(Duration::ZERO),
            replace: true,
            ..Kill::new(c, KillReason::RestartRule, format!("Container {} is restarted with the pod", c.name))
        })
        .collect();
    if !kill.is_empty() {
        return Actions { kill, ..Actions::default() };
    }
    let mut record = i.record.clone();
    let mut voided = BTreeMap::new();
    for name in names() {
        if let Some(id) = Fact::of(i.seen, i.record, name, Within::Any).id() {
            record.containers.entry(name.into()).or_default().voided = Some(id.clone());
            voided.insert(Name::from(name), id.clone());
        }
    }
    let start = Cursor { sandbox: sandbox.id.clone(), done: 0 };
    record.cursor = Some(start.clone());
    let mut out = pod_actions(&Inputs { record: &record, ..*i });
    out.restart_all = voided;
    out.cursor.get_or_insert(start);
    out
}

/// A pod in messages, as the kubelet's `format.Pod` writes it: `name_namespace(uid)`.
pub(crate) fn format_pod(pod: &Pod) -> String {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let meta = &pod.metadata;
    format!("{}_{}({})", text(&meta.name), text(&meta.namespace), text(&meta.uid))
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
pub(crate) mod tests;
