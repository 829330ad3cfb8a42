//! A critical pod on a node without resources for it.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;

use super::lab::{Lab, pod, sandbox, seen, wall};
use crate::NodeConfig;
use crate::model::*;
use crate::pod::{Quarantine, State};

/// A node for one pod, with an API pod of UID 1 whose sandbox runs.
fn full_node() -> Lab {
    let sources = BTreeSet::from([Source::File, Source::Api]);
    let mut lab = Lab::with(NodeConfig { sources, max_pods: 1, ..NodeConfig::default() }, vec![]);
    lab.bring_up(Listing::default());
    lab.handle(api(SourceChange::Set { pods: vec![], broken: vec![] }));
    lab.set(&[]);
    put(&mut lab, "a", "1", None);
    assert_eq!(lab.state("1"), Some(State::Syncing));
    lab.host_is_ready();
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::RunSandbox { .. })), Ok(Answer::Sandbox("sb".into())));
    lab.observe(&seen(None));
    lab
}

fn api(change: SourceChange) -> Event {
    Event::Source { source: Source::Api, change }
}

fn put(lab: &mut Lab, name: &str, uid: &str, priority: Option<i32>) {
    let mut value = serde_json::to_value(&*pod(name, uid).pod).unwrap();
    value["metadata"]["resourceVersion"] = json!("7");
    value["spec"]["nodeName"] = json!("node");
    value["spec"]["priority"] = json!(priority);
    value["status"] = json!({"phase": "Pending"});
    let manifest = Manifest { pod: Arc::new(serde_json::from_value(value).unwrap()), origin: "api".into() };
    lab.handle(api(SourceChange::Put(manifest)));
}

/// Answers the calls for a pod, whose sandbox stops, until it has ended.
fn let_end(lab: &mut Lab, uid: &str) {
    for _ in 0..10 {
        while let Some(at) = lab.calls.iter().position(|(_, of, _)| of.as_str() == uid) {
            let (id, ..) = lab.calls.remove(at);
            lab.handle(Event::Done { id, result: Ok(Answer::Done) });
        }
        let stopped = PodSeen { sandboxes: vec![sandbox(false)], containers: vec![] };
        while !lab.observations.is_empty() {
            match lab.observations[0].0.as_str() == uid {
                true => drop(lab.observe(&stopped)),
                false => drop(lab.observations.remove(0)),
            }
        }
    }
    assert!(lab.state(uid).is_none_or(|state| state >= State::Terminated), "{:?}", lab.state(uid));
}

fn preemptions(lab: &Lab) -> Vec<&str> {
    let events = lab.events.iter().filter(|event| event.reason == "Preempting");
    events.filter_map(|event| event.uid.as_ref().map(PodUid::as_str)).collect()
}

#[test]
fn a_static_pod_takes_the_place_of_an_api_pod_once_that_has_ended() {
    let mut lab = full_node();
    lab.set(&[&pod("b", "2")]);
    assert_eq!(preemptions(&lab), ["1"]);
    assert_eq!((lab.state("1"), lab.state("2")), (Some(State::Terminating), Some(State::Waiting)));
    lab.set(&[&pod("b", "2"), &pod("c", "3")]);
    assert_eq!(preemptions(&lab), ["1"], "what ends already counts as free");
    let_end(&mut lab, "1");
    let status = lab.records[&PodUid::from("1")].status.clone().unwrap();
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("Preempting")));
    assert_eq!(status.message.as_deref(), Some("Preempted in order to admit critical pod"));
    let condition = status.conditions.iter().flatten().find(|c| c.type_ == "DisruptionTarget").unwrap();
    assert_eq!(condition.reason.as_deref(), Some("TerminationByKubelet"));
    let message = "Pod was preempted by Kubelet to accommodate a critical pod.";
    assert_eq!(condition.message.as_deref(), Some(message));
    assert_eq!((lab.state("2"), lab.state("3")), (Some(State::Syncing), Some(State::Waiting)));
    assert_eq!(preemptions(&lab), ["1"], "a static pod is not preempted");
}

#[test]
fn an_api_pod_preempts_only_if_it_is_critical_and_enough_can_end() {
    let mut lab = full_node();
    put(&mut lab, "b", "2", Some(1000));
    assert_eq!((preemptions(&lab), lab.state("1")), (vec![], Some(State::Syncing)), "a high priority is not enough");
    put(&mut lab, "c", "3", Some(2_000_000_000));
    assert_eq!((preemptions(&lab), lab.state("3")), (vec!["1"], Some(State::Waiting)));
    let_end(&mut lab, "1");
    assert_eq!(lab.state("3"), Some(State::Syncing));
    put(&mut lab, "d", "4", Some(2_000_000_000));
    assert_eq!(preemptions(&lab), ["1"]);
    let rejected = lab.events.iter().find(|event| event.reason == "UnexpectedAdmissionError").expect("it is rejected");
    let text = "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of \
                pods to preempt: no set of running pods found to reclaim resources: [(res: pods, q: 1), ]";
    assert_eq!(rejected.message, text);
}

#[test]
fn a_critical_pod_that_does_not_belong_here_preempts_nothing() {
    let mut lab = full_node();
    let mut other = pod("b", "2");
    let mut value = serde_json::to_value(&*other.pod).unwrap();
    value["spec"]["nodeSelector"] = json!({"disk": "ssd"});
    other.pod = Arc::new(serde_json::from_value(value).unwrap());
    lab.set(&[&other]);
    assert_eq!((preemptions(&lab), lab.state("1")), (vec![], Some(State::Syncing)));
}

#[test]
fn a_pod_in_quarantine_after_an_internal_error_is_not_waited_for() {
    let mut lab = full_node();
    lab.node.pods.config.max_pods = 2;
    put(&mut lab, "b", "2", None);
    let broken = Quarantine { why: "a panic".into(), until: None, is_hold: false };
    let now = Now { boot: lab.now, wall: wall(lab.now) };
    lab.node.pods.quarantine(&"2".into(), broken, now, &mut Out::default());
    lab.set(&[&pod("c", "3")]);
    assert_eq!(preemptions(&lab), ["1"], "the other one would be first");
}
