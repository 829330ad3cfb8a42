//! Lists of events for the whole node, with the expected calls.

mod admission;
mod calls_in_doubt;
mod cgroups;
mod eviction;
mod handover;
mod hooks;
mod images;
mod lab;
mod object_stores;
mod outages;
mod preemption;
mod quarantine;
mod reported_failures;
mod resize;
mod shutdown;
mod termination;

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::model::*;
use lab::*;

#[test]
fn a_manifest_leads_to_a_sandbox_as_soon_as_the_host_is_ready() {
    let mut lab = Lab::new(Listing::default());
    assert_eq!(lab.set(&[&pod("a", "1")]), [Call::Host(HostCall::MakeCgroup), Call::Host(HostCall::MakeDirs)]);
    assert_eq!(lab.host_is_ready(), [Call::Runtime(RuntimeCall::RunSandbox { attempt: 0 })]);
    assert!(lab.records[&PodUid::from("1")].was_admitted(), "admission is journaled before the sandbox is created");
}

#[test]
fn a_running_pod_needs_no_calls() {
    let mut lab = running();
    assert!(lab.calls.is_empty(), "{:?}", lab.calls);
    assert_eq!(lab.handle(Event::Wake), []);
    let status = lab.records[&PodUid::from("1")].status.clone().unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
}

#[test]
fn a_removed_pod_stops_cleans_up_and_is_forgotten() {
    let mut lab = running();
    let stop = Call::Runtime(RuntimeCall::StopContainer {
        name: "c".into(),
        id: "id".into(),
        timeout: Duration::from_secs(30),
    });
    assert_eq!(lab.set(&[]), [stop]);
    assert!(
        lab.records[&PodUid::from("1")].termination().is_some(),
        "the termination is journaled before the stop is sent"
    );
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopContainer { .. })));
    assert_eq!(
        lab.observe(&seen(Some(RunState::Exited))),
        [Call::Runtime(RuntimeCall::StopSandbox { id: "sb".into() })]
    );
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopSandbox { .. })));
    let mut stopped = seen(Some(RunState::Exited));
    stopped.sandboxes[0].ready = false;
    assert_eq!(lab.observe(&stopped), [Call::Host(HostCall::RemoveVolumes), Call::Host(HostCall::RemoveCgroup)]);
    lab.ok(|c| *c == Call::Host(HostCall::RemoveVolumes));
    assert_eq!(
        lab.ok(|c| *c == Call::Host(HostCall::RemoveCgroup)),
        [Call::Runtime(RuntimeCall::RemoveSandbox { id: "sb".into() })],
        "this also removes its containers"
    );
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::RemoveSandbox { .. })));
    assert_eq!(lab.observe(&PodSeen::default()), [Call::Host(HostCall::RemoveDirs), Call::Host(HostCall::RemoveLogs)]);
    lab.ok(|c| *c == Call::Host(HostCall::RemoveDirs));
    lab.ok(|c| *c == Call::Host(HostCall::RemoveLogs));
    assert!(lab.records.is_empty() && lab.node.workers().is_empty());
}

#[test]
fn a_shorter_deadline_is_sent_and_a_longer_one_is_not() {
    let mut lab = running();
    lab.set(&[]);
    let kill = |grace: u64| Event::Kill { uid: "1".into(), grace: Some(Duration::from_secs(grace)), evicted: None };
    assert_eq!(lab.handle(kill(60)), []);
    let stop = Call::Runtime(RuntimeCall::StopContainer {
        name: "c".into(),
        id: "id".into(),
        timeout: Duration::from_secs(5),
    });
    assert_eq!(lab.handle(kill(5)), [stop]);
}

#[test]
fn a_kill_during_a_start_waits_for_its_result() {
    let mut lab = Lab::new(Listing::default());
    lab.set(&[&pod("a", "1")]);
    lab.host_is_ready();
    assert_eq!(lab.set(&[]), []);
    assert_eq!(lab.state("1"), Some(State::Terminating));
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::RunSandbox { .. })), Ok(Answer::Sandbox("sb".into())));
    assert_eq!(lab.observe(&seen(None)), [Call::Runtime(RuntimeCall::StopSandbox { id: "sb".into() })]);
}

#[test]
fn a_call_in_doubt_allows_only_observations_until_one_shows_its_object() {
    let mut lab = Lab::new(Listing::default());
    lab.set(&[&pod("a", "1")]);
    lab.host_is_ready();
    let doubt = CallError::InDoubt { reason: None, message: "deadline exceeded".into() };
    assert_eq!(lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::RunSandbox { .. })), Err(doubt)), []);
    assert_eq!(lab.observe(&PodSeen::default()), []);
    lab.now += Duration::from_secs(1);
    assert_eq!(lab.handle(Event::Wake), []);
    assert!(matches!(lab.observe(&seen(None))[..], [Call::Runtime(RuntimeCall::ImageStatus { .. })]), "it is adopted");
}

#[test]
fn nothing_is_started_on_an_observation_older_than_our_last_call() {
    let mut lab = Lab::new(Listing::default());
    lab.set(&[&pod("a", "1")]);
    lab.host_is_ready();
    lab.handle(Event::Hint { uid: "1".into() });
    assert_eq!(
        lab.observations,
        [],
        "the call in flight most likely caused the event, and the pod is observed when it returns"
    );
    lab.now += Duration::from_millis(20);
    lab.handle(Event::Wake);
    let old = lab.observations.clone();
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::RunSandbox { .. })), Ok(Answer::Sandbox("sb".into())));
    let (uid, seq) = old[0].clone();
    lab.observations.clear();
    let calls = lab.handle(Event::Observed { uid, seq, result: Ok(PodSeen::default()), covered: true });
    assert_eq!(calls, [], "no second sandbox");
    assert_eq!(lab.observations.len(), 1, "it is observed again");
}

#[test]
fn a_hint_and_the_return_of_the_call_that_caused_it_request_one_observation() {
    let mut lab = running();
    lab.set(&[]);
    lab.observations.clear();
    lab.handle(Event::Hint { uid: "1".into() });
    assert_eq!(lab.observations, []);
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopContainer { .. })));
    assert_eq!(lab.observations.len(), 1);
    lab.observe(&seen(Some(RunState::Exited)));
    lab.now += Duration::from_millis(20);
    lab.handle(Event::Wake);
    assert_eq!(lab.observations, []);
}

#[test]
fn an_edited_manifest_waits_until_the_old_pod_is_finished() {
    let mut lab = running();
    lab.set(&[&pod("a", "2")]);
    assert_eq!((lab.state("1"), lab.state("2")), (Some(State::Terminating), Some(State::Waiting)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopContainer { .. })));
    lab.observe(&seen(Some(RunState::Exited)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopSandbox { .. })));
    let mut stopped = seen(Some(RunState::Exited));
    stopped.sandboxes[0].ready = false;
    lab.observe(&stopped);
    lab.ok(|c| *c == Call::Host(HostCall::RemoveVolumes));
    let next = lab.ok(|c| *c == Call::Host(HostCall::RemoveCgroup));
    assert!(next.contains(&Call::Host(HostCall::MakeCgroup)), "started when the old pod finished: {next:?}");
    assert_eq!(lab.state("2"), Some(State::Syncing));
}

#[test]
fn a_restarted_agent_adopts_running_pods_and_changes_nothing() {
    let before = running();
    let mut lab = Lab::bare(before.records.values().cloned().collect());
    lab.bring_up(listing("1", "a"));
    assert_eq!(lab.observations.len(), 1);
    lab.observe(&seen(Some(RunState::Running)));
    lab.set(&[&pod("a", "1")]);
    lab.host_is_ready();
    assert!(lab.calls.is_empty(), "{:?}", lab.calls);
    let history = lab.node.workers().get(&PodUid::from("1")).unwrap().history();
    assert!(
        history.lines().any(|line| line.what == "container c started (first start)"),
        "its history continues: {history:?}"
    );
}

#[test]
fn no_pod_of_a_source_is_terminated_before_the_source_is_synced() {
    let before = running();
    let mut lab = Lab::bare(before.records.values().cloned().collect());
    lab.bring_up(listing("1", "a"));
    lab.observe(&seen(Some(RunState::Running)));
    assert_eq!(lab.state("1"), Some(State::Syncing));
    let calls = lab.set(&[]);
    assert!(matches!(calls[..], [Call::Runtime(RuntimeCall::StopContainer { .. })]), "{calls:?}");
}

#[test]
fn an_orphan_is_terminated_once_its_source_is_synced() {
    let mut lab = Lab::new(listing("9", "orphan"));
    assert_eq!(lab.state("9"), None);
    lab.set(&[]);
    let seq = lab.node.pods.sequences.seq;
    lab.handle(Event::Listed { seq, result: Ok(listing("9", "orphan")) });
    assert_eq!(lab.state("9"), Some(State::Terminating));
    let stop = Call::Runtime(RuntimeCall::StopContainer {
        name: "c".into(),
        id: "id".into(),
        timeout: Duration::from_secs(2),
    });
    assert_eq!(lab.observe(&seen(Some(RunState::Running))), [stop]);
}

#[test]
fn no_call_is_sent_while_the_runtime_is_unavailable_and_the_pod_continues_afterwards() {
    let mut lab = Lab::new(Listing::default());
    lab.set(&[&pod("a", "1")]);
    let unavailable = CallError::Unavailable { message: "connection refused".into() };
    lab.handle(Event::Listed { seq: Seq(0), result: Err(unavailable) });
    assert_eq!(lab.host_is_ready(), []);
    lab.now += Duration::from_secs(1);
    lab.handle(Event::Wake);
    let calls = lab.handle(Event::Runtime { result: Ok(RuntimeReady { network: true, ..RuntimeReady::default() }) });
    assert_eq!(calls, [Call::Runtime(RuntimeCall::RunSandbox { attempt: 0 })]);
}

#[test]
fn the_first_restart_has_no_back_off() {
    let mut lab = running();
    lab.now += Duration::from_secs(1);
    lab.handle(Event::Hint { uid: "1".into() });
    lab.observe(&seen(Some(RunState::Exited)));
    lab.answer(
        |c| matches!(c, Call::Runtime(RuntimeCall::ImageStatus { .. })),
        Ok(Answer::Image(Some(ImageFacts { id: "sha".into(), ..ImageFacts::default() }))),
    );
    let calls = lab.ok(|c| matches!(c, Call::Host(HostCall::PrepareContainer { .. })));
    assert!(matches!(calls[..], [Call::Runtime(RuntimeCall::CreateContainer { attempt: 1, .. })]), "{calls:?}");
    // The pod is observed while the next instance is being created.
    lab.observations.clear();
    lab.handle(Event::Hint { uid: "1".into() });
    lab.now += Duration::from_millis(20);
    lab.handle(Event::Wake);
    lab.observe(&seen(Some(RunState::Exited)));
    let status = lab.records[&PodUid::from("1")].status.clone().unwrap();
    let state = status.container_statuses.unwrap()[0].state.clone().unwrap();
    assert!(state.waiting.is_none_or(|w| w.reason.as_deref() != Some("CrashLoopBackOff")));
}

#[test]
fn a_downward_api_volume_is_written_again_when_the_pod_changes() {
    let colored = |color: &str| {
        let mut manifest = pod("a", "1");
        let pod = Arc::make_mut(&mut manifest.pod);
        pod.metadata.labels = Some([("color".to_owned(), color.to_owned())].into());
        let volumes = json!([{"name": "shown", "downwardAPI": {}}, {"name": "plain", "emptyDir": {}}]);
        pod.spec.as_mut().unwrap().volumes = serde_json::from_value(volumes).unwrap();
        manifest
    };
    let mount = |volume: &str| Call::Host(HostCall::MountVolume { volume: volume.into() });
    let mut lab = Lab::new(Listing::default());
    lab.set(&[&colored("red")]);
    assert_eq!(lab.host_is_ready(), [mount("shown"), mount("plain")]);
    lab.ok(|c| *c == mount("plain"));
    // The volume may have been written with the old labels.
    lab.set(&[&colored("blue")]);
    assert_eq!(lab.ok(|c| *c == mount("shown")), [mount("shown")]);
    assert_eq!(lab.ok(|c| *c == mount("shown")), [Call::Runtime(RuntimeCall::RunSandbox { attempt: 0 })]);
    assert_eq!(lab.set(&[&colored("green")]), [mount("shown")]);
}

#[test]
fn a_failed_pull_is_shown_as_err_image_pull_and_then_as_a_back_off() {
    let mut lab = Lab::new(Listing::default());
    lab.set(&[&pod("a", "1")]);
    lab.host_is_ready();
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::RunSandbox { .. })), Ok(Answer::Sandbox("sb".into())));
    lab.observe(&seen(None));
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::ImageStatus { .. })), Ok(Answer::Image(None)));
    lab.answer(
        |c| matches!(c, Call::Runtime(RuntimeCall::PullImage { .. })),
        Err(CallError::with_reason("ErrImagePull", "no such image")),
    );
    let waits = |lab: &Lab| {
        let status = lab.records[&PodUid::from("1")].status.clone().unwrap();
        let waiting = status.container_statuses.unwrap()[0].state.clone().unwrap().waiting.unwrap();
        (waiting.reason.unwrap(), waiting.message.unwrap())
    };
    assert_eq!(waits(&lab), ("ErrImagePull".into(), "no such image".into()));
    lab.now += Duration::from_secs(1);
    lab.handle(Event::Wake);
    let (reason, message) = waits(&lab);
    assert_eq!(reason, "ImagePullBackOff");
    assert_eq!(message, "Back-off pulling image \"img\": ErrImagePull: no such image");
    assert!(lab.handle(Event::Wake).is_empty());
    lab.now += Duration::from_secs(9);
    assert!(matches!(lab.handle(Event::Wake)[..], [Call::Runtime(RuntimeCall::PullImage { .. })]));
}

/// Handles an event that panics as the event loop does.
fn handle_panic(lab: &mut Lab, event: Event) -> (Option<PodUid>, Out) {
    let now = Now { boot: lab.now, wall: wall(lab.now) };
    let mut out = Out::default();
    let caught = |lab: &mut Lab, out: &mut Out, event: Option<Event>| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match event {
            Some(event) => lab.node.handle(event, now, out),
            None => lab.node.settle_and_schedule(now, out),
        }))
    };
    assert!(caught(lab, &mut out, Some(event)).is_err());
    let uid = lab.node.quarantine_current("a bug", now, &mut out);
    assert!(caught(lab, &mut out, None).is_ok());
    (uid, out)
}

#[test]
fn a_panic_affects_its_own_pod_and_not_the_others_of_the_same_event() {
    let mut lab = Lab::new(Listing::default());
    let mut broken = pod("b", "b");
    Arc::make_mut(&mut broken.pod).spec = None;
    let change = SourceChange::Set { pods: vec![pod("a", "a"), broken, pod("c", "c")], broken: vec![] };
    let (uid, out) = handle_panic(&mut lab, Event::Source { source: Source::File, change });
    assert_eq!(uid, Some("b".into()));
    let calls =
        |of: &str| out.effects.iter().filter(|e| matches!(e, Effect::Call { uid, .. } if uid.as_str() == of)).count();
    assert_eq!((calls("a"), calls("b"), calls("c")), (2, 0, 2), "calls of the other pods are sent");
    assert!(out.wake_at.is_some(), "the timer is set");
    let reported = out.effects.iter().filter(|e| matches!(e, Effect::Event(e) if e.reason == "Quarantined")).count();
    assert_eq!(reported, 1);
    // Later events cause neither another event nor another panic.
    lab.handle(Event::Listed { seq: Seq(1_000_000), result: Ok(Listing::default()) });
    assert!(lab.state("b").is_some(), "its record is kept");
}

#[test]
fn a_call_that_finds_the_runtime_unavailable_is_retried_with_delays_and_at_once_after_an_outage() {
    let unavailable = || Err(CallError::Unavailable { message: "ttrpc: closed".into() });
    let up = || Event::Runtime { result: Ok(RuntimeReady { network: true, ..RuntimeReady::default() }) };
    let is_stop = |c: &Call| matches!(c, Call::Runtime(RuntimeCall::StopContainer { .. }));
    let mut lab = running();
    lab.set(&[]);
    let mut sent = 1;
    for _ in 0..600 {
        lab.now += Duration::from_millis(100);
        if lab.calls.iter().any(|(_, _, c)| is_stop(c)) {
            lab.answer(is_stop, unavailable());
            lab.handle(up());
        }
        while !lab.observations.is_empty() {
            sent += lab.observe(&seen(Some(RunState::Running))).iter().filter(|c| is_stop(c)).count();
        }
        sent += lab.handle(Event::Wake).iter().filter(|c| is_stop(c)).count();
    }
    assert!((5..=15).contains(&sent), "{sent} stops in a minute");
    lab.handle(Event::Runtime { result: Err(CallError::Unavailable { message: "connection refused".into() }) });
    lab.now += Duration::from_millis(100);
    let back: Vec<Call> = lab.handle(up());
    assert!(back.iter().any(is_stop), "{back:?}");
}

#[test]
fn a_call_that_succeeds_without_effect_is_repeated_with_delays() {
    let is_run = |c: &Call| matches!(c, Call::Runtime(RuntimeCall::RunSandbox { .. }));
    let mut lab = Lab::new(Listing::default());
    lab.set(&[&pod("a", "1")]);
    let mut sent = lab.host_is_ready().iter().filter(|c| is_run(c)).count();
    for _ in 0..600 {
        lab.now += Duration::from_millis(100);
        if lab.calls.iter().any(|(_, _, c)| is_run(c)) {
            lab.answer(is_run, Ok(Answer::Sandbox("sb".into())));
        }
        while !lab.observations.is_empty() {
            sent += lab.observe(&PodSeen::default()).iter().filter(|c| is_run(c)).count();
        }
        sent += lab.handle(Event::Wake).iter().filter(|c| is_run(c)).count();
    }
    assert!((5..=15).contains(&sent), "{sent} in a minute");
}
