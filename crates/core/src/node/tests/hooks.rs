//! Hooks after the start: until they have ended well a container is not said to run.

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

/// Phase, what the container is, and whether it counts as started.
fn told(lab: &Lab) -> (String, String, bool) {
    let status = lab.records[&PodUid::from("1")].status.clone().unwrap();
    let c = status.container_statuses.unwrap().remove(0);
    let state = c.state.unwrap();
    let waits = state.waiting.and_then(|w| w.reason);
    let word = waits.unwrap_or_else(|| if state.running.is_some() { "running" } else { "ended" }.into());
    (status.phase.unwrap(), word, c.started.unwrap())
}

#[test]
fn a_container_runs_once_its_hook_has_ended_well() {
    let mut lab = starting_of(&hooked(), &seen(Some(RunState::Created)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StartContainer { .. })));
    let asked = lab.see(&seen(Some(RunState::Running)));
    assert!(matches!(&asked[..], [hook] if is_hook(hook)), "no probe before the hook: {asked:?}");
    assert_eq!(told(&lab), ("Pending".into(), "ContainerCreating".into(), false));
    let asked = lab.ok(is_hook);
    assert!(matches!(&asked[..], [probe] if is_probe(probe)), "{asked:?}");
    assert_eq!(told(&lab), ("Running".into(), "running".into(), true));
}

#[test]
fn a_container_that_vanishes_during_its_hook_has_run() {
    let mut never = hooked();
    Arc::make_mut(&mut never.pod).spec.as_mut().unwrap().restart_policy = Some("Never".into());
    let mut lab = starting_of(&never, &seen(Some(RunState::Created)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StartContainer { .. })));
    lab.see(&seen(Some(RunState::Running)));
    lab.tell(Event::Hint { uid: "1".into() });
    let asked = lab.see(&seen(None));
    assert!(
        !asked.iter().any(|c| matches!(c, Call::Runtime(RuntimeCall::ImageStatus { .. }))),
        "it must not run twice: {asked:?}"
    );
    assert_eq!(lab.state("1"), Some(crate::pod::State::Terminating));
}

#[test]
fn the_hook_of_a_container_that_another_agent_began_is_not_run_again() {
    let mut lab = Lab::new(listing("1", "a"));
    lab.set(&[&hooked()]);
    let mut asked = vec![];
    while !lab.looks.is_empty() {
        asked.extend(lab.see(&seen(Some(RunState::Running))));
    }
    asked.extend(lab.host_is_ready());
    assert!(asked.iter().any(is_probe) && !asked.iter().any(is_hook), "{asked:?}");
    assert_eq!(told(&lab), ("Running".into(), "running".into(), true));
}

#[test]
fn a_runtime_that_goes_away_under_a_hook_costs_no_container() {
    let mut lab = starting_of(&hooked(), &seen(Some(RunState::Created)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StartContainer { .. })));
    lab.see(&seen(Some(RunState::Running)));
    let away = CallError::Unavailable { message: "connection reset".into() };
    let asked = lab.answer(is_hook, Err(away));
    assert!(!asked.iter().any(|c| matches!(c, Call::Runtime(RuntimeCall::StopContainer { .. }))), "{asked:?}");
    assert_eq!(told(&lab), ("Running".into(), "running".into(), true));
    assert!(lab.events.iter().any(|e| e.reason == "FailedPostStartHook" && e.warning), "and people hear of it");
}

#[test]
fn a_probe_that_can_not_be_made_is_told() {
    let mut lab = starting_of(&hooked(), &seen(Some(RunState::Created)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StartContainer { .. })));
    lab.see(&seen(Some(RunState::Running)));
    lab.ok(is_hook);
    lab.answer(is_probe, Ok(Answer::Probe(ProbeVerdict::Unknown("no such program".into()))));
    let told: Vec<_> = lab.events.iter().filter(|e| e.reason == "Unhealthy").map(|e| e.message.as_str()).collect();
    assert_eq!(told, ["Readiness probe errored and resulted in unknown state: no such program"]);
}
