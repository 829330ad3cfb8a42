//! The quiet at the end: everything wanted is there, nothing else is.

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_core::backoff;
use podwright_core::model::{
    Cause, Container, FullName, Manifest, PodRecord, PodUid, RunState, full_name, is_sidecar, is_terminal,
};

use crate::runtime::Instance;
use crate::world::World;

impl World {
    /// Run until everything is as it should be, then a while longer, and look again.
    pub fn settle(&mut self, within: Duration) -> bool {
        let until = self.clock.now + within;
        let mut quiet = None;
        while self.violation.is_none() {
            let now = self.clock.now;
            match self.settled() {
                // A round of every timer has passed, and nothing moved.
                Ok(()) if quiet.is_some_and(|since| now >= since + QUIET) => return true,
                Ok(()) => {
                    quiet.get_or_insert(now);
                }
                Err(why) if now >= until => self.broken("6 the world comes to rest", why),
                Err(_) => quiet = None,
            }
            self.run_for(Duration::from_secs(3));
        }
        false
    }

    /// What is missing from rest, if anything.
    pub fn settled(&self) -> Result<(), String> {
        let Some(node) = &self.node else { return Err("the agent is dead".into()) };
        if self.journal.owes() {
            return Err("the journal owes records".into());
        }
        if let Some(waiter) = self.checks.waiters.first() {
            return Err(format!("waiter {waiter} waits"));
        }
        let mut names: BTreeMap<FullName, Vec<(&PodUid, &Manifest)>> = BTreeMap::new();
        for (uid, manifest) in self.sources.values().flat_map(|f| &f.told) {
            names.entry(full_name(&manifest.pod)).or_default().push((uid, manifest));
        }
        self.objects_settled()?;
        for group in names.values() {
            self.group_settled(group)?;
        }
        let wanted = |uid: &PodUid| self.sources.values().any(|f| f.told.contains_key(uid));
        let labelled = |uid: &PodUid| self.runtime.sandboxes_of(uid).any(|(_, s)| s.labelled);
        if let Some(uid) = self.runtime.uids().iter().find(|uid| !wanted(uid) && labelled(uid)) {
            return Err(format!("the runtime still has {uid}"));
        }
        if let Some(uid) = self.host.found().iter().find(|uid| !wanted(uid)) {
            return Err(format!("the machine still has {uid}: {:?}", self.host.get(uid)));
        }
        if let Some(uid) = self.journal.uids().find(|uid| !wanted(uid)) {
            return Err(format!("the journal still has {uid}"));
        }
        if let Some((uid, machine)) = node.workers().iter().find(|(uid, _)| !wanted(uid)) {
            return Err(format!("core still has {uid}: {:?}", machine.state()));
        }
        Ok(())
    }

    /// Of several wanted pods of one name, those before have ended, one has its turn, the others wait.
    fn group_settled(&self, group: &[(&PodUid, &Manifest)]) -> Result<(), String> {
        if let [(uid, manifest)] = group {
            return self.pod_settled(uid, manifest);
        }
        let mut why = "none has its turn".to_owned();
        let mut good = 0;
        for (uid, manifest) in group {
            match self.pod_settled(uid, manifest) {
                Ok(()) => good += 1,
                Err(reason) => {
                    why = reason;
                    if self.runtime.alive(uid).next().is_some() {
                        return Err(why);
                    }
                }
            }
        }
        if good == 0 { Err(why) } else { Ok(()) }
    }

    fn pod_settled(&self, uid: &PodUid, manifest: &Manifest) -> Result<(), String> {
        let Some(record) = self.journal.get(uid) else { return Err(format!("{uid} has no record on disk")) };
        let machine = self.node.as_ref().and_then(|n| n.workers().get(uid));
        if machine.is_none_or(|m| m.record() != record) {
            return Err(format!("{uid}: core and journal differ"));
        }
        if record.pod.spec != manifest.pod.spec {
            return Err(format!("{uid} is not at its newest spec"));
        }
        let Some(spec) = &record.pod.spec else { return Err(format!("{uid} has no spec")) };
        if let Some(ending) = &record.ending {
            if ending.cause == Cause::Removed && !self.checks.tainted.contains(uid) {
                return Err(format!("{uid} left its source, is back, and does not begin anew"));
            }
            if record.restart_requested {
                return Err(format!("{uid} was to begin anew"));
            }
            return self.has_come_to_its_end(record);
        }
        if spec.containers.iter().all(|c| self.is_over(uid, c, record)) {
            return Err(format!("{uid} has ended and is not at its end"));
        }
        let ready: Vec<_> = self.runtime.sandboxes_of(uid).filter(|(_, s)| s.ready).map(|(id, _)| id).collect();
        let [sandbox] = ready.as_slice() else { return Err(format!("{uid} has {} ready sandboxes", ready.len())) };
        let sidecars = spec.init_containers.iter().flatten().filter(|c| is_sidecar(c));
        let apps = spec.containers.iter().filter(|c| !self.is_over(uid, c, record));
        let wanted: Vec<&Container> = sidecars.chain(apps).collect();
        let alive: Vec<_> = self.runtime.alive(uid).collect();
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
        self.is_tidy(uid)?;
        self.runs_in_its_cgroup(record)?;
        let phase = record.status.as_ref().and_then(|s| s.phase.as_deref());
        if phase != Some("Running") && !self.believes_an_older_life(record) {
            return Err(format!("{uid}: its containers run, its phase is {phase:?}"));
        }
        Ok(())
    }

    /// The disk lost a life of this pod: an end of the one before stands in its record, and may be believed.
    fn believes_an_older_life(&self, record: &PodRecord) -> bool {
        let life = self.checks.life(&record.uid);
        let mut exits = record.containers.values().filter_map(|memory| memory.exit.as_ref());
        let older = exits.any(|exit| self.runtime.truth(&exit.id).is_some_and(|c| c.life < life));
        older && self.checks.tainted.contains(&record.uid)
    }

    /// Only the newest dead instance of each container is kept.
    fn is_tidy(&self, uid: &PodUid) -> Result<(), String> {
        let mut dead: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, c) in self.runtime.of(uid).filter(|(_, c)| !c.state.may_run()) {
            *dead.entry(c.name.as_str()).or_default() += 1;
        }
        match dead.iter().find(|(_, n)| **n > 1) {
            Some((name, n)) => Err(format!("{uid} {name}: {n} dead instances are kept")),
            None => Ok(()),
        }
    }

    fn has_come_to_its_end(&self, record: &PodRecord) -> Result<(), String> {
        let uid = &record.uid;
        if !record.finished {
            return Err(format!("{uid} has not finished"));
        }
        if self.runtime.alive(uid).next().is_some() || self.runtime.sandboxes_of(uid).any(|(_, s)| s.ready) {
            return Err(format!("{uid} is finished and runs"));
        }
        let host = self.host.get(uid).cloned().unwrap_or_default();
        if (host.cgroup || !host.volumes.is_empty()) && !self.checks.tainted.contains(uid) {
            return Err(format!("{uid} is finished and has {host:?}"));
        }
        let phase = record.status.as_ref().and_then(|s| s.phase.as_deref());
        // A static pod that was killed before it began stays Pending.
        let ended = record.ending.as_ref().is_some_and(|e| e.cause == Cause::Ended);
        if ended && !is_terminal(phase) {
            return Err(format!("{uid} is finished and its phase is {phase:?}"));
        }
        Ok(())
    }

    /// A container that runs no more, for good.
    fn is_over(&self, uid: &PodUid, c: &Container, record: &PodRecord) -> bool {
        let Some(spec) = &record.pod.spec else { return false };
        // A journal that lost a life believes what it has.
        let believed = record.containers.get(c.name.as_str()).and_then(|m| m.exit.as_ref());
        if self.checks.tainted.contains(uid)
            && believed.is_some_and(|exit| !backoff::should_restart(c, spec, exit.code))
            && self.runtime.alive(uid).all(|(_, i)| i.name.as_str() != c.name)
        {
            return true;
        }
        let life = self.checks.life(uid);
        let of_name = |i: &Instance| i.name.as_str() == c.name && i.life == life && i.state != RunState::Created;
        let all = || self.runtime.ever(uid).filter(|(_, i)| of_name(i));
        let void = record.containers.get(c.name.as_str()).and_then(|m| m.voided.as_ref());
        // After one that does not count, only those made later do, also if they never began: a failed start is an end.
        let voided = all().find(|(id, _)| Some(*id) == void).map(|(_, i)| i.made);
        let counts = |i: &Instance| voided.is_none_or(|made| i.made > made);
        let Some((_, newest)) = all().filter(|(_, i)| counts(i)).max_by_key(|(_, i)| (i.began, i.made)) else {
            return false;
        };
        let ended = !newest.state.may_run() && newest.finished_at.is_some();
        ended && !backoff::should_restart(c, spec, newest.exit_code)
    }
}

/// Longer than every timer of a world at rest: housekeeping, the list, the health check.
const QUIET: Duration = Duration::from_secs(66);
