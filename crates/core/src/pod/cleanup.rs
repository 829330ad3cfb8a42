//! The removal of what a terminated pod leaves: volumes and cgroup, then dead containers, sandboxes, directories and logs.

use super::record_update::newest_two;
use super::setup::HOST_LIMIT;
use super::step::PodStep;
use super::{Machine, PodFacts, State, termination};
use crate::gc;
use crate::model::{Call, ContainerId, HostCall, Life, RuntimeCall, Time};
use crate::mutate::{self, Mutant};

/// Completed steps of the clean-up. Each step may be repeated after a restart.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Cleanup {
    volumes: bool,
    cgroup: bool,
    dirs: bool,
    logs: bool,
}

impl Cleanup {
    /// Terminated: nothing runs, so nothing uses the volumes and the cgroup any more.
    pub(super) fn plan_terminated(&self, step: &mut PodStep<'_, '_>) {
        // The answer to interrupted host work is awaited. A thread of it may run on: the executor sees to it that it creates nothing
        // after this.
        step.cancel(|c| !matches!(c, Call::Host(HostCall::RemoveVolumes | HostCall::RemoveCgroup)));
        if step.facts.calls.any(creates_on_host) {
            return;
        }
        // A record can be older than the state of the runtime: the pod is observed first.
        if !step.facts.observed.fresh() || termination::stop_surfaced(step) {
            return;
        }
        if !self.volumes {
            step.request(HostCall::RemoveVolumes, HOST_LIMIT);
        }
        if !self.cgroup {
            step.request(HostCall::RemoveCgroup, HOST_LIMIT);
        }
        if self.volumes && self.cgroup {
            step.facts.record.change_life(Life::finished);
        }
    }

    /// Finished: the rest is removed once no source wants the pod.
    pub(super) fn plan_finished(&self, step: &mut PodStep<'_, '_>) {
        if !step.facts.observed.known() {
            return;
        }
        termination::stop_surfaced(step);
        remove_dead(step);
        if step.facts.content_should_go() && step.facts.observed.seen.is_empty() {
            if !self.dirs {
                step.request(HostCall::RemoveDirs, HOST_LIMIT);
            }
            if !self.logs {
                step.request(HostCall::RemoveLogs, HOST_LIMIT);
            }
        }
    }

    pub(super) fn volumes_removed(&mut self) {
        self.volumes = true;
    }

    pub(super) fn cgroup_removed(&mut self) {
        self.cgroup = true;
    }

    pub(super) fn dirs_removed(&mut self) {
        self.dirs = true;
    }

    pub(super) fn logs_removed(&mut self) {
        self.logs = true;
    }

    /// Nothing is left of it and no source wants it: its record may be removed.
    pub(super) fn is_complete(&self, facts: &PodFacts) -> bool {
        (!facts.has_config || facts.record.restart_requested())
            && facts.record.is_finished()
            && facts.content_should_go()
            && facts.observed.fresh()
            && facts.observed.seen.is_empty()
            && self.dirs
            && self.logs
            && facts.calls.idle()
    }
}

/// Disk space is short: the dead containers of a pod are removed, the newest too, until then.
pub(crate) fn reclaim_dead(machine: &mut Machine, until: Time) {
    machine.facts.reclaim_until = until;
}

/// Removes dead containers and sandboxes that are not needed any more; an exit is in the record before its container goes.
pub(super) fn remove_dead(step: &mut PodStep<'_, '_>) {
    let facts = &*step.facts;
    if !facts.observed.fresh() {
        return;
    }
    let containers = &facts.record.containers;
    let recorded = |id: &ContainerId| {
        let known = containers.values().flat_map(|m| [&m.exit, &m.previous_exit]).flatten().any(|exit| exit.id == *id);
        // Older than the two exits in the record: its exit was journaled and replaced by newer ones.
        let seen = facts.observed.seen.container(id);
        let exit = seen.and_then(|c| containers.get(&c.name)?.exit.as_ref().map(|exit| (c, exit)));
        let older = exit.is_some_and(|(c, exit)| c.attempt < exit.attempt);
        known
            || older
            || mutate::is_active(Mutant::ExitNotRecorded)
            || !newest_two(&facts.observed.seen.containers).iter().any(|c| c.id == *id)
    };
    // The log of a container goes with it: users read why a container of a pod that goes on has crashed (Go kubelet:
    // `evictContainers`).
    let keep_newest = facts.state() < State::Terminated || facts.reclaim_until <= step.now().boot;
    let plan = gc::dead_containers(&facts.observed.seen, recorded, facts.content_should_go(), keep_newest);
    let limit = step.ctx.config.runtime_request_timeout;
    for (name, id) in plan.remove_containers {
        step.request(RuntimeCall::RemoveContainer { name, id }, limit);
    }
    for id in plan.remove_sandboxes {
        step.request(RuntimeCall::RemoveSandbox { id }, limit);
    }
}

fn creates_on_host(call: &Call) -> bool {
    matches!(
        call,
        Call::Host(
            HostCall::MountVolume { .. }
                | HostCall::MakeCgroup
                | HostCall::MakeDirs
                | HostCall::PrepareContainer { .. }
        )
    )
}
