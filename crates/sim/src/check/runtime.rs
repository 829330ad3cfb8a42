//! Checks of what happens in the runtime, at the moment it happens.

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_core::model::{ContainerId, FullName, Manifest, Name, PodUid, full_name};

use super::{Checks, RuntimeView, Signal, Truth};
use crate::manifest::sidecar_index;

/// Core stops with at least 2 s: containers may overrun the deadline by this.
pub(super) const MINIMUM_STOP: Duration = Duration::from_secs(2);
/// What the latencies of the simulation may add: the commit, a call, an observation.
const SLACK: Duration = Duration::from_millis(250);

/// After every step: never two instances of one container, never two pods of one name, nothing runs past its deadline.
pub(crate) fn check_world(checks: &mut Checks, view: &RuntimeView<'_>) {
    let mut names: BTreeMap<(&PodUid, &Name), &ContainerId> = BTreeMap::new();
    let mut pods: BTreeMap<&FullName, &PodUid> = BTreeMap::new();
    let mut broken = None;
    for (id, c) in view.runtime.containers.iter().filter(|(_, c)| c.state.may_run()) {
        let Some(sandbox) = view.runtime.sandboxes.get(&c.sandbox).filter(|s| s.labelled) else { continue };
        if let Some(other) = names.insert((&c.uid, &c.name), id) {
            broken = Some(("one container per name", format!("{} {}: {other} and {id} run", c.uid, c.name)));
        }
        if let Some(other) = pods.insert(&sandbox.full_name, &c.uid).filter(|other| **other != c.uid) {
            let text = format!("{other} and {} of {} run", c.uid, sandbox.full_name);
            broken = Some(("4 one static pod per full name", text));
        }
        let late = checks.latest.get(&c.uid).filter(|_| !checks.disturbed.contains(&c.uid));
        let late = late.and_then(|r| view.deadline(r)).is_some_and(|d| view.clock.now > d + MINIMUM_STOP + SLACK);
        if late && !view.journal_full {
            broken =
                Some(("8 a pod terminates in time", format!("{} {id} = {} runs past the deadline", c.uid, c.name)));
        }
    }
    if let Some((rule, text)) = broken {
        checks.violate(rule, text);
    }
}

/// A process starts.
pub(crate) fn note_start(checks: &mut Checks, view: &RuntimeView<'_>, uid: &PodUid, id: &ContainerId) {
    let name = view.runtime.containers.get(id).map(|c| c.name.to_string()).unwrap_or_default();
    let now = view.clock.now;
    checks.history.starts.push((now, uid.clone(), name));
}

/// TERM reaches a container: app containers first, then sidecars in reverse order, until the deadline.
pub(crate) fn check_term(checks: &mut Checks, view: &RuntimeView<'_>, uid: &PodUid, id: &ContainerId) {
    let Some(container) = view.runtime.containers.get(id) else { return };
    let name = container.name.clone();
    let now = view.clock.now;
    let signal = signal(view, uid, id);
    checks.history.terms.push(signal);
    let Some(record) = checks.latest.get(uid).filter(|r| r.termination().is_some()) else { return };
    let Some(mine) = sidecar_index(&record.pod, name.as_str()) else { return };
    if checks.disturbed.contains(uid) || view.deadline(record).is_none_or(|d| now >= d) {
        return;
    }
    let before = view
        .runtime
        .alive(uid)
        .find(|(other, c)| *other != id && sidecar_index(&record.pod, c.name.as_str()).is_none_or(|i| i > mine));
    if let Some((other, c)) = before {
        let text = format!("{uid}: TERM for {name} while {other} = {} runs", c.name);
        checks.violate("8 app containers stop first, then sidecars in reverse order", text);
    }
}

fn signal(view: &RuntimeView<'_>, uid: &PodUid, id: &ContainerId) -> Signal {
    let name = view.runtime.containers.get(id).map(|c| c.name.to_string()).unwrap_or_default();
    let others = view.runtime.alive(uid).filter(|(other, _)| *other != id).map(|(_, c)| c.name.to_string());
    Signal { at: view.clock.now, uid: uid.clone(), name, others_running: others.collect() }
}

/// KILL is sent: at most 2 s after the deadline.
pub(crate) fn check_kill(checks: &mut Checks, view: &RuntimeView<'_>, uid: &PodUid, id: &ContainerId) {
    let now = view.clock.now;
    let signal = signal(view, uid, id);
    checks.history.kills.push(signal);
    let Some(record) = checks.latest.get(uid) else { return };
    if checks.disturbed.contains(uid) || view.journal_full {
        return;
    }
    if let Some(deadline) = view.deadline(record).filter(|d| now > *d + MINIMUM_STOP + SLACK) {
        let text = format!("{uid} {id}: {:?} after the deadline", now - deadline);
        checks.violate("8 a pod terminates in time", text);
    }
}

/// A sandbox is created.
pub(crate) fn check_sandbox_made(checks: &mut Checks, view: &RuntimeView<'_>, uid: &PodUid) {
    let other = view.runtime.sandboxes_of(uid).find(|(_, s)| s.ready).map(|(id, _)| id.clone());
    if let Some(other) = other
        && !checks.disturbed.contains(uid)
    {
        checks.violate("one sandbox per pod", format!("{uid}: {other} is ready"));
    }
}

/// Leftovers are removed only of unknown pods.
pub(crate) fn check_sweep(checks: &mut Checks, truth: &Truth<'_>, uid: &PodUid) {
    // Of two manifests of one name the second is ignored: its pod's leftovers may be removed.
    let ignored = |delivered: &BTreeMap<PodUid, Manifest>, mine: &Manifest| {
        let name = full_name(&mine.pod);
        delivered.iter().any(|(other, m)| other != uid && full_name(&m.pod) == name)
    };
    let delivered =
        truth.sources.values().any(|f| f.delivered.get(uid).is_some_and(|mine| !ignored(&f.delivered, mine)));
    let delivered = delivered && !checks.record_lost.contains(uid);
    if truth.runtime.alive(uid).next().is_some() || delivered || checks.latest.contains_key(uid) {
        checks.violate("7 only leftovers of unknown pods are removed", uid.to_string());
    }
}
