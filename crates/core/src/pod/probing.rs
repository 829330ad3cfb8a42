//! The probes of one pod's running containers: when to run them, and what their verdicts change.

use std::collections::BTreeMap;
use std::time::Duration;

use super::calls::Calls;
use super::{Ctx, Machine};
use crate::actions::{ProbeFailure, is_post_start_done, is_started};
use crate::model::{
    CallKey, Container, ContainerId, Name, Out, ProbeKind, ProbeVerdict, RunState, RuntimeCall, Time, find_container,
};
use crate::probe::{ProbeChange, ProbeState};

/// The probes that are being run, by container and kind.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Probing {
    #[serde(with = "crate::record::pairs")]
    states: BTreeMap<(Name, ProbeKind), (ContainerId, ProbeState)>,
    failures: BTreeMap<Name, ProbeFailure>,
}

impl Probing {
    pub(super) fn failures(&self) -> &BTreeMap<Name, ProbeFailure> {
        &self.failures
    }

    pub(super) fn stop_all(&mut self) {
        self.states.clear();
    }

    pub(super) fn wake(&self, calls: &Calls) -> Option<Time> {
        let idle = self.states.iter().filter(|((name, kind), _)| !calls.busy(&CallKey::Probe(name.clone(), *kind)));
        idle.filter_map(|(_, (_, state))| state.due()).min()
    }
}

impl Machine {
    /// Run every probe that is due; begin and end them with their instances.
    pub(super) fn plan_probes(&mut self, ctx: &mut Ctx<'_>, out: &mut Out) {
        let wanted = self.wanted_probes();
        self.probing
            .states
            .retain(|key, (id, _)| wanted.iter().any(|(n, k, i, _)| (n, k) == (&key.0, &key.1) && i == id));
        let seen = &self.observed.seen;
        self.probing.failures.retain(|_, f| seen.container(&f.id).is_some_and(|c| c.state.may_run()));
        for (name, kind, id, container) in wanted {
            let key = (name.clone(), kind);
            if !self.probing.states.contains_key(&key) {
                let Some(state) = self.new_probe(kind, &name, &id, &container, ctx) else { continue };
                self.probing.states.insert(key.clone(), (id.clone(), state));
            }
            let (_, state) = &self.probing.states[&key];
            let due = state.due().is_some_and(|at| at <= ctx.now.boot);
            if due && self.calls.may_send(&CallKey::Probe(name.clone(), kind), ctx.now.boot) {
                let limit = state.timeout() + Duration::from_secs(1);
                let ips = self.ips();
                self.send(RuntimeCall::Probe { kind, name, id, ips }, limit, ctx, out);
            }
        }
    }

    /// After the hook, startup first; readiness and liveness once it has passed; only readiness goes on while the pod ends.
    fn wanted_probes(&self) -> Vec<(Name, ProbeKind, ContainerId, Container)> {
        let mut wanted = vec![];
        for c in self.observed.seen.containers.iter().filter(|c| c.state == RunState::Running) {
            let Some(found) = find_container(&self.record.pod, c.name.as_str()) else { continue };
            let spec = found.container.into_owned();
            let memory = self.record.containers.get(&c.name);
            if !is_post_start_done(&spec, memory, &c.id) {
                continue;
            }
            let started = is_started(&spec, memory, &c.id);
            for kind in [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness] {
                let now = match kind {
                    ProbeKind::Startup => !started && self.record.termination().is_none(),
                    ProbeKind::Readiness => started,
                    ProbeKind::Liveness => started && self.record.termination().is_none(),
                };
                if now && probe_of(&spec, kind).is_some() {
                    wanted.push((c.name.clone(), kind, c.id.clone(), spec.clone()));
                }
            }
        }
        wanted
    }

    fn new_probe(
        &self,
        kind: ProbeKind,
        name: &Name,
        id: &ContainerId,
        container: &Container,
        ctx: &Ctx<'_>,
    ) -> Option<ProbeState> {
        let seen = self.observed.seen.container(id)?;
        let age = seen.started_at.map_or(jiff::SignedDuration::ZERO, |at| ctx.now.wall.duration_since(at));
        let started = ctx.now.boot.saturating_sub(Duration::try_from(age).unwrap_or(Duration::ZERO));
        let memory = self.record.containers.get(name);
        let carried = memory.and_then(|m| m.ready.as_ref()).filter(|(known, _)| known == id).map(|(_, ready)| *ready);
        let probe = probe_of(container, kind)?;
        Some(ProbeState::new(kind, probe, started, carried, (self.record.uid.as_str(), name.as_str()), ctx.now.boot))
    }

    /// A probe ran.
    pub(super) fn probed(
        &mut self,
        kind: ProbeKind,
        name: &Name,
        id: &ContainerId,
        verdict: ProbeVerdict,
        ctx: &Ctx<'_>,
        out: &mut Out,
    ) {
        let told = match &verdict {
            ProbeVerdict::Success => None,
            ProbeVerdict::Failure(message) => Some(format!("{kind:?} probe failed: {message}")),
            // A runtime that is away says nothing about this pod.
            ProbeVerdict::Unknown(_) if !ctx.runtime_up => None,
            ProbeVerdict::Unknown(why) => Some(format!("{kind:?} probe errored and resulted in unknown state: {why}")),
        };
        if let Some(message) = told {
            self.event(true, "Unhealthy", Some(name), message, out);
        }
        let Some((probed, state)) = self.probing.states.get_mut(&(name.clone(), kind)) else { return };
        if probed != id {
            return;
        }
        let Some(change) = state.result(verdict, ctx.now.boot) else { return };
        let ok = change == ProbeChange::Success;
        self.history.record(
            ctx.now,
            &format!("{kind:?} probe of container {name} {}", if ok { "succeeded" } else { "failed" }),
            if ok { "success threshold reached" } else { "failure threshold reached" },
        );
        let memory = self.record.containers.entry(name.clone()).or_default();
        match (kind, ok) {
            (ProbeKind::Startup, true) => memory.started = Some(id.clone()),
            (ProbeKind::Readiness, _) => memory.ready = Some((id.clone(), ok)),
            (ProbeKind::Startup | ProbeKind::Liveness, false) => {
                self.probing.failures.insert(name.clone(), ProbeFailure { id: id.clone(), kind });
            }
            (ProbeKind::Liveness, true) => {}
        }
        self.unsaved = true;
    }
}

fn probe_of(container: &Container, kind: ProbeKind) -> Option<&k8s_openapi::api::core::v1::Probe> {
    match kind {
        ProbeKind::Startup => container.startup_probe.as_ref(),
        ProbeKind::Readiness => container.readiness_probe.as_ref(),
        ProbeKind::Liveness => container.liveness_probe.as_ref(),
    }
}
