//! Event lists for the whole node: what happened, then what was asked for.

mod cgroups;
mod doubts;
mod ends;
mod hooks;
mod images;
mod lab;
mod object_stores;
mod steadiness;
mod troubles;
mod turns;

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
    assert!(lab.records[&PodUid::from("1")].was_admitted(), "admission is on disk before the sandbox");
}

#[test]
fn a_pod_that_runs_is_left_alone() {
    let mut lab = running();
    assert!(lab.calls.is_empty(), "{:?}", lab.calls);
    assert_eq!(lab.tell(Event::Wake), []);
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
    assert!(lab.records[&PodUid::from("1")].termination().is_some(), "the end is on disk before the stop is sent");
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopContainer { .. })));
    assert_eq!(lab.see(&seen(Some(RunState::Exited))), [Call::Runtime(RuntimeCall::StopSandbox { id: "sb".into() })]);
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopSandbox { .. })));
    let mut stopped = seen(Some(RunState::Exited));
    stopped.sandboxes[0].ready = false;
    assert_eq!(lab.see(&stopped), [Call::Host(HostCall::RemoveVolumes), Call::Host(HostCall::RemoveCgroup)]);
    lab.ok(|c| *c == Call::Host(HostCall::RemoveVolumes));
    assert_eq!(
        lab.ok(|c| *c == Call::Host(HostCall::RemoveCgroup)),
        [Call::Runtime(RuntimeCall::RemoveSandbox { id: "sb".into() })],
        "and what is in it"
    );
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::RemoveSandbox { .. })));
    assert_eq!(lab.see(&PodSeen::default()), [Call::Host(HostCall::RemoveDirs), Call::Host(HostCall::RemoveLogs)]);
    lab.ok(|c| *c == Call::Host(HostCall::RemoveDirs));
    lab.ok(|c| *c == Call::Host(HostCall::RemoveLogs));
    assert!(lab.records.is_empty() && lab.node.workers().is_empty());
}

#[test]
fn a_shorter_deadline_is_sent_and_a_longer_one_is_not() {
    let mut lab = running();
    lab.set(&[]);
    let kill = |grace: u64| Event::Kill {
        uid: "1".into(),
        grace: Some(Duration::from_secs(grace)),
        evicted: None,
        waiter: None,
    };
    assert_eq!(lab.tell(kill(60)), []);
    let stop = Call::Runtime(RuntimeCall::StopContainer {
        name: "c".into(),
        id: "id".into(),
        timeout: Duration::from_secs(5),
    });
    assert_eq!(lab.tell(kill(5)), [stop]);
}

#[test]
fn a_kill_during_a_start_waits_for_its_fate() {
    let mut lab = Lab::new(Listing::default());
    lab.set(&[&pod("a", "1")]);
    lab.host_is_ready();
    assert_eq!(lab.set(&[]), []);
    assert_eq!(lab.state("1"), Some(State::Terminating));
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::RunSandbox { .. })), Ok(Answer::Sandbox("sb".into())));
    assert_eq!(lab.see(&seen(None)), [Call::Runtime(RuntimeCall::StopSandbox { id: "sb".into() })]);
}

#[test]
fn a_call_in_doubt_allows_nothing_but_looks_until_the_object_shows() {
    let mut lab = Lab::new(Listing::default());
    lab.set(&[&pod("a", "1")]);
    lab.host_is_ready();
    let doubt = CallError::InDoubt { reason: None, message: "deadline exceeded".into() };
    assert_eq!(lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::RunSandbox { .. })), Err(doubt)), []);
    assert_eq!(lab.see(&PodSeen::default()), []);
    lab.now += Duration::from_secs(1);
    assert_eq!(lab.tell(Event::Wake), []);
    assert!(matches!(lab.see(&seen(None))[..], [Call::Runtime(RuntimeCall::ImageStatus { .. })]), "it is adopted");
}

#[test]
fn nothing_is_started_on_sight_older_than_our_last_call() {
    let mut lab = Lab::new(Listing::default());
    lab.set(&[&pod("a", "1")]);
    lab.host_is_ready();
    lab.tell(Event::Hint { uid: "1".into() });
    assert_eq!(lab.looks, [], "the call that is at work has most likely caused it, and its end is looked at");
    lab.now += Duration::from_millis(20);
    lab.tell(Event::Wake);
    let old = lab.looks.clone();
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::RunSandbox { .. })), Ok(Answer::Sandbox("sb".into())));
    let (uid, seq) = old[0].clone();
    lab.looks.clear();
    let calls = lab.tell(Event::Observed { uid, seq, result: Ok(PodSeen::default()), covered: true });
    assert_eq!(calls, [], "no second sandbox");
    assert_eq!(lab.looks.len(), 1, "it is looked at again");
}

#[test]
fn a_hint_and_the_end_of_the_call_that_caused_it_are_one_look() {
    let mut lab = running();
    lab.set(&[]);
    lab.looks.clear();
    lab.tell(Event::Hint { uid: "1".into() });
    assert_eq!(lab.looks, []);
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopContainer { .. })));
    assert_eq!(lab.looks.len(), 1);
    lab.see(&seen(Some(RunState::Exited)));
    lab.now += Duration::from_millis(20);
    lab.tell(Event::Wake);
    assert_eq!(lab.looks, []);
}

#[test]
fn an_edited_manifest_waits_until_the_old_pod_is_finished() {
    let mut lab = running();
    lab.set(&[&pod("a", "2")]);
    assert_eq!((lab.state("1"), lab.state("2")), (Some(State::Terminating), Some(State::Waiting)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopContainer { .. })));
    lab.see(&seen(Some(RunState::Exited)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopSandbox { .. })));
    let mut stopped = seen(Some(RunState::Exited));
    stopped.sandboxes[0].ready = false;
    lab.see(&stopped);
    lab.ok(|c| *c == Call::Host(HostCall::RemoveVolumes));
    let next = lab.ok(|c| *c == Call::Host(HostCall::RemoveCgroup));
    assert!(next.contains(&Call::Host(HostCall::MakeCgroup)), "woken by the finish: {next:?}");
    assert_eq!(lab.state("2"), Some(State::Syncing));
}

#[test]
fn a_restarted_agent_adopts_what_runs_and_touches_nothing() {
    let before = running();
    let mut lab = Lab::bare(before.records.values().cloned().collect());
    lab.bring_up(listing("1", "a"));
    assert_eq!(lab.looks.len(), 1);
    lab.see(&seen(Some(RunState::Running)));
    lab.set(&[&pod("a", "1")]);
    lab.host_is_ready();
    assert!(lab.calls.is_empty(), "{:?}", lab.calls);
    let history = lab.node.workers().get(&PodUid::from("1")).unwrap().history();
    assert!(
        history.lines().any(|line| line.what == "container c started (first start)"),
        "its history goes on: {history:?}"
    );
}

#[test]
fn nothing_of_a_source_is_ended_before_it_has_spoken() {
    let before = running();
    let mut lab = Lab::bare(before.records.values().cloned().collect());
    lab.bring_up(listing("1", "a"));
    lab.see(&seen(Some(RunState::Running)));
    assert_eq!(lab.state("1"), Some(State::Syncing));
    let calls = lab.set(&[]);
    assert!(matches!(calls[..], [Call::Runtime(RuntimeCall::StopContainer { .. })]), "{calls:?}");
}

#[test]
fn a_pod_only_the_runtime_knows_is_ended_once_its_source_has_spoken() {
    let mut lab = Lab::new(listing("9", "stranger"));
    assert_eq!(lab.state("9"), None);
    lab.set(&[]);
    let seq = lab.node.pods.sequences.seq;
    lab.tell(Event::Listed { seq, result: Ok(listing("9", "stranger")) });
    assert_eq!(lab.state("9"), Some(State::Terminating));
    let stop = Call::Runtime(RuntimeCall::StopContainer {
        name: "c".into(),
        id: "id".into(),
        timeout: Duration::from_secs(2),
    });
    assert_eq!(lab.see(&seen(Some(RunState::Running))), [stop]);
}

#[test]
fn while_the_runtime_is_away_nothing_is_asked_of_it_and_then_it_goes_on() {
    let mut lab = Lab::new(Listing::default());
    lab.set(&[&pod("a", "1")]);
    let away = CallError::Unavailable { message: "connection refused".into() };
    lab.tell(Event::Listed { seq: Seq(0), result: Err(away) });
    assert_eq!(lab.host_is_ready(), []);
    lab.now += Duration::from_secs(1);
    lab.tell(Event::Wake);
    let calls = lab.tell(Event::Runtime { result: Ok(RuntimeReady { network: true, ..RuntimeReady::default() }) });
    assert_eq!(calls, [Call::Runtime(RuntimeCall::RunSandbox { attempt: 0 })]);
}

#[test]
fn a_waiter_is_told_once_also_if_there_is_nothing_to_kill() {
    let mut lab = running();
    let kill = |uid: &str, waiter| Event::Kill { uid: uid.into(), grace: None, evicted: None, waiter: Some(waiter) };
    lab.tell(kill("nobody", 1));
    assert_eq!(lab.released, [1]);
    lab.tell(kill("1", 2));
    lab.tell(kill("1", 3));
    assert_eq!(lab.released, [1], "it still runs");
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopContainer { .. })));
    lab.see(&seen(Some(RunState::Exited)));
    assert_eq!(lab.released, [1], "its sandbox does");
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopSandbox { .. })));
    let mut stopped = seen(Some(RunState::Exited));
    stopped.sandboxes[0].ready = false;
    lab.see(&stopped);
    assert_eq!(lab.released, [1, 2, 3]);
    lab.tell(kill("1", 4));
    assert_eq!(lab.released, [1, 2, 3, 4], "it has ended");
}

#[test]
fn the_first_restart_is_no_back_off() {
    let mut lab = running();
    lab.now += Duration::from_secs(1);
    lab.tell(Event::Hint { uid: "1".into() });
    lab.see(&seen(Some(RunState::Exited)));
    lab.answer(
        |c| matches!(c, Call::Runtime(RuntimeCall::ImageStatus { .. })),
        Ok(Answer::Image(Some(ImageFacts { id: "sha".into(), ..ImageFacts::default() }))),
    );
    let calls = lab.ok(|c| matches!(c, Call::Host(HostCall::PrepareContainer { .. })));
    assert!(matches!(calls[..], [Call::Runtime(RuntimeCall::CreateContainer { attempt: 1, .. })]), "{calls:?}");
    // It is looked at while the next one is made.
    lab.looks.clear();
    lab.tell(Event::Hint { uid: "1".into() });
    lab.now += Duration::from_millis(20);
    lab.tell(Event::Wake);
    lab.see(&seen(Some(RunState::Exited)));
    let status = lab.records[&PodUid::from("1")].status.clone().unwrap();
    let state = status.container_statuses.unwrap()[0].state.clone().unwrap();
    assert!(state.waiting.is_none_or(|w| w.reason.as_deref() != Some("CrashLoopBackOff")));
}

#[test]
fn a_volume_that_shows_the_pod_follows_its_changes() {
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
    // It may have been written from the old labels.
    lab.set(&[&colored("blue")]);
    assert_eq!(lab.ok(|c| *c == mount("shown")), [mount("shown")]);
    assert_eq!(lab.ok(|c| *c == mount("shown")), [Call::Runtime(RuntimeCall::RunSandbox { attempt: 0 })]);
    assert_eq!(lab.set(&[&colored("green")]), [mount("shown")]);
}

#[test]
fn a_failed_pull_is_shown_as_itself_and_then_as_a_back_off() {
    let mut lab = Lab::new(Listing::default());
    lab.set(&[&pod("a", "1")]);
    lab.host_is_ready();
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::RunSandbox { .. })), Ok(Answer::Sandbox("sb".into())));
    lab.see(&seen(None));
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
    lab.tell(Event::Wake);
    let (reason, message) = waits(&lab);
    assert_eq!(reason, "ImagePullBackOff");
    assert_eq!(message, "Back-off pulling image \"img\": ErrImagePull: no such image");
    assert!(lab.tell(Event::Wake).is_empty());
    lab.now += Duration::from_secs(9);
    assert!(matches!(lab.tell(Event::Wake)[..], [Call::Runtime(RuntimeCall::PullImage { .. })]));
}

/// What the loop does with a panic.
fn tell_caught(lab: &mut Lab, event: Event) -> (Option<PodUid>, Out) {
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
fn a_panic_costs_its_own_pod_and_the_others_of_the_same_event_go_on() {
    let mut lab = Lab::new(Listing::default());
    let mut broken = pod("b", "b");
    Arc::make_mut(&mut broken.pod).spec = None;
    let change = SourceChange::Set { pods: vec![pod("a", "a"), broken, pod("c", "c")], broken: vec![] };
    let (uid, out) = tell_caught(&mut lab, Event::Source { source: Source::File, change });
    assert_eq!(uid, Some("b".into()));
    let calls =
        |of: &str| out.effects.iter().filter(|e| matches!(e, Effect::Call { uid, .. } if uid.as_str() == of)).count();
    assert_eq!(
        (calls("a"), calls("b"), calls("c")),
        (2, 0, 2),
        "what was asked for before and after the panic is done"
    );
    assert!(out.effects.iter().any(|e| matches!(e, Effect::WakeAt(_))), "and the node wakes again");
    let told = out.effects.iter().filter(|e| matches!(e, Effect::Event(e) if e.reason == "Quarantined")).count();
    assert_eq!(told, 1);
    // It is met again and again without a word, and without another panic.
    lab.tell(Event::Listed { seq: Seq(1_000_000), result: Ok(Listing::default()) });
    assert!(lab.state("b").is_some(), "it is left as it is");
}

#[test]
fn a_runtime_that_is_away_for_one_call_only_is_asked_calmly_and_at_once_after_a_real_outage() {
    let away = || Err(CallError::Unavailable { message: "ttrpc: closed".into() });
    let up = || Event::Runtime { result: Ok(RuntimeReady { network: true, ..RuntimeReady::default() }) };
    let is_stop = |c: &Call| matches!(c, Call::Runtime(RuntimeCall::StopContainer { .. }));
    let mut lab = running();
    lab.set(&[]);
    let mut asked = 1;
    for _ in 0..600 {
        lab.now += Duration::from_millis(100);
        if lab.calls.iter().any(|(_, _, c)| is_stop(c)) {
            lab.answer(is_stop, away());
            lab.tell(up());
        }
        while !lab.looks.is_empty() {
            asked += lab.see(&seen(Some(RunState::Running))).iter().filter(|c| is_stop(c)).count();
        }
        asked += lab.tell(Event::Wake).iter().filter(|c| is_stop(c)).count();
    }
    assert!((5..=15).contains(&asked), "{asked} stops in a minute");
    lab.tell(Event::Runtime { result: Err(CallError::Unavailable { message: "connection refused".into() }) });
    lab.now += Duration::from_millis(100);
    let back: Vec<Call> = lab.tell(up());
    assert!(back.iter().any(is_stop), "{back:?}");
}

#[test]
fn a_runtime_that_says_yes_and_does_nothing_is_asked_calmly() {
    let is_run = |c: &Call| matches!(c, Call::Runtime(RuntimeCall::RunSandbox { .. }));
    let mut lab = Lab::new(Listing::default());
    lab.set(&[&pod("a", "1")]);
    let mut asked = lab.host_is_ready().iter().filter(|c| is_run(c)).count();
    for _ in 0..600 {
        lab.now += Duration::from_millis(100);
        if lab.calls.iter().any(|(_, _, c)| is_run(c)) {
            lab.answer(is_run, Ok(Answer::Sandbox("sb".into())));
        }
        while !lab.looks.is_empty() {
            asked += lab.see(&PodSeen::default()).iter().filter(|c| is_run(c)).count();
        }
        asked += lab.tell(Event::Wake).iter().filter(|c| is_run(c)).count();
    }
    assert!((5..=15).contains(&asked), "{asked} in a minute");
}
