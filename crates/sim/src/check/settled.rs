//! The state at rest: everything the sources want runs, and nothing else is left.

use std::collections::BTreeMap;

use podwright_core::backoff;
use podwright_core::model::{
    Cause, Container, FullName, Manifest, PodRecord, PodUid, RunState, all_containers, full_name, is_sidecar,
    is_terminal,
};

use super::cgroup::runs_in_its_cgroup;
use super::objects::objects_settled;
use super::record::past_active_deadline;
use super::{Checks, Truth};
use crate::manifest::is_ephemeral;
use crate::runtime::Instance;

/// What differs from the state at rest, if anything.
pub(crate) fn settled(checks: &Checks, truth: &Truth<'_>) -> Result<(), String> {
    let Some(node) = truth.agent.node() else { return Err("the agent is dead".into()) };
    if truth.agent.journal.has_unwritten() {
        return Err("some records are not written".into());
    }
    let mut names: BTreeMap<FullName, Vec<(&PodUid, &Manifest)>> = BTreeMap::new();
    for (uid, manifest) in truth.sources.delivered() {
        names.entry(full_name(&manifest.pod)).or_default().push((uid, manifest));
    }
    objects_settled(truth)?;
    for group in names.values() {
        group_settled(checks, truth, group)?;
    }
    let wanted = |uid: &PodUid| truth.sources.delivered().any(|(wanted, _)| wanted == uid);
    let labelled = |uid: &PodUid| truth.runtime.sandboxes_of(uid).any(|(_, s)| s.labelled);
    if let Some(uid) = truth.runtime.uids().iter().find(|uid| !wanted(uid) && labelled(uid)) {
        return Err(format!("the runtime still has {uid}"));
    }
    if let Some(uid) = truth.host.pod_uids().iter().find(|uid| !wanted(uid)) {
        return Err(format!("the host still has {uid}: {:?}", truth.host.get(uid)));
    }
    if let Some(uid) = truth.agent.journal.uids().find(|uid| !wanted(uid)) {
        return Err(format!("the journal still has {uid}"));
    }
    if let Some((uid, machine)) = node.workers().iter().find(|(uid, _)| !wanted(uid)) {
        return Err(format!("core still has {uid}: {:?}", machine.state()));
    }
    Ok(())
}

/// Of several wanted pods of one name, earlier ones have finished, one runs, and the others wait.
fn group_settled(checks: &Checks, truth: &Truth<'_>, group: &[(&PodUid, &Manifest)]) -> Result<(), String> {
    if let [(uid, manifest)] = group {
        return pod_settled(checks, truth, uid, manifest);
    }
    let mut why = "none of them runs".to_owned();
    let mut good = 0;
    for (uid, manifest) in group {
        match pod_settled(checks, truth, uid, manifest) {
            Ok(()) => good += 1,
            Err(reason) => {
                why = reason;
                if truth.runtime.alive(uid).next().is_some() {
                    return Err(why);
                }
            }
        }
    }
    if good == 0 { Err(why) } else { Ok(()) }
}

fn pod_settled(checks: &Checks, truth: &Truth<'_>, uid: &PodUid, manifest: &Manifest) -> Result<(), String> {
    let Some(record) = truth.agent.journal.get(uid) else { return Err(format!("{uid} has no record on disk")) };
    let machine = truth.agent.node().and_then(|n| n.workers().get(uid));
    if machine.is_none_or(|m| m.record() != record) {
        return Err(format!("{uid}: core and journal differ"));
    }
    if record.pod.spec != manifest.pod.spec {
        return Err(format!("{uid} is not at its newest spec"));
    }
    let Some(spec) = &record.pod.spec else { return Err(format!("{uid} has no spec")) };
    if let Some(ending) = record.termination() {
        if ending.cause == Cause::Removed && !checks.record_lost.contains(uid) {
            return Err(format!("{uid} is back in its source and does not start from scratch"));
        }
        if record.restart_requested() {
            return Err(format!("{uid} was to start from scratch"));
        }
        return is_finished(checks, truth, record);
    }
    // Some seconds, because a jump of the wall clock is not noticed at once.
    if past_active_deadline(truth, record).is_some_and(|past| past > jiff::SignedDuration::from_secs(5)) {
        return Err(format!("{uid} is past its active deadline and does not terminate"));
    }
    if spec.containers.iter().all(|c| is_over(checks, truth, uid, c, record)) {
        return Err(format!("all containers of {uid} exited and it does not finish"));
    }
    let ready: Vec<_> = truth.runtime.sandboxes_of(uid).filter(|(_, s)| s.ready).map(|(id, _)| id).collect();
    let [sandbox] = ready.as_slice() else { return Err(format!("{uid} has {} ready sandboxes", ready.len())) };
    let sidecars = spec.init_containers.iter().flatten().filter(|c| is_sidecar(c));
    let apps = spec.containers.iter().filter(|c| !is_over(checks, truth, uid, c, record));
    let debuggers = all_containers(&record.pod).filter(|c| is_ephemeral(&record.pod, &c.name));
    let debuggers: Vec<_> = debuggers.filter(|c| !has_run(checks, truth, uid, &c.name)).collect();
    let wanted: Vec<&Container> = sidecars.chain(apps).chain(debuggers.iter().map(|c| &**c)).collect();
    let alive: Vec<_> = truth.runtime.alive(uid).collect();
    for c in &wanted {
        let hash = podwright_core::hash::container_hash(c);
        let runs = alive.iter().find(|(_, i)| i.name.as_str() == c.name);
        match runs {
            None => return Err(format!("{uid} {} does not run", c.name)),
            Some((id, i)) if i.sandbox != **sandbox || i.hash.as_ref() != Some(&hash) => {
                return Err(format!("{uid} {}: {id} is of another sandbox or spec", c.name));
            }
            _ => {}
        }
    }
    if alive.len() != wanted.len() {
        return Err(format!("{uid}: {} containers run, {} are wanted", alive.len(), wanted.len()));
    }
    is_tidy(truth, uid)?;
    runs_in_its_cgroup(checks, truth, record)?;
    let phase = record.status.as_ref().and_then(|s| s.phase.as_deref());
    if phase != Some("Running") && !trusts_older_incarnation(checks, truth, record) {
        return Err(format!("{uid}: its containers run, its phase is {phase:?}"));
    }
    Ok(())
}

/// The ephemeral container ended: it is not started again.
fn has_run(checks: &Checks, truth: &Truth<'_>, uid: &PodUid, name: &str) -> bool {
    let incarnation = checks.incarnation(uid);
    let mut all = truth.runtime.ever(uid).filter(|(_, i)| i.name.as_str() == name && i.incarnation == incarnation);
    let ended = all.any(|(_, i)| i.state == RunState::Exited && !i.cut_off);
    ended && truth.runtime.alive(uid).all(|(_, i)| i.name.as_str() != name)
}

/// The record of an incarnation of this pod was lost with the disk: its record has an exit of the one before, which core may use.
fn trusts_older_incarnation(checks: &Checks, truth: &Truth<'_>, record: &PodRecord) -> bool {
    let incarnation = checks.incarnation(&record.uid);
    let mut exits = record.containers.values().filter_map(|state| state.exit.as_ref());
    let older = exits.any(|exit| truth.runtime.truth(&exit.id).is_some_and(|c| c.incarnation < incarnation));
    older && checks.record_lost.contains(&record.uid)
}

/// Only the newest dead instance of each container is kept.
fn is_tidy(truth: &Truth<'_>, uid: &PodUid) -> Result<(), String> {
    let mut dead: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, c) in truth.runtime.of(uid).filter(|(_, c)| !c.state.may_run()) {
        *dead.entry(c.name.as_str()).or_default() += 1;
    }
    match dead.iter().find(|(_, n)| **n > 1) {
        Some((name, n)) => Err(format!("{uid} {name}: {n} dead instances are kept")),
        None => Ok(()),
    }
}

fn is_finished(checks: &Checks, truth: &Truth<'_>, record: &PodRecord) -> Result<(), String> {
    let uid = &record.uid;
    if !record.is_finished() {
        return Err(format!("{uid} has not finished"));
    }
    if truth.runtime.alive(uid).next().is_some() || truth.runtime.sandboxes_of(uid).any(|(_, s)| s.ready) {
        return Err(format!("{uid} is finished and runs"));
    }
    let host = truth.host.get(uid).cloned().unwrap_or_default();
    if (host.cgroup || !host.volumes.is_empty()) && !checks.record_lost.contains(uid) {
        return Err(format!("{uid} is finished and has {host:?}"));
    }
    let phase = record.status.as_ref().and_then(|s| s.phase.as_deref());
    // A static pod that was killed before it started stays Pending.
    let ended = record.termination().is_some_and(|e| e.cause == Cause::Ended);
    if ended && !is_terminal(phase) {
        return Err(format!("{uid} is finished and its phase is {phase:?}"));
    }
    Ok(())
}

/// The container exited for good.
fn is_over(checks: &Checks, truth: &Truth<'_>, uid: &PodUid, c: &Container, record: &PodRecord) -> bool {
    let Some(spec) = &record.pod.spec else { return false };
    // After a lost record core trusts an older one.
    let recorded = record.containers.get(c.name.as_str()).and_then(|m| m.exit.as_ref());
    if checks.record_lost.contains(uid)
        && recorded.is_some_and(|exit| !backoff::should_restart(c, spec, exit.code))
        && truth.runtime.alive(uid).all(|(_, i)| i.name.as_str() != c.name)
    {
        return true;
    }
    let incarnation = checks.incarnation(uid);
    let of_name =
        |i: &Instance| i.name.as_str() == c.name && i.incarnation == incarnation && i.state != RunState::Created;
    let of_name = |i: &Instance| of_name(i) && !i.cut_off;
    let all = || truth.runtime.ever(uid).filter(|(_, i)| of_name(i));
    let void = record.containers.get(c.name.as_str()).and_then(|m| m.voided.as_ref());
    // After a voided instance only later ones count, also if they never ran: a failed start is an exit.
    let voided = all().find(|(id, _)| Some(*id) == void).map(|(_, i)| i.made);
    let counts = |i: &Instance| voided.is_none_or(|made| i.made > made);
    let Some((_, newest)) = all().filter(|(_, i)| counts(i)).max_by_key(|(_, i)| (i.began, i.made)) else {
        return false;
    };
    let ended = !newest.state.may_run() && newest.finished_at.is_some();
    ended && !backoff::should_restart(c, spec, newest.exit_code)
}
