//! What a pod's containers need next: which to start, which to kill and why, and whether a sandbox has to be made.
//!
//! ```text
//!  no sandbox ──▶ would anything run in one? ── no ──▶ kill_pod
//!                        │ yes
//!                        ▼
//!  sandbox ──▶ ephemeral · init in order, by the cursor ──▶ app containers side by side ──▶ all done for good: kill_pod
//! ```
//!
//! A plan, without memory of its own: everything comes in, the next look brings the next plan. Progress through init is the
//! journaled cursor of the current sandbox, never a guess from leftovers; a guess is made only for a sandbox that no cursor
//! speaks of (another agent made it, or the journal was lost). The rules are those of the kubelet's `computePodActions`.

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

pub use facts::exit_of;
pub(crate) use facts::{Fact, Within, lost};
pub use kill_reason::{Kill, KillReason};
use plan::{Init, Plan};

/// What the plan is made of. Asked only for pods that are not ending.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// What is wanted.
    pub pod: &'a Pod,
    /// What the runtime has, looked at after our own last call.
    pub seen: &'a PodSeen,
    /// What we remember.
    pub record: &'a PodRecord,
    /// Containers whose liveness or startup probe failed past its threshold.
    pub probes: &'a BTreeMap<Name, ProbeFailure>,
    /// Containers a person wants restarted: running ones are replaced, waiting ones don't wait. The caller drops a name when
    /// the kill or the start it led to goes out.
    pub restart_now: &'a BTreeSet<Name>,
    /// The moment of the plan.
    pub now: Now,
    /// The ceiling of the crash backoff.
    pub backoff_max: Duration,
    /// The hash by which a changed definition is told, as written on containers at their creation.
    pub hash: fn(&Container) -> String,
}

/// A probe that failed past its threshold.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ProbeFailure {
    /// The instance that was probed: a verdict says nothing about the next one.
    pub id: ContainerId,
    /// Liveness or startup.
    pub kind: ProbeKind,
}

/// What to do next. Kills come first; everything else may go out side by side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Actions {
    /// The pod has ended by itself: nothing runs that should be kept, nothing is to be started. Sidecars that still run
    /// are stopped with the pod.
    pub kill_pod: bool,
    /// Make a sandbox with this attempt number. Only when nothing has to be stopped before.
    pub create_sandbox: Option<u32>,
    /// The dead sandbox the new one takes the place of: its network should be torn down first.
    pub replaces: Option<SandboxId>,
    /// Ready sandboxes that are not the current one.
    pub stop_sandboxes: Vec<SandboxId>,
    /// Containers to end.
    pub kill: Vec<Kill>,
    /// Containers to bring up in the current sandbox.
    pub start: Vec<Start>,
    /// Containers that are held back, with the reason users see.
    pub waiting: BTreeMap<Name, Waiting>,
    /// When the first of them may go on.
    pub wake_at: Option<Timestamp>,
    /// The new cursor, if it moved. To be journaled with this turn.
    pub cursor: Option<Cursor>,
    /// A restart rule starts everything anew: these instances are to be journaled as `voided` with this turn.
    pub restart_all: BTreeMap<Name, ContainerId>,
}

/// One container to bring up.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    /// Which container.
    pub name: Name,
    /// Its restart count.
    pub attempt: u32,
    /// It is already created: only start it.
    pub existing: Option<ContainerId>,
    /// The crash backoff to remember with this start; `None` leaves it as it is.
    pub backoff: Option<Backoff>,
}

/// Why a container does not run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Waiting {
    /// `CrashLoopBackOff`, `ErrImagePull`, …
    pub reason: String,
    /// The whole story.
    pub message: String,
}

/// The sandbox that counts: the cursor's while it is ready, else the newest, if that is ready. One that surfaces late from
/// a call in doubt never takes the place of one in use.
pub fn current_sandbox<'a>(seen: &'a PodSeen, record: &PodRecord) -> Option<&'a SandboxSeen> {
    let ours = record.cursor.as_ref().and_then(|cursor| seen.sandboxes.iter().find(|s| s.id == cursor.sandbox));
    ours.filter(|s| s.ready).or_else(|| seen.sandbox().filter(|s| s.ready))
}

/// A sidecar or app container that runs counts as started once its startup probe passed, if it has one.
pub fn is_started(container: &Container, memory: Option<&ContainerMemory>, id: &ContainerId) -> bool {
    container.startup_probe.is_none() || memory.is_some_and(|m| m.started.as_ref() == Some(id))
}

/// Its postStart hook, if it has one, has ended well. Until then it does not count as running.
pub fn is_hooked(container: &Container, memory: Option<&ContainerMemory>, id: &ContainerId) -> bool {
    let hook = container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref());
    let done = |(hooked, state): &(ContainerId, HookState)| hooked == id && *state == HookState::Done;
    hook.is_none() || memory.and_then(|m| m.post_start.as_ref()).is_some_and(done)
}

/// A restart rule has spoken, and not everything was restarted since.
pub(crate) fn is_restarting_all(spec: &PodSpec, seen: &PodSeen, record: &PodRecord) -> bool {
    let Some(sandbox) = current_sandbox(seen, record) else { return false };
    spec.init_containers.iter().flatten().chain(&spec.containers).any(|c| {
        matches!(Fact::of(seen, record, &c.name, Within::Sandbox(&sandbox.id)), Fact::Ended(exit)
            if backoff::restarts_all(c, exit.code) && !is_voided(record, &c.name, &exit.id))
    })
}

/// The instance is to be replaced, or has been.
pub(crate) fn is_voided(record: &PodRecord, name: &str, id: &ContainerId) -> bool {
    record.containers.get(name).is_some_and(|m| m.voided.as_ref() == Some(id))
}

/// Compares what is wanted with what is known, and says what is missing.
pub fn pod_actions(i: &Inputs<'_>) -> Actions {
    let Some(spec) = &i.pod.spec else { return Actions { kill_pod: true, ..Actions::default() } };
    let Some(sandbox) = current_sandbox(i.seen, i.record) else { return without_sandbox(i, spec) };
    if is_restarting_all(spec, i.seen, i.record) {
        return restart_all(i, spec, sandbox);
    }
    let mut plan = Plan { i, spec, sandbox: &sandbox.id, out: Actions::default() };
    plan.strays();
    plan.ephemeral();
    let go_on = match plan.init() {
        Init::Failed => false,
        Init::Pending => true,
        // Every app container is looked at, also when the first already keeps the pod alive.
        Init::Done => spec.containers.iter().filter(|c| plan.app(c)).count() > 0,
    };
    if !go_on {
        let Actions { stop_sandboxes, kill, cursor, .. } = plan.out;
        return Actions { kill_pod: true, stop_sandboxes, kill, cursor, ..Actions::default() };
    }
    plan.out
}

/// No sandbox is ready: everything that lives in dead ones goes, and a new one is made if something would run in it.
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
    // A sandbox that dies as soon as it is made is not made again at once: 1 s after its creation, 2 s, 4 s, … 64 s.
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

/// Would anything run in a new sandbox? What has ended for good, in whichever sandbox, does not run again.
fn wants_sandbox(i: &Inputs<'_>, spec: &PodSpec) -> bool {
    let fact = |c: &Container| Fact::of(i.seen, i.record, &c.name, Within::Any);
    let over = |c: &Container| match fact(c) {
        Fact::Ended(exit) => (!is_voided(i.record, &c.name, &exit.id) && !backoff::should_restart(c, spec, exit.code))
            .then_some(exit.code),
        _ => None,
    };
    let mut inits = spec.init_containers.iter().flatten();
    if spec.restart_policy.as_deref() == Some("Never") && inits.clone().chain(&spec.containers).any(|c| fact(c).ran()) {
        return false;
    }
    let init_failed = inits.any(|c| !is_sidecar(c) && over(c).is_some_and(|code| code != 0));
    !init_failed && spec.containers.iter().any(|c| over(c).is_none())
}

/// First everything ends, then every end is declared void and the pod begins anew in the same sandbox.
fn restart_all(i: &Inputs<'_>, spec: &PodSpec, sandbox: &SandboxSeen) -> Actions {
    let ours = || spec.init_containers.iter().flatten().chain(&spec.containers).map(|c| c.name.as_str());
    let alive = i.seen.alive().filter(|c| ours().any(|name| name == c.name.as_str()));
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
    for name in ours() {
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

/// A pod as the kubelet writes it in messages: `name_namespace(uid)`.
pub(crate) fn pod_text(pod: &Pod) -> String {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let meta = &pod.metadata;
    format!("{}_{}({})", text(&meta.name), text(&meta.namespace), text(&meta.uid))
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
pub(crate) mod tests;
