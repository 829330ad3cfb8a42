//! Order of admission, pods of disabled sources, and manifests that changed while no agent ran.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::lab::*;
use crate::NodeConfig;
use crate::model::*;
use crate::pod::{PodFacts, State};

fn node_with_max_pods(max_pods: u32) -> Lab {
    let mut lab = Lab::with(NodeConfig { max_pods: max_pods as _, ..NodeConfig::default() }, vec![]);
    lab.bring_up(Listing::default());
    lab
}

fn admitted(lab: &Lab) -> Vec<&str> {
    let active = |m: &PodFacts| m.record().was_admitted() && m.state() == State::Syncing;
    lab.node.workers().iter().filter(|(_, m)| active(m)).map(|(uid, _)| uid.as_str()).collect()
}

/// A pod of an API server, created at this second.
fn created_at(name: &str, uid: &str, second: i64) -> Manifest {
    let mut manifest = pod(name, uid);
    let pod = Arc::make_mut(&mut manifest.pod);
    pod.spec.as_mut().unwrap().node_name = Some("node".into());
    pod.metadata.creation_timestamp =
        Some(serde_json::from_value(format!("2026-01-01T00:00:{second:02}Z").into()).unwrap());
    manifest
}

fn file(pods: &[&Manifest]) -> Event {
    let pods = pods.iter().map(|m| (*m).clone()).collect();
    Event::Source { source: Source::File, change: SourceChange::Set { pods, broken: vec![] } }
}

#[test]
fn static_pods_are_admitted_in_the_order_of_their_files() {
    let mut lab = node_with_max_pods(2);
    lab.set(&[&pod("a", "9"), &pod("b", "5"), &pod("c", "1")]);
    assert_eq!(admitted(&lab), ["5", "9"], "a.yaml and b.yaml");
}

#[test]
fn pods_of_an_api_server_are_admitted_in_the_order_of_their_age() {
    let mut lab = node_with_max_pods(1);
    let change =
        SourceChange::Set { pods: vec![created_at("new", "1", 30), created_at("old", "2", 10)], broken: vec![] };
    lab.handle(Event::Source { source: Source::Api, change });
    assert_eq!(admitted(&lab), ["2"], "{:?}", lab.events);
    assert_eq!(lab.state("1"), Some(State::Terminated), "a rejected pod is terminated");
}

#[test]
fn a_submitted_pod_that_is_rejected_is_admitted_when_there_is_capacity() {
    let mut lab = node_with_max_pods(1);
    let put =
        |manifest: &Manifest| Event::Source { source: Source::Local, change: SourceChange::Put(manifest.clone()) };
    lab.handle(Event::Source { source: Source::Local, change: SourceChange::Set { pods: vec![], broken: vec![] } });
    lab.handle(put(&created_at("first", "1", 10)));
    lab.handle(put(&created_at("second", "2", 20)));
    assert_eq!((admitted(&lab), lab.state("2")), (vec!["1"], Some(State::Waiting)), "{:?}", lab.events);
    lab.handle(Event::Source { source: Source::Local, change: SourceChange::Remove("1".into()) });
    assert_eq!(admitted(&lab), ["2"]);
}

#[test]
fn a_running_pod_is_admitted_before_an_older_one_that_does_not_run() {
    let mut lab = Lab::with(NodeConfig { max_pods: 1, ..NodeConfig::default() }, vec![]);
    lab.bring_up(listing("9", "runs"));
    lab.set(&[&pod("a", "1"), &pod("runs", "9")]);
    assert_eq!(admitted(&lab), ["9"]);
}

#[test]
fn freed_resources_go_to_the_first_waiting_pod() {
    let mut lab = node_with_max_pods(1);
    let (first, second, third) = (pod("a", "9"), pod("b", "8"), pod("c", "1"));
    lab.set(&[&first, &second, &third]);
    assert_eq!(admitted(&lab), ["9"]);
    lab.set(&[&second, &third]);
    assert_eq!(admitted(&lab), ["8"]);
}

#[test]
fn pods_of_a_disabled_source_are_terminated_once_the_others_are_synced() {
    let mut lab = running();
    let records: Vec<PodRecord> = lab.records.values().cloned().collect();
    let sources = BTreeSet::from([Source::Local]);
    lab = Lab::with(NodeConfig { sources, ..NodeConfig::default() }, records);
    lab.bring_up(listing("1", "a"));
    assert_eq!(lab.state("1"), Some(State::Syncing), "another source may have it");
    lab.handle(Event::Source { source: Source::Local, change: SourceChange::Set { pods: vec![], broken: vec![] } });
    assert_eq!(lab.state("1"), Some(State::Terminating));
}

#[test]
fn an_orphan_of_a_disabled_source_is_terminated_too() {
    let sources = BTreeSet::from([Source::Local]);
    let mut lab = Lab::with(NodeConfig { sources, ..NodeConfig::default() }, vec![]);
    lab.bring_up(listing("1", "a"));
    assert_eq!(lab.state("1"), None);
    lab.handle(Event::Source { source: Source::Local, change: SourceChange::Set { pods: vec![], broken: vec![] } });
    lab.now += Duration::from_secs(61);
    lab.handle(Event::Wake);
    lab.handle(Event::Listed { seq: lab.node.pods.sequences.seq, result: Ok(listing("1", "a")) });
    assert_eq!(lab.state("1"), Some(State::Terminating));
}

fn hashed(hash: &str, hostname: &str, image: &str) -> Manifest {
    let mut manifest = pod("a", "1");
    let pod = Arc::make_mut(&mut manifest.pod);
    pod.metadata.annotations = Some([("kubernetes.io/config.hash".to_owned(), hash.to_owned())].into());
    let spec = pod.spec.as_mut().unwrap();
    spec.hostname = Some(hostname.into());
    spec.containers[0].image = Some(image.into());
    manifest
}

/// The pod ran with the manifest `before`; a restarted agent finds `after` in the file.
fn found_later(before: &Manifest, after: &Manifest) -> Lab {
    let mut lab = starting_of(before, &seen(Some(RunState::Created)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StartContainer { .. })));
    lab.observe(&seen(Some(RunState::Running)));
    let mut lab = Lab::bare(lab.records.into_values().collect());
    lab.handle(Event::Wake);
    lab.handle(file(&[after]));
    lab
}

#[test]
fn a_manifest_that_changed_while_no_agent_ran_replaces_the_pod_unless_it_can_be_updated() {
    let before = hashed("h1", "one", "img");
    let lab = found_later(&before, &hashed("h1", "one", "img"));
    assert_eq!(lab.state("1"), Some(State::Syncing), "the same");
    let lab = found_later(&before, &hashed("h1", "filled in by a newer release", "img"));
    assert_eq!(lab.state("1"), Some(State::Syncing), "the same content");
    let lab = found_later(&before, &hashed("h2", "one", "another"));
    assert_eq!(lab.state("1"), Some(State::Syncing), "an image may change in place");
    let lab = found_later(&before, &hashed("h2", "two", "img"));
    assert_eq!(lab.state("1"), Some(State::Terminating));
    assert!(lab.records[&PodUid::from("1")].restart_requested(), "and a new instance is requested");
}

#[test]
fn a_terminating_instance_keeps_its_spec_if_the_next_one_has_another() {
    let mut lab = found_later(&hashed("h1", "one", "img"), &hashed("h2", "two", "img"));
    lab.handle(file(&[&hashed("h3", "two", "newer")]));
    let machine = lab.node.workers().get(&PodUid::from("1")).map(PodFacts::record).unwrap();
    let spec = machine.pod.spec.as_ref().unwrap();
    assert_eq!((spec.hostname.as_deref(), spec.containers[0].image.as_deref()), (Some("one"), Some("img")));
}

#[test]
fn a_deadline_that_passed_before_the_first_observation_does_not_wake_the_pod_repeatedly() {
    let mut short = pod("a", "1");
    Arc::make_mut(&mut short.pod).spec.as_mut().unwrap().active_deadline_seconds = Some(5);
    let mut lab = starting_of(&short, &seen(Some(RunState::Created)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StartContainer { .. })));
    let mut lab = Lab::bare(lab.records.into_values().collect());
    lab.now += Duration::from_secs(60);
    lab.handle(Event::Wake);
    lab.handle(file(&[&short]));
    let now = Now { boot: lab.now, wall: wall(lab.now) };
    let wake = lab.node.workers().machine(&PodUid::from("1")).unwrap().wake(now);
    assert!(wake.is_none_or(|at| at > lab.now), "{wake:?} at {:?}", lab.now);
}

#[test]
fn the_history_of_a_pod_rejected_for_its_port_names_the_pod_that_uses_it() {
    let with_port = |mut manifest: Manifest| {
        let container = &mut Arc::make_mut(&mut manifest.pod).spec.as_mut().unwrap().containers[0];
        container.ports = serde_json::from_value(serde_json::json!([{"containerPort": 80, "hostPort": 8080}])).unwrap();
        manifest
    };
    let rejections = |lab: &Lab, uid: &str| -> Vec<String> {
        let history = lab.node.workers().get(&PodUid::from(uid)).unwrap().history();
        history.lines().filter(|line| line.what == "rejected").map(|line| line.cause.clone()).collect()
    };
    let expected = ["port 8080/TCP is used by pod default/db"];
    let mut lab = Lab::new(Listing::default());
    lab.set(&[&with_port(pod("db", "1")), &with_port(pod("web", "2"))]);
    assert_eq!(rejections(&lab, "2"), expected);
    lab.now += Duration::from_secs(30);
    lab.handle(Event::Wake);
    assert_eq!(rejections(&lab, "2"), expected, "the retry of a held pod records nothing new");
    let change = SourceChange::Set { pods: vec![with_port(created_at("api", "3", 1))], broken: vec![] };
    lab.handle(Event::Source { source: Source::Api, change });
    assert_eq!(rejections(&lab, "3"), expected);
}
