//! Checks of the records that core writes, against earlier records and against the true state.

use std::sync::Arc;

use podwright_core::backoff;
use podwright_core::model::{
    Cause, Manifest, PodRecord, PodSpec, PodStatus, PodUid, RunState, full_name, is_sidecar, is_terminal,
};

use super::{Checks, Truth};
use crate::runtime::Runtime;

pub(crate) fn check_put(checks: &mut Checks, truth: &Truth<'_>, new: &PodRecord) {
    if truth.runtime.down {
        checks.disturb(&new.uid);
    }
    let old = checks.latest.get(&new.uid).cloned();
    if let Some(old) = &old {
        check_forward(checks, truth, old, new);
    }
    let was_terminating = old.as_ref().is_some_and(|o| o.termination().is_some());
    if new.termination().is_some() && !was_terminating {
        check_cause(checks, truth, new);
        let now = truth.clock.now;
        checks.history.terminating.entry(new.uid.clone()).or_insert(now);
    }
    if new.is_terminated() && !old.as_ref().is_some_and(|o| o.is_terminated()) {
        check_terminated(checks, truth, new);
    }
    if new.is_finished() && !old.as_ref().is_some_and(|o| o.is_finished()) {
        check_finished(checks, truth, new);
    }
    check_exits(checks, truth, new);
    check_status(checks, truth, new);
    checks.latest.insert(new.uid.clone(), Arc::new(new.clone()));
}

/// No decision is reverted within one incarnation.
fn check_forward(checks: &mut Checks, truth: &Truth<'_>, old: &PodRecord, new: &PodRecord) {
    let uid = &new.uid;
    let mut back = vec![];
    let mut flag = |name: &'static str, before: bool, after: bool| {
        if before && !after {
            back.push(name);
        }
    };
    flag("ending", old.termination().is_some(), new.termination().is_some());
    flag("terminated", old.is_terminated(), new.is_terminated());
    flag("finished", old.is_finished(), new.is_finished());
    flag("admitted", old.was_admitted(), new.was_admitted());
    flag("first_seen", true, old.first_seen == new.first_seen);
    flag("sandbox_attempts", true, old.sandbox_attempts <= new.sandbox_attempts);
    for (name, before) in &old.containers {
        flag("restarts", true, new.containers.get(name).is_some_and(|m| m.restarts >= before.restarts));
    }
    if let (Some(before), Some(after)) = (old.termination(), new.termination()) {
        flag("deleted", before.deleted, after.deleted);
        flag("cause", true, before.cause == after.cause);
        flag("grace", true, before.grace >= after.grace);
    }
    if let Some(what) = back.first() {
        checks.violate("2 states move forward", format!("{uid}: {what} was reverted"));
    }
    if let (Some(before), Some(after)) = (truth.deadline(old), truth.deadline(new))
        && after > before
    {
        checks.violate("3 the deadline never moves later", format!("{uid}: from {before:?} to {after:?}"));
    }
    let phase = |r: &PodRecord| r.status.as_ref().and_then(|s| s.phase.clone());
    let (before, after) = (phase(old), phase(new));
    if is_terminal(before.as_deref()) && before != after {
        checks.violate("9 a terminal phase never changes", format!("{uid}: {before:?} to {after:?}"));
    }
}

/// Every termination has a true cause.
fn check_cause(checks: &mut Checks, truth: &Truth<'_>, new: &PodRecord) {
    let (uid, Some(ending)) = (&new.uid, new.termination()) else { return };
    let delivered = truth.sources.get(new.source).and_then(|s| s.delivered.get(uid));
    let reported = truth.sources.has_reported(new.source);
    let killed = checks.kills.contains(uid);
    let replaced = delivered.is_some_and(|m| m.pod.spec != new.pod.spec);
    // Of two pods of one name the one that runs is kept.
    let dropped = delivered.is_some_and(|m| has_duplicate(truth, uid, m)) && truth.runtime.alive(uid).next().is_none();
    let fine = match ending.cause {
        Cause::Removed => reported && (delivered.is_none() || replaced || dropped),
        Cause::Evicted | Cause::Stopped => killed,
        // The simulated host never shuts down gracefully.
        Cause::Shutdown => false,
        Cause::Ended => {
            let deadline = past_active_deadline(truth, new).is_some();
            has_ended(checks, truth, new) || deadline || checks.record_lost.contains(uid)
        }
        Cause::Orphan => {
            let lost = checks.record_lost.contains(uid);
            (delivered.is_none() || dropped || lost) && source_has_reported(truth, uid)
        }
        Cause::Deleted => delivered.is_some_and(|m| m.pod.metadata.deletion_timestamp.is_some()),
    };
    if !fine {
        let text =
            format!("{uid}: {:?}, its source has {}", ending.cause, if reported { "reported" } else { "not reported" });
        checks.violate("12 no termination without a cause", text);
    }
}

/// The sources that sandboxes of this pod name have reported to this agent process.
fn source_has_reported(truth: &Truth<'_>, uid: &PodUid) -> bool {
    let mut named = truth.runtime.sandboxes_of(uid).filter_map(|(_, s)| s.source);
    named.all(|source| truth.sources.has_reported(source))
}

/// Another pod of the same source has the same name: one of the two is dropped.
fn has_duplicate(truth: &Truth<'_>, uid: &PodUid, manifest: &Manifest) -> bool {
    let name = full_name(&manifest.pod);
    let mut all = truth.sources.delivered();
    all.any(|(other, m)| other != uid && full_name(&m.pod) == name)
}

/// How long ago the pod's active deadline was.
pub(super) fn past_active_deadline(truth: &Truth<'_>, record: &PodRecord) -> Option<jiff::SignedDuration> {
    let seconds = record.pod.spec.as_ref()?.active_deadline_seconds?;
    let start = record.status.as_ref()?.start_time.as_ref()?.0;
    let past = truth.clock.wall().duration_since(start) - jiff::SignedDuration::from_secs(seconds);
    (!past.is_negative()).then_some(past)
}

/// All app containers exited for good, or an init container failed for good.
fn has_ended(checks: &Checks, truth: &Truth<'_>, record: &PodRecord) -> bool {
    let Some(spec) = &record.pod.spec else { return true };
    let incarnation = checks.incarnation(&record.uid);
    let newest = |name: &str| {
        let all =
            truth.runtime.ever(&record.uid).filter(|(_, c)| c.name.as_str() == name && c.incarnation == incarnation);
        // The exit of an interrupted start is ignored.
        let all = all.filter(|(_, c)| c.state != RunState::Created && !c.cut_off);
        all.max_by_key(|(_, c)| (c.began, c.made)).map(|(_, c)| c)
    };
    let over = |c: &podwright_core::model::Container| {
        let newest = newest(&c.name)?;
        let ended = !newest.state.may_run() && newest.finished_at.is_some();
        (ended && !backoff::should_restart(c, spec, newest.exit_code)).then_some(newest.exit_code)
    };
    let init_failed =
        spec.init_containers.iter().flatten().any(|c| !is_sidecar(c) && over(c).is_some_and(|code| code != 0));
    // Without a sandbox a pod with policy Never can't continue.
    let never = spec.restart_policy.as_deref() == Some("Never");
    let no_sandbox = never && !truth.runtime.sandboxes_of(&record.uid).any(|(_, s)| s.ready);
    init_failed || no_sandbox || spec.containers.iter().all(|c| over(c).is_some())
}

fn check_terminated(checks: &mut Checks, truth: &Truth<'_>, new: &PodRecord) {
    let uid = &new.uid;
    let alive = truth.runtime.alive(uid).next().map(|(id, c)| format!("{uid}: {id} = {} runs", c.name));
    if let Some(text) = alive {
        checks.violate("8 terminated means nothing runs", text);
    }
    let ready = truth.runtime.sandboxes_of(uid).any(|(_, s)| s.ready);
    if ready && !checks.disturbed.contains(uid) {
        checks.violate("8 terminated means nothing runs", format!("{uid}: a sandbox is ready"));
    }
}

/// A finished pod's status has the exit code of everything that ran.
fn check_finished(checks: &mut Checks, truth: &Truth<'_>, new: &PodRecord) {
    let uid = &new.uid;
    let host = truth.host.get(uid).cloned().unwrap_or_default();
    if (host.cgroup || !host.volumes.is_empty()) && !checks.disturbed.contains(uid) {
        checks.violate("7 finished means cgroup and volumes are gone", format!("{uid}: {host:?}"));
    }
    if checks.record_lost.contains(uid) || new.termination().is_some_and(|e| e.cause == Cause::Orphan) {
        return;
    }
    let status = new.status.clone().unwrap_or_default();
    if let Some(text) = missing_exit(checks, truth.runtime, uid, new.pod.spec.as_ref(), &status) {
        checks.violate("8 the last status has every exit code", text);
    }
}

/// The exits in a record are true.
fn check_exits(checks: &mut Checks, truth: &Truth<'_>, new: &PodRecord) {
    let mut wrong = None;
    for (name, container) in &new.containers {
        for exit in [&container.exit, &container.previous_exit].into_iter().flatten() {
            match truth.runtime.truth(&exit.id) {
                Some(_) if exit.reason == "ContainerStatusUnknown" && checks.record_lost.contains(&new.uid) => {}
                Some(c) if c.exit_code == exit.code && !c.state.may_run() => {
                    checks.exits.insert(exit.id.clone());
                }
                Some(c) => {
                    wrong =
                        Some(format!("{} {name}: {} exited {}, recorded {}", new.uid, exit.id, c.exit_code, exit.code))
                }
                None => wrong = Some(format!("{} {name}: {} never existed", new.uid, exit.id)),
            }
        }
    }
    if let Some(text) = wrong {
        checks.violate("10 exit codes are true", text);
    }
}

/// The exits in a status are true.
fn check_status(checks: &mut Checks, truth: &Truth<'_>, new: &PodRecord) {
    let Some(status) = &new.status else { return };
    let lists = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    let all = lists.into_iter().flatten().flatten();
    let ends = all.flat_map(|s| [&s.state, &s.last_state]).flatten().filter_map(|s| s.terminated.as_ref());
    let mut wrong = None;
    for end in ends {
        let id = text_id(end.container_id.as_deref());
        let unknown = end.reason.as_deref() == Some("ContainerStatusUnknown");
        let truth = truth.runtime.truth(&id.into());
        if unknown && !checks.record_lost.contains(&new.uid) {
            wrong = Some(format!("{}: the exit of {id} is unknown", new.uid));
        } else if !unknown && truth.is_some_and(|c| c.exit_code != end.exit_code || c.state.may_run()) {
            wrong = Some(format!("{}: {id} shown as {}", new.uid, end.exit_code));
        }
    }
    if let Some(text) = wrong {
        checks.violate("8 the status has true exit codes", text);
    }
}

pub(crate) fn check_forget(checks: &mut Checks, truth: &Truth<'_>, uid: &PodUid) {
    let Some(old) = checks.latest.remove(uid) else {
        // Created and dropped within one event.
        return;
    };
    let same = |m: &Manifest| m.pod.spec == old.pod.spec && !has_duplicate(truth, uid, m);
    let wanted = truth.sources.delivered().any(|(of, m)| of == uid && same(m));
    let reported = truth.sources.has_reported(old.source);
    // A user wants a new instance of a static pod that has ended; what it left may be gone already.
    let restarted = old.restart_requested() || (checks.restarts.contains(uid) && old.source.is_static());
    if wanted && reported && !restarted && old.termination().is_some_and(|e| !e.deleted) {
        checks.violate("1 the record of a wanted pod is kept", format!("{uid}: {:?}", old.termination()));
    }
    *checks.incarnations.entry(uid.clone()).or_default() += 1;
    checks.states.remove(uid);
    checks.kills.remove(uid);
    checks.restarts.remove(uid);
    let now = truth.clock.now;
    checks.history.forgotten.insert(uid.clone(), now);
    checks.history.terminating.remove(uid);
}

/// A container that ran, and whose exit code is not in this status.
pub(super) fn missing_exit(
    checks: &Checks,
    runtime: &Runtime,
    uid: &PodUid,
    spec: Option<&PodSpec>,
    status: &PodStatus,
) -> Option<String> {
    let incarnation = checks.incarnation(uid);
    let lists = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    let shown: Vec<_> = lists.into_iter().flatten().flatten().collect();
    let mut missing = None;
    let names = spec?.init_containers.iter().flatten().chain(&spec?.containers).map(|c| &c.name);
    for name in names.chain(spec?.ephemeral_containers.iter().flatten().map(|c| &c.name)) {
        let ran = runtime.ever(uid).filter(|(_, i)| i.name.as_str() == name && i.incarnation == incarnation);
        let newest = ran.filter(|(_, i)| i.finished_at.is_some()).max_by_key(|(_, i)| i.made);
        // The exit of an interrupted start may be missing from the status.
        let Some((id, newest)) = newest.filter(|(_, i)| !i.cut_off) else { continue };
        let shows = shown.iter().filter(|s| s.name == *name).any(|s| {
            let states = [&s.state, &s.last_state];
            let mut ends = states.into_iter().flatten().filter_map(|s| s.terminated.as_ref());
            ends.any(|t| t.exit_code == newest.exit_code && text_id(t.container_id.as_deref()) == id.as_str())
        });
        if !shows {
            let text = format!("{uid} {name}: {id} exited {} and the status has {shown:?}", newest.exit_code);
            missing = Some(text);
        }
    }
    missing
}

/// `containerd://id` as its id.
fn text_id(text: Option<&str>) -> &str {
    text.map_or("", |t| t.split_once("://").map_or(t, |(_, id)| id))
}
