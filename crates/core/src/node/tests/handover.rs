//! A node that another agent ran until now: what runs goes on under its UID, and what was reported is not taken back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::lab::*;
use crate::NodeConfig;
use crate::hash::container_hash;
use crate::model::*;
use crate::pod::{PodFacts, State};
use crate::static_pod::{CONFIG_HASH, CONFIG_MIRROR, CONFIG_SOURCE, MANIFEST_HASH};

/// A static pod whose UID this agent made from the manifest.
fn manifest(hash: &str) -> Manifest {
    let mut manifest = pod("a", hash);
    let annotations = [(CONFIG_HASH, hash), (CONFIG_SOURCE, "file")];
    Arc::make_mut(&mut manifest.pod).metadata.annotations =
        Some(annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    manifest
}

/// The pod runs as another agent made it.
fn of_others(uid: &str) -> Listing {
    let mut listing = listing(uid, "a");
    let listed = listing.pods.get_mut(uid).unwrap();
    listed.container_hashes = manifest("x").pod.spec.iter().flat_map(|s| &s.containers).map(container_hash).collect();
    listing
}

fn file(pods: &[&Manifest]) -> Event {
    let pods = pods.iter().map(|m| (*m).clone()).collect();
    Event::Source { source: Source::File, change: SourceChange::Set { pods, broken: vec![] } }
}

fn uids(lab: &Lab) -> Vec<&str> {
    lab.node.workers().iter().map(|(uid, _)| uid.as_str()).collect()
}

fn annotation<'a>(lab: &'a Lab, uid: &str, key: &str) -> &'a str {
    &lab.node.workers().get(&uid.into()).unwrap().record().pod.metadata.annotations.as_ref().unwrap()[key]
}

#[test]
fn a_static_pod_keeps_the_uid_under_which_another_agent_runs_it() {
    for set_first in [true, false] {
        let mut lab = Lab::bare(vec![]);
        if set_first {
            lab.handle(file(&[&manifest("own")]));
            assert_eq!(uids(&lab), [""; 0], "what runs is not known yet");
        }
        lab.bring_up(of_others("go"));
        if !set_first {
            lab.handle(file(&[&manifest("own")]));
        }
        assert_eq!(uids(&lab), ["go"]);
        assert_eq!(annotation(&lab, "go", CONFIG_HASH), "go", "as its mirror pod has it");
        assert_eq!(annotation(&lab, "go", MANIFEST_HASH), "own");
        let calls = lab.observe(&seen(Some(RunState::Running)));
        let stops = calls.iter().any(|c| matches!(c, Call::Runtime(RuntimeCall::StopContainer { .. })));
        assert!(!stops && lab.state("go") == Some(State::Syncing), "{calls:?}");
        lab.handle(file(&[&manifest("own")]));
        assert_eq!(uids(&lab), ["go"], "the same file again");
        lab.handle(file(&[&manifest("edited")]));
        assert_eq!(uids(&lab), ["edited", "go"], "an edit is another pod");
        assert_eq!(lab.state("go"), Some(State::Terminating));
    }
}

#[test]
fn a_static_pod_is_known_while_the_runtime_is_down_and_keeps_the_uid_under_which_it_runs() {
    for down_first in [true, false] {
        let mut lab = Lab::bare(vec![]);
        let down = || Event::Runtime { result: Err(CallError::Unavailable { message: "no socket".into() }) };
        lab.handle(Event::Wake);
        if down_first {
            lab.handle(down());
        }
        lab.handle(file(&[&manifest("own")]));
        if !down_first {
            assert_eq!(uids(&lab), [""; 0], "the runtime has not answered yet");
            lab.handle(down());
        }
        assert_eq!(uids(&lab), ["own"]);
        lab.now += Duration::from_secs(30);
        lab.bring_up(of_others("go"));
        assert!(lab.state("go").is_some_and(|state| state <= State::Syncing), "{:?}", lab.state("go"));
        for _ in 0..10 {
            while let Some(at) = lab.observations.iter().position(|(uid, _)| uid.as_str() == "own") {
                let (uid, seq) = lab.observations.remove(at);
                lab.handle(Event::Observed { uid, seq, result: Ok(PodSeen::default()), covered: true });
            }
            while let Some(at) = lab.calls.iter().position(|(_, uid, _)| uid.as_str() == "own") {
                let (id, ..) = lab.calls.remove(at);
                lab.handle(Event::Done { id, result: Ok(Answer::Done) });
            }
        }
        assert_eq!(uids(&lab), ["go"], "nothing of the other one ran");
        assert_eq!(lab.state("go"), Some(State::Syncing));
    }
}

#[test]
fn a_restarted_agent_knows_the_uid_that_a_manifest_took() {
    let mut lab = Lab::new(of_others("go"));
    lab.handle(file(&[&manifest("own")]));
    let mut lab = Lab::bare(lab.records.into_values().collect());
    lab.bring_up(Listing::default());
    lab.handle(file(&[&manifest("own")]));
    assert_eq!((uids(&lab), lab.state("go")), (vec!["go"], Some(State::Syncing)), "though nothing of it runs");
}

#[test]
fn a_pod_with_other_images_or_of_another_manifest_of_ours_is_replaced() {
    let mut other_image = of_others("go");
    other_image.pods.get_mut("go").unwrap().container_hashes = BTreeSet::from(["other".to_owned()]);
    let mut edited = of_others("go");
    edited.pods.get_mut("go").unwrap().manifest_hash = Some("before the edit".into());
    for listing in [other_image, edited] {
        let mut lab = Lab::new(listing.clone());
        lab.handle(file(&[&manifest("own")]));
        lab.handle(Event::Listed { seq: lab.node.pods.sequences.seq, result: Ok(listing) });
        assert_eq!(lab.state("own"), Some(State::Waiting));
        assert_eq!(lab.state("go"), Some(State::Terminating));
    }
}

#[test]
fn a_pod_of_ours_that_another_agent_replaced_gives_way_to_what_runs() {
    let mut lab = Lab::new(Listing::default());
    lab.handle(file(&[&manifest("own")]));
    let mut lab = Lab::bare(lab.records.into_values().collect());
    lab.bring_up(of_others("go"));
    lab.handle(file(&[&manifest("own")]));
    assert!(lab.state("go").is_some_and(|state| state <= State::Syncing), "{:?}", lab.state("go"));
    assert!(lab.state("own").is_none_or(|state| state >= State::Terminating), "{:?}", lab.state("own"));
}

fn api(pods: Vec<Manifest>) -> Event {
    Event::Source { source: Source::Api, change: SourceChange::Set { pods, broken: vec![] } }
}

fn probe() -> Value {
    json!({"exec": {"command": ["true"]}, "periodSeconds": 10})
}

/// A pod of the API server with probes, whose container `id` was reported like this at this second.
fn reported(ready: bool, second: u32) -> Manifest {
    let mut value = serde_json::to_value(&*pod("a", "1").pod).unwrap();
    value["spec"]["nodeName"] = json!("node");
    value["spec"]["containers"][0]["readinessProbe"] = probe();
    value["spec"]["containers"][0]["startupProbe"] = probe();
    value["status"] = status(ready, second);
    Manifest { pod: Arc::new(serde_json::from_value(value).unwrap()), origin: "api".into() }
}

fn status(ready: bool, second: u32) -> Value {
    let at = format!("2026-01-01T00:00:{second:02}Z");
    let holds = if ready { "True" } else { "False" };
    let condition = |kind: &str| json!({"type": kind, "status": holds, "lastTransitionTime": at});
    json!({"phase": "Running", "conditions": [condition("Ready"), condition("ContainersReady")],
           "containerStatuses": [{"name": "c", "image": "img", "imageID": "sha", "restartCount": 0,
                                  "containerID": "containerd://id", "ready": ready, "started": true,
                                  "state": {"running": {}}}]})
}

fn api_lab(records: Vec<PodRecord>) -> Lab {
    let config = NodeConfig { sources: BTreeSet::from([Source::File, Source::Api]), ..NodeConfig::default() };
    let mut lab = Lab::with(config, records);
    lab.bring_up(of_api());
    lab.set(&[]);
    lab
}

fn of_api() -> Listing {
    let mut listing = listing("1", "a");
    listing.pods.get_mut("1").unwrap().source = Some(Source::Api);
    listing
}

/// Ready and started, as the record has it, and when Ready last changed.
fn shown(lab: &Lab, uid: &str) -> (bool, bool, String) {
    let status = lab.node.workers().get(&uid.into()).map(PodFacts::record).unwrap().status.clone().unwrap();
    let ready = status.conditions.unwrap().into_iter().find(|c| c.type_ == "Ready").unwrap();
    let c = &status.container_statuses.unwrap()[0];
    (c.ready, c.started == Some(true), ready.last_transition_time.unwrap().0.to_string())
}

#[test]
fn a_container_stays_ready_and_started() {
    let mut lab = api_lab(vec![]);
    lab.handle(api(vec![reported(true, 7)]));
    lab.observe(&seen(Some(RunState::Running)));
    assert_eq!(shown(&lab, "1"), (true, true, "2026-01-01T00:00:07Z".into()));
}

#[test]
fn a_container_that_was_not_ready_does_not_become_so() {
    let mut lab = api_lab(vec![]);
    lab.handle(api(vec![reported(false, 7)]));
    lab.observe(&seen(Some(RunState::Running)));
    assert_eq!(shown(&lab, "1"), (false, true, "2026-01-01T00:00:07Z".into()));
}

#[test]
fn what_another_agent_reported_since_counts_more_than_the_journal() {
    for (since, wanted) in [(9, false), (5, true)] {
        let mut lab = api_lab(vec![]);
        lab.handle(api(vec![reported(true, 7)]));
        lab.observe(&seen(Some(RunState::Running)));
        let mut lab = api_lab(lab.records.into_values().collect());
        lab.handle(api(vec![reported(false, since)]));
        lab.observe(&seen(Some(RunState::Running)));
        let second = if wanted { 7 } else { since };
        assert_eq!(shown(&lab, "1"), (wanted, true, format!("2026-01-01T00:00:{second:02}Z")), "{since}");
    }
}

#[test]
fn a_static_pod_continues_from_the_status_of_its_mirror_pod() {
    for mirror_first in [true, false] {
        let config = NodeConfig { sources: BTreeSet::from([Source::File, Source::Api]), ..NodeConfig::default() };
        let mut lab = Lab::with(config, vec![]);
        lab.bring_up(of_others("go"));
        let mut probed = manifest("own");
        let spec = Arc::make_mut(&mut probed.pod).spec.as_mut().unwrap();
        spec.containers[0].readiness_probe = serde_json::from_value(probe()).unwrap();
        let mut mirror = reported(true, 7);
        let meta = &mut Arc::make_mut(&mut mirror.pod).metadata;
        (meta.uid, meta.annotations) =
            (Some("mirror".into()), Some([(CONFIG_MIRROR.to_owned(), "go".to_owned())].into()));
        let events = [file(&[&probed]), api(vec![mirror])];
        let order = if mirror_first { [1, 0] } else { [0, 1] };
        for at in order {
            lab.handle(events[at].clone());
        }
        lab.observe(&seen(Some(RunState::Running)));
        assert_eq!(shown(&lab, "go"), (true, true, "2026-01-01T00:00:07Z".into()));
        let sent = |request: &ObjectRequest| matches!(request, ObjectRequest::DeleteMirror { .. });
        assert!(!lab.requests.iter().any(|(_, request)| sent(request)), "{:?}", lab.requests);
    }
}

#[test]
fn the_hook_of_an_instance_that_another_agent_started_since_is_not_run() {
    let mut hooked = reported(true, 7);
    let c = &mut Arc::make_mut(&mut hooked.pod).spec.as_mut().unwrap().containers[0];
    (c.startup_probe, c.readiness_probe) = (None, None);
    c.lifecycle = serde_json::from_value(json!({"postStart": {"exec": {"command": ["true"]}}})).unwrap();
    let mut lab = api_lab(vec![]);
    lab.handle(api(vec![hooked.clone()]));
    lab.observe(&seen(Some(RunState::Running)));
    let mut lab = api_lab(lab.records.into_values().collect());
    lab.handle(api(vec![hooked]));
    let mut later = seen(Some(RunState::Running));
    (later.containers[0].id, later.containers[0].attempt) = ("later".into(), 1);
    lab.observe(&later);
    lab.now += Duration::from_secs(1);
    lab.handle(Event::Wake);
    let hooks = lab.calls.iter().filter(|(_, _, c)| matches!(c, Call::Runtime(RuntimeCall::Hook { .. })));
    assert_eq!(hooks.count(), 0, "{:?}", lab.calls);
    assert!(shown(&lab, "1").1, "it has started");
}

#[test]
fn a_pod_that_runs_is_not_rejected() {
    let mut unfit = reported(true, 7);
    let spec = Arc::make_mut(&mut unfit.pod).spec.as_mut().unwrap();
    spec.node_selector = Some([("no".to_owned(), "such label".to_owned())].into());
    let config = || NodeConfig { sources: BTreeSet::from([Source::Api]), ..NodeConfig::default() };
    for (runs, state) in [(true, State::Syncing), (false, State::Terminating)] {
        for listed_first in [true, false] {
            let listing = || if runs { of_api() } else { Listing::default() };
            let mut lab = Lab::with(config(), vec![]);
            if listed_first {
                lab.bring_up(listing());
            }
            lab.handle(api(vec![unfit.clone()]));
            if !listed_first {
                lab.bring_up(listing());
            }
            // Labels of a node may come late.
            lab.now += Duration::from_secs(30);
            lab.handle(Event::Wake);
            let found = lab.state("1");
            assert!(
                found == Some(state) || (!runs && found >= Some(state)),
                "runs {runs}, listed first {listed_first}: {found:?}"
            );
        }
    }
}

#[test]
fn a_static_pod_of_which_nothing_runs_does_not_continue_from_its_mirror_pod() {
    for phase in ["Running", "Failed"] {
        let config = NodeConfig { sources: BTreeSet::from([Source::File, Source::Api]), ..NodeConfig::default() };
        let mut lab = Lab::with(config, vec![]);
        lab.bring_up(Listing::default());
        let mut mirror = reported(true, 7);
        let pod = Arc::make_mut(&mut mirror.pod);
        pod.metadata.uid = Some("mirror".into());
        pod.metadata.annotations = Some([(CONFIG_MIRROR.to_owned(), "own".to_owned())].into());
        pod.status.as_mut().unwrap().phase = Some(phase.into());
        lab.handle(api(vec![mirror]));
        let calls = lab.handle(file(&[&manifest("own")]));
        assert!(calls.contains(&Call::Host(HostCall::MakeCgroup)), "{phase}: it starts: {calls:?}");
        assert_eq!(lab.state("own"), Some(State::Syncing), "{phase}");
        let status = lab.node.workers().get(&"own".into()).unwrap().record().status.clone().unwrap();
        assert_eq!(status.phase.as_deref(), Some("Pending"), "the old instance is not in the runtime");
    }
}

fn is_readiness(call: &Call) -> bool {
    matches!(call, Call::Runtime(RuntimeCall::Probe { kind: ProbeKind::Readiness, .. }))
}

#[test]
fn a_probe_changes_readiness_that_was_taken_over() {
    for (ours, theirs) in [(true, false), (false, true)] {
        let mut lab = api_lab(vec![]);
        lab.handle(api(vec![reported(ours, 7)]));
        lab.observe(&seen(Some(RunState::Running)));
        let mut lab = api_lab(lab.records.into_values().collect());
        // Probes begin before the API server answers.
        lab.observe(&seen(Some(RunState::Running)));
        lab.handle(api(vec![reported(theirs, 9)]));
        assert_eq!(shown(&lab, "1").0, theirs);
        let verdict = || if theirs { ProbeVerdict::Failure("no".into()) } else { ProbeVerdict::Success };
        for _ in 0..3 {
            lab.now += Duration::from_secs(30);
            lab.handle(Event::Wake);
            lab.answer(is_readiness, Ok(Answer::Probe(verdict())));
        }
        assert_eq!(shown(&lab, "1").0, !theirs, "as the probe found it");
    }
}

#[test]
fn what_another_agent_reported_counts_also_after_the_first_observation() {
    let mut lab = api_lab(vec![]);
    lab.handle(api(vec![reported(true, 7)]));
    lab.observe(&seen(Some(RunState::Running)));
    let mut lab = api_lab(lab.records.into_values().collect());
    // Years after the times of the conditions.
    lab.now += Duration::from_secs(5 * 365 * 24 * 3600);
    let mut later = seen(Some(RunState::Running));
    (later.containers[0].id, later.containers[0].attempt) = ("later".into(), 1);
    lab.observe(&later);
    assert!(!shown(&lab, "1").0, "the API server has not answered");
    let mut object = reported(true, 9);
    let status = Arc::make_mut(&mut object.pod).status.as_mut().unwrap();
    status.container_statuses.as_mut().unwrap()[0].container_id = Some("containerd://later".into());
    lab.handle(api(vec![object]));
    assert_eq!(shown(&lab, "1"), (true, true, "2026-01-01T00:00:09Z".into()));
}

#[test]
fn a_static_pod_does_not_continue_from_the_mirror_pod_of_an_instance_before() {
    for (phase, id) in [("Failed", "id"), ("Running", "before")] {
        let config = NodeConfig { sources: BTreeSet::from([Source::File, Source::Api]), ..NodeConfig::default() };
        let mut lab = Lab::with(config, vec![]);
        lab.bring_up(listing("own", "a"));
        lab.handle(file(&[&manifest("own")]));
        lab.observe(&seen(Some(RunState::Running)));
        let mut mirror = reported(false, 7);
        let pod = Arc::make_mut(&mut mirror.pod);
        pod.metadata.uid = Some("mirror".into());
        pod.metadata.annotations = Some([(CONFIG_MIRROR.to_owned(), "own".to_owned())].into());
        let status = pod.status.as_mut().unwrap();
        status.phase = Some(phase.into());
        status.container_statuses.as_mut().unwrap()[0].container_id = Some(format!("containerd://{id}"));
        lab.handle(api(vec![mirror]));
        assert_eq!(lab.state("own"), Some(State::Syncing), "{phase} {id}");
        assert!(shown(&lab, "own").0, "{phase} {id}: it has no probe");
        let since = shown(&lab, "own").2;
        assert!(since.starts_with("2023"), "{phase} {id}: not the time of the mirror pod: {since}");
    }
}
