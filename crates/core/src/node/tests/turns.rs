//! Whose turn it is, and whose life: room that is not there for all, sources that are gone, manifests that changed meanwhile.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::lab::*;
use crate::NodeConfig;
use crate::model::*;
use crate::pod::{PodFacts, State};

fn narrow(max_pods: u32) -> Lab {
    let mut lab = Lab::with(NodeConfig { max_pods: max_pods as _, ..NodeConfig::default() }, vec![]);
    lab.bring_up(Listing::default());
    lab
}

fn admitted(lab: &Lab) -> Vec<&str> {
    let living = |m: &PodFacts| m.record().was_admitted() && m.state() == State::Syncing;
    lab.node.workers().iter().filter(|(_, m)| living(m)).map(|(uid, _)| uid.as_str()).collect()
}

/// A pod of an API server, made at this second.
fn made_at(name: &str, uid: &str, second: i64) -> Manifest {
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
fn where_there_is_no_room_for_all_static_pods_go_by_their_files() {
    let mut lab = narrow(2);
    lab.set(&[&pod("a", "9"), &pod("b", "5"), &pod("c", "1")]);
    assert_eq!(admitted(&lab), ["5", "9"], "a.yaml and b.yaml");
}

#[test]
fn where_there_is_no_room_for_all_the_oldest_come_first() {
    let mut lab = narrow(1);
    let change = SourceChange::Set { pods: vec![made_at("new", "1", 30), made_at("old", "2", 10)], broken: vec![] };
    lab.tell(Event::Source { source: Source::Api, change });
    assert_eq!(admitted(&lab), ["2"], "{:?}", lab.events);
    assert_eq!(lab.state("1"), Some(State::Terminated), "an object that is refused ends");
}

#[test]
fn what_runs_already_comes_before_what_is_older_and_does_not() {
    let mut lab = Lab::with(NodeConfig { max_pods: 1, ..NodeConfig::default() }, vec![]);
    lab.bring_up(listing("9", "runs"));
    lab.set(&[&pod("a", "1"), &pod("runs", "9")]);
    assert_eq!(admitted(&lab), ["9"]);
}

#[test]
fn room_that_is_made_goes_to_the_first_in_line() {
    let mut lab = narrow(1);
    let (first, second, third) = (pod("a", "9"), pod("b", "8"), pod("c", "1"));
    lab.set(&[&first, &second, &third]);
    assert_eq!(admitted(&lab), ["9"]);
    lab.set(&[&second, &third]);
    assert_eq!(admitted(&lab), ["8"]);
}

#[test]
fn what_a_source_had_that_is_switched_off_ends_once_the_others_have_spoken() {
    let mut lab = running();
    let records: Vec<PodRecord> = lab.records.values().cloned().collect();
    let sources = BTreeSet::from([Source::Local]);
    lab = Lab::with(NodeConfig { sources, ..NodeConfig::default() }, records);
    lab.bring_up(listing("1", "a"));
    assert_eq!(lab.state("1"), Some(State::Syncing), "somebody may want it yet");
    lab.tell(Event::Source { source: Source::Local, change: SourceChange::Set { pods: vec![], broken: vec![] } });
    assert_eq!(lab.state("1"), Some(State::Terminating));
}

#[test]
fn a_stranger_of_a_source_that_is_switched_off_ends_too() {
    let sources = BTreeSet::from([Source::Local]);
    let mut lab = Lab::with(NodeConfig { sources, ..NodeConfig::default() }, vec![]);
    lab.bring_up(listing("1", "a"));
    assert_eq!(lab.state("1"), None);
    lab.tell(Event::Source { source: Source::Local, change: SourceChange::Set { pods: vec![], broken: vec![] } });
    lab.now += Duration::from_secs(61);
    lab.tell(Event::Wake);
    lab.tell(Event::Listed { seq: lab.node.pods.sequences.seq, result: Ok(listing("1", "a")) });
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

/// The pod ran as `before`, and another agent finds `after` in the file.
fn found_later(before: &Manifest, after: &Manifest) -> Lab {
    let mut lab = starting_of(before, &seen(Some(RunState::Created)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StartContainer { .. })));
    lab.see(&seen(Some(RunState::Running)));
    let mut lab = Lab::bare(lab.records.into_values().collect());
    lab.tell(Event::Wake);
    lab.tell(file(&[after]));
    lab
}

#[test]
fn a_manifest_that_changed_while_no_agent_was_there_ends_the_life_it_can_not_change() {
    let before = hashed("h1", "one", "img");
    let lab = found_later(&before, &hashed("h1", "one", "img"));
    assert_eq!(lab.state("1"), Some(State::Syncing), "the same");
    let lab = found_later(&before, &hashed("h1", "filled in by a newer release", "img"));
    assert_eq!(lab.state("1"), Some(State::Syncing), "the same content");
    let lab = found_later(&before, &hashed("h2", "one", "another"));
    assert_eq!(lab.state("1"), Some(State::Syncing), "an image may change in place");
    let lab = found_later(&before, &hashed("h2", "two", "img"));
    assert_eq!(lab.state("1"), Some(State::Terminating));
    assert!(lab.records[&PodUid::from("1")].restart_requested(), "and begins anew");
}

#[test]
fn a_life_that_ends_keeps_its_spec_though_the_next_one_has_another() {
    let mut lab = found_later(&hashed("h1", "one", "img"), &hashed("h2", "two", "img"));
    lab.tell(file(&[&hashed("h3", "two", "newer")]));
    let machine = lab.node.workers().get(&PodUid::from("1")).map(PodFacts::record).unwrap();
    let spec = machine.pod.spec.as_ref().unwrap();
    assert_eq!((spec.hostname.as_deref(), spec.containers[0].image.as_deref()), (Some("one"), Some("img")));
}

#[test]
fn a_deadline_that_passed_unseen_wakes_nobody_all_the_time() {
    let mut short = pod("a", "1");
    Arc::make_mut(&mut short.pod).spec.as_mut().unwrap().active_deadline_seconds = Some(5);
    let mut lab = starting_of(&short, &seen(Some(RunState::Created)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StartContainer { .. })));
    let mut lab = Lab::bare(lab.records.into_values().collect());
    lab.now += Duration::from_secs(60);
    lab.tell(Event::Wake);
    lab.tell(file(&[&short]));
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
    lab.tell(Event::Wake);
    assert_eq!(rejections(&lab, "2"), expected, "the retry of a held pod records nothing new");
    let change = SourceChange::Set { pods: vec![with_port(made_at("api", "3", 1))], broken: vec![] };
    lab.tell(Event::Source { source: Source::Api, change });
    assert_eq!(rejections(&lab, "3"), expected);
}
