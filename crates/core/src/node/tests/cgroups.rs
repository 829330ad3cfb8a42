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

/// A new agent finds the pod running, and its cgroup there or not.
fn found_running(policy: &str, made: bool) -> Lab {
    let mut lab = Lab::bare(vec![]);
    lab.set(&[&with_policy(policy)]);
    lab.bring_up(listing("1", "a"));
    lab.see(&seen(Some(RunState::Running)));
    lab.answer(|c| *c == Call::Host(HostCall::MakeCgroup), Ok(Answer::Cgroup { made }));
    lab.ok(|c| *c == Call::Host(HostCall::MakeDirs));
    lab
}

/// What runs ends, well; then its sandbox does.
fn end(lab: &mut Lab) -> Vec<Call> {
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopContainer { .. })));
    assert_eq!(lab.see(&seen(Some(RunState::Exited))), [Call::Runtime(RuntimeCall::StopSandbox { id: "sb".into() })]);
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopSandbox { .. })));
    let mut dead = seen(Some(RunState::Exited));
    dead.sandboxes[0].ready = false;
    lab.now += std::time::Duration::from_secs(10);
    lab.see(&dead)
}

#[test]
fn a_pod_that_runs_in_its_cgroup_is_left_alone() {
    assert!(found_running("Always", false).calls.is_empty());
}

#[test]
fn what_runs_outside_of_its_cgroup_is_ended_and_brought_back_whatever_its_exit_code() {
    for policy in ["Always", "OnFailure"] {
        let mut lab = found_running(policy, true);
        assert_eq!(end(&mut lab), [], "{policy}");
        let made = lab.answer(|c| *c == Call::Host(HostCall::MakeCgroup), Ok(Answer::Cgroup { made: false }));
        assert_eq!(made, [Call::Runtime(RuntimeCall::RunSandbox { attempt: 1 })], "{policy}");
        assert_eq!(lab.state("1"), Some(State::Syncing), "{policy}");
    }
}

#[test]
fn an_agent_that_dies_after_it_heard_leaves_word_of_what_runs_outside() {
    for (policy, word) in [("Always", true), ("OnFailure", true), ("Never", false)] {
        let mut lab = Lab::bare(vec![]);
        lab.set(&[&with_policy(policy)]);
        lab.bring_up(listing("1", "a"));
        lab.see(&seen(Some(RunState::Running)));
        lab.answer(|c| *c == Call::Host(HostCall::MakeCgroup), Ok(Answer::Cgroup { made: true }));
        let record = &lab.records[&PodUid::from("1")];
        let voided = record.containers.values().any(|memory| memory.voided.is_some());
        assert_eq!(voided, word, "{policy}: its directories are still to be made");
    }
}

#[test]
fn a_pod_that_never_restarts_is_not_brought_back() {
    let mut lab = found_running("Never", true);
    assert_eq!(end(&mut lab), [Call::Host(HostCall::RemoveVolumes), Call::Host(HostCall::RemoveCgroup)]);
    assert_eq!(lab.state("1"), Some(State::Terminated));
}

#[test]
fn the_next_sandbox_is_made_in_a_cgroup_that_is_there() {
    let mut lab = running();
    let mut dead = seen(Some(RunState::Exited));
    dead.sandboxes[0].ready = false;
    lab.now += std::time::Duration::from_secs(10);
    lab.tell(Event::Hint { uid: "1".into() });
    assert_eq!(lab.see(&dead), [Call::Runtime(RuntimeCall::StopSandbox { id: "sb".into() })]);
    assert_eq!(
        lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StopSandbox { .. }))),
        [Call::Host(HostCall::MakeCgroup)]
    );
    assert_eq!(lab.see(&dead), [], "not before its cgroup is there");
    let made = lab.answer(|c| *c == Call::Host(HostCall::MakeCgroup), Ok(Answer::Cgroup { made: true }));
    assert_eq!(made, [Call::Runtime(RuntimeCall::RunSandbox { attempt: 1 })], "nothing ran outside of it");
}
