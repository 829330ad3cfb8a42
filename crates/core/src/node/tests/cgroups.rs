//! A pod whose cgroup was missing while it ran.

use std::sync::Arc;

use super::lab::*;
use crate::model::*;
use crate::pod::State;

fn with_policy(policy: &str) -> Manifest {
    let manifest = pod("a", "1");
    let mut changed = Pod::clone(&manifest.pod);
    changed.spec.as_mut().unwrap().restart_policy = Some(policy.into());
    Manifest { pod: Arc::new(changed), ..manifest }
}

/// A new agent finds the pod running; `made`: its cgroup was missing and has been created.
fn found_running(policy: &str, made: bool) -> Lab {
    let mut lab = Lab::bare(vec![]);
    lab.set(&[&with_policy(policy)]);
    lab.bring_up(listing("1", "a"));
    lab.observe(&seen(Some(RunState::Running)));
    lab.answer(|c| *c == Call::Host(HostCall::MakeCgroup), Ok(Answer::Cgroup { made }));
    lab.ok(|c| *c == Call::Host(HostCall::MakeDirs));
    lab
}

/// The container exits with 0; then the sandbox stops.
fn end(lab: &mut Lab) -> Vec<Call> {
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopContainer { .. })));
    assert_eq!(
        lab.observe(&seen(Some(RunState::Exited))),
        [Call::Runtime(RuntimeCall::StopSandbox { id: "sb".into() })]
    );
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopSandbox { .. })));
    let mut dead = seen(Some(RunState::Exited));
    dead.sandboxes[0].ready = false;
    lab.now += std::time::Duration::from_secs(10);
    lab.observe(&dead)
}

#[test]
fn a_pod_that_runs_in_its_cgroup_is_not_restarted() {
    assert!(found_running("Always", false).calls.is_empty());
}

#[test]
fn containers_outside_of_the_pod_cgroup_are_restarted_regardless_of_their_exit_code() {
    for policy in ["Always", "OnFailure"] {
        let mut lab = found_running(policy, true);
        assert_eq!(end(&mut lab), [], "{policy}");
        let made = lab.answer(|c| *c == Call::Host(HostCall::MakeCgroup), Ok(Answer::Cgroup { made: false }));
        assert_eq!(made, [Call::Runtime(RuntimeCall::RunSandbox { attempt: 1 })], "{policy}");
        assert_eq!(lab.state("1"), Some(State::Syncing), "{policy}");
    }
}

#[test]
fn containers_outside_of_the_pod_cgroup_are_journaled() {
    for (policy, journaled) in [("Always", true), ("OnFailure", true), ("Never", false)] {
        let mut lab = Lab::bare(vec![]);
        lab.set(&[&with_policy(policy)]);
        lab.bring_up(listing("1", "a"));
        lab.observe(&seen(Some(RunState::Running)));
        lab.answer(|c| *c == Call::Host(HostCall::MakeCgroup), Ok(Answer::Cgroup { made: true }));
        let record = &lab.records[&PodUid::from("1")];
        let voided = record.containers.values().any(|memory| memory.voided.is_some());
        assert_eq!(voided, journaled, "{policy}: journaled before the directories exist");
    }
}

#[test]
fn a_pod_that_never_restarts_is_not_started_again() {
    let mut lab = found_running("Never", true);
    assert_eq!(end(&mut lab), [Call::Host(HostCall::RemoveVolumes), Call::Host(HostCall::RemoveCgroup)]);
    assert_eq!(lab.state("1"), Some(State::Terminated));
}

#[test]
fn the_next_sandbox_is_created_after_its_cgroup() {
    let mut lab = running();
    let mut dead = seen(Some(RunState::Exited));
    dead.sandboxes[0].ready = false;
    lab.now += std::time::Duration::from_secs(10);
    lab.handle(Event::Hint { uid: "1".into() });
    assert_eq!(lab.observe(&dead), [Call::Runtime(RuntimeCall::StopSandbox { id: "sb".into() })]);
    assert_eq!(
        lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopSandbox { .. }))),
        [Call::Host(HostCall::MakeCgroup)]
    );
    assert_eq!(lab.observe(&dead), [], "not before its cgroup exists");
    let made = lab.answer(|c| *c == Call::Host(HostCall::MakeCgroup), Ok(Answer::Cgroup { made: true }));
    assert_eq!(made, [Call::Runtime(RuntimeCall::RunSandbox { attempt: 1 })], "nothing ran outside of it");
}
