//! What happens in the runtime, judged as it happens.

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_core::model::{ContainerId, FullName, Manifest, Name, PodUid, full_name};

use crate::check::Signal;
use crate::manifest::sidecar_index;
use crate::world::World;

/// The last of the last: containers may overrun the deadline by this.
const FLOOR: Duration = Duration::from_secs(2);
/// What the world's own latencies may add: the commit, the way of a call, a look.
pub(crate) const SLACK: Duration = Duration::from_millis(250);

impl World {
    /// After every step: never two of one container, never two pods of one name, nobody lives on past his time.
    pub(crate) fn check_world(&mut self) {
        let mut names: BTreeMap<(&PodUid, &Name), &ContainerId> = BTreeMap::new();
        let mut pods: BTreeMap<&FullName, &PodUid> = BTreeMap::new();
        let mut broken = None;
        for (id, c) in self.runtime.containers.iter().filter(|(_, c)| c.state.may_run()) {
            let Some(sandbox) = self.runtime.sandboxes.get(&c.sandbox).filter(|s| s.labelled) else { continue };
            if let Some(other) = names.insert((&c.uid, &c.name), id) {
                broken = Some(("one container per name", format!("{} {}: {other} and {id} run", c.uid, c.name)));
            }
            if let Some(other) = pods.insert(&sandbox.full_name, &c.uid).filter(|other| **other != c.uid) {
                let text = format!("{other} and {} of {} run", c.uid, sandbox.full_name);
                broken = Some(("4 one static pod per full name", text));
            }
            let late = self.checks.latest.get(&c.uid).filter(|_| !self.checks.disturbed.contains(&c.uid));
            let late = late.and_then(|r| self.deadline(r)).is_some_and(|d| self.clock.now > d + FLOOR + SLACK);
            if late && !self.journal.broken {
                broken = Some(("8 the end comes in time", format!("{} {id} = {} lives on", c.uid, c.name)));
            }
        }
        if let Some((rule, text)) = broken {
            self.broken(rule, text);
        }
    }

    pub(crate) fn check_started(&mut self, uid: &PodUid, id: &ContainerId) {
        let name = self.runtime.containers.get(id).map(|c| c.name.to_string()).unwrap_or_default();
        let now = self.clock.now;
        self.checks.marks.starts.push((now, uid.clone(), name));
    }

    /// TERM reaches a container: app containers first, then sidecars in reverse, until the deadline.
    pub(crate) fn check_term(&mut self, uid: &PodUid, id: &ContainerId) {
        let Some(container) = self.runtime.containers.get(id) else { return };
        let name = container.name.clone();
        let now = self.clock.now;
        let signal = self.signal(uid, id);
        self.checks.marks.terms.push(signal);
        let Some(record) = self.checks.latest.get(uid).filter(|r| r.ending.is_some()) else { return };
        let Some(mine) = sidecar_index(&record.pod, name.as_str()) else { return };
        if self.checks.disturbed.contains(uid) || self.deadline(record).is_none_or(|d| now >= d) {
            return;
        }
        let before = self
            .runtime
            .alive(uid)
            .find(|(other, c)| *other != id && sidecar_index(&record.pod, c.name.as_str()).is_none_or(|i| i > mine));
        if let Some((other, c)) = before {
            let text = format!("{uid}: TERM for {name} while {other} = {} runs", c.name);
            self.broken("8 app containers end first, sidecars in reverse", text);
        }
    }

    fn signal(&self, uid: &PodUid, id: &ContainerId) -> Signal {
        let name = self.runtime.containers.get(id).map(|c| c.name.to_string()).unwrap_or_default();
        let beside = self.runtime.alive(uid).filter(|(other, _)| *other != id).map(|(_, c)| c.name.to_string());
        Signal { at: self.clock.now, uid: uid.clone(), name, beside: beside.collect() }
    }

    /// KILL is sent: not later than the deadline and its last two seconds.
    pub(crate) fn check_kill(&mut self, uid: &PodUid, id: &ContainerId) {
        let now = self.clock.now;
        let signal = self.signal(uid, id);
        self.checks.marks.kills.push(signal);
        let Some(record) = self.checks.latest.get(uid) else { return };
        if self.checks.disturbed.contains(uid) || self.journal.broken {
            return;
        }
        if let Some(deadline) = self.deadline(record).filter(|d| now > *d + FLOOR + SLACK) {
            let text = format!("{uid} {id}: {:?} after the deadline", now - deadline);
            self.broken("8 the end comes in time", text);
        }
    }

    /// The runtime refuses a name. Only something that hung or was forgotten by a dead agent may have it.
    pub(crate) fn check_reserved(&mut self, uid: &PodUid, message: &str) {
        if !self.checks.disturbed.contains(uid) {
            self.broken("13 no name is asked for twice", format!("{uid}: {message}"));
        }
    }

    pub(crate) fn check_sandbox_made(&mut self, uid: &PodUid) {
        let other = self.runtime.sandboxes_of(uid).find(|(_, s)| s.ready).map(|(id, _)| id.clone());
        if let Some(other) = other
            && !self.checks.disturbed.contains(uid)
        {
            self.broken("one sandbox per pod", format!("{uid}: {other} is ready"));
        }
    }

    /// Leftovers are swept only of pods nobody knows.
    pub(crate) fn check_sweep(&mut self, uid: &PodUid) {
        // Of two manifests of one name the second is ignored: what is left of its pod is nobody's.
        let ignored = |told: &BTreeMap<PodUid, Manifest>, mine: &Manifest| {
            let name = full_name(&mine.pod);
            told.iter().any(|(other, m)| other != uid && full_name(&m.pod) == name)
        };
        let told = self.sources.values().any(|f| f.told.get(uid).is_some_and(|mine| !ignored(&f.told, mine)));
        let told = told && !self.checks.tainted.contains(uid);
        if self.runtime.alive(uid).next().is_some() || told || self.checks.latest.contains_key(uid) {
            self.broken("7 only strangers are swept", uid.to_string());
        }
    }

    pub(crate) fn check_released(&mut self, waiter: u64) {
        if !self.checks.waiters.remove(&waiter) {
            self.broken("13 a waiter is released once", format!("waiter {waiter}"));
        }
    }
}
