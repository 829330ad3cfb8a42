//! The removal of what a terminated pod leaves: volumes and cgroup, then dead containers, sandboxes, directories and logs.

use super::absorb::newest_two;
use super::setup::HOST_LIMIT;
use super::step::PodStep;
use super::{PodFacts, termination};
use crate::gc;
use crate::model::{Call, ContainerId, HostCall, Life, RuntimeCall};
use crate::mutate::{self, Mutant};

/// What is removed already. Each step may be repeated after a restart.
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
        // Host work that was cut short is waited for: it must not create again what is removed here.
        step.cancel(|c| !matches!(c, Call::Host(HostCall::RemoveVolumes | HostCall::RemoveCgroup)));
        if step.facts.calls.any(creates_on_host) {
            return;
        }
        // A record can be older than what runs: an observation comes first.
        if !step.facts.observed.fresh() || termination::stop_surfaced(step) {
            return;
        }
        if !self.volumes {
            step.ask(HostCall::RemoveVolumes, HOST_LIMIT);
        }
        if !self.cgroup {
            step.ask(HostCall::RemoveCgroup, HOST_LIMIT);
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
                step.ask(HostCall::RemoveDirs, HOST_LIMIT);
            }
            if !self.logs {
                step.ask(HostCall::RemoveLogs, HOST_LIMIT);
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

    /// Nothing is left of it and no source wants it: its record may go.
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

/// Removes dead containers and sandboxes that are not needed any more; an exit is in the record before its container goes.
pub(super) fn remove_dead(step: &mut PodStep<'_, '_>) {
    let facts = &*step.facts;
    if !facts.observed.fresh() {
        return;
    }
    let containers = &facts.record.containers;
    let recorded = |id: &ContainerId| {
        let known = containers.values().flat_map(|m| [&m.exit, &m.previous_exit]).flatten().any(|exit| exit.id == *id);
        // Older than the two the record keeps: it was there, and was superseded.
        let seen = facts.observed.seen.container(id);
        let exit = seen.and_then(|c| containers.get(&c.name)?.exit.as_ref().map(|exit| (c, exit)));
        let older = exit.is_some_and(|(c, exit)| c.attempt < exit.attempt);
        known
            || older
            || mutate::made(Mutant::ExitNotRecorded)
            || !newest_two(&facts.observed.seen.containers).iter().any(|c| c.id == *id)
    };
    let plan = gc::dead_containers(&facts.observed.seen, recorded, facts.content_should_go(), true);
    let limit = step.ctx.config.runtime_request_timeout;
    for (name, id) in plan.remove_containers {
        step.ask(RuntimeCall::RemoveContainer { name, id }, limit);
    }
    for id in plan.remove_sandboxes {
        step.ask(RuntimeCall::RemoveSandbox { id }, limit);
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
