//! Containers to kill, and the reason.

use std::time::Duration;

use super::{Plan, is_voided};
use crate::backoff;
use crate::model::{Container, ContainerId, ContainerSeen, HookState, Name, ProbeKind, RunState, is_sidecar};
use crate::resize::requires_restart;

/// One container instance to kill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kill {
    /// Id of the instance.
    pub id: ContainerId,
    /// Name in the spec.
    pub name: Name,
    /// Decides what follows the kill.
    pub reason: KillReason,
    /// Message of the `Killing` event.
    pub message: String,
    /// Replaces the pod's grace period: the probe's, or zero for `RestartAllContainers`.
    pub grace: Option<Duration>,
    /// The container is started again regardless of its exit code: it is journaled as `voided` with the kill.
    pub replace: bool,
}

/// Why a container is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KillReason {
    /// Its definition changed.
    ContainerChanged,
    /// Its liveness probe failed.
    LivenessFailed,
    /// Its startup probe failed.
    StartupFailed,
    /// Its postStart hook failed.
    PostStartFailed,
    /// A restart rule with `RestartAllContainers` matched.
    RestartRule,
    /// Its sandbox is not the current one, or is dead.
    PodMustBeRestarted,
    /// Other resources are allocated, and its resize policy wants a restart.
    Resized,
    /// A user requested it, or it was journaled as `voided` before the agent restarted.
    Requested,
    /// State unknown to the runtime; it must be gone before another instance is started.
    Unknown,
    /// A newer instance of it exists, or the pod has no such container.
    Superseded,
}

impl Kill {
    pub(super) fn new(c: &ContainerSeen, reason: KillReason, message: String) -> Self {
        debug_assert!(c.state != RunState::Exited, "an exited container is not killed");
        Self { id: c.id.clone(), name: c.name.clone(), reason, message, grace: None, replace: false }
    }
}

impl Plan<'_> {
    /// The kill of a running container, if there is a reason for one.
    pub(super) fn kill_of(&self, c: &Container, seen: &ContainerSeen) -> Option<Kill> {
        let init = self.spec.init_containers.iter().flatten().any(|i| i.name == c.name);
        let kind = if init { "Init container" } else { "Container" };
        let memory = self.memory(&c.name);
        let probe = self.i.probes.get(c.name.as_str()).filter(|p| p.id == seen.id).map(|p| p.kind);
        // A regular init container finishes with the definition it was started with.
        let changed = (!init || is_sidecar(c)) && self.changed(c, seen);
        let requested = self.i.restart_now.contains(c.name.as_str()) || is_voided(self.i.record, &c.name, &seen.id);
        let hook_failed = memory.and_then(|m| m.post_start.as_ref()) == Some(&(seen.id.clone(), HookState::Failed));
        let resized = requires_restart(self.i.record, c, seen.attempt);
        let again = backoff::restarts_after_kill(c, self.spec);
        let (reason, what, replace) = match probe {
            _ if changed => (KillReason::ContainerChanged, "definition changed", true),
            Some(ProbeKind::Liveness) => (KillReason::LivenessFailed, "failed liveness probe", again),
            Some(ProbeKind::Startup) => (KillReason::StartupFailed, "failed startup probe", again),
            _ if requested => (KillReason::Requested, "was requested to restart", true),
            _ if resized => {
                let message = format!("Container {} resize requires restart", c.name);
                return Some(Kill { replace: true, ..Kill::new(seen, KillReason::Resized, message) });
            }
            // The exit code decides what follows, as after any other exit.
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
            ..Kill::new(seen, reason, format!("{kind} {} {what}{after}", c.name))
        })
    }

    /// A container without a hash label is never considered changed.
    pub(super) fn changed(&self, c: &Container, seen: &ContainerSeen) -> bool {
        seen.hash.as_ref().is_some_and(|hash| *hash != (self.i.hash)(c))
    }
}
