//! Bringing a pod up and keeping it up: host work first, then the sandbox, then its containers.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Ctx, KillOptions, Machine};
use crate::actions::{self, Actions, Inputs};
use crate::model::{Cause, ContainerId, HostCall, Name, Out, RunState, RuntimeCall, SandboxId, spec_of};
use crate::status;

/// Host work that has no end in sight of its own: mounts, cgroups, directories.
pub(super) const HOST_LIMIT: Duration = Duration::from_secs(120);

/// What sets up one volume or one container's files: it takes milliseconds, or hangs, and then the pod should say so soon.
pub(super) const SETUP_LIMIT: Duration = Duration::from_secs(20);

/// What this process has set up on the host for the pod. Every step may be repeated after a restart.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Setup {
    pub(super) cgroup: bool,
    pub(super) dirs: bool,
    pub(super) volumes: BTreeSet<Name>,
    /// Volumes to be set up again: what they show has changed. Those that stand can be used meanwhile.
    #[serde(default)]
    pub(super) stale: BTreeSet<Name>,
    /// Volumes that are being set up from what has changed since.
    pub(super) outdated: BTreeSet<Name>,
    /// Sandboxes that ran before the cgroup was made: they run outside of it.
    #[serde(default)]
    pub(super) outside_pod_cgroup: BTreeSet<SandboxId>,
    /// The network was missing and the user was told.
    pub(super) told_network: bool,
}

impl Machine {
    pub(super) fn plan_sync(&mut self, ctx: &mut Ctx<'_>, out: &mut Out) {
        if self.hold.is_some() || !self.observed.known() || self.ended(ctx, out) {
            return;
        }
        self.plan_probes(ctx, out);
        if ctx.source_not_synced || !self.set_up(ctx, out) {
            return;
        }
        if !self.observed.fresh() || self.calls.in_doubt() {
            return self.continue_kills(ctx, out);
        }
        if self.bring_inside(ctx, out) {
            return;
        }
        self.plan_hooks(ctx, out);
        let actions = self.actions(ctx);
        self.act(actions, ctx, out);
        self.plan_gc(ctx, out);
    }

    /// All its containers ended for good, or its time is up.
    fn ended(&mut self, ctx: &mut Ctx<'_>, out: &mut Out) -> bool {
        let start = self.record.status.as_ref();
        if start.is_some_and(|status| status::active_deadline_exceeded(&self.record.pod, status, ctx.now.wall)) {
            let (reason, message) =
                ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline".to_owned());
            self.event(false, reason, None, message.clone(), out);
            let evicted = Some((reason.to_owned(), message));
            self.kill(Cause::Ended, KillOptions { evicted, ..KillOptions::default() }, ctx);
            return true;
        }
        // Only a fresh look may end a pod, and nothing that is still coming up may be overlooked.
        if !self.may_run_unseen() && self.with_status_input(ctx, status::has_terminal_phase) {
            self.kill(Cause::Ended, KillOptions::default(), ctx);
            return true;
        }
        false
    }

    /// Cgroup and directories side by side, then all volumes side by side.
    fn set_up(&mut self, ctx: &mut Ctx<'_>, out: &mut Out) -> bool {
        if let Some(why) = ctx.no_network
            && spec_of(&self.record.pod).host_network != Some(true)
            && self.observed.seen.sandbox().is_none_or(|s| !s.ready)
        {
            if !std::mem::replace(&mut self.setup.told_network, true) {
                self.event(true, "NetworkNotReady", None, format!("network is not ready: {why}"), out);
            }
            return false;
        }
        self.setup.told_network = false;
        if !self.setup.cgroup {
            self.ask(HostCall::MakeCgroup, HOST_LIMIT, ctx, out);
        }
        if !self.setup.dirs {
            self.ask(HostCall::MakeDirs, HOST_LIMIT, ctx, out);
        }
        if !self.setup.cgroup || !self.setup.dirs {
            return false;
        }
        self.set_up_volumes(ctx, out)
    }

    fn actions(&mut self, ctx: &Ctx<'_>) -> Actions {
        actions::pod_actions(&Inputs {
            pod: &self.record.pod,
            seen: &self.observed.seen,
            record: &self.record,
            probes: self.probing.failures(),
            restart_now: &self.bring_up.restart_now,
            now: ctx.now,
            backoff_max: ctx.config.backoff_max,
            hash: crate::hash::container_hash,
        })
    }

    fn act(&mut self, actions: Actions, ctx: &mut Ctx<'_>, out: &mut Out) {
        self.journal_plan(&actions);
        self.note_waiting(&actions.waiting, ctx, out);
        for kill in &actions.kill {
            let grace = kill.grace.unwrap_or_else(|| self.own_grace());
            self.bring_up.restart_now.remove(&kill.name);
            self.kill_container(&kill.id, ctx.now.boot + grace, &kill.message);
        }
        self.continue_kills(ctx, out);
        for id in &actions.stop_sandboxes {
            if !self.observed.seen.alive().any(|c| c.sandbox == *id) {
                self.stop_sandbox(id, ctx, out);
            }
        }
        if actions.kill_pod {
            self.kill(Cause::Ended, KillOptions::default(), ctx);
            return;
        }
        if let Some(attempt) = actions.create_sandbox {
            let old = actions.replaces.filter(|id| !self.killing.stopped_sandboxes.contains(id));
            match old {
                // Stopping the dead one releases its network.
                Some(id) => {
                    let message = "Pod sandbox changed, it will be killed and re-created.";
                    if self.stop_sandbox(&id, ctx, out) {
                        self.event(false, "SandboxChanged", None, message.into(), out);
                    }
                }
                None => {
                    let limit = ctx.config.runtime_request_timeout * 2;
                    self.ask(RuntimeCall::RunSandbox { attempt }, limit, ctx, out);
                }
            }
        } else if let Some(current) = self.current_sandbox() {
            for start in &actions.start {
                self.bring_up(start, &current, ctx, out);
            }
        }
        self.remove_unstarted(&actions.start, ctx, out);
        self.bring_up.wake_at = actions.wake_at.map(|at| ctx.boot_time(at));
        self.bring_up.forget_unwanted(&actions.start);
    }

    /// An instance that was made and that the plan does not start surfaced late from a call in doubt: it goes.
    fn remove_unstarted(&mut self, start: &[actions::Start], ctx: &mut Ctx<'_>, out: &mut Out) {
        let started = |id: &ContainerId| start.iter().any(|start| start.existing.as_ref() == Some(id));
        let seen = self.observed.seen.containers.iter();
        let strays = seen.filter(|c| c.state == RunState::Created && !started(&c.id));
        let strays: Vec<_> = strays.map(|c| (c.name.clone(), c.id.clone())).collect();
        for (name, id) in strays {
            self.ask(RuntimeCall::RemoveContainer { name, id }, ctx.config.runtime_request_timeout, ctx, out);
        }
    }

    /// What the plan wants remembered goes to disk before what it asks for is done.
    fn journal_plan(&mut self, actions: &Actions) {
        if let Some(cursor) = &actions.cursor
            && self.record.cursor.as_ref() != Some(cursor)
        {
            self.record.cursor = Some(cursor.clone());
            self.unsaved = true;
        }
        let replaced = actions.kill.iter().filter(|k| k.replace).map(|k| (&k.name, &k.id));
        for (name, id) in actions.restart_all.iter().chain(replaced) {
            let memory = self.record.containers.entry(name.clone()).or_default();
            if memory.voided.as_ref() != Some(id) {
                memory.voided = Some(id.clone());
                self.unsaved = true;
            }
        }
    }

    pub(super) fn stop_sandbox(&mut self, id: &SandboxId, ctx: &mut Ctx<'_>, out: &mut Out) -> bool {
        self.ask(RuntimeCall::StopSandbox { id: id.clone() }, ctx.config.runtime_request_timeout, ctx, out)
    }
}

impl Ctx<'_> {
    /// A moment on the wall clock, on the boot clock: never in the past, and a jump of the wall clock can't wedge it.
    pub(crate) fn boot_time(&self, wall: jiff::Timestamp) -> Duration {
        let ahead = wall.duration_since(self.now.wall);
        self.now.boot + Duration::try_from(ahead).unwrap_or(Duration::ZERO)
    }
}
