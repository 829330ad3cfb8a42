//! Pods of an API server, and mirrors of static pods: from the watch to the last request.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::lab::{Lab, pod, running, seen};
use crate::NodeConfig;
use crate::model::*;
use crate::pod::State;
use crate::static_pod::{CONFIG_SEEN, CONFIG_SOURCE};

fn config() -> NodeConfig {
    NodeConfig { sources: BTreeSet::from([Source::File, Source::Api]), ..NodeConfig::default() }
}

fn api_lab(config: NodeConfig) -> Lab {
    let mut lab = Lab::with(config, vec![]);
    lab.bring_up(Listing::default());
    lab.handle(api(SourceChange::Set { pods: vec![], broken: vec![] }));
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
    lab.handle(api(SourceChange::Put(manifest)))
}

/// Answers the first request; the object then has this version and these changes.
fn take(lab: &mut Lab, version: u64, change: impl FnOnce(&mut Value)) -> ObjectRequest {
    let (id, request) = lab.requests.remove(0);
    let kept = match &request {
        ObjectRequest::PatchStatus { status, .. } => {
            let mut pod = Pod::clone(&object(version, change).pod);
            pod.status = Some(PodStatus::clone(status));
            Some(Arc::new(pod))
        }
        _ => None,
    };
    lab.handle(Event::ObjectAnswered { id, result: Ok(kept) });
    request
}

fn condition(status: &PodStatus, type_: &str) -> Option<(String, Option<String>)> {
    let found = status.conditions.iter().flatten().find(|c| c.type_ == type_)?;
    Some((found.status.clone(), found.reason.clone()))
}

fn patched(request: &ObjectRequest) -> &PodStatus {
    match request {
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
fn a_pod_that_arrives_deleted_never_starts_and_its_object_is_deleted_after_its_terminal_status() {
    let mut lab = api_lab(config());
    let calls = put(&mut lab, object(7, deleted));
    assert_eq!(calls, [Call::Host(HostCall::RemoveVolumes), Call::Host(HostCall::RemoveCgroup)], "nothing is started");
    let first = take(&mut lab, 8, deleted);
    assert_eq!(patched(&first).phase.as_deref(), Some("Failed"), "nothing runs and nothing will be started");
    assert!(lab.requests.is_empty(), "it is not finished: {:?}", lab.requests);
    clean_up(&mut lab);
    let last = take(&mut lab, 9, deleted);
    assert!(matches!(&last, ObjectRequest::Delete { object } if object.uid.as_str() == "1"), "{last:?}");
    lab.handle(api(SourceChange::Remove("1".into())));
    lab.ok(|c| *c == Call::Host(HostCall::RemoveDirs));
    lab.ok(|c| *c == Call::Host(HostCall::RemoveLogs));
    assert_eq!(lab.state("1"), None);
}

/// As a pod is sent whose spec can't be decoded.
fn deleted_without_spec(value: &mut Value) {
    deleted(value);
    value["spec"] = json!(null);
}

#[test]
fn a_deleted_pod_whose_spec_is_not_known_is_removed() {
    let mut lab = api_lab(config());
    put(&mut lab, object(7, deleted_without_spec));
    take(&mut lab, 8, deleted_without_spec);
    clean_up(&mut lab);
    assert!(matches!(take(&mut lab, 9, deleted), ObjectRequest::Delete { .. }));
}

#[test]
fn a_running_pod_whose_spec_can_not_be_decoded_any_more_is_terminated() {
    let mut lab = api_lab(config());
    put(&mut lab, object(7, |_| {}));
    assert_eq!(lab.state("1"), Some(State::Syncing));
    put(&mut lab, object(8, deleted_without_spec));
    assert_ne!(lab.state("1"), Some(State::Syncing));
    let record = &lab.records[&PodUid::from("1")];
    assert_eq!(record.pod.spec.as_ref().unwrap().containers.len(), 1, "its hooks and grace periods are known");
}

#[test]
fn a_pod_with_a_terminal_phase_in_its_first_object_keeps_its_status() {
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
fn a_pod_of_another_node_is_ignored_and_reported() {
    let mut lab = api_lab(config());
    put(&mut lab, object(7, |value| value["spec"]["nodeName"] = json!("elsewhere")));
    assert_eq!(lab.state("1"), None);
    assert!(lab.events.iter().any(|e| e.message.contains("elsewhere")), "{:?}", lab.events);
}

#[test]
fn a_pod_that_lacks_resources_fails_and_its_object_is_removed_once_it_is_deleted() {
    let mut lab = api_lab(NodeConfig { max_pods: 0, ..config() });
    put(&mut lab, object(7, |_| {}));
    clean_up(&mut lab);
    let request = take(&mut lab, 8, |_| {});
    assert_eq!(
        (patched(&request).phase.as_deref(), patched(&request).reason.as_deref()),
        (Some("Failed"), Some("OutOfpods"))
    );
    assert!(patched(&request).message.as_ref().is_some_and(|m| m.starts_with("Pod was rejected: ")));
    assert_eq!(patched(&request).container_statuses, None, "a rejected pod has none");
    assert!(lab.requests.is_empty(), "it has no deletionTimestamp: {:?}", lab.requests);
    let status = patched(&request).clone();
    put(
        &mut lab,
        object(9, |value| {
            deleted(value);
            value["status"] = serde_json::to_value(&status).unwrap();
        }),
    );
    assert!(matches!(lab.requests[0].1, ObjectRequest::Delete { .. }), "{:?}", lab.requests);
}

#[test]
fn labels_that_others_set_on_the_node_object_are_used() {
    let mut lab = api_lab(config());
    let labels = |key: &str| Some([(key.to_owned(), "1".to_owned())].into());
    let picky = object(7, |value| value["spec"]["nodeSelector"] = json!({"disk": "1"}));
    put(&mut lab, picky.clone());
    assert!(lab.calls.is_empty() && lab.events.is_empty(), "the label may still arrive: {:?}", lab.events);
    let uid = Some("n".to_owned());
    lab.handle(Event::NodeKnown { uid: uid.clone(), labels: labels("other") });
    assert!(lab.calls.is_empty(), "{:?}", lab.calls);
    lab.handle(Event::NodeKnown { uid: uid.clone(), labels: labels("disk") });
    assert!(lab.calls.iter().any(|(_, _, call)| *call == Call::Host(HostCall::MakeDirs)), "it starts: {:?}", lab.calls);

    let mut lab = api_lab(config());
    put(&mut lab, picky);
    lab.now += Duration::from_secs(10);
    lab.handle(Event::Wake);
    assert_eq!(lab.events.iter().map(|e| e.reason).collect::<Vec<_>>(), ["NodeAffinity"]);
    clean_up(&mut lab);
    assert_eq!(patched(&take(&mut lab, 8, |_| {})).phase.as_deref(), Some("Pending"));
    let last = patched(&take(&mut lab, 9, |_| {})).clone();
    assert_eq!((last.phase.as_deref(), last.reason.as_deref()), (Some("Failed"), Some("NodeAffinity")));
}

/// A lab whose agent was restarted while a pod of the API server runs.
fn restarted(change: impl FnOnce(&mut Value)) -> Lab {
    let mut record = running().records[&PodUid::from("1")].clone();
    record.source = Source::Api;
    record.pod = object(7, change).pod;
    let mut lab = Lab::with(config(), vec![record]);
    lab.bring_up(super::lab::listing("1", "a"));
    lab.observe(&seen(Some(RunState::Running)));
    lab
}

#[test]
fn after_a_restart_nothing_is_started_before_the_api_source_is_synced() {
    let mut lab = restarted(|_| {});
    lab.handle(Event::Hint { uid: "1".into() });
    let calls = lab.observe(&seen(Some(RunState::Exited)));
    assert_eq!(calls, [], "its exit is observed, and nothing is started");
    let record = &lab.records[&PodUid::from("1")];
    assert!(record.containers["c"].exit.is_some(), "the exit is journaled");
    lab.now += Duration::from_secs(60);
    assert_eq!(lab.handle(Event::Wake), []);
    assert!(lab.requests.is_empty(), "its object is not known yet");
    let calls = lab.handle(api(SourceChange::Set { pods: vec![object(7, |_| {})], broken: vec![] }));
    assert!(calls.contains(&Call::Host(HostCall::MakeCgroup)), "the pod continues: {calls:?}");
    assert_eq!(patched(&lab.requests[0].1).container_statuses.as_ref().map(Vec::len), Some(1));
}

#[test]
fn after_a_restart_pods_of_the_local_api_do_not_wait_for_their_source() {
    let mut record = running().records[&PodUid::from("1")].clone();
    record.source = Source::Local;
    let mut lab = Lab::with(config(), vec![record]);
    lab.bring_up(super::lab::listing("1", "a"));
    let calls = lab.observe(&seen(Some(RunState::Running)));
    assert!(calls.contains(&Call::Host(HostCall::MakeCgroup)), "{calls:?}");
    assert!(lab.requests.is_empty(), "its object is not known yet");
    let local = Manifest { origin: "local".into(), ..object(3, |_| {}) };
    lab.handle(Event::Source { source: Source::Local, change: SourceChange::Put(local) });
    assert!(
        matches!(lab.requests[0].1, ObjectRequest::PatchStatus { .. }),
        "its own store keeps its status: {:?}",
        lab.requests
    );
}

#[test]
fn after_a_restart_a_kill_does_not_wait_for_the_api_server() {
    let mut lab = restarted(|_| {});
    let calls = lab.handle(Event::Kill { uid: "1".into(), grace: None, evicted: None });
    assert!(matches!(calls.as_slice(), [Call::Runtime(RuntimeCall::StopContainer { .. })]), "{calls:?}");
}

/// A lab with a running pod of the API server, whose object has its status.
fn running_object(change: impl Fn(&mut Value) + Copy) -> Lab {
    let mut lab = restarted(change);
    lab.handle(api(SourceChange::Set { pods: vec![object(7, change)], broken: vec![] }));
    take(&mut lab, 8, change);
    lab.ok(|c| *c == Call::Host(HostCall::MakeCgroup));
    lab.ok(|c| *c == Call::Host(HostCall::MakeDirs));
    lab
}

#[test]
fn a_resize_that_is_not_possible_is_reported_and_changes_nothing() {
    let cpu = |value: &mut Value| value["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
    let none = |value: &mut Value| value["metadata"]["generation"] = json!(2);
    let mut lab = running_object(cpu);
    put(&mut lab, object(9, none));
    let reported: Vec<_> = lab.events.iter().filter(|e| e.reason == "ResizeInfeasible").collect();
    assert!(
        matches!(reported[..], [event] if event.warning && event.message.contains(r#""generation":2"#)),
        "{reported:?}"
    );
    let status = take(&mut lab, 10, none);
    let status = patched(&status);
    assert_eq!(condition(status, "PodResizePending"), Some(("True".into(), Some("Infeasible".into()))));
    assert_eq!(status.allocated_resources.as_ref().map(|r| r["cpu"].0.as_str()), Some("1"));
    assert_eq!(status.observed_generation, Some(2));
    assert!(status.conditions.iter().flatten().all(|c| c.observed_generation == Some(2)));
    put(&mut lab, object(11, cpu));
    let status = take(&mut lab, 12, cpu);
    assert_eq!(condition(patched(&status), "PodResizePending"), None, "the resize was reverted");
}

#[test]
fn a_readiness_gate_follows_its_condition_in_the_object() {
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
    let (_, request) = lab.requests.remove(0);
    assert_eq!(condition(patched(&request), "Ready"), Some(("True".into(), None)));
    assert_eq!(condition(patched(&request), "gate"), Some(("True".into(), None)), "it is kept");
    assert!(matches!(request, ObjectRequest::PatchStatus { urgent: true, .. }));
}

#[test]
fn the_watch_event_of_our_own_status_writes_nothing() {
    let mut lab = running_object(|_| {});
    let status = lab.records[&PodUid::from("1")].status.clone().unwrap();
    lab.records.clear();
    put(&mut lab, object(9, |value| value["status"] = serde_json::to_value(&status).unwrap()));
    assert!(lab.records.is_empty() && lab.requests.is_empty());
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
fn a_static_pod_gets_a_mirror_that_shows_its_status_and_never_affects_it() {
    let mut lab = Lab::with(config(), vec![]);
    lab.bring_up(Listing::default());
    lab.set(&[&pod("a", "1")]);
    assert!(lab.requests.is_empty(), "one may exist: the API source is not synced");
    lab.handle(api(SourceChange::Set { pods: vec![], broken: vec![] }));
    assert!(lab.requests.is_empty(), "its owner, the Node object, is not known yet");
    lab.handle(Event::NodeKnown { uid: Some("n".into()), labels: None });
    let (id, request) = lab.requests.remove(0);
    let ObjectRequest::CreateMirror { pod: wanted } = request else { panic!("{request:?}") };
    let mirror = |uid: &str, version: u64, deleting: bool| {
        let mut pod = Pod::clone(&wanted);
        pod.metadata.uid = Some(uid.into());
        pod.metadata.resource_version = Some(version.to_string());
        pod.metadata.deletion_timestamp =
            deleting.then(|| serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        Manifest { pod: Arc::new(pod), origin: "api".into() }
    };
    lab.handle(Event::ObjectAnswered { id, result: Ok(Some(mirror("m1", 5, false).pod)) });
    let (_, request) = lab.requests.remove(0);
    assert!(
        matches!(&request, ObjectRequest::PatchStatus { object, .. } if object.uid.as_str() == "m1"),
        "{request:?}"
    );
    assert_eq!(lab.node.translate(&"m1".into()), Some("1".into()));
    assert_eq!(lab.state("m1"), None, "a mirror has no worker");

    put(&mut lab, mirror("m1", 6, true));
    let (id, request) = lab.requests.remove(0);
    assert!(matches!(&request, ObjectRequest::DeleteMirror { object } if object.uid.as_str() == "m1"), "{request:?}");
    assert_eq!(lab.state("1"), Some(State::Syncing), "its pod continues");
    lab.handle(Event::ObjectAnswered { id, result: Ok(None) });
    let (id, request) = lab.requests.remove(0);
    assert!(matches!(request, ObjectRequest::CreateMirror { .. }), "{request:?}");
    lab.handle(Event::ObjectAnswered { id, result: Ok(Some(mirror("m2", 9, false).pod)) });
    let (_, request) = lab.requests.remove(0);
    assert!(
        matches!(&request, ObjectRequest::PatchStatus { object, .. } if object.uid.as_str() == "m2"),
        "a full patch: {request:?}"
    );

    lab.set(&[]);
    assert_eq!(lab.state("1"), Some(State::Terminated));
    let removes =
        |lab: &Lab| lab.requests.iter().any(|(_, request)| matches!(request, ObjectRequest::DeleteMirror { .. }));
    assert!(!removes(&lab), "not while its pod terminates");
    lab.answer(|c| *c == Call::Host(HostCall::MakeCgroup), Err(CallError::Cancelled));
    lab.answer(|c| *c == Call::Host(HostCall::MakeDirs), Err(CallError::Cancelled));
    clean_up(&mut lab);
    lab.handle(Event::Wake);
    assert!(removes(&lab), "its pod is gone: {:?}", lab.requests);
}

#[test]
fn after_a_history_reset_edits_deletions_and_removals_are_applied() {
    let mut lab = running_object(|_| {});
    lab.handle(api(SourceChange::Set { pods: vec![object(3, deleted)], broken: vec![] }));
    assert_eq!(lab.state("1"), Some(State::Syncing), "a list with an older version");
    lab.handle(api(SourceChange::HistoryReset));
    lab.handle(api(SourceChange::Set { pods: vec![object(3, deleted)], broken: vec![] }));
    assert_eq!(lab.state("1"), Some(State::Terminating));
}

fn annotation<'a>(lab: &'a Lab, key: &str) -> Option<&'a str> {
    let pod = &lab.node.workers().get(&PodUid::from("1")).unwrap().record().pod;
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

#[test]
fn an_annotation_of_a_user_selects_neither_the_source_nor_the_time_of_a_pod() {
    let claims = |value: &mut Value| {
        value["metadata"]["annotations"] =
            json!({CONFIG_SOURCE: "file", CONFIG_SEEN: "2001-01-01T00:00:00Z", "a": "b"});
    };
    let mut lab = api_lab(config());
    let first_seen = super::lab::wall(lab.now).to_string();
    put(&mut lab, object(1, claims));
    lab.now += Duration::from_secs(60);
    // An object with other labels, whose user still claims another source.
    put(
        &mut lab,
        object(2, |value| {
            claims(value);
            value["metadata"]["labels"] = json!({"x": "y"});
        }),
    );
    assert_eq!(annotation(&lab, CONFIG_SOURCE), Some("api"));
    assert_eq!(annotation(&lab, CONFIG_SEEN), Some(first_seen.as_str()));
    assert_eq!(annotation(&lab, "a"), Some("b"));
    // The record of the former agent has the time at which the pod was first seen.
    let records: Vec<_> = lab.records.values().cloned().collect();
    let mut lab = Lab::with(config(), records);
    lab.now += Duration::from_secs(600);
    lab.bring_up(super::lab::listing("1", "a"));
    lab.handle(api(SourceChange::Set { pods: vec![object(3, claims)], broken: vec![] }));
    assert_eq!(annotation(&lab, CONFIG_SOURCE), Some("api"));
    assert_eq!(annotation(&lab, CONFIG_SEEN), Some(first_seen.as_str()));
}
