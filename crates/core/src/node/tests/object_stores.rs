//! Pods of an API server, and mirrors of static ones: from the watch to the last ask.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::lab::{Lab, pod, running, seen};
use crate::NodeConfig;
use crate::model::*;
use crate::pod::State;

fn config() -> NodeConfig {
    NodeConfig { sources: BTreeSet::from([Source::File, Source::Api]), ..NodeConfig::default() }
}

fn api_lab(config: NodeConfig) -> Lab {
    let mut lab = Lab::with(config, vec![]);
    lab.bring_up(Listing::default());
    lab.tell(api(SourceChange::Set { pods: vec![], broken: vec![] }));
    lab.set(&[]);
    lab
}

fn api(change: SourceChange) -> Event {
    Event::Source { source: Source::Api, change }
}

/// A pod as the API server has it, with these changes.
fn object(version: u64, change: impl FnOnce(&mut Value)) -> Manifest {
    let mut value = serde_json::to_value(&*pod("a", "1").pod).unwrap();
    value["spec"]["nodeName"] = json!("node");
    value["metadata"]["resourceVersion"] = json!(version.to_string());
    value["metadata"]["generation"] = json!(1);
    value["status"] = json!({"phase": "Pending"});
    change(&mut value);
    Manifest { pod: Arc::new(serde_json::from_value(value).unwrap()), origin: "api".into() }
}

fn deleted(value: &mut Value) {
    value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    value["metadata"]["deletionGracePeriodSeconds"] = json!(5);
}

fn put(lab: &mut Lab, manifest: Manifest) -> Vec<Call> {
    lab.tell(api(SourceChange::Put(manifest)))
}

/// The store does what it was asked first, and has this object then.
fn take(lab: &mut Lab, version: u64, change: impl FnOnce(&mut Value)) -> ObjectRequest {
    let (id, ask) = lab.asks.remove(0);
    let kept = match &ask {
        ObjectRequest::PatchStatus { status, .. } => {
            let mut pod = Pod::clone(&object(version, change).pod);
            pod.status = Some(PodStatus::clone(status));
            Some(Arc::new(pod))
        }
        _ => None,
    };
    lab.tell(Event::ObjectAnswered { id, result: Ok(kept) });
    ask
}

fn condition(status: &PodStatus, type_: &str) -> Option<(String, Option<String>)> {
    let found = status.conditions.iter().flatten().find(|c| c.type_ == type_)?;
    Some((found.status.clone(), found.reason.clone()))
}

fn patched(ask: &ObjectRequest) -> &PodStatus {
    match ask {
        ObjectRequest::PatchStatus { status, .. } => status,
        other => panic!("a patch was expected: {other:?}"),
    }
}

/// The clean-up of a pod that never ran.
fn clean_up(lab: &mut Lab) {
    lab.ok(|c| *c == Call::Host(HostCall::RemoveVolumes));
    lab.ok(|c| *c == Call::Host(HostCall::RemoveCgroup));
}

#[test]
fn a_pod_that_comes_deleted_never_begins_and_its_object_goes_when_its_end_is_known() {
    let mut lab = api_lab(config());
    let calls = put(&mut lab, object(7, deleted));
    assert_eq!(calls, [Call::Host(HostCall::RemoveVolumes), Call::Host(HostCall::RemoveCgroup)], "nothing is begun");
    let first = take(&mut lab, 8, deleted);
    assert_eq!(patched(&first).phase.as_deref(), Some("Failed"), "nothing runs, nothing will");
    assert!(lab.asks.is_empty(), "it is not finished: {:?}", lab.asks);
    clean_up(&mut lab);
    let last = take(&mut lab, 9, deleted);
    assert!(matches!(&last, ObjectRequest::Delete { object } if object.uid.as_str() == "1"), "{last:?}");
    lab.tell(api(SourceChange::Remove("1".into())));
    lab.ok(|c| *c == Call::Host(HostCall::RemoveDirs));
    lab.ok(|c| *c == Call::Host(HostCall::RemoveLogs));
    assert_eq!(lab.state("1"), None);
}

#[test]
fn a_pod_that_had_ended_before_we_knew_it_keeps_what_its_object_says() {
    let mut lab = api_lab(config());
    let ended = |value: &mut Value| {
        value["status"] = json!({"phase": "Succeeded", "containerStatuses": [{"name": "c", "image": "img", "imageID": "",
            "ready": false, "restartCount": 3, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]});
    };
    put(&mut lab, object(7, ended));
    clean_up(&mut lab);
    let status = lab.records[&PodUid::from("1")].status.clone().unwrap();
    let container = &status.container_statuses.as_ref().unwrap()[0];
    assert_eq!((status.phase.as_deref(), container.restart_count), (Some("Succeeded"), 3));
    assert!(container.state.as_ref().is_some_and(|s| s.terminated.is_some()));
}

#[test]
fn a_pod_of_another_node_is_ignored_and_told() {
    let mut lab = api_lab(config());
    put(&mut lab, object(7, |value| value["spec"]["nodeName"] = json!("elsewhere")));
    assert_eq!(lab.state("1"), None);
    assert!(lab.events.iter().any(|e| e.message.contains("elsewhere")), "{:?}", lab.events);
}

#[test]
fn a_pod_without_room_fails_and_goes_once_it_is_deleted() {
    let mut lab = api_lab(NodeConfig { max_pods: 0, ..config() });
    put(&mut lab, object(7, |_| {}));
    clean_up(&mut lab);
    let ask = take(&mut lab, 8, |_| {});
    assert_eq!((patched(&ask).phase.as_deref(), patched(&ask).reason.as_deref()), (Some("Failed"), Some("OutOfpods")));
    assert!(patched(&ask).message.as_ref().is_some_and(|m| m.starts_with("Pod was rejected: ")));
    assert_eq!(patched(&ask).container_statuses, None, "none was ever meant to be");
    assert!(lab.asks.is_empty(), "nobody deleted it: {:?}", lab.asks);
    let status = patched(&ask).clone();
    put(
        &mut lab,
        object(9, |value| {
            deleted(value);
            value["status"] = serde_json::to_value(&status).unwrap();
        }),
    );
    assert!(matches!(lab.asks[0].1, ObjectRequest::Delete { .. }), "{:?}", lab.asks);
}

#[test]
fn labels_count_that_others_gave_the_node() {
    let mut lab = api_lab(config());
    let labels = |key: &str| Some([(key.to_owned(), "1".to_owned())].into());
    let picky = object(7, |value| value["spec"]["nodeSelector"] = json!({"disk": "1"}));
    put(&mut lab, picky.clone());
    assert!(lab.calls.is_empty() && lab.events.is_empty(), "the label may be on its way: {:?}", lab.events);
    let uid = Some("n".to_owned());
    lab.tell(Event::NodeKnown { uid: uid.clone(), labels: labels("other") });
    assert!(lab.calls.is_empty(), "{:?}", lab.calls);
    lab.tell(Event::NodeKnown { uid: uid.clone(), labels: labels("disk") });
    assert!(
        lab.calls.iter().any(|(_, _, call)| *call == Call::Host(HostCall::MakeDirs)),
        "it may begin: {:?}",
        lab.calls
    );

    let mut lab = api_lab(config());
    put(&mut lab, picky);
    lab.now += Duration::from_secs(10);
    lab.tell(Event::Wake);
    assert_eq!(lab.events.iter().map(|e| e.reason).collect::<Vec<_>>(), ["NodeAffinity"]);
    clean_up(&mut lab);
    assert_eq!(patched(&take(&mut lab, 8, |_| {})).phase.as_deref(), Some("Pending"));
    let last = patched(&take(&mut lab, 9, |_| {})).clone();
    assert_eq!((last.phase.as_deref(), last.reason.as_deref()), (Some("Failed"), Some("NodeAffinity")));
}

/// A lab that was restarted under a pod of the API server, which runs.
fn restarted(change: impl FnOnce(&mut Value)) -> Lab {
    let mut record = running().records[&PodUid::from("1")].clone();
    record.source = Source::Api;
    record.pod = object(7, change).pod;
    let mut lab = Lab::with(config(), vec![record]);
    lab.bring_up(super::lab::listing("1", "a"));
    lab.see(&seen(Some(RunState::Running)));
    lab
}

#[test]
fn after_a_restart_nothing_is_begun_before_the_api_server_was_heard() {
    let mut lab = restarted(|_| {});
    lab.tell(Event::Hint { uid: "1".into() });
    let calls = lab.see(&seen(Some(RunState::Exited)));
    assert_eq!(calls, [], "its exit is seen, and that is all");
    let record = &lab.records[&PodUid::from("1")];
    assert!(record.containers["c"].exit.is_some(), "and written down");
    lab.now += Duration::from_secs(60);
    assert_eq!(lab.tell(Event::Wake), []);
    assert!(lab.asks.is_empty(), "nobody knows what its object is");
    let calls = lab.tell(api(SourceChange::Set { pods: vec![object(7, |_| {})], broken: vec![] }));
    assert!(calls.contains(&Call::Host(HostCall::MakeCgroup)), "now it goes on: {calls:?}");
    assert_eq!(patched(&lab.asks[0].1).container_statuses.as_ref().map(Vec::len), Some(1));
}

#[test]
fn after_a_restart_pods_of_the_local_api_wait_for_nobody() {
    let mut record = running().records[&PodUid::from("1")].clone();
    record.source = Source::Local;
    let mut lab = Lab::with(config(), vec![record]);
    lab.bring_up(super::lab::listing("1", "a"));
    let calls = lab.see(&seen(Some(RunState::Running)));
    assert!(calls.contains(&Call::Host(HostCall::MakeCgroup)), "{calls:?}");
    assert!(lab.asks.is_empty(), "nobody knows what its object is");
    let local = Manifest { origin: "local".into(), ..object(3, |_| {}) };
    lab.tell(Event::Source { source: Source::Local, change: SourceChange::Put(local) });
    assert!(
        matches!(lab.asks[0].1, ObjectRequest::PatchStatus { .. }),
        "its own store keeps its status: {:?}",
        lab.asks
    );
}

#[test]
fn after_a_restart_a_kill_goes_on_without_the_api_server() {
    let mut lab = restarted(|_| {});
    let calls = lab.tell(Event::Kill { uid: "1".into(), grace: None, evicted: None, waiter: None });
    assert!(matches!(calls.as_slice(), [Call::Runtime(RuntimeCall::StopContainer { .. })]), "{calls:?}");
}

/// A lab with a running pod of the API server, whose object has its status.
fn running_object(change: impl Fn(&mut Value) + Copy) -> Lab {
    let mut lab = restarted(change);
    lab.tell(api(SourceChange::Set { pods: vec![object(7, change)], broken: vec![] }));
    take(&mut lab, 8, change);
    lab.ok(|c| *c == Call::Host(HostCall::MakeCgroup));
    lab.ok(|c| *c == Call::Host(HostCall::MakeDirs));
    lab
}

#[test]
fn a_resize_is_answered_and_changes_nothing() {
    let cpu = |cpu: &'static str| {
        move |value: &mut Value| value["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}})
    };
    let mut lab = running_object(cpu("1"));
    put(
        &mut lab,
        object(9, |value| {
            cpu("2")(value);
            value["metadata"]["generation"] = json!(2);
        }),
    );
    let told: Vec<_> = lab.events.iter().filter(|e| e.reason == "ResizeInfeasible").collect();
    assert!(matches!(told[..], [event] if event.warning && event.message.contains(r#""generation":2"#)), "{told:?}");
    let status = take(&mut lab, 10, cpu("2"));
    let status = patched(&status);
    assert_eq!(condition(status, "PodResizePending"), Some(("True".into(), Some("Infeasible".into()))));
    assert_eq!(status.allocated_resources.as_ref().map(|r| r["cpu"].0.as_str()), Some("1"));
    assert_eq!(status.observed_generation, Some(2));
    assert!(status.conditions.iter().flatten().all(|c| c.observed_generation == Some(2)));
    put(&mut lab, object(11, cpu("1")));
    let status = take(&mut lab, 12, cpu("1"));
    assert_eq!(condition(patched(&status), "PodResizePending"), None, "it was taken back");
}

#[test]
fn a_readiness_gate_is_what_its_condition_in_the_object_says() {
    let gated = |value: &mut Value| value["spec"]["readinessGates"] = json!([{"conditionType": "gate"}]);
    let mut lab = running_object(gated);
    let status = lab.records[&PodUid::from("1")].status.clone().unwrap();
    assert_eq!(condition(&status, "Ready"), Some(("False".into(), Some("ReadinessGatesNotReady".into()))));
    put(
        &mut lab,
        object(9, |value| {
            gated(value);
            value["status"] = serde_json::to_value(&status).unwrap();
            value["status"]["conditions"].as_array_mut().unwrap().push(json!({"type": "gate", "status": "True"}));
        }),
    );
    let (_, ask) = lab.asks.remove(0);
    assert_eq!(condition(patched(&ask), "Ready"), Some(("True".into(), None)));
    assert_eq!(condition(patched(&ask), "gate"), Some(("True".into(), None)), "it is kept");
    assert!(matches!(ask, ObjectRequest::PatchStatus { urgent: true, .. }));
}

#[test]
fn our_own_status_coming_back_writes_nothing() {
    let mut lab = running_object(|_| {});
    let status = lab.records[&PodUid::from("1")].status.clone().unwrap();
    lab.records.clear();
    put(&mut lab, object(9, |value| value["status"] = serde_json::to_value(&status).unwrap()));
    assert!(lab.records.is_empty() && lab.asks.is_empty());
}

#[test]
fn an_ephemeral_container_that_is_added_starts_in_the_running_pod() {
    let mut lab = running_object(|_| {});
    let calls = put(
        &mut lab,
        object(9, |value| {
            value["spec"]["ephemeralContainers"] =
                json!([{"name": "debug", "image": "tools", "imagePullPolicy": "IfNotPresent"}]);
        }),
    );
    let debug =
        |c: &Call| matches!(c, Call::Runtime(RuntimeCall::ImageStatus { name, .. }) if name.as_str() == "debug");
    assert!(calls.iter().any(debug), "{calls:?}");
    assert!(!calls.iter().any(Call::changes_runtime), "what runs stays: {calls:?}");
}

#[test]
fn a_static_pod_gets_a_mirror_which_says_how_it_is_and_never_touches_it() {
    let mut lab = Lab::with(config(), vec![]);
    lab.bring_up(Listing::default());
    lab.set(&[&pod("a", "1")]);
    assert!(lab.asks.is_empty(), "one may be there: the API server has not been heard");
    lab.tell(api(SourceChange::Set { pods: vec![], broken: vec![] }));
    assert!(lab.asks.is_empty(), "nobody could own it yet");
    lab.tell(Event::NodeKnown { uid: Some("n".into()), labels: None });
    let (id, ask) = lab.asks.remove(0);
    let ObjectRequest::CreateMirror { pod: wanted } = ask else { panic!("{ask:?}") };
    let mirror = |uid: &str, version: u64, deleting: bool| {
        let mut pod = Pod::clone(&wanted);
        pod.metadata.uid = Some(uid.into());
        pod.metadata.resource_version = Some(version.to_string());
        pod.metadata.deletion_timestamp =
            deleting.then(|| serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        Manifest { pod: Arc::new(pod), origin: "api".into() }
    };
    lab.tell(Event::ObjectAnswered { id, result: Ok(Some(mirror("m1", 5, false).pod)) });
    let (_, ask) = lab.asks.remove(0);
    assert!(matches!(&ask, ObjectRequest::PatchStatus { object, .. } if object.uid.as_str() == "m1"), "{ask:?}");
    assert_eq!(lab.node.translate(&"m1".into()), Some("1".into()));
    assert_eq!(lab.state("m1"), None, "a mirror has no worker");

    put(&mut lab, mirror("m1", 6, true));
    let (id, ask) = lab.asks.remove(0);
    assert!(matches!(&ask, ObjectRequest::DeleteMirror { object } if object.uid.as_str() == "m1"), "{ask:?}");
    assert_eq!(lab.state("1"), Some(State::Syncing), "its pod goes on");
    lab.tell(Event::ObjectAnswered { id, result: Ok(None) });
    let (id, ask) = lab.asks.remove(0);
    assert!(matches!(ask, ObjectRequest::CreateMirror { .. }), "{ask:?}");
    lab.tell(Event::ObjectAnswered { id, result: Ok(Some(mirror("m2", 9, false).pod)) });
    let (_, ask) = lab.asks.remove(0);
    assert!(
        matches!(&ask, ObjectRequest::PatchStatus { object, .. } if object.uid.as_str() == "m2"),
        "all of it again: {ask:?}"
    );

    lab.set(&[]);
    assert_eq!(lab.state("1"), Some(State::Terminated));
    let removes = |lab: &Lab| lab.asks.iter().any(|(_, ask)| matches!(ask, ObjectRequest::DeleteMirror { .. }));
    assert!(!removes(&lab), "not while its pod ends");
    lab.answer(|c| *c == Call::Host(HostCall::MakeCgroup), Err(CallError::Cancelled));
    lab.answer(|c| *c == Call::Host(HostCall::MakeDirs), Err(CallError::Cancelled));
    clean_up(&mut lab);
    lab.tell(Event::Wake);
    assert!(removes(&lab), "its pod is gone: {:?}", lab.asks);
}

#[test]
fn after_history_was_set_back_edits_deletions_and_removals_are_heard() {
    let mut lab = running_object(|_| {});
    lab.tell(api(SourceChange::Set { pods: vec![object(3, deleted)], broken: vec![] }));
    assert_eq!(lab.state("1"), Some(State::Syncing), "a list from the past");
    lab.tell(api(SourceChange::HistoryReset));
    lab.tell(api(SourceChange::Set { pods: vec![object(3, deleted)], broken: vec![] }));
    assert_eq!(lab.state("1"), Some(State::Terminating));
}
