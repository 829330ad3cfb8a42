//! Calls whose fate is unknown, and what they may do long after.

use std::sync::Arc;
use std::time::Duration;

use super::lab::*;
use crate::model::*;

fn in_doubt() -> Result<Answer, CallError> {
    Err(CallError { in_doubt: true, ..CallError::new("", "deadline exceeded") })
}

/// A pod whose definition changes while the start of its container is in doubt, up to the moment the doubt is given up.
fn changed_in_doubt(made: &PodSeen) -> Lab {
    let mut lab = starting(made);
    lab.answer(|c| matches!(c, Call::StartContainer { .. }), in_doubt());
    let changed = pod("a", "1");
    let mut edited = Pod::clone(&changed.pod);
    edited.spec.as_mut().unwrap().containers[0].image = Some("other".into());
    lab.set(&[&Manifest { pod: Arc::new(edited), ..changed }]);
    for _ in 0..500 {
        lab.now += Duration::from_secs(1);
        while !lab.looks.is_empty() {
            lab.see(made);
        }
        lab.tell(Event::Wake);
    }
    lab
}

#[test]
fn an_instance_that_may_start_late_is_gone_before_another_is_made() {
    let mut made = seen(Some(RunState::Created));
    let before = crate::hash::container_hash(&pod("a", "1").pod.spec.as_ref().unwrap().containers[0]);
    (made.containers[0].hash, made.containers[0].started_at) = (Some(before), None);
    let mut lab = changed_in_doubt(&made);
    let is_removal = |c: &Call| matches!(c, Call::RemoveContainer { .. });
    assert!(lab.calls.iter().all(|(_, _, c)| is_removal(c)), "the old one may run yet: {:?}", lab.calls);
    lab.ok(is_removal);
    let next = lab.see(&seen(None));
    assert!(matches!(next[..], [Call::ImageStatus { .. }]), "{next:?}");
}
