//! Calls in doubt, and effects that appear long after them.

use std::sync::Arc;
use std::time::Duration;

use super::lab::*;
use crate::model::*;

fn in_doubt() -> Result<Answer, CallError> {
    Err(CallError::InDoubt { reason: None, message: "deadline exceeded".into() })
}

/// A pod whose definition changes while the start of its container is in doubt, up to the moment at which the call is given up.
fn changed_in_doubt(made: &PodSeen) -> Lab {
    let mut lab = starting(made);
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::StartContainer { .. })), in_doubt());
    let changed = pod("a", "1");
    let mut edited = Pod::clone(&changed.pod);
    edited.spec.as_mut().unwrap().containers[0].image = Some("other".into());
    lab.set(&[&Manifest { pod: Arc::new(edited), ..changed }]);
    for _ in 0..500 {
        lab.now += Duration::from_secs(1);
        while !lab.observations.is_empty() {
            lab.observe(made);
        }
        lab.handle(Event::Wake);
    }
    lab
}

#[test]
fn an_instance_that_may_start_late_is_removed_before_another_is_created() {
    let mut made = seen(Some(RunState::Created));
    let before = crate::hash::container_hash(&pod("a", "1").pod.spec.as_ref().unwrap().containers[0]);
    (made.containers[0].hash, made.containers[0].started_at) = (Some(before), None);
    let mut lab = changed_in_doubt(&made);
    let is_removal = |c: &Call| matches!(c, Call::Runtime(RuntimeCall::RemoveContainer { .. }));
    assert!(lab.calls.iter().all(|(_, _, c)| is_removal(c)), "the old one may still start: {:?}", lab.calls);
    lab.ok(is_removal);
    let next = lab.observe(&seen(None));
    assert!(matches!(next[..], [Call::Runtime(RuntimeCall::ImageStatus { .. })]), "{next:?}");
}

#[test]
fn an_observed_sandbox_resolves_the_doubt_of_a_removed_pod_at_once() {
    let mut lab = Lab::new(Listing::default());
    lab.set(&[&pod("a", "1")]);
    lab.host_is_ready();
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::RunSandbox { .. })), in_doubt());
    lab.set(&[]);
    assert_eq!(lab.observe(&PodSeen::default()), [], "it may still appear");
    lab.now += Duration::from_secs(1);
    lab.handle(Event::Wake);
    assert_eq!(lab.observe(&seen(None)), [Call::Runtime(RuntimeCall::StopSandbox { id: "sb".into() })]);
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopSandbox { .. })));
    let mut stopped = seen(None);
    stopped.sandboxes[0].ready = false;
    let next = lab.observe(&stopped);
    assert_eq!(
        next,
        [Call::Host(HostCall::RemoveVolumes), Call::Host(HostCall::RemoveCgroup)],
        "nothing is waited for any more"
    );
}

#[test]
fn a_failed_removal_is_retried_with_growing_delays() {
    let is_removal = |c: &Call| matches!(c, Call::Runtime(RuntimeCall::RemoveContainer { .. }));
    let mut lab = running();
    let mut two = seen(Some(RunState::Running));
    two.containers[0].attempt = 2;
    for (id, attempt) in [("old", 1), ("older", 0)] {
        let mut dead = seen(Some(RunState::Exited)).containers.remove(0);
        (dead.id, dead.attempt) = (id.into(), attempt);
        two.containers.push(dead);
    }
    let mut attempts = 0;
    lab.handle(Event::Hint { uid: "1".into() });
    for _ in 0..3600 {
        lab.now += Duration::from_secs(1);
        while !lab.observations.is_empty() {
            lab.observe(&two);
        }
        if lab.calls.iter().any(|(_, _, c)| is_removal(c)) {
            attempts += 1;
            lab.answer(is_removal, Err(CallError::failed("device or resource busy")));
        }
        lab.handle(Event::Wake);
    }
    assert!((40..=70).contains(&attempts), "{attempts} times in an hour");
}

#[test]
fn an_ephemeral_container_that_was_given_up_is_created_with_another_attempt() {
    let debugged = |manifest: Manifest| {
        let mut pod = Pod::clone(&manifest.pod);
        let debugger = serde_json::json!([{"name": "debugger", "image": "img", "imagePullPolicy": "IfNotPresent"}]);
        pod.spec.as_mut().unwrap().ephemeral_containers = serde_json::from_value(debugger).unwrap();
        Manifest { pod: Arc::new(pod), ..manifest }
    };
    let mut lab = Lab::new(Listing::default());
    lab.set(&[&debugged(pod("a", "1"))]);
    lab.host_is_ready();
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::RunSandbox { .. })), Ok(Answer::Sandbox("sb".into())));
    let runs = seen(Some(RunState::Running));
    let facts = ImageFacts { id: "sha".into(), ..ImageFacts::default() };
    let is_made = |c: &Call| matches!(c, Call::Runtime(RuntimeCall::CreateContainer { .. }));
    let mut attempts = vec![];
    for _ in 0..600 {
        lab.now += Duration::from_secs(1);
        lab.handle(Event::Wake);
        while !lab.observations.is_empty() {
            lab.observe(&runs);
        }
        if lab.calls.iter().any(|(_, _, c)| matches!(c, Call::Runtime(RuntimeCall::ImageStatus { .. }))) {
            lab.answer(
                |c| matches!(c, Call::Runtime(RuntimeCall::ImageStatus { .. })),
                Ok(Answer::Image(Some(facts.clone()))),
            );
        }
        if lab.calls.iter().any(|(_, _, c)| matches!(c, Call::Host(HostCall::PrepareContainer { .. }))) {
            lab.ok(|c| matches!(c, Call::Host(HostCall::PrepareContainer { .. })));
        }
        let made = lab.calls.iter().find_map(|(_, _, c)| {
            if let Call::Runtime(RuntimeCall::CreateContainer { attempt, .. }) = c { Some(*attempt) } else { None }
        });
        if let Some(attempt) = made {
            attempts.push(attempt);
            lab.answer(is_made, in_doubt());
        }
    }
    assert!(attempts.len() >= 2 && attempts[..2] == [0, 1], "{attempts:?}");
}
