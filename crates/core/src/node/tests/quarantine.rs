//! Pods in which the agent died: nothing is done for them for a while, and all others start.

#![expect(clippy::disallowed_types, reason = "the observer of the node must be shareable; core has no threads")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::PodCondition;

use super::lab::*;
use crate::model::*;
use crate::status::is_quarantined;

const TEN_MINUTES: Duration = Duration::from_secs(600);

fn suspect(lab: &Lab, deaths: u32) -> Suspect {
    let until = (deaths >= 2).then(|| lab.now + TEN_MINUTES);
    let (uid, work) = ("b".into(), "CreateContainer".into());
    Suspect { uid, work, deaths, quarantines: deaths - 1, completed: false, elsewhere: 0, died: lab.now, until }
}

/// An agent that starts after deaths of former ones in the CreateContainer of pod `b`.
fn after_deaths(deaths: u32, records: Vec<PodRecord>) -> Lab {
    let mut lab = Lab::bare(records);
    lab.handle(Event::Suspects { suspects: vec![suspect(&lab, deaths)] });
    lab.bring_up(Listing::default());
    lab
}

fn has_calls(lab: &Lab, uid: &str) -> bool {
    lab.calls.iter().any(|(_, of, _)| of.as_str() == uid)
}

fn condition(lab: &Lab) -> bool {
    let record = lab.node.workers().get(&PodUid::from("b")).unwrap().record();
    record.status.as_ref().is_some_and(is_quarantined)
}

#[test]
fn a_pod_in_which_the_agent_died_twice_is_left_alone_and_the_others_start() {
    let mut lab = after_deaths(2, vec![]);
    lab.set(&[&pod("a", "a"), &pod("b", "b"), &pod("c", "c")]);
    assert!(has_calls(&lab, "a") && has_calls(&lab, "c") && !has_calls(&lab, "b"), "{:?}", lab.calls);
    assert!(condition(&lab));
    assert!(lab.records[&PodUid::from("b")].status.as_ref().is_some_and(is_quarantined), "it is journaled");
    let events: Vec<_> = lab.events.iter().filter(|event| event.reason == "Quarantined").collect();
    let message = "the agent died 2 times during CreateContainer of this pod; the pod is left as it is until ";
    assert!(matches!(events[..], [event] if event.message.starts_with(message)), "{events:?}");
    let machine = lab.node.workers().machine(&PodUid::from("b")).unwrap();
    let waits = machine.waits(Now { boot: lab.now, wall: wall(lab.now) });
    assert_eq!((waits[0].reason.as_str(), waits[0].until), ("Quarantined", Some(wall(lab.now + TEN_MINUTES))));
}

#[test]
fn one_death_quarantines_nothing() {
    let mut lab = after_deaths(1, vec![]);
    lab.set(&[&pod("b", "b")]);
    assert!(has_calls(&lab, "b"));
    assert!(!condition(&lab));
}

#[test]
fn a_pod_with_a_record_is_quarantined_before_anything_is_done_for_it() {
    let mut lab = after_deaths(1, vec![]);
    lab.set(&[&pod("b", "b")]);
    let records = lab.records.values().cloned().collect();
    let mut lab = after_deaths(2, records);
    lab.set(&[&pod("b", "b")]);
    assert!(!has_calls(&lab, "b"), "{:?}", lab.calls);
    assert!(lab.observations.is_empty(), "nor is it observed");
}

#[test]
fn the_pod_is_tried_again_when_its_quarantine_ends() {
    let mut lab = after_deaths(2, vec![]);
    lab.set(&[&pod("b", "b")]);
    lab.now += TEN_MINUTES - Duration::from_secs(1);
    lab.handle(Event::Wake);
    assert!(!has_calls(&lab, "b"));
    lab.now += Duration::from_secs(1);
    lab.handle(Event::Wake);
    assert!(has_calls(&lab, "b"), "nothing but the time has changed");
    assert!(!condition(&lab));
}

#[test]
fn a_new_spec_ends_the_quarantine_and_a_label_does_not() {
    let mut lab = after_deaths(2, vec![]);
    lab.set(&[&pod("b", "b")]);
    let mut changed = pod("b", "b");
    Arc::make_mut(&mut changed.pod).metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    lab.set(&[&changed]);
    assert!(!has_calls(&lab, "b"));
    Arc::make_mut(&mut changed.pod).spec.as_mut().unwrap().containers[0].image = Some("other".into());
    lab.set(&[&changed]);
    assert!(has_calls(&lab, "b"));
    assert!(!condition(&lab));
}

#[test]
fn a_new_instance_with_another_spec_under_the_same_uid_is_not_quarantined() {
    let mut lab = after_deaths(2, vec![]);
    lab.set(&[&pod("b", "b")]);
    assert!(!has_calls(&lab, "b"));
    lab.set(&[]);
    while !(lab.observations.is_empty() && lab.calls.is_empty()) {
        match lab.observations.is_empty() {
            true => lab.ok(|_| true),
            false => lab.observe(&PodSeen::default()),
        };
    }
    assert_eq!(lab.state("b"), None, "it has ended");
    let mut changed = pod("b", "b");
    Arc::make_mut(&mut changed.pod).spec.as_mut().unwrap().containers[0].image = Some("other".into());
    lab.set(&[&changed]);
    assert!(has_calls(&lab, "b"), "{:?}", lab.state("b"));
    assert!(!condition(&lab));
}

#[test]
fn a_quarantined_pod_that_is_removed_ends() {
    let mut lab = after_deaths(2, vec![]);
    lab.set(&[&pod("b", "b")]);
    lab.set(&[]);
    assert!(lab.state("b").is_none_or(|state| state >= State::Terminating), "{:?}", lab.state("b"));
    assert!(!lab.node.workers().get(&PodUid::from("b")).is_some_and(|pod| pod.is_quarantined()));
}

#[test]
fn the_first_status_of_a_quarantined_pod_continues_that_of_its_object() {
    let mut lab = after_deaths(2, vec![]);
    let mut manifest = pod("b", "b");
    let scheduled = PodCondition { type_: "PodScheduled".into(), status: "True".into(), ..PodCondition::default() };
    let status = PodStatus { conditions: Some(vec![scheduled.clone()]), ..PodStatus::default() };
    Arc::make_mut(&mut manifest.pod).status = Some(status);
    lab.set(&[&manifest]);
    let status = lab.records[&PodUid::from("b")].status.clone().unwrap();
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert!(status.conditions.as_ref().unwrap().contains(&scheduled), "{status:?}");
    assert!(is_quarantined(&status));
}

/// The records of a pod `b` that terminates because its manifest was removed.
fn terminating() -> Vec<PodRecord> {
    let mut lab = starting_of(&pod("b", "b"), &seen(Some(RunState::Running)));
    lab.set(&[]);
    assert_eq!(lab.state("b"), Some(State::Terminating));
    lab.records.values().cloned().collect()
}

#[test]
fn a_terminating_pod_in_which_the_agent_died_is_left_alone_also_when_its_source_no_longer_has_it() {
    let mut lab = Lab::bare(terminating());
    lab.handle(Event::Suspects { suspects: vec![suspect(&lab, 2)] });
    lab.bring_up(listing("b", "b"));
    lab.set(&[]);
    lab.handle(Event::Wake);
    assert_eq!(lab.state("b"), Some(State::Terminating));
    assert!(!has_calls(&lab, "b"), "{:?}", lab.calls);
    assert!(lab.observations.is_empty(), "nor is it observed");
    lab.now += TEN_MINUTES;
    lab.handle(Event::Wake);
    assert!(!lab.observations.is_empty(), "it is tried again");
}

#[test]
fn an_orphan_in_which_the_agent_died_is_left_alone() {
    let mut lab = Lab::bare(vec![]);
    lab.handle(Event::Suspects { suspects: vec![suspect(&lab, 2)] });
    lab.set(&[]);
    lab.bring_up(listing("b", "b"));
    assert_eq!(lab.state("b"), Some(State::Terminating));
    assert!(!has_calls(&lab, "b") && lab.observations.is_empty(), "{:?} {:?}", lab.calls, lab.observations);
    assert!(lab.node.workers().get(&PodUid::from("b")).unwrap().is_quarantined());
    lab.now += TEN_MINUTES;
    lab.handle(Event::Wake);
    assert!(!lab.observations.is_empty(), "it is tried again");
}

#[test]
fn the_pod_that_is_being_handled_is_reported() {
    let mut lab = Lab::new(Listing::default());
    let handled = Arc::new(Mutex::new(Vec::new()));
    let reported = Arc::clone(&handled);
    let report = move |uid: Option<&PodUid>| reported.lock().unwrap().push(uid.map(ToString::to_string));
    lab.node.observe_current(Arc::new(report));
    lab.set(&[&pod("a", "a"), &pod("b", "b")]);
    let handled = handled.lock().unwrap();
    for uid in ["a", "b"] {
        assert!(handled.contains(&Some(uid.to_owned())), "{handled:?}");
    }
    assert_eq!(handled.last(), Some(&None), "after the event none is");
}
