//! The end of the end: volumes and cgroup, then dead containers, sandboxes, directories and logs.

use super::absorb::newest_two;
use super::sync::HOST_LIMIT;
use super::{Ctx, Machine};
use crate::gc;
use crate::model::{Call, ContainerId, HostCall, Out, RuntimeCall};
use crate::mutate::{self, Mutant};

/// What is gone already. Each step may be repeated after a restart.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Cleaned {
    pub(super) volumes: bool,
    pub(super) cgroup: bool,
    pub(super) dirs: bool,
    pub(super) logs: bool,
}

impl Machine {
    /// Terminated: nothing runs, so nothing uses the volumes and the cgroup any more.
    pub(super) fn plan_clean_up(&mut self, ctx: &mut Ctx<'_>, out: &mut Out) {
        self.probing.stop_all();
        // Host work that was cut short is waited for: it must not make anew what is removed here.
        self.cancel(|c| !matches!(c, Call::Host(HostCall::RemoveVolumes | HostCall::RemoveCgroup)), out);
        if self.calls.any(|c| {
            matches!(
                c,
                Call::Host(
                    HostCall::MountVolume { .. }
                        | HostCall::MakeCgroup
                        | HostCall::MakeDirs
                        | HostCall::PrepareContainer { .. }
                )
            )
        }) {
            return;
        }
        // A record can be older than what runs: a look comes first.
        if !self.observed.fresh() || self.stop_surfaced(ctx, out) {
            return;
        }
        if !self.cleaned.volumes {
            self.ask(HostCall::RemoveVolumes, HOST_LIMIT, ctx, out);
        }
        if !self.cleaned.cgroup {
            self.ask(HostCall::RemoveCgroup, HOST_LIMIT, ctx, out);
        }
        if self.cleaned.volumes && self.cleaned.cgroup {
            self.unsaved |= self.record.life.finished();
        }
    }

    /// Finished: what is left goes once the pod is wanted no more.
    pub(super) fn plan_removal(&mut self, ctx: &mut Ctx<'_>, out: &mut Out) {
        if !self.observed.known() {
            return;
        }
        self.stop_surfaced(ctx, out);
        self.plan_gc(ctx, out);
        if self.content_should_go() && self.observed.seen.is_empty() {
            if !self.cleaned.dirs {
                self.ask(HostCall::RemoveDirs, HOST_LIMIT, ctx, out);
            }
            if !self.cleaned.logs {
                self.ask(HostCall::RemoveLogs, HOST_LIMIT, ctx, out);
            }
        }
    }

    /// Remove dead containers and sandboxes that nobody needs; an exit is in the record before its container goes.
    pub(super) fn plan_gc(&mut self, ctx: &mut Ctx<'_>, out: &mut Out) {
        if !self.observed.fresh() {
            return;
        }
        let containers = &self.record.containers;
        let recorded = |id: &ContainerId| {
            let known =
                containers.values().flat_map(|m| [&m.exit, &m.previous_exit]).flatten().any(|exit| exit.id == *id);
            // Older than the two the record keeps: it was there, and was superseded.
            let seen = self.observed.seen.container(id);
            let exit = seen.and_then(|c| containers.get(&c.name)?.exit.as_ref().map(|exit| (c, exit)));
            let older = exit.is_some_and(|(c, exit)| c.attempt < exit.attempt);
            known
                || older
                || mutate::made(Mutant::ExitNotRecorded)
                || !newest_two(&self.observed.seen.containers).iter().any(|c| c.id == *id)
        };
        let plan = gc::dead_containers(&self.observed.seen, recorded, self.content_should_go(), true);
        let limit = ctx.config.runtime_request_timeout;
        for (name, id) in plan.remove_containers {
            self.ask(RuntimeCall::RemoveContainer { name, id }, limit, ctx, out);
        }
        for id in plan.remove_sandboxes {
            self.ask(RuntimeCall::RemoveSandbox { id }, limit, ctx, out);
        }
    }

    /// Nothing is left of it and nobody wants it: the record may go.
    pub(crate) fn is_gone(&self) -> bool {
        (!self.has_config || self.record.restart_requested())
            && self.record.is_finished()
            && self.content_should_go()
            && self.observed.fresh()
            && self.observed.seen.is_empty()
            && self.cleaned.dirs
            && self.cleaned.logs
            && self.calls.idle()
    }
}
