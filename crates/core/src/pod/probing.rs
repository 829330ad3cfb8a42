//! The probes of one pod's running containers: when they run, and what their results change.

use std::collections::BTreeMap;
use std::time::Duration;

use super::PodFacts;
use super::calls::Calls;
use super::step::PodStep;
use crate::actions::{ProbeFailure, is_post_start_done, is_started};
use crate::model::{
    CallKey, Container, ContainerId, Name, Now, ProbeKind, ProbeVerdict, RunState, RuntimeCall, Time, find_container,
};
use crate::probe::{ProbeChange, ProbeState};

/// The probes that are being run, by container and kind.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Probing {
    #[serde(with = "crate::model::pairs")]
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

    /// The verdicts of readiness probes were changed from outside: the next results are compared with those.
    pub(super) fn forget_readiness(&mut self) {
        self.states.retain(|(_, kind), _| *kind != ProbeKind::Readiness);
    }

    pub(super) fn wake(&self, calls: &Calls) -> Option<Time> {
        let idle = self.states.iter().filter(|((name, kind), _)| !calls.busy(&CallKey::Probe(name.clone(), *kind)));
        idle.filter_map(|(_, (_, state))| state.due()).min()
    }

    /// Runs every probe that is due; begins and ends them with their instances.
    pub(super) fn plan(&mut self, step: &mut PodStep<'_, '_>) {
        let wanted = wanted_probes(step.facts);
        self.states.retain(|key, (id, _)| wanted.iter().any(|(n, k, i, _)| (n, k) == (&key.0, &key.1) && i == id));
        let seen = &step.facts.observed.seen;
        self.failures.retain(|_, f| seen.container(&f.id).is_some_and(|c| c.state.may_run()));
        for (name, kind, id, container) in wanted {
            let key = (name.clone(), kind);
            if !self.states.contains_key(&key) {
                let Some(state) = new_probe(step.facts, kind, &name, &id, &container, step.now()) else { continue };
                self.states.insert(key.clone(), (id.clone(), state));
            }
            let (_, state) = &self.states[&key];
            let now = step.now().boot;
            let due = state.due().is_some_and(|at| at <= now);
            if due && step.facts.calls.may_send(&CallKey::Probe(name.clone(), kind), now) {
                let limit = state.timeout() + Duration::from_secs(1);
                let ips = step.facts.ips();
                step.send(RuntimeCall::Probe { kind, name, id, ips }, limit);
            }
        }
    }

    /// A probe ran.
    pub(super) fn ended(
        &mut self,
        kind: ProbeKind,
        name: &Name,
        id: &ContainerId,
        verdict: ProbeVerdict,
        step: &mut PodStep<'_, '_>,
    ) {
        let message = match &verdict {
            ProbeVerdict::Success => None,
            ProbeVerdict::Failure(message) => Some(format!("{kind:?} probe failed: {message}")),
            // An unavailable runtime is not a failure of this pod.
            ProbeVerdict::Unknown(_) if !step.ctx.runtime_up => None,
            ProbeVerdict::Unknown(why) => Some(format!("{kind:?} probe errored and resulted in unknown state: {why}")),
        };
        if let Some(message) = message {
            step.warn("Unhealthy", Some(name), message);
        }
        let Some((probed, state)) = self.states.get_mut(&(name.clone(), kind)) else { return };
        if probed != id {
            return;
        }
        let Some(change) = state.result(verdict, step.now().boot) else { return };
        let ok = change == ProbeChange::Success;
        step.history(
            &format!("{kind:?} probe of container {name} {}", if ok { "succeeded" } else { "failed" }),
            if ok { "success threshold reached" } else { "failure threshold reached" },
        );
        let record = &mut step.facts.record;
        match (kind, ok) {
            (ProbeKind::Startup, true) => record.edit_container(name, |memory| memory.started = Some(id.clone())),
            (ProbeKind::Readiness, _) => record.edit_container(name, |memory| memory.ready = Some((id.clone(), ok))),
            (ProbeKind::Startup | ProbeKind::Liveness, false) => {
                self.failures.insert(name.clone(), ProbeFailure { id: id.clone(), kind });
            }
            (ProbeKind::Liveness, true) => {}
        }
    }
}

/// After the postStart hook: the startup probe, then readiness and liveness once it has passed; only readiness continues while
/// the pod terminates.
fn wanted_probes(facts: &PodFacts) -> Vec<(Name, ProbeKind, ContainerId, Container)> {
    let mut wanted = vec![];
    for c in facts.observed.seen.containers.iter().filter(|c| c.state == RunState::Running) {
        let Some(found) = find_container(&facts.record.pod, c.name.as_str()) else { continue };
        let spec = found.container.into_owned();
        let memory = facts.record.containers.get(&c.name);
        if !is_post_start_done(&spec, memory, &c.id) {
            continue;
        }
        let started = is_started(&spec, memory, &c.id);
        for kind in [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness] {
            let now = match kind {
                ProbeKind::Startup => !started && facts.record.termination().is_none(),
                ProbeKind::Readiness => started,
                ProbeKind::Liveness => started && facts.record.termination().is_none(),
            };
            if now && probe_of(&spec, kind).is_some() {
                wanted.push((c.name.clone(), kind, c.id.clone(), spec.clone()));
            }
        }
    }
    wanted
}

fn new_probe(
    facts: &PodFacts,
    kind: ProbeKind,
    name: &Name,
    id: &ContainerId,
    container: &Container,
    now: Now,
) -> Option<ProbeState> {
    let seen = facts.observed.seen.container(id)?;
    let age = seen.started_at.map_or(jiff::SignedDuration::ZERO, |at| now.wall.duration_since(at));
    let started = now.boot.saturating_sub(Duration::try_from(age).unwrap_or(Duration::ZERO));
    let memory = facts.record.containers.get(name);
    let carried = memory.and_then(|m| m.ready.as_ref()).filter(|(known, _)| known == id).map(|(_, ready)| *ready);
    let probe = probe_of(container, kind)?;
    Some(ProbeState::new(kind, probe, started, carried, (facts.record.uid.as_str(), name.as_str()), now.boot))
}

fn probe_of(container: &Container, kind: ProbeKind) -> Option<&k8s_openapi::api::core::v1::Probe> {
    match kind {
        ProbeKind::Startup => container.startup_probe.as_ref(),
        ProbeKind::Readiness => container.readiness_probe.as_ref(),
        ProbeKind::Liveness => container.liveness_probe.as_ref(),
    }
}
