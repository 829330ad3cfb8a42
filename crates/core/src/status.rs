//! Computes `PodStatus` (the kubelet's `generateAPIPodStatus`).
//!
//! ```text
//!  spec + seen + memory ─▶ container statuses ─▶ phase ─▶ conditions ─▶ rules (terminal withheld, finished) ─▶ PodStatus
//! ```
//!
//! Computed from scratch each time; only values that must not change come from the last status: start time, transition times, a
//! terminal phase, the addresses of a stopped pod. Reasons and messages are the kubelet's, because users and tools search for
//! them.

mod conditions;
mod containers;
mod external;
mod phase;
mod rules;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{HostIP, PodIP, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::actions::{Waiting, current_sandbox};
use crate::model::{Cause, Name, Pod, PodRecord, PodSeen, PodSpec, PodStatus, is_terminal};
use crate::qos::{Amounts, pod_limits, pod_requests};
use crate::quantity::Quantities;
use crate::resize;
use crate::shutdown::{TERMINATED, TERMINATED_MESSAGE};

pub(crate) use conditions::HELD;
pub use conditions::{is_our_condition, is_quarantined, is_quarantined_for_long, quarantined, stuck, stuck_for};
use containers::Statuses;
pub(crate) use external::{copy_external_fields, external_status};
pub use rules::{IllegalTransition, active_deadline_exceeded, check_transition, finished, withhold_terminal_phase};

/// Inputs of a status.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatusInput<'a> {
    /// The pod as its source has it.
    pub pod: &'a Pod,
    /// Observed state in the runtime.
    pub seen: &'a PodSeen,
    /// Journaled state, with the last status.
    pub record: &'a PodRecord,
    /// `state.waiting` of containers that should run: back-off, image pull, errors.
    pub waiting: &'a BTreeMap<Name, Waiting>,
    /// Why the pod has not been started, if it waits.
    pub hold: Option<&'a Waiting>,
    /// Last failure of the setup of the pod: a volume, its cgroup, its sandbox, the network.
    pub trouble: Option<&'a str>,
    /// The node's addresses.
    pub host_ips: &'a [String],
    /// Name of the runtime, the prefix of container ids: `containerd`.
    pub runtime: &'a str,
    /// For transition times.
    pub now: Timestamp,
    /// More containers may run than were observed: the observation is outdated, or a start is in flight.
    pub unsure: bool,
    /// A static pod does not get a terminal phase at the end: it has no API object that waits for one.
    pub is_static: bool,
}

/// The status to publish: a terminal phase only when no container runs.
pub(crate) fn pod_status(i: &StatusInput<'_>) -> PodStatus {
    let no_spec = PodSpec::default();
    let spec = i.pod.spec.as_ref().unwrap_or(&no_spec);
    let empty = PodStatus::default();
    let api = i.pod.status.as_ref().unwrap_or(&empty);
    let old = i.record.status.as_ref().unwrap_or(api);
    let statuses = Statuses::of(i, spec);
    let (phase, reason, message) = phase_and_reason(i, spec, &statuses, old, api);
    let requests = quantities(pod_requests(i.pod));
    let actuated = resize::actuated_pod(i.pod, i.record, i.seen);
    // A rejected pod has no container statuses.
    let refused = !i.record.was_admitted() && i.record.termination().is_some_and(|e| e.status_override.is_some());
    // As in the kubelet, whose workers compute no status for a pod that may not start yet. The active deadline counts from it.
    let waits_for_admission = i.hold.is_some() && !i.record.was_admitted();
    let mut status = PodStatus {
        conditions: Some(conditions::of(i, spec, &statuses, phase, old, api)),
        phase: Some(phase.into()),
        reason,
        message,
        start_time: old.start_time.clone().or_else(|| (!waits_for_admission).then(|| second(i.now))),
        qos_class: Some(api.qos_class.clone().unwrap_or_else(|| crate::qos::qos_class(i.pod).into())),
        observed_generation: i.pod.metadata.generation.max(old.observed_generation),
        init_container_statuses: non_empty(statuses.init).filter(|_| !refused),
        container_statuses: non_empty(statuses.app).filter(|_| !refused),
        ephemeral_container_statuses: non_empty(statuses.ephemeral).filter(|_| !refused),
        allocated_resources: requests.or_else(|| api.allocated_resources.clone()),
        resources: resources(spec, quantities(pod_requests(&actuated)), quantities(pod_limits(&actuated)))
            .or_else(|| api.resources.clone()),
        // Fields of other components are kept.
        extended_resource_claim_status: api.extended_resource_claim_status.clone(),
        node_allocatable_resource_claim_statuses: api.node_allocatable_resource_claim_statuses.clone(),
        nominated_node_name: api.nominated_node_name.clone(),
        resize: api.resize.clone(),
        resource_claim_statuses: api.resource_claim_statuses.clone(),
        volume_health: api.volume_health.clone(),
        ..PodStatus::default()
    };
    addresses(i, spec, old, &mut status);
    let may_run = i.unsure || i.seen.alive().next().is_some();
    let status = withhold_terminal_phase(old, status, may_run, i.now);
    let is_final = i.record.is_finished() && !i.is_static && !i.record.is_suspended();
    if is_final { finished(status, i.now) } else { status }
}

/// The phase of [`pod_status`] is terminal, without computing the rest.
pub(crate) fn has_terminal_phase(i: &StatusInput<'_>) -> bool {
    let (no_spec, empty) = (PodSpec::default(), PodStatus::default());
    let spec = i.pod.spec.as_ref().unwrap_or(&no_spec);
    let api = i.pod.status.as_ref().unwrap_or(&empty);
    let old = i.record.status.as_ref().unwrap_or(api);
    let (phase, _, _) = phase_and_reason(i, spec, &Statuses::of(i, spec), old, api);
    let withheld = (i.unsure || i.seen.alive().next().is_some()) && !is_terminal(old.phase.as_deref());
    (is_terminal(Some(phase)) && !withheld) || (i.record.is_finished() && !i.is_static)
}

/// `status.reason` of a pod that a user stopped.
pub const STOPPED: &str = "Stopped";

/// A terminal phase stays, with its reason and message. Then an eviction or rejection decides, then a user, then the containers.
fn phase_and_reason(
    i: &StatusInput<'_>,
    spec: &PodSpec,
    statuses: &Statuses,
    old: &PodStatus,
    api: &PodStatus,
) -> (&'static str, Option<String>, Option<String>) {
    for before in [old, api] {
        if let Some(phase) = phase::terminal(before.phase.as_deref()) {
            return (phase, before.reason.clone(), before.message.clone());
        }
    }
    let imposed = i.record.termination().and_then(|ending| ending.status_override.as_ref());
    if let Some((reason, message)) = imposed {
        return (phase::FAILED, Some(reason.clone()), Some(message.clone()));
    }
    if i.record.is_suspended() {
        let phase = phase::of(spec, statuses, false);
        return (phase, Some(TERMINATED.into()), Some(TERMINATED_MESSAGE.into()));
    }
    let phase = phase::of(spec, statuses, i.record.is_terminated());
    let stopped = i.record.termination().is_some_and(|ending| ending.cause == Cause::Stopped && !ending.deleted);
    if stopped && is_terminal(Some(phase)) {
        return (phase, Some(STOPPED.into()), Some("stopped by a user".into()));
    }
    match i.hold {
        Some(hold) if phase == phase::PENDING => (phase, Some(hold.reason.clone()), Some(hold.message.clone())),
        // Reason and message of the API server for a phase that has not changed. Ours are computed each time.
        _ if api.phase.as_deref() == Some(phase) => (phase, api.reason.clone(), api.message.clone()),
        _ => (phase, None, None),
    }
}

/// The pod's addresses are kept after its sandbox is gone, so that they stay visible for a finished pod.
fn addresses(i: &StatusInput<'_>, spec: &PodSpec, old: &PodStatus, status: &mut PodStatus) {
    let hosts = i.host_ips.iter().take(2);
    status.host_ip = i.host_ips.first().cloned();
    status.host_ips = non_empty(hosts.clone().map(|ip| HostIP { ip: ip.clone() }).collect());
    let sandbox = current_sandbox(i.seen, i.record).map(|s| s.ips.as_slice()).unwrap_or_default();
    let ips: Vec<PodIP> = match spec.host_network {
        Some(true) => hosts.map(|ip| PodIP { ip: ip.clone() }).collect(),
        _ if !sandbox.is_empty() => sandbox.iter().map(|ip| PodIP { ip: ip.clone() }).collect(),
        _ => old.pod_ips.clone().unwrap_or_default(),
    };
    status.pod_ip = ips.first().map(|ip| ip.ip.clone());
    status.pod_ips = non_empty(ips);
}

/// `status.resources`: what the running containers have.
fn resources(spec: &PodSpec, requests: Option<Quantities>, limits: Option<Quantities>) -> Option<ResourceRequirements> {
    let claims = spec.resources.as_ref().and_then(|r| r.claims.clone());
    let given = requests.is_some() || limits.is_some() || claims.is_some();
    given.then_some(ResourceRequirements { claims, limits, requests })
}

fn quantities(amounts: Amounts) -> Option<Quantities> {
    let all: Quantities = amounts.into_iter().map(|(name, amount)| (name, Quantity(amount.to_string()))).collect();
    (!all.is_empty()).then_some(all)
}

fn non_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// API times have a resolution of one second.
pub(crate) fn second(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

#[cfg(test)]
mod tests;
