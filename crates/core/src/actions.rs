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

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::model::{
    Backoff, Container, ContainerId, ContainerMemory, ContainerSeen, Cursor, HookState, Name, Now, Pod, PodRecord,
    PodSeen, PodSpec, ProbeKind, RunState, SandboxId, SandboxSeen,
};
use crate::restart;

pub use facts::exit_of;
pub(crate) use facts::{Fact, Within, lost};

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

/// One container instance to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// Which instance.
    pub id: ContainerId,
    /// Its name.
    pub name: Name,
    /// Why.
    pub reason: KillReason,
    /// For the `Killing` event.
    pub message: String,
    /// A grace period of its own: the probe's, or none at all when everything is restarted.
    pub grace: Option<Duration>,
    /// It is started again whatever its exit code will be: journal it as `voided` with the kill.
    pub replace: bool,
}

/// Why a container is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KillReason {
    /// Its definition changed.
    ContainerChanged,
    /// Its liveness probe failed.
    LivenessFailed,
    /// Its startup probe failed.
    StartupFailed,
    /// Its postStart hook failed.
    PostStartFailed,
    /// A restart rule starts everything anew.
    RestartRule,
    /// Its sandbox is not the current one, or is dead.
    PodMustBeRestarted,
    /// Someone asked for it, or it was marked to be replaced before the agent restarted.
    Requested,
    /// The runtime lost it; it has to be gone before another is started.
    Unknown,
    /// A newer instance of it exists, or the pod has no such container.
    Superseded,
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

/// A restart rule has spoken, and not everything was restarted since.
pub(crate) fn is_restarting_all(spec: &PodSpec, seen: &PodSeen, record: &PodRecord) -> bool {
    let Some(sandbox) = current_sandbox(seen, record) else { return false };
    spec.init_containers.iter().flatten().chain(&spec.containers).any(|c| {
        matches!(Fact::of(seen, record, &c.name, Within::Sandbox(&sandbox.id)), Fact::Ended(exit)
            if restart::restarts_all(c, exit.code) && !is_voided(record, &c.name, &exit.id))
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
    let kill = i.seen.alive().map(|c| {
        Kill::new(c, KillReason::PodMustBeRestarted, "Pod sandbox changed, it will be killed and re-created.".into())
    });
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
    let not_before = pause.map(|(since, delay)| restart::expires(&Backoff { delay, since }, i.now.wall));
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
        Fact::Ended(exit) => (!is_voided(i.record, &c.name, &exit.id) && !restart::should_restart(c, spec, exit.code))
            .then_some(exit.code),
        _ => None,
    };
    let mut inits = spec.init_containers.iter().flatten();
    if spec.restart_policy.as_deref() == Some("Never") && inits.clone().chain(&spec.containers).any(|c| fact(c).ran()) {
        return false;
    }
    let init_failed = inits.any(|c| !restart::is_sidecar(c) && over(c).is_some_and(|code| code != 0));
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

/// How far the init containers are.
enum Init {
    Failed,
    Pending,
    Done,
}

/// The plan for a pod whose sandbox is ready.
struct Plan<'a> {
    i: &'a Inputs<'a>,
    spec: &'a PodSpec,
    sandbox: &'a SandboxId,
    out: Actions,
}

impl<'a> Plan<'a> {
    /// Whatever lives in another sandbox, beside a newer instance of itself, or without a place in the spec, goes.
    fn strays(&mut self) {
        let seen = self.i.seen;
        let others = seen.sandboxes.iter().filter(|s| s.ready && s.id != *self.sandbox);
        self.out.stop_sandboxes = others.map(|s| s.id.clone()).collect();
        for c in seen.alive() {
            if c.sandbox != *self.sandbox {
                let message = format!("Container {} lives in another sandbox", c.name);
                self.out.kill.push(Kill::new(c, KillReason::PodMustBeRestarted, message));
            } else if !self.in_spec(&c.name)
                || seen.newest_in(self.sandbox, c.name.as_str()).is_some_and(|n| n.id != c.id)
            {
                let message = format!("Container {} is not wanted any more", c.name);
                self.out.kill.push(Kill::new(c, KillReason::Superseded, message));
            }
        }
    }

    /// Ephemeral containers run once, at any time, and keep nothing alive.
    fn ephemeral(&mut self) {
        for c in self.spec.ephemeral_containers.iter().flatten() {
            let existing = match Fact::of(self.i.seen, self.i.record, &c.name, Within::Any) {
                Fact::Created(made) if made.sandbox == *self.sandbox => Some(made.id.clone()),
                Fact::Nothing if !self.memory(&c.name).is_some_and(|m| m.created) => None,
                _ => continue,
            };
            self.out.start.push(Start { name: c.name.as_str().into(), attempt: 0, existing, backoff: None });
        }
    }

    /// Moves the cursor over what is done, keeps the sidecars before it running, and starts what stands at it.
    fn init(&mut self) -> Init {
        let inits = self.spec.init_containers.as_deref().unwrap_or_default();
        let mut done = self.cursor(inits).min(inits.len());
        done += inits[done..].iter().take_while(|c| self.init_done(c)).count();
        let cursor = Cursor { sandbox: self.sandbox.clone(), done };
        if self.i.record.cursor.as_ref() != Some(&cursor) {
            self.out.cursor = Some(cursor);
        }
        for c in inits[..done].iter().filter(|c| restart::is_sidecar(c)) {
            self.keep_up(c);
        }
        let Some(c) = inits.get(done) else { return Init::Done };
        match self.fact(c) {
            Fact::Ended(exit)
                if !restart::is_sidecar(c)
                    && !is_voided(self.i.record, &c.name, &exit.id)
                    && !restart::should_restart(c, self.spec, exit.code) =>
            {
                Init::Failed
            }
            _ => {
                self.keep_up(c);
                Init::Pending
            }
        }
    }

    /// Where init stands: the journal's word. For a sandbox it doesn't know, the containers in it tell: they were made in order.
    fn cursor(&self, inits: &[Container]) -> usize {
        if let Some(cursor) = self.i.record.cursor.as_ref().filter(|c| c.sandbox == *self.sandbox) {
            return cursor.done;
        }
        let exists = |c: &Container| !matches!(self.fact(c), Fact::Nothing);
        match self.spec.containers.iter().any(exists) {
            true => inits.len(),
            false => inits.iter().rposition(exists).unwrap_or(0),
        }
    }

    /// An init container has done its part: it succeeded, or, as a sidecar, it is up, its hook and startup probe included.
    fn init_done(&self, c: &Container) -> bool {
        let memory = self.memory(&c.name);
        match self.fact(c) {
            Fact::Running(seen) if restart::is_sidecar(c) => {
                let hook = c.lifecycle.as_ref().is_some_and(|l| l.post_start.is_some());
                let hook_done = memory.and_then(|m| m.post_start.as_ref()) == Some(&(seen.id.clone(), HookState::Done));
                is_started(c, memory, &seen.id) && (!hook || hook_done)
            }
            Fact::Ended(exit) => {
                !restart::is_sidecar(c) && exit.code == 0 && !is_voided(self.i.record, &c.name, &exit.id)
            }
            _ => false,
        }
    }

    /// One app container; false once it is done for good.
    fn app(&mut self, c: &Container) -> bool {
        if let Fact::Nothing | Fact::Ended(_) = self.fact(c)
            && let Fact::Ended(exit) = Fact::of(self.i.seen, self.i.record, &c.name, Within::Any)
            && !is_voided(self.i.record, &c.name, &exit.id)
            && !restart::should_restart(c, self.spec, exit.code)
        {
            return false;
        }
        self.keep_up(c);
        true
    }

    /// A container that should run: left alone if it does well, killed if it doesn't, started if it isn't there.
    fn keep_up(&mut self, c: &Container) {
        match self.fact(c) {
            Fact::Running(seen) => {
                let kill = self.why_kill(c, seen);
                self.out.kill.extend(kill);
            }
            Fact::Unknown(seen) => {
                let message = format!("Container {} is in unknown state, try killing it before restart", c.name);
                self.out.kill.push(Kill::new(seen, KillReason::Unknown, message));
            }
            fact => {
                if let Some(start) = self.bring_up(c, &fact) {
                    self.out.start.push(start);
                }
            }
        }
    }

    /// The start that is missing, unless the container has to wait for its turn.
    fn bring_up(&mut self, c: &Container, here: &Fact<'_>) -> Option<Start> {
        // Never two processes of one container: a stray in another sandbox has to be gone first.
        if self.i.seen.alive().any(|alive| alive.name.as_str() == c.name) {
            return None;
        }
        let name = Name::from(c.name.as_str());
        if let Fact::Created(made) = here
            && !self.changed(c, made)
            && !is_voided(self.i.record, &c.name, &made.id)
        {
            return Some(Start { name, attempt: made.attempt, existing: Some(made.id.clone()), backoff: None });
        }
        let backoff = self.backoff(c, &name)?;
        Some(Start { attempt: self.attempt(&c.name), name, existing: None, backoff })
    }

    /// `None`: the container has to wait. Else the backoff to remember with its start, if that changes.
    fn backoff(&mut self, c: &Container, name: &Name) -> Option<Option<Backoff>> {
        let Fact::Ended(exit) = Fact::of(self.i.seen, self.i.record, &c.name, Within::Any) else { return Some(None) };
        let (now, max) = (self.i.now.wall, self.i.backoff_max);
        let fresh = ContainerMemory::default();
        let memory = self.memory(&c.name).unwrap_or(&fresh);
        // What we killed to replace it is no crash. What made everything restart by its own end is.
        let killed = memory.voided.as_ref() == Some(&exit.id) && !restart::restarts_all(c, exit.code);
        let (wait, next) = match (killed, &memory.previous_exit) {
            (false, _) => (restart::wait(memory, &exit), Some(restart::next(memory, &exit, now, max))),
            (true, Some(before)) => {
                (restart::wait_after_kill(memory, &exit), Some(restart::next(memory, before, now, max)))
            }
            (true, None) => (None, None),
        };
        let Some(wait) = wait.filter(|_| !self.i.restart_now.contains(name)) else { return Some(next) };
        let until = restart::expires(&wait, now);
        if until <= now {
            return Some(next);
        }
        let message = format!(
            "back-off {} restarting failed container={} pod={}",
            restart::go_duration(wait.delay),
            c.name,
            pod_text(self.i.pod)
        );
        self.out.waiting.insert(name.clone(), Waiting { reason: "CrashLoopBackOff".into(), message });
        self.out.wake_at = Some(self.out.wake_at.map_or(until, |at| at.min(until)));
        None
    }

    /// Why a running container has to end, if it has to.
    fn why_kill(&self, c: &Container, seen: &ContainerSeen) -> Option<Kill> {
        let init = self.spec.init_containers.iter().flatten().any(|i| i.name == c.name);
        let word = if init { "Init container" } else { "Container" };
        let memory = self.memory(&c.name);
        let probe = self.i.probes.get(c.name.as_str()).filter(|p| p.id == seen.id).map(|p| p.kind);
        // A plain init container runs to its end with the definition it began with.
        let changed = (!init || restart::is_sidecar(c)) && self.changed(c, seen);
        let requested = self.i.restart_now.contains(c.name.as_str()) || is_voided(self.i.record, &c.name, &seen.id);
        let hook_failed = memory.and_then(|m| m.post_start.as_ref()) == Some(&(seen.id.clone(), HookState::Failed));
        let again = restart::restarts_after_kill(c, self.spec);
        let (reason, what, replace) = match probe {
            _ if changed => (KillReason::ContainerChanged, "definition changed", true),
            Some(ProbeKind::Liveness) => (KillReason::LivenessFailed, "failed liveness probe", again),
            Some(ProbeKind::Startup) => (KillReason::StartupFailed, "failed startup probe", again),
            _ if requested => (KillReason::Requested, "is asked to restart", true),
            // The exit code decides what follows, as after any other end.
            _ if hook_failed => (KillReason::PostStartFailed, "failed postStart hook", false),
            _ => return None,
        };
        let after = if replace { ", will be restarted" } else { "" };
        let probe = match reason {
            KillReason::LivenessFailed => c.liveness_probe.as_ref(),
            KillReason::StartupFailed => c.startup_probe.as_ref(),
            _ => None,
        };
        let grace = probe.and_then(|p| p.termination_grace_period_seconds).and_then(|s| u64::try_from(s).ok());
        Some(Kill {
            grace: grace.map(Duration::from_secs),
            replace,
            ..Kill::new(seen, reason, format!("{word} {} {what}{after}", c.name))
        })
    }

    /// Only a hash that both sides know tells anything.
    fn changed(&self, c: &Container, seen: &ContainerSeen) -> bool {
        seen.hash.as_ref().is_some_and(|hash| *hash != (self.i.hash)(c))
    }

    fn attempt(&self, name: &str) -> u32 {
        let remembered = self.memory(name).filter(|m| m.created || m.exit.is_some()).map(|m| m.restarts);
        let shown = self.i.seen.containers.iter().filter(|c| c.name.as_str() == name).map(|c| c.attempt);
        shown.chain(remembered).max().map_or(0, |last| last.saturating_add(1))
    }

    fn fact(&self, c: &Container) -> Fact<'a> {
        Fact::of(self.i.seen, self.i.record, &c.name, Within::Sandbox(self.sandbox))
    }

    fn memory(&self, name: &str) -> Option<&'a ContainerMemory> {
        self.i.record.containers.get(name)
    }

    fn in_spec(&self, name: &Name) -> bool {
        let ephemeral = self.spec.ephemeral_containers.iter().flatten().map(|c| &c.name);
        let inits = self.spec.init_containers.iter().flatten().map(|c| &c.name);
        inits.chain(self.spec.containers.iter().map(|c| &c.name)).chain(ephemeral).any(|n| n == name.as_str())
    }
}

impl Kill {
    fn new(c: &ContainerSeen, reason: KillReason, message: String) -> Self {
        debug_assert!(c.state != RunState::Exited, "what has ended is not killed");
        Self { id: c.id.clone(), name: c.name.clone(), reason, message, grace: None, replace: false }
    }
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
