//! The conditions that the kubelet owns, with its reasons and messages; those of other components are kept.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition};

use super::containers::{Statuses, is_waiting};
use super::phase::{FAILED, SUCCEEDED};
use super::{StatusInput, second};
use crate::actions::{Waiting, current_sandbox, is_restarting_all};
use crate::backoff;
use crate::model::{Cause, Container, PodSpec, PodStatus, ResizeRecord, is_sidecar};
use crate::preemption::{PREEMPTED_CONDITION, PREEMPTING};

/// Conditions only the kubelet writes.
const OURS: [&str; 10] = [
    QUARANTINED,
    STUCK,
    "PodScheduled",
    "PodReadyToStartContainers",
    "Initialized",
    "ContainersReady",
    "Ready",
    "PodResizePending",
    "PodResizeInProgress",
    "AllContainersRestarting",
];

/// Only the kubelet writes this condition.
pub fn is_our_condition(type_: &str) -> bool {
    OURS.contains(&type_)
}

/// A bug was detected in the handling of this pod, or the agent died in it: nothing is done for it.
const QUARANTINED: &str = "podwright.dev/Quarantined";
/// The runtime does not stop the pod, or does not report it.
const STUCK: &str = "podwright.dev/Stuck";

/// Message of the condition that the pod is stuck.
pub fn stuck_for(status: &PodStatus) -> Option<&str> {
    status.conditions.iter().flatten().find(|c| c.type_ == STUCK)?.reason.as_deref()
}

/// The status with the condition that the pod is stuck, as long as `why` is set.
pub fn stuck(mut status: PodStatus, old: Option<&PodStatus>, why: Option<&Waiting>, now: Timestamp) -> PodStatus {
    let conditions = status.conditions.get_or_insert_default();
    conditions.retain(|c| c.type_ != STUCK);
    if let Some(why) = why {
        let since = old.and_then(|old| old.conditions.iter().flatten().find(|c| c.type_ == STUCK));
        conditions.push(PodCondition {
            type_: STUCK.into(),
            status: "True".into(),
            reason: Some(why.reason.clone()),
            message: Some(why.message.clone()),
            last_transition_time: since.and_then(|c| c.last_transition_time.clone()).or_else(|| Some(second(now))),
            ..PodCondition::default()
        });
    }
    status
}

/// The pod is quarantined.
pub fn is_quarantined(status: &PodStatus) -> bool {
    status.conditions.iter().flatten().any(|c| c.type_ == QUARANTINED && c.status == "True")
}

/// The pod is quarantined for more than the seconds in which other suspects are tried.
pub fn is_quarantined_for_long(status: &PodStatus) -> bool {
    let is_held = |c: &PodCondition| c.type_ == QUARANTINED && c.reason.as_deref() == Some(HELD);
    is_quarantined(status) && !status.conditions.iter().flatten().any(is_held)
}

/// Reason of a quarantine of some seconds, after one death of the agent.
pub(crate) const HELD: &str = "AgentDiedOnce";

/// The last status with the condition that the pod is quarantined. Without a phase it is pending.
pub fn quarantined(last: Option<&PodStatus>, reason: &str, message: String, now: Timestamp) -> PodStatus {
    let mut status = last.cloned().unwrap_or_default();
    status.phase.get_or_insert_with(|| super::phase::PENDING.into());
    let conditions = status.conditions.get_or_insert_default();
    conditions.retain(|c| c.type_ != QUARANTINED);
    conditions.push(PodCondition {
        type_: QUARANTINED.into(),
        status: "True".into(),
        reason: Some(reason.into()),
        message: Some(message),
        last_transition_time: Some(second(now)),
        ..PodCondition::default()
    });
    status
}

pub(super) const DISRUPTION: &str = "DisruptionTarget";

/// A condition without its times.
struct ConditionValue {
    holds: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl ConditionValue {
    fn yes() -> Self {
        Self { holds: true, reason: None, message: None }
    }
    fn no(reason: Option<&'static str>, message: Option<String>) -> Self {
        Self { holds: false, reason, message }
    }
    fn bare(holds: bool) -> Self {
        Self { holds, reason: None, message: None }
    }
}

/// All conditions of the pod, in the kubelet's order.
pub(super) fn of(
    i: &StatusInput<'_>,
    spec: &PodSpec,
    statuses: &Statuses,
    phase: &str,
    old: &PodStatus,
    api: &PodStatus,
) -> Vec<PodCondition> {
    let others = api.conditions.iter().flatten().filter(|c| !is_our_condition(&c.type_));
    let mut all: Vec<PodCondition> = others.cloned().collect();
    disruption(i, old, &mut all);
    let containers = containers_ready(spec, statuses, phase);
    let ready = ready(spec, &containers, &all);
    let mut add = |type_: &str, value: ConditionValue| all.push(condition(i, old, type_, value));
    add("PodReadyToStartContainers", ConditionValue::bare(current_sandbox(i.seen, i.record).is_some()));
    add("Initialized", initialized(i, spec, statuses, phase, old));
    add("Ready", ready);
    add("ContainersReady", containers);
    add("PodScheduled", ConditionValue::yes());
    if backoff::may_restart_all(spec) {
        add("AllContainersRestarting", restarting_all(i, spec, phase));
    }
    if phase != SUCCEEDED && phase != FAILED {
        all.extend(resize(i, old));
    }
    all
}

fn condition(i: &StatusInput<'_>, old: &PodStatus, type_: &str, value: ConditionValue) -> PodCondition {
    let status = if value.holds { "True" } else { "False" };
    let before = old.conditions.iter().flatten().find(|c| c.type_ == type_ && c.status == status);
    PodCondition {
        type_: type_.into(),
        status: status.into(),
        reason: value.reason.map(Into::into),
        message: value.message,
        // Changes with the status only, not with the reason.
        last_transition_time: before.and_then(|c| c.last_transition_time.clone()).or_else(|| Some(second(i.now))),
        observed_generation: i.pod.metadata.generation,
        last_probe_time: None,
    }
}

/// Of a resize that is not complete. The generation is that of the resize, and the time changes with the reason.
fn resize(i: &StatusInput<'_>, old: &PodStatus) -> Vec<PodCondition> {
    let ResizeRecord { pending, in_progress } = &i.record.resize;
    let pending = pending.as_ref().and_then(|pending| Some((pending.refusal.as_ref()?, pending.generation)));
    let pending = pending.map(|(refusal, generation)| {
        ("PodResizePending", Some(refusal.reason()), Some(refusal.message.clone()), generation)
    });
    let in_progress = in_progress.as_ref().map(|resize| {
        ("PodResizeInProgress", resize.error.as_ref().map(|_| "Error"), resize.error.clone(), resize.generation)
    });
    let conditions = pending.into_iter().chain(in_progress);
    let condition =
        |(type_, reason, message, observed_generation): (&str, Option<&str>, Option<String>, Option<i64>)| {
            let same = |c: &&PodCondition| {
                c.type_ == type_ && c.reason.as_deref().unwrap_or_default() == reason.unwrap_or_default()
            };
            let before = old.conditions.iter().flatten().find(same);
            PodCondition {
                type_: type_.into(),
                status: "True".into(),
                reason: reason.map(Into::into),
                message,
                last_transition_time: before
                    .and_then(|c| c.last_transition_time.clone())
                    .or_else(|| Some(second(i.now))),
                observed_generation,
                last_probe_time: None,
            }
        };
    conditions.map(condition).collect()
}

/// Set by eviction; it stays once set.
fn disruption(i: &StatusInput<'_>, old: &PodStatus, all: &mut Vec<PodCondition>) {
    let counts = |cause: &Cause| matches!(cause, Cause::Evicted | Cause::Shutdown);
    let ending = i.record.termination().filter(|e| counts(&e.cause) && !e.exceeded_limit);
    let evicted = ending.and_then(|e| e.status_override.as_ref()).map(|(reason, message)| {
        let message = if reason == PREEMPTING { PREEMPTED_CONDITION } else { message };
        let value =
            ConditionValue { message: Some(message.to_owned()), reason: Some("TerminationByKubelet"), holds: true };
        condition(i, old, DISRUPTION, value)
    });
    let kept = || old.conditions.iter().flatten().find(|c| c.type_ == DISRUPTION).cloned();
    if let Some(condition) = evicted.or_else(kept) {
        all.retain(|c| c.type_ != DISRUPTION);
        all.push(condition);
    }
}

fn containers_ready(spec: &PodSpec, statuses: &Statuses, phase: &str) -> ConditionValue {
    match phase {
        SUCCEEDED => return ConditionValue::no(Some("PodCompleted"), None),
        FAILED => return ConditionValue::no(Some("PodFailed"), None),
        _ => {}
    }
    let sidecars = spec.init_containers.iter().flatten().filter(|c| is_sidecar(c));
    let sidecars = sidecars.filter_map(|c| statuses.init(&c.name));
    let apps = spec.containers.iter().filter_map(|c| statuses.app(&c.name));
    let unready: Vec<&str> = sidecars.chain(apps).filter(|s| !s.ready).map(|s| s.name.as_str()).collect();
    match unready.is_empty() {
        true => ConditionValue::yes(),
        false => {
            let message = format!("containers with unready status: [{}]", unready.join(" "));
            ConditionValue::no(Some("ContainersNotReady"), Some(message))
        }
    }
}

fn ready(spec: &PodSpec, containers: &ConditionValue, conditions: &[PodCondition]) -> ConditionValue {
    if !containers.holds {
        return ConditionValue::no(containers.reason, containers.message.clone());
    }
    let closed: Vec<String> = spec
        .readiness_gates
        .iter()
        .flatten()
        .filter_map(|gate| {
            let gate = &gate.condition_type;
            match conditions.iter().find(|c| c.type_ == *gate) {
                None => Some(format!("corresponding condition of pod readiness gate \"{gate}\" does not exist.")),
                Some(c) if c.status != "True" => {
                    Some(format!("the status of pod readiness gate \"{gate}\" is not \"True\", but {}", c.status))
                }
                Some(_) => None,
            }
        })
        .collect();
    match closed.is_empty() {
        true => ConditionValue::yes(),
        false => ConditionValue::no(Some("ReadinessGatesNotReady"), Some(closed.join(", "))),
    }
}

fn initialized(
    i: &StatusInput<'_>,
    spec: &PodSpec,
    statuses: &Statuses,
    phase: &str,
    old: &PodStatus,
) -> ConditionValue {
    if phase == SUCCEEDED {
        return ConditionValue { reason: Some("PodCompleted"), ..ConditionValue::yes() };
    }
    // True as well if app containers ran, unless init runs again in a new sandbox.
    let began = |c: &Container| statuses.app(&c.name).is_some_and(|s| !is_waiting(s));
    let reruns_init = current_sandbox(i.seen, i.record).is_some() && !statuses.initialized;
    if statuses.initialized || (!reruns_init && spec.containers.iter().any(began)) {
        return ConditionValue::yes();
    }
    let done = |c: &Container, s: &ContainerStatus| if is_sidecar(c) { s.started == Some(true) } else { s.ready };
    let inits = spec.init_containers.iter().flatten().filter_map(|c| Some((c, statuses.init(&c.name)?)));
    let missing: Vec<&str> = inits.filter(|(c, s)| !done(c, s)).map(|(c, _)| c.name.as_str()).collect();
    let was = || old.conditions.iter().flatten().any(|c| c.type_ == "Initialized" && c.status == "True");
    // RestartAllContainers does not revert it.
    if missing.is_empty() || (backoff::may_restart_all(spec) && was()) {
        return ConditionValue::yes();
    }
    let message = format!("containers with incomplete status: [{}]", missing.join(" "));
    ConditionValue::no(Some("ContainersNotInitialized"), Some(message))
}

fn restarting_all(i: &StatusInput<'_>, spec: &PodSpec, phase: &str) -> ConditionValue {
    match phase {
        SUCCEEDED => ConditionValue::no(Some("PodCompleted"), None),
        FAILED => ConditionValue::no(Some("PodFailed"), None),
        _ if is_restarting_all(spec, i.seen, i.record) => ConditionValue {
            holds: true,
            reason: Some("RestartAllContainersStarted"),
            message: Some("container exited with restart policy rule".into()),
        },
        _ => ConditionValue::bare(false),
    }
}
