//! Containers that have to end, and why.

use std::time::Duration;

use super::{Plan, is_voided};
use crate::backoff;
use crate::model::{Container, ContainerId, ContainerSeen, HookState, Name, ProbeKind, RunState, is_sidecar};

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

impl Kill {
    pub(super) fn new(c: &ContainerSeen, reason: KillReason, message: String) -> Self {
        debug_assert!(c.state != RunState::Exited, "what has ended is not killed");
        Self { id: c.id.clone(), name: c.name.clone(), reason, message, grace: None, replace: false }
    }
}

impl Plan<'_> {
    /// Why a running container has to end, if it has to.
    pub(super) fn why_kill(&self, c: &Container, seen: &ContainerSeen) -> Option<Kill> {
        let init = self.spec.init_containers.iter().flatten().any(|i| i.name == c.name);
        let word = if init { "Init container" } else { "Container" };
        let memory = self.memory(&c.name);
        let probe = self.i.probes.get(c.name.as_str()).filter(|p| p.id == seen.id).map(|p| p.kind);
        // A plain init container runs to its end with the definition it began with.
        let changed = (!init || is_sidecar(c)) && self.changed(c, seen);
        let requested = self.i.restart_now.contains(c.name.as_str()) || is_voided(self.i.record, &c.name, &seen.id);
        let hook_failed = memory.and_then(|m| m.post_start.as_ref()) == Some(&(seen.id.clone(), HookState::Failed));
        let again = backoff::restarts_after_kill(c, self.spec);
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
    pub(super) fn changed(&self, c: &Container, seen: &ContainerSeen) -> bool {
        seen.hash.as_ref().is_some_and(|hash| *hash != (self.i.hash)(c))
    }
}
