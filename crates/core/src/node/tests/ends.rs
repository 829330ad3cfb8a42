//! Ends that a person asks for, and those of pods that only the runtime knows.

use std::time::Duration;

use super::lab::*;
use crate::model::*;
use crate::pod::State;

fn stop() -> Event {
    Event::Kill { uid: "1".into(), grace: None, evicted: None, waiter: None }
}

/// A pod that a person stopped, at its end.
fn stopped() -> Lab {
    let mut lab = running();
    lab.tell(stop());
    end(&mut lab);
    lab
}

/// What runs obeys; the pod comes to its end.
fn end(lab: &mut Lab) {
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopContainer { .. })));
    lab.see(&seen(Some(RunState::Exited)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopSandbox { .. })));
    lab.see(&dead());
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
fn a_pod_that_a_person_stopped_stays_ended_also_for_the_next_agent() {
    let mut lab = stopped();
    assert_eq!((lab.state("1"), cause(&lab)), (Some(State::Finished), Some(Cause::Stopped)));
    assert_eq!(lab.set(&[&pod("a", "1")]), []);
    let records = lab.records.values().cloned().collect();
    let mut next = Lab::bare(records);
    next.bring_up(listing("1", "a"));
    next.set(&[&pod("a", "1")]);
    while !next.looks.is_empty() {
        next.see(&dead());
    }
    assert_eq!(next.state("1"), Some(State::Finished));
    assert!(!next.calls.iter().any(|(_, _, c)| c.changes_runtime()), "{:?}", next.calls);
    let waits =
        next.node.workers().machine(&PodUid::from("1")).unwrap().waits(Now { boot: next.now, wall: wall(next.now) });
    assert!(waits.iter().any(|w| w.reason == "Stopped"), "{waits:?}");
}

#[test]
fn a_restart_gives_a_stopped_pod_a_new_life() {
    let mut lab = stopped();
    let removal = lab.tell(Event::Restart { uid: "1".into(), container: None });
    assert_eq!(removal, [Call::Runtime(RuntimeCall::RemoveSandbox { id: "sb".into() })]);
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::RemoveSandbox { .. })));
    lab.see(&PodSeen::default());
    lab.ok(|c| *c == Call::Host(HostCall::RemoveDirs));
    assert_eq!(
        lab.ok(|c| *c == Call::Host(HostCall::RemoveLogs)),
        [Call::Host(HostCall::MakeCgroup), Call::Host(HostCall::MakeDirs)],
        "it begins anew"
    );
    assert_eq!((lab.state("1"), cause(&lab)), (Some(State::Syncing), None));
}

#[test]
fn a_stranger_ends_in_a_second_and_one_in_the_way_with_the_grace_it_was_made_with() {
    for (name, expected) in [("else", 2), ("a", 45)] {
        let mut lab = Lab::bare(vec![]);
        lab.set(&[&pod("a", "1")]);
        lab.bring_up(listing("9", name));
        let mut alive = seen(Some(RunState::Running));
        alive.containers[0].grace = Some(Duration::from_secs(45));
        let at = lab.looks.iter().position(|(uid, _)| uid.as_str() == "9").expect("the stranger is looked at");
        let (uid, seq) = lab.looks.remove(at);
        lab.tell(Event::Observed { uid, seq, result: Ok(alive), covered: true });
        let stops = lab.calls.iter().filter_map(|(_, _, c)| match c {
            Call::Runtime(RuntimeCall::StopContainer { timeout, .. }) => Some(timeout.as_secs()),
            _ => None,
        });
        assert_eq!(stops.collect::<Vec<_>>(), [expected], "a pod named {name}");
    }
}

#[test]
fn the_hook_written_on_a_strangers_container_runs_before_its_stop() {
    let mut lab = Lab::bare(vec![]);
    lab.set(&[]);
    lab.bring_up(listing("9", "else"));
    let mut alive = seen(Some(RunState::Running));
    alive.containers[0].pre_stop = Some("the hook".into());
    let is_hook =
        |c: &Call| matches!(c, Call::Runtime(RuntimeCall::Hook { kind: HookKind::PreStop, handler: Some(_), .. }));
    let asked = lab.see(&alive);
    assert!(matches!(&asked[..], [hook] if is_hook(hook)), "{asked:?}");
    let asked = lab.ok(is_hook);
    assert!(matches!(asked[..], [Call::Runtime(RuntimeCall::StopContainer { .. })]), "{asked:?}");
}

#[test]
fn a_start_that_hangs_does_not_hold_the_sandbox_beyond_the_deadline() {
    let mut made = seen(Some(RunState::Created));
    made.containers[0].started_at = None;
    let mut lab = starting(&made);
    lab.tell(Event::Kill { uid: "1".into(), grace: Some(Duration::from_secs(5)), evicted: None, waiter: None });
    let now = Now { boot: lab.now, wall: wall(lab.now) };
    let wake = lab.node.workers().machine(&PodUid::from("1")).unwrap().wake(now).expect("the deadline");
    assert!(wake <= lab.now + Duration::from_secs(7), "{wake:?} at {:?}", lab.now);
    lab.now += Duration::from_secs(7);
    assert_eq!(lab.tell(Event::Wake), [Call::Runtime(RuntimeCall::StopSandbox { id: "sb".into() })]);
}
