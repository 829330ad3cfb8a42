//! The newest known state of one container: from the runtime, else from journaled exits that the runtime no longer shows.

use crate::model::{
    ContainerId, ContainerMemory, ContainerSeen, Exit, HookState, PodRecord, PodSeen, RunState, SandboxId,
};
use crate::mutate::{self, Mutant};

/// The newest known state of a container.
#[derive(Debug)]
pub(crate) enum Fact<'a> {
    /// No trace of it.
    Nothing,
    /// Created, and not started as far as is known.
    Created(&'a ContainerSeen),
    /// Its process runs.
    Running(&'a ContainerSeen),
    /// State unknown to the runtime; a process may exist.
    Unknown(&'a ContainerSeen),
    /// It exited.
    Ended(Exit),
}

/// The sandboxes to consider.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Within<'a> {
    /// One sandbox: for progress and running containers.
    Sandbox(&'a SandboxId),
    /// All: a container that finished stays finished in the next sandbox.
    Any,
}

impl<'a> Fact<'a> {
    pub(crate) fn of(seen: &'a PodSeen, record: &PodRecord, name: &str, within: Within<'_>) -> Self {
        let memory = record.containers.get(name);
        let undecided = |id: &ContainerId, started: bool| !started && is_start_undecided(record, memory, id);
        let remembered = memory.and_then(|m| m.exit.as_ref()).filter(|exit| within.holds(&exit.sandbox));
        let remembered = remembered.filter(|exit| !undecided(&exit.id, exit.started_at.is_some()));
        let shown = match within {
            Within::Sandbox(id) => seen.newest_in(id, name),
            Within::Any => seen.newest(name),
        };
        let Some(shown) = shown else {
            let disappeared = || disappeared_exit(seen, record, name).filter(|exit| within.holds(&exit.sandbox));
            return match remembered.cloned().or_else(disappeared) {
                Some(exit) => Self::Ended(exit),
                None => Self::Nothing,
            };
        };
        match shown.state {
            RunState::Running => Self::Running(shown),
            RunState::Unknown => Self::Unknown(shown),
            // The runtime may show an older instance than the one whose exit is journaled.
            RunState::Created | RunState::Exited => match (remembered, memory) {
                (Some(exit), Some(m)) if exit.id != shown.id && m.restarts > shown.attempt => Self::Ended(exit.clone()),
                _ if shown.state == RunState::Created => Self::Created(shown),
                _ if undecided(&shown.id, shown.started_at.is_some()) => Self::Created(shown),
                _ => Self::Ended(exit_of(shown)),
            },
        }
    }

    pub(crate) fn id(&self) -> Option<&ContainerId> {
        match self {
            Self::Nothing => None,
            Self::Created(c) | Self::Running(c) | Self::Unknown(c) => Some(&c.id),
            Self::Ended(exit) => Some(&exit.id),
        }
    }

    /// A process of it ran at some time.
    pub(crate) fn ran(&self) -> bool {
        matches!(self, Self::Running(_) | Self::Unknown(_) | Self::Ended(_))
    }
}

/// The start of this instance was sent and its result is not confirmed. If the agent died meanwhile the runtime may end the
/// instance itself, without a process: such an exit is not the container's. In a terminating pod it does not matter.
fn is_start_undecided(record: &PodRecord, memory: Option<&ContainerMemory>, id: &ContainerId) -> bool {
    record.termination().is_none()
        && !mutate::is_active(Mutant::CutOffIsExit)
        && memory.is_some_and(|m| m.starting.as_ref() == Some(id))
}

impl Within<'_> {
    fn holds(self, sandbox: &SandboxId) -> bool {
        match self {
            Self::Sandbox(id) => id == sandbox,
            Self::Any => true,
        }
    }
}

/// The exit of an instance as the runtime reports it.
pub(crate) fn exit_of(c: &ContainerSeen) -> Exit {
    Exit {
        id: c.id.clone(),
        attempt: c.attempt,
        sandbox: c.sandbox.clone(),
        code: c.exit_code,
        signal: 0,
        reason: c.reason.clone(),
        message: c.message.clone(),
        started_at: c.started_at,
        finished_at: c.finished_at,
        image: c.image.clone(),
        image_id: c.image_id.clone(),
        hash: c.hash.clone(),
    }
}

/// The exit of an instance that was running when last observed and has disappeared, so its exit code is unknown. Without this a
/// container that must run once would run twice.
pub(crate) fn disappeared_exit(seen: &PodSeen, record: &PodRecord, name: &str) -> Option<Exit> {
    let status = record.status.as_ref()?;
    let lists = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    let last = lists.into_iter().flatten().flatten().find(|c| c.name == name)?;
    let id = last.container_id.as_deref()?;
    let id = ContainerId::from(id.split_once("://").map_or(id, |(_, id)| id));
    // While its postStart hook runs, it is running but not reported as such.
    let hook = record.containers.get(name).and_then(|m| m.post_start.as_ref());
    let running = last.state.as_ref()?.running.as_ref();
    if running.is_none() && hook != Some(&(id.clone(), HookState::Begun)) {
        return None;
    }
    let known = |m: &ContainerMemory| [&m.exit, &m.previous_exit].into_iter().flatten().any(|exit| exit.id == id);
    if seen.newest(name).is_some() || record.containers.get(name).is_some_and(known) {
        return None;
    }
    Some(Exit {
        id,
        attempt: record.containers.get(name).map_or(0, |m| m.restarts),
        sandbox: record.cursor.as_ref().map_or_else(|| "".into(), |c| c.sandbox.clone()),
        code: DISAPPEARED_CODE,
        signal: 0,
        reason: DISAPPEARED_REASON.into(),
        message: DISAPPEARED_MESSAGE.into(),
        started_at: running.and_then(|r| r.started_at.as_ref()).map(|t| t.0),
        finished_at: None,
        image: last.image.clone(),
        image_id: last.image_id.clone(),
        hash: None,
    })
}

/// Kubernetes: exit code of a container that disappeared.
pub(crate) const DISAPPEARED_CODE: i32 = 137;
/// Kubernetes: its reason.
pub(crate) const DISAPPEARED_REASON: &str = "ContainerStatusUnknown";
/// Kubernetes: its message.
pub(crate) const DISAPPEARED_MESSAGE: &str = "The container could not be located when the pod was terminated";
