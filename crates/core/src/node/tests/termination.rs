//! Terminations requested by users, and those of orphans.

use std::sync::Arc;
use std::time::Duration;

use super::lab::*;
use crate::NodeConfig;
use crate::model::*;
use crate::pod::State;

fn stop() -> Event {
    Event::Kill { uid: "1".into(), grace: None, evicted: None }
}

/// A pod that a user stopped and that has terminated.
fn stopped() -> Lab {
    let mut lab = running();
    lab.handle(stop());
    end(&mut lab);
    lab
}

/// The containers stop, and the pod finishes.
fn end(lab: &mut Lab) {
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopContainer { .. })));
    lab.observe(&seen(Some(RunState::Exited)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopSandbox { .. })));
    lab.observe(&dead());
    lab.ok(|c| *c == Call::Host(HostCall::RemoveVolumes));
    lab.ok(|c| *c == Call::Host(HostCall::RemoveCgroup));
}

fn dead() -> PodSeen {
    let mut dead = seen(Some(RunState::Exited));
    dead.sandboxes[0].ready = false;
    dead
}

fn cause(lab: &Lab) -> Option<Cause> {
    lab.records.get(&PodUid::from("1"))?.termination().map(|e| e.cause)
}

#[test]
fn a_pod_that_a_user_stopped_stays_stopped_after_a_restart_of_the_agent() {
    let mut lab = stopped();
    assert_eq!((lab.state("1"), cause(&lab)), (Some(State::Finished), Some(Cause::Stopped)));
    assert_eq!(lab.set(&[&pod("a", "1")]), []);
    let records = lab.records.values().cloned().collect();
    let mut next = Lab::bare(records);
    next.bring_up(listing("1", "a"));
    next.set(&[&pod("a", "1")]);
    while !next.observations.is_empty() {
        next.observe(&dead());
    }
    assert_eq!(next.state("1"), Some(State::Finished));
    assert!(!next.calls.iter().any(|(_, _, c)| c.changes_runtime()), "{:?}", next.calls);
    let waits =
        next.node.workers().machine(&PodUid::from("1")).unwrap().waits(Now { boot: next.now, wall: wall(next.now) });
    assert!(waits.iter().any(|w| w.reason == "Stopped"), "{waits:?}");
}

#[test]
fn a_restart_of_a_stopped_pod_starts_a_new_instance() {
    let mut lab = stopped();
    let removal = lab.handle(Event::Restart { uid: "1".into(), container: None });
    assert_eq!(removal, [Call::Runtime(RuntimeCall::RemoveSandbox { id: "sb".into() })]);
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::RemoveSandbox { .. })));
    lab.observe(&PodSeen::default());
    lab.ok(|c| *c == Call::Host(HostCall::RemoveDirs));
    assert_eq!(
        lab.ok(|c| *c == Call::Host(HostCall::RemoveLogs)),
        [Call::Host(HostCall::MakeCgroup), Call::Host(HostCall::MakeDirs)],
        "a new instance starts"
    );
    assert_eq!((lab.state("1"), cause(&lab)), (Some(State::Syncing), None));
}

/// A lab whose pod has completed: policy Never, exit code 0.
fn completed() -> Lab {
    let mut manifest = pod("a", "1");
    Arc::make_mut(&mut manifest.pod).spec.as_mut().unwrap().restart_policy = Some("Never".into());
    let mut lab = starting_of(&manifest, &seen(Some(RunState::Created)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StartContainer { .. })));
    lab.observe(&seen(Some(RunState::Exited)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopSandbox { .. })));
    lab.observe(&dead());
    lab.ok(|c| *c == Call::Host(HostCall::RemoveVolumes));
    lab.ok(|c| *c == Call::Host(HostCall::RemoveCgroup));
    assert_eq!((lab.state("1"), cause(&lab)), (Some(State::Finished), Some(Cause::Ended)));
    lab
}

#[test]
fn a_restart_of_a_completed_static_pod_starts_a_new_instance() {
    let mut lab = completed();
    let removal = lab.handle(Event::Restart { uid: "1".into(), container: None });
    assert_eq!(removal, [Call::Runtime(RuntimeCall::RemoveSandbox { id: "sb".into() })]);
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::RemoveSandbox { .. })));
    lab.observe(&PodSeen::default());
    lab.ok(|c| *c == Call::Host(HostCall::RemoveDirs));
    lab.ok(|c| *c == Call::Host(HostCall::RemoveLogs));
    assert_eq!((lab.state("1"), cause(&lab)), (Some(State::Syncing), None));
}

#[test]
fn a_restart_requested_from_a_former_agent_is_done_while_the_manifest_does_not_parse() {
    let mut lab = completed();
    lab.handle(Event::Restart { uid: "1".into(), container: None });
    let mut next = Lab::bare(lab.records.into_values().collect());
    next.bring_up(Listing::default());
    let broken = vec![("a.yaml".to_owned(), "did not parse".to_owned())];
    next.handle(Event::Source { source: Source::File, change: SourceChange::Set { pods: vec![], broken } });
    while next.state("1") != Some(State::Syncing) {
        match next.observations.is_empty() {
            true => next.ok(|_| true),
            false => next.observe(&PodSeen::default()),
        };
    }
    assert_eq!(next.records[&PodUid::from("1")].termination(), None);
}

#[test]
fn waiting_for_capacity_does_not_use_up_the_active_deadline() {
    let mut lab = Lab::with(NodeConfig { max_pods: 1, ..NodeConfig::default() }, vec![]);
    lab.bring_up(Listing::default());
    let mut late = pod("b", "2");
    Arc::make_mut(&mut late.pod).spec.as_mut().unwrap().active_deadline_seconds = Some(60);
    lab.set(&[&pod("a", "1"), &late]);
    assert_eq!(lab.state("2"), Some(State::Waiting));
    lab.now += Duration::from_secs(600);
    lab.set(&[&late]);
    while let Some((_, uid, _)) = lab.calls.first() {
        if uid.as_str() == "2" {
            break;
        }
        lab.ok(|_| true);
        while !lab.observations.is_empty() {
            lab.observe(&PodSeen::default());
        }
    }
    assert_eq!(lab.state("2"), Some(State::Syncing), "{:?}", lab.records.get(&PodUid::from("2")));
    let status = |lab: &Lab| lab.records[&PodUid::from("2")].status.clone().unwrap();
    assert_eq!(status(&lab).start_time.unwrap().0, wall(lab.now));
    lab.now += Duration::from_secs(59);
    lab.handle(Event::Wake);
    assert_eq!(lab.state("2"), Some(State::Syncing));
    lab.now += Duration::from_secs(1);
    lab.handle(Event::Wake);
    assert_eq!((lab.state("2"), status(&lab).reason.as_deref()), (Some(State::Terminated), Some("DeadlineExceeded")));
}

#[test]
fn an_orphan_gets_the_shortest_grace_period_and_one_that_blocks_a_pod_gets_its_own() {
    for (name, expected) in [("else", 2), ("a", 45)] {
        let mut lab = Lab::bare(vec![]);
        lab.set(&[&pod("a", "1")]);
        lab.bring_up(listing("9", name));
        let mut alive = seen(Some(RunState::Running));
        alive.containers[0].grace = Some(Duration::from_secs(45));
        let at = lab.observations.iter().position(|(uid, _)| uid.as_str() == "9").expect("the orphan is observed");
        let (uid, seq) = lab.observations.remove(at);
        lab.handle(Event::Observed { uid, seq, result: Ok(alive), covered: true });
        let stops = lab.calls.iter().filter_map(|(_, _, c)| match c {
            Call::Runtime(RuntimeCall::StopContainer { timeout, .. }) => Some(timeout.as_secs()),
            _ => None,
        });
        assert_eq!(stops.collect::<Vec<_>>(), [expected], "a pod named {name}");
    }
}

#[test]
fn the_pre_stop_hook_in_the_annotation_of_an_orphan_runs_before_its_stop() {
    let mut lab = Lab::bare(vec![]);
    lab.set(&[]);
    lab.bring_up(listing("9", "else"));
    let mut alive = seen(Some(RunState::Running));
    alive.containers[0].pre_stop = Some("the hook".into());
    let is_hook =
        |c: &Call| matches!(c, Call::Runtime(RuntimeCall::Hook { kind: HookKind::PreStop, handler: Some(_), .. }));
    let calls = lab.observe(&alive);
    assert!(matches!(&calls[..], [hook] if is_hook(hook)), "{calls:?}");
    let calls = lab.ok(is_hook);
    assert!(matches!(calls[..], [Call::Runtime(RuntimeCall::StopContainer { .. })]), "{calls:?}");
}

#[test]
fn a_start_that_hangs_does_not_hold_the_sandbox_beyond_the_deadline() {
    let mut made = seen(Some(RunState::Created));
    made.containers[0].started_at = None;
    let mut lab = starting(&made);
    lab.handle(Event::Kill { uid: "1".into(), grace: Some(Duration::from_secs(5)), evicted: None });
    let now = Now { boot: lab.now, wall: wall(lab.now) };
    let wake = lab.node.workers().machine(&PodUid::from("1")).unwrap().wake(now).expect("the deadline");
    assert!(wake <= lab.now + Duration::from_secs(7), "{wake:?} at {:?}", lab.now);
    lab.now += Duration::from_secs(7);
    assert_eq!(lab.handle(Event::Wake), [Call::Runtime(RuntimeCall::StopSandbox { id: "sb".into() })]);
}

#[test]
fn a_restart_requested_before_the_uid_changed_does_not_replace_the_current_pod() {
    let mut lab = completed();
    lab.handle(Event::Restart { uid: "1".into(), container: None });
    lab.set(&[&pod("a", "2")]);
    assert_eq!(lab.records.keys().map(PodUid::as_str).collect::<Vec<_>>(), ["1", "2"]);
    let mut next = Lab::bare(lab.records.into_values().collect());
    next.bring_up(Listing::default());
    let broken = vec![("a.yaml".to_owned(), "did not parse".to_owned())];
    next.handle(Event::Source { source: Source::File, change: SourceChange::Set { pods: vec![], broken } });
    assert_eq!(next.records.get(&PodUid::from("2")).and_then(|record| record.termination()), None);
    assert_eq!(next.state("2"), Some(State::Syncing));
}
