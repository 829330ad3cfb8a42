//! postStart hooks: a container is not reported as running until its hook has succeeded.

use std::sync::Arc;

use super::lab::*;
use crate::model::*;

fn hooked() -> Manifest {
    let Manifest { pod, origin } = pod("a", "1");
    let mut pod = Pod::clone(&pod);
    let c = &mut pod.spec.as_mut().unwrap().containers[0];
    let action = serde_json::json!({"exec": {"command": ["true"]}});
    c.lifecycle = serde_json::from_value(serde_json::json!({"postStart": action})).unwrap();
    c.readiness_probe = serde_json::from_value(action).unwrap();
    Manifest { pod: Arc::new(pod), origin }
}

fn is_hook(c: &Call) -> bool {
    matches!(c, Call::Runtime(RuntimeCall::Hook { kind: HookKind::PostStart, .. }))
}

fn is_probe(c: &Call) -> bool {
    matches!(c, Call::Runtime(RuntimeCall::Probe { .. }))
}

/// Phase of the pod; waiting reason or state of its container; `started`.
fn shown(lab: &Lab) -> (String, String, bool) {
    let status = lab.records[&PodUid::from("1")].status.clone().unwrap();
    let c = status.container_statuses.unwrap().remove(0);
    let state = c.state.unwrap();
    let waits = state.waiting.and_then(|w| w.reason);
    let shown = waits.unwrap_or_else(|| if state.running.is_some() { "running" } else { "ended" }.into());
    (status.phase.unwrap(), shown, c.started.unwrap())
}

#[test]
fn a_container_is_reported_as_running_once_its_hook_has_succeeded() {
    let mut lab = starting_of(&hooked(), &seen(Some(RunState::Created)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StartContainer { .. })));
    let calls = lab.observe(&seen(Some(RunState::Running)));
    assert!(matches!(&calls[..], [hook] if is_hook(hook)), "no probe before the hook: {calls:?}");
    assert_eq!(shown(&lab), ("Pending".into(), "ContainerCreating".into(), false));
    let calls = lab.ok(is_hook);
    assert!(matches!(&calls[..], [probe] if is_probe(probe)), "{calls:?}");
    assert_eq!(shown(&lab), ("Running".into(), "running".into(), true));
}

#[test]
fn a_container_that_disappears_during_its_hook_is_not_started_again() {
    let mut never = hooked();
    Arc::make_mut(&mut never.pod).spec.as_mut().unwrap().restart_policy = Some("Never".into());
    let mut lab = starting_of(&never, &seen(Some(RunState::Created)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StartContainer { .. })));
    lab.observe(&seen(Some(RunState::Running)));
    lab.handle(Event::Hint { uid: "1".into() });
    let calls = lab.observe(&seen(None));
    assert!(
        !calls.iter().any(|c| matches!(c, Call::Runtime(RuntimeCall::ImageStatus { .. }))),
        "it must not run twice: {calls:?}"
    );
    assert_eq!(lab.state("1"), Some(crate::pod::State::Terminating));
}

#[test]
fn the_hook_of_a_container_that_another_agent_started_is_not_run_again() {
    let mut lab = Lab::new(listing("1", "a"));
    lab.set(&[&hooked()]);
    let mut calls = vec![];
    while !lab.observations.is_empty() {
        calls.extend(lab.observe(&seen(Some(RunState::Running))));
    }
    calls.extend(lab.host_is_ready());
    assert!(calls.iter().any(is_probe) && !calls.iter().any(is_hook), "{calls:?}");
    assert_eq!(shown(&lab), ("Running".into(), "running".into(), true));
}

#[test]
fn an_outage_of_the_runtime_during_a_hook_kills_no_container() {
    let mut lab = starting_of(&hooked(), &seen(Some(RunState::Created)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StartContainer { .. })));
    lab.observe(&seen(Some(RunState::Running)));
    let unavailable = CallError::Unavailable { message: "connection reset".into() };
    let calls = lab.answer(is_hook, Err(unavailable));
    assert!(!calls.iter().any(|c| matches!(c, Call::Runtime(RuntimeCall::StopContainer { .. }))), "{calls:?}");
    assert_eq!(shown(&lab), ("Running".into(), "running".into(), true));
    assert!(lab.events.iter().any(|e| e.reason == "FailedPostStartHook" && e.warning), "it is reported");
}

#[test]
fn a_probe_that_cannot_run_is_reported() {
    let mut lab = starting_of(&hooked(), &seen(Some(RunState::Created)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StartContainer { .. })));
    lab.observe(&seen(Some(RunState::Running)));
    lab.ok(is_hook);
    lab.answer(is_probe, Ok(Answer::Probe(ProbeVerdict::Unknown("no such program".into()))));
    let reported: Vec<_> = lab.events.iter().filter(|e| e.reason == "Unhealthy").map(|e| e.message.as_str()).collect();
    assert_eq!(reported, ["Readiness probe errored and resulted in unknown state: no such program"]);
}
