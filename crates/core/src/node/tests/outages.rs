//! Outages and interrupted calls that must not change the outcome of a pod, or disturb others.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::lab::*;
use crate::model::*;
use crate::pod::State;

fn never(manifest: &Manifest) -> Manifest {
    let mut pod = Pod::clone(&manifest.pod);
    pod.spec.as_mut().unwrap().restart_policy = Some("Never".into());
    Manifest { pod: Arc::new(pod), origin: manifest.origin.clone() }
}

fn unavailable<T>() -> Result<T, CallError> {
    Err(CallError::Unavailable { message: "connection refused".into() })
}

/// An interrupted start as containerd reports it: exited, without a start time.
fn cut_off() -> PodSeen {
    let mut seen = seen(Some(RunState::Exited));
    (seen.containers[0].started_at, seen.containers[0].exit_code) = (None, 128);
    seen
}

fn created() -> PodSeen {
    let mut made = seen(Some(RunState::Created));
    made.containers[0].started_at = None;
    made
}

/// A restarted agent has repeated a StartContainer during which the former one died.
fn start_repeated(manifest: &Manifest) -> Lab {
    let lab = starting_of(manifest, &created());
    let mut next = Lab::bare(lab.records.into_values().collect());
    next.now = lab.now + Duration::from_secs(1);
    next.bring_up(listing("1", "a"));
    next.set(&[manifest]);
    next.observe(&created());
    next.host_is_ready();
    assert!(next.calls.iter().any(|(_, _, c)| matches!(c, Call::Runtime(RuntimeCall::StartContainer { .. }))));
    next
}

fn is_creation(c: &Call) -> bool {
    matches!(c, Call::Runtime(RuntimeCall::ImageStatus { .. } | RuntimeCall::CreateContainer { .. }))
}

#[test]
fn an_interrupted_start_that_is_observed_before_its_result_does_not_terminate_the_pod() {
    let manifest = never(&pod("a", "1"));
    let mut lab = start_repeated(&manifest);
    lab.handle(Event::Hint { uid: "1".into() });
    lab.now += Duration::from_secs(1);
    lab.handle(Event::Wake);
    assert_eq!(lab.observe(&cut_off()), [], "the start is under way");
    assert_eq!(lab.state("1"), Some(State::Syncing));
    let failed = Err(CallError::failed("container is already stopped"));
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::StartContainer { .. })), failed);
    lab.observe(&cut_off());
    lab.now += Duration::from_secs(16);
    let next = lab.handle(Event::Wake);
    assert!(next.iter().any(is_creation), "it is replaced: {next:?}");
    assert_eq!(lab.state("1"), Some(State::Syncing));
}

#[test]
fn an_observation_without_the_container_of_a_start_in_flight_does_not_terminate_the_pod() {
    let manifest = never(&pod("a", "1"));
    let mut lab = start_repeated(&manifest);
    for shown in [cut_off(), seen(None)] {
        lab.handle(Event::Hint { uid: "1".into() });
        lab.now += Duration::from_secs(1);
        lab.handle(Event::Wake);
        assert_eq!(lab.observe(&shown), []);
        assert_eq!(lab.state("1"), Some(State::Syncing));
    }
    let gone = Err(CallError::failed("container not found"));
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::StartContainer { .. })), gone);
    lab.observe(&seen(None));
    assert_eq!(lab.state("1"), Some(State::Syncing), "it is replaced");
}

#[test]
fn an_interrupted_start_in_a_dead_sandbox_is_replaced() {
    let manifest = never(&pod("a", "1"));
    let mut lab = start_repeated(&manifest);
    lab.answer(
        |c| matches!(c, Call::Runtime(RuntimeCall::StartContainer { .. })),
        Err(CallError::failed("container is already stopped")),
    );
    let mut dead = cut_off();
    dead.sandboxes[0].ready = false;
    lab.now += Duration::from_secs(10);
    let next = lab.observe(&dead);
    assert_eq!(next, [Call::Runtime(RuntimeCall::StopSandbox { id: "sb".into() })], "a new sandbox follows");
    assert_eq!(lab.state("1"), Some(State::Syncing));
}

#[test]
fn an_init_container_whose_start_was_interrupted_does_not_fail_the_pod() {
    let value = json!({"metadata": {"name": "a", "namespace": "default", "uid": "1"},
        "spec": {"restartPolicy": "Never", "initContainers": [{"name": "c", "image": "img", "imagePullPolicy": "IfNotPresent"}],
                 "containers": [{"name": "d", "image": "img", "imagePullPolicy": "IfNotPresent"}]}});
    let manifest = Manifest { pod: Arc::new(serde_json::from_value(value).unwrap()), origin: "a.yaml".into() };
    let mut lab = start_repeated(&manifest);
    lab.handle(Event::Hint { uid: "1".into() });
    lab.now += Duration::from_secs(1);
    lab.handle(Event::Wake);
    assert_eq!(lab.observe(&cut_off()), []);
    assert_eq!(lab.state("1"), Some(State::Syncing));
}

#[test]
fn after_an_outage_beyond_the_deadline_a_container_still_has_its_two_seconds() {
    let mut lab = running();
    lab.set(&[]);
    let mut next = Lab::bare(lab.records.into_values().collect());
    next.now = lab.now + Duration::from_secs(33);
    next.set(&[]);
    next.bring_up(listing("1", "a"));
    let stop = RuntimeCall::StopContainer { name: "c".into(), id: "id".into(), timeout: Duration::from_secs(2) };
    assert_eq!(next.observe(&seen(Some(RunState::Running))), [Call::Runtime(stop)], "only TERM is sent");
    next.now += Duration::from_millis(1900);
    assert_eq!(next.handle(Event::Wake), []);
    let now = Now { boot: next.now, wall: wall(next.now) };
    let wake = next.node.workers().machine(&PodUid::from("1")).unwrap().wake(now);
    assert_eq!(wake, Some(next.now + Duration::from_millis(100)));
    next.now += Duration::from_millis(100);
    assert_eq!(next.handle(Event::Wake), [Call::Runtime(RuntimeCall::StopSandbox { id: "sb".into() })]);
}

#[test]
fn after_an_outage_of_the_runtime_the_stop_is_sent_again_before_the_sandbox_is_stopped() {
    let mut lab = running();
    lab.set(&[]);
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::StopContainer { .. })), unavailable());
    lab.handle(Event::Runtime { result: unavailable() });
    assert!(!lab.node.runtime_up());
    lab.now += Duration::from_secs(33);
    for (uid, seq) in std::mem::take(&mut lab.observations) {
        lab.handle(Event::Observed { uid, seq, result: unavailable(), covered: true });
    }
    let back = RuntimeReady { network: true, ..RuntimeReady::default() };
    assert_eq!(lab.handle(Event::Runtime { result: Ok(back) }), [], "the container has not had its two seconds");
    lab.handle(Event::Listed { seq: lab.node.pods.sequences.seq, result: Ok(listing("1", "a")) });
    let stop = RuntimeCall::StopContainer { name: "c".into(), id: "id".into(), timeout: Duration::from_secs(2) };
    assert_eq!(lab.observe(&seen(Some(RunState::Running))), [Call::Runtime(stop)]);
}

#[test]
fn a_pod_that_cannot_be_observed_for_long_is_reported_as_stuck() {
    let mut lab = running();
    lab.handle(Event::Hint { uid: "1".into() });
    for n in 1..=3 {
        let (uid, seq) = lab.observations.pop().unwrap();
        lab.events.clear();
        lab.handle(Event::Observed { uid, seq, result: unavailable(), covered: true });
        assert_eq!(lab.events.iter().any(|e| e.reason == "FailedSync"), n == 3, "observation {n}");
        lab.now += Duration::from_secs(30);
        lab.handle(Event::Wake);
    }
    assert!(is_stuck(&lab));
}

#[test]
fn a_sandbox_whose_network_cannot_be_released_makes_the_pod_stuck() {
    let mut lab = running();
    lab.set(&[]);
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopContainer { .. })));
    let mut dead = seen(Some(RunState::Exited));
    dead.sandboxes[0].ready = false;
    lab.observe(&dead);
    let failed = Err(CallError::failed("cni: plugin failed"));
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::StopSandbox { .. })), failed);
    lab.observe(&dead);
    assert!(is_stuck(&lab));
}

#[test]
fn one_pod_that_cannot_be_observed_is_retried_with_delays_and_the_runtime_stays_up() {
    let mut lab = running();
    lab.handle(Event::Hint { uid: "1".into() });
    let (mut observations, mut checks) = (0, 0);
    for _ in 0..600 {
        while let Some((uid, seq)) = lab.observations.pop() {
            observations += 1;
            let mut out = Out::default();
            let now = Now { boot: lab.now, wall: wall(lab.now) };
            let event = Event::Observed { uid, seq, result: unavailable(), covered: true };
            lab.node.handle(event, now, &mut out);
            assert!(!out.effects.iter().any(|e| matches!(e, Effect::List { .. })), "other pods are not disturbed");
            assert!(lab.node.runtime_up());
            checks += out.effects.iter().filter(|e| matches!(e, Effect::CheckRuntime)).count();
        }
        lab.handle(Event::Runtime { result: Ok(RuntimeReady { network: true, ..RuntimeReady::default() }) });
        lab.now += Duration::from_millis(100);
        lab.handle(Event::Wake);
    }
    assert!((3..=12).contains(&observations), "{observations} observations in a minute");
    assert!((1..=observations).contains(&checks), "{checks} checks");
}

#[test]
fn a_runtime_that_is_unavailable_for_several_pods_counts_as_down() {
    let mut lab = Lab::new(Listing::default());
    let pods: Vec<Manifest> = ["1", "2", "3"].iter().map(|uid| pod(&format!("p{uid}"), uid)).collect();
    lab.set(&pods.iter().collect::<Vec<_>>());
    for uid in ["1", "2", "3"] {
        assert!(lab.node.runtime_up());
        lab.handle(Event::Hint { uid: uid.into() });
        let (uid, seq) = lab.observations.pop().unwrap();
        lab.handle(Event::Observed { uid, seq, result: unavailable(), covered: true });
    }
    assert!(!lab.node.runtime_up());
    lab.now += Duration::from_secs(1);
    lab.handle(Event::Wake);
    lab.handle(Event::Runtime { result: unavailable() });
    lab.now += Duration::from_secs(1);
    lab.handle(Event::Wake);
    lab.handle(Event::Runtime { result: Ok(RuntimeReady { network: true, ..RuntimeReady::default() }) });
    lab.handle(Event::Listed { seq: lab.node.pods.sequences.seq, result: Ok(Listing::default()) });
    assert_eq!(lab.observations.len(), 3, "all are observed at once when it is back");
}

fn is_stuck(lab: &Lab) -> bool {
    let status = lab.records[&PodUid::from("1")].status.clone().unwrap();
    crate::status::stuck_for(&status).is_some()
}

#[test]
fn a_failed_stop_of_a_container_that_exits_then_does_not_leave_the_pod_stuck() {
    let mut lab = running();
    lab.set(&[]);
    lab.answer(
        |c| matches!(c, Call::Runtime(RuntimeCall::StopContainer { .. })),
        Err(CallError::failed("no such process")),
    );
    assert!(is_stuck(&lab), "it still runs");
    lab.observe(&seen(Some(RunState::Exited)));
    assert!(!is_stuck(&lab));
}

#[test]
fn the_failed_removal_of_an_old_sandbox_does_not_mean_that_the_pod_is_stuck() {
    let mut lab = running();
    let mut two = seen(Some(RunState::Running));
    let mut old = sandbox(false);
    old.id = "old".into();
    (two.sandboxes[0].attempt, old.attempt) = (1, 0);
    two.sandboxes.push(old);
    lab.handle(Event::Hint { uid: "1".into() });
    let calls = lab.observe(&two);
    assert_eq!(calls, [Call::Runtime(RuntimeCall::RemoveSandbox { id: "old".into() })]);
    lab.answer(
        |c| matches!(c, Call::Runtime(RuntimeCall::RemoveSandbox { .. })),
        Err(CallError::failed("device or resource busy")),
    );
    assert!(!is_stuck(&lab));
}

#[test]
fn a_label_change_whose_volume_cannot_be_written_does_not_stop_restarts() {
    let labelled = |value: &str| {
        let json = json!({"metadata": {"name": "a", "namespace": "default", "uid": "1", "labels": {"l": value}},
            "spec": {"restartPolicy": "Always", "containers": [{"name": "c", "image": "img", "imagePullPolicy": "IfNotPresent"}],
                     "volumes": [{"name": "v", "projected": {"sources": []}}]}});
        Manifest { pod: Arc::new(serde_json::from_value(json).unwrap()), origin: "a.yaml".into() }
    };
    let is_mount = |c: &Call| matches!(c, Call::Host(HostCall::MountVolume { .. }));
    let mut lab = Lab::new(Listing::default());
    lab.set(&[&labelled("one")]);
    lab.host_is_ready();
    lab.ok(is_mount);
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::RunSandbox { .. })), Ok(Answer::Sandbox("sb".into())));
    lab.observe(&seen(Some(RunState::Running)));
    let mut changed = Pod::clone(&labelled("one").pod);
    changed.metadata.labels = labelled("two").pod.metadata.labels.clone();
    lab.set(&[&Manifest { pod: Arc::new(changed), origin: "a.yaml".into() }]);
    lab.answer(is_mount, Err(CallError::failed("configmap not found")));
    lab.handle(Event::Hint { uid: "1".into() });
    let next = lab.observe(&seen(Some(RunState::Exited)));
    assert!(next.iter().any(is_creation), "it is restarted: {next:?} {:?}", lab.calls);
}

#[test]
fn a_panic_in_one_pod_of_an_event_does_not_lose_the_others_and_its_condition_is_journaled() {
    let uids = ["a", "b", "c"];
    let mut lab = Lab::new(Listing::default());
    let local = |pods: Vec<Manifest>| {
        let change = SourceChange::Set { pods, broken: vec![] };
        Event::Source { source: Source::Local, change }
    };
    lab.handle(local(uids.map(|uid| pod(uid, uid)).to_vec()));
    let changed = uids.map(|uid| {
        let mut manifest = pod(uid, uid);
        let pod = Arc::make_mut(&mut manifest.pod);
        match uid {
            // No source delivers a pod without a spec: its update panics on an assertion.
            "b" => pod.spec = None,
            _ => pod.metadata.annotations = Some([("changed".to_owned(), String::new())].into()),
        }
        manifest
    });
    let mut out = Out::default();
    let now = Now { boot: lab.now, wall: wall(lab.now) };
    let caught = lab.node.handle_guarded(local(changed.to_vec()), now, &mut out);
    assert_eq!(caught.len(), 1, "{caught:?}");
    for uid in ["a", "c"] {
        let pod = &lab.node.workers().get(&PodUid::from(uid)).unwrap().record().pod;
        assert!(pod.metadata.annotations.as_ref().is_some_and(|a| a.contains_key("changed")), "pod {uid} is updated");
    }
    let journaled = out.records.iter().rev().find_map(|record| match record {
        Record::Put(put) if put.uid.as_str() == "b" => put.status.clone(),
        _ => None,
    });
    let conditions = journaled.and_then(|status| status.conditions).unwrap_or_default();
    assert!(conditions.iter().any(|c| c.type_ == "podwright.dev/Quarantined"), "{conditions:?}");
}
