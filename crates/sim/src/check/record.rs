//! What core writes down, judged by what it wrote before and by the truth.

use std::sync::Arc;

use podwright_core::backoff;
use podwright_core::model::{
    Cause, Manifest, PodRecord, PodSpec, PodStatus, PodUid, RunState, full_name, is_sidecar, is_terminal,
};

use crate::world::World;

impl World {
    pub(crate) fn check_put(&mut self, new: &PodRecord) {
        if self.runtime.down {
            self.checks.disturb(&new.uid);
        }
        let old = self.checks.latest.get(&new.uid).cloned();
        if let Some(old) = &old {
            self.check_forward(old, new);
        }
        let was_ending = old.as_ref().is_some_and(|o| o.ending.is_some());
        if new.ending.is_some() && !was_ending {
            self.check_cause(new);
            let now = self.clock.now;
            self.checks.marks.accepted.entry(new.uid.clone()).or_insert(now);
        }
        if new.terminated && !old.as_ref().is_some_and(|o| o.terminated) {
            self.check_terminated(new);
        }
        if new.finished && !old.as_ref().is_some_and(|o| o.finished) {
            self.check_finished(new);
        }
        self.check_exits(new);
        self.check_status(new);
        self.checks.latest.insert(new.uid.clone(), Arc::new(new.clone()));
    }

    /// Nothing that was decided is taken back within one life.
    fn check_forward(&mut self, old: &PodRecord, new: &PodRecord) {
        let uid = &new.uid;
        let mut back = vec![];
        let mut flag = |name: &'static str, before: bool, after: bool| {
            if before && !after {
                back.push(name);
            }
        };
        flag("ending", old.ending.is_some(), new.ending.is_some());
        flag("terminated", old.terminated, new.terminated);
        flag("finished", old.finished, new.finished);
        flag("admitted", old.admitted, new.admitted);
        flag("first_seen", true, old.first_seen == new.first_seen);
        flag("sandbox_attempts", true, old.sandbox_attempts <= new.sandbox_attempts);
        for (name, memory) in &old.containers {
            flag("restarts", true, new.containers.get(name).is_some_and(|m| m.restarts >= memory.restarts));
        }
        if let (Some(before), Some(after)) = (&old.ending, &new.ending) {
            flag("deleted", before.deleted, after.deleted);
            flag("cause", true, before.cause == after.cause);
            flag("grace", true, before.grace >= after.grace);
        }
        if let Some(what) = back.first() {
            self.broken("2 states move forward", format!("{uid}: {what} was taken back"));
        }
        if let (Some(before), Some(after)) = (self.deadline(old), self.deadline(new))
            && after > before
        {
            self.broken("3 the deadline never moves later", format!("{uid}: from {before:?} to {after:?}"));
        }
        let phase = |r: &PodRecord| r.status.as_ref().and_then(|s| s.phase.clone());
        let (before, after) = (phase(old), phase(new));
        if is_terminal(before.as_deref()) && before != after {
            self.broken("9 a terminal phase never changes", format!("{uid}: {before:?} to {after:?}"));
        }
    }

    /// Every end has a cause the world knows of.
    fn check_cause(&mut self, new: &PodRecord) {
        let (uid, Some(ending)) = (&new.uid, &new.ending) else { return };
        let told = self.sources.get(&new.source).and_then(|f| f.told.get(uid));
        let reported = self.sources.get(&new.source).is_some_and(|f| f.reported);
        let killed = self.checks.kills.contains(uid);
        let anew = told.is_some_and(|m| m.pod.spec != new.pod.spec);
        // Of two pods of one name the running one wins.
        let dropped = told.is_some_and(|m| self.has_double(uid, m)) && self.runtime.alive(uid).next().is_none();
        let fine = match ending.cause {
            Cause::Removed => reported && (told.is_none() || anew || dropped),
            Cause::Evicted | Cause::Stopped => killed,
            Cause::Ended => self.has_ended(new) || self.checks.tainted.contains(uid),
            Cause::Orphan => {
                let lost = self.checks.tainted.contains(uid);
                (told.is_none() || dropped || lost) && self.source_has_spoken(uid)
            }
            Cause::Deleted => told.is_some_and(|m| m.pod.metadata.deletion_timestamp.is_some()),
        };
        if !fine {
            let text = format!(
                "{uid}: {:?}, its source has {}",
                ending.cause,
                if reported { "reported" } else { "not reported" }
            );
            self.broken("12 no end without a cause", text);
        }
    }

    /// The source that a sandbox of this pod names has reported to this agent; or none is named.
    fn source_has_spoken(&self, uid: &PodUid) -> bool {
        let mut named = self.runtime.sandboxes_of(uid).filter_map(|(_, s)| s.source);
        named.all(|source| self.sources.get(&source).is_some_and(|f| f.reported))
    }

    /// Another pod of the same source has the same name: one of the two is dropped.
    pub(crate) fn has_double(&self, uid: &PodUid, manifest: &Manifest) -> bool {
        let name = full_name(&manifest.pod);
        let mut all = self.sources.values().flat_map(|f| &f.told);
        all.any(|(other, m)| other != uid && full_name(&m.pod) == name)
    }

    /// All app containers ended for good, or init did.
    fn has_ended(&self, record: &PodRecord) -> bool {
        let Some(spec) = &record.pod.spec else { return true };
        let life = self.checks.life(&record.uid);
        let newest = |name: &str| {
            let all = self.runtime.ever(&record.uid).filter(|(_, c)| c.name.as_str() == name && c.life == life);
            all.filter(|(_, c)| c.state != RunState::Created).max_by_key(|(_, c)| (c.began, c.made)).map(|(_, c)| c)
        };
        let over = |c: &podwright_core::model::Container| {
            let newest = newest(&c.name)?;
            let ended = !newest.state.may_run() && newest.finished_at.is_some();
            (ended && !backoff::should_restart(c, spec, newest.exit_code)).then_some(newest.exit_code)
        };
        let init_failed =
            spec.init_containers.iter().flatten().any(|c| !is_sidecar(c) && over(c).is_some_and(|code| code != 0));
        // Without a sandbox a pod that must run once can't go on.
        let never = spec.restart_policy.as_deref() == Some("Never");
        let homeless = never && !self.runtime.sandboxes_of(&record.uid).any(|(_, s)| s.ready);
        init_failed || homeless || spec.containers.iter().all(|c| over(c).is_some())
    }

    fn check_terminated(&mut self, new: &PodRecord) {
        let uid = &new.uid;
        let alive = self.runtime.alive(uid).next().map(|(id, c)| format!("{uid}: {id} = {} runs", c.name));
        if let Some(text) = alive {
            self.broken("8 terminated means nothing runs", text);
        }
        let ready = self.runtime.sandboxes_of(uid).any(|(_, s)| s.ready);
        if ready && !self.checks.disturbed.contains(uid) {
            self.broken("8 terminated means nothing runs", format!("{uid}: a sandbox is ready"));
        }
    }

    /// A finished pod's status has the exit code of everything that ran.
    fn check_finished(&mut self, new: &PodRecord) {
        let uid = &new.uid;
        let host = self.host.get(uid).cloned().unwrap_or_default();
        if (host.cgroup || !host.volumes.is_empty()) && !self.checks.disturbed.contains(uid) {
            self.broken("7 finished means cgroup and volumes are gone", format!("{uid}: {host:?}"));
        }
        if self.checks.tainted.contains(uid) || new.ending.as_ref().is_some_and(|e| e.cause == Cause::Orphan) {
            return;
        }
        let status = new.status.clone().unwrap_or_default();
        if let Some(text) = missing_end(self, uid, new.pod.spec.as_ref(), &status) {
            self.broken("8 the last status has every exit code", text);
        }
    }

    /// What is remembered of an end is true.
    fn check_exits(&mut self, new: &PodRecord) {
        let mut lie = None;
        for (name, memory) in &new.containers {
            for exit in [&memory.exit, &memory.previous_exit].into_iter().flatten() {
                match self.runtime.truth(&exit.id) {
                    Some(_) if exit.reason == "ContainerStatusUnknown" && self.checks.tainted.contains(&new.uid) => {}
                    Some(c) if c.exit_code == exit.code && !c.state.may_run() => {
                        self.checks.exits.insert(exit.id.clone());
                    }
                    Some(c) => {
                        lie = Some(format!(
                            "{} {name}: {} exited {}, written {}",
                            new.uid, exit.id, c.exit_code, exit.code
                        ))
                    }
                    None => lie = Some(format!("{} {name}: {} never was", new.uid, exit.id)),
                }
            }
        }
        if let Some(text) = lie {
            self.broken("10 exit codes are true", text);
        }
    }

    /// What is shown of an end is true.
    fn check_status(&mut self, new: &PodRecord) {
        let Some(status) = &new.status else { return };
        let all = [&status.init_container_statuses, &status.container_statuses].into_iter().flatten().flatten();
        let ends = all.flat_map(|s| [&s.state, &s.last_state]).flatten().filter_map(|s| s.terminated.as_ref());
        let mut lie = None;
        for end in ends {
            let id = text_id(end.container_id.as_deref());
            let unknown = end.reason.as_deref() == Some("ContainerStatusUnknown");
            let truth = self.runtime.truth(&id.into());
            if unknown && !self.checks.tainted.contains(&new.uid) {
                lie = Some(format!("{}: the end of {id} is not known", new.uid));
            } else if !unknown && truth.is_some_and(|c| c.exit_code != end.exit_code || c.state.may_run()) {
                lie = Some(format!("{}: {id} shown as {}", new.uid, end.exit_code));
            }
        }
        if let Some(text) = lie {
            self.broken("8 the status has true exit codes", text);
        }
    }

    pub(crate) fn check_forget(&mut self, uid: &PodUid) {
        let Some(old) = self.checks.latest.remove(uid) else {
            // Made and dropped within one turn.
            return;
        };
        let same = |m: &Manifest| m.pod.spec == old.pod.spec && !self.has_double(uid, m);
        let wanted = self.sources.values().any(|f| f.told.get(uid).is_some_and(same));
        let reported = self.sources.get(&old.source).is_some_and(|f| f.reported);
        if wanted && reported && !old.restart_requested && old.ending.as_ref().is_some_and(|e| !e.deleted) {
            self.broken("1 a record stays while its pod is wanted", format!("{uid}: {:?}", old.ending));
        }
        *self.checks.lives.entry(uid.clone()).or_default() += 1;
        self.checks.states.remove(uid);
        self.checks.kills.remove(uid);
        self.checks.restarts.remove(uid);
        let now = self.clock.now;
        self.checks.marks.forgotten.insert(uid.clone(), now);
        self.checks.marks.accepted.remove(uid);
    }
}

/// A container that ran, and whose exit code this status does not have.
pub(super) fn missing_end(world: &World, uid: &PodUid, spec: Option<&PodSpec>, status: &PodStatus) -> Option<String> {
    let life = world.checks.life(uid);
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let shown: Vec<_> = lists.into_iter().flatten().flatten().collect();
    let mut missing = None;
    for c in spec?.init_containers.iter().flatten().chain(&spec?.containers) {
        let ran = world.runtime.ever(uid).filter(|(_, i)| i.name.as_str() == c.name && i.life == life);
        let Some((id, newest)) = ran.filter(|(_, i)| i.finished_at.is_some()).max_by_key(|(_, i)| i.made) else {
            continue;
        };
        let shows = shown.iter().filter(|s| s.name == c.name).any(|s| {
            let states = [&s.state, &s.last_state];
            let mut ends = states.into_iter().flatten().filter_map(|s| s.terminated.as_ref());
            ends.any(|t| t.exit_code == newest.exit_code && text_id(t.container_id.as_deref()) == id.as_str())
        });
        if !shows {
            let text = format!("{uid} {}: {id} exited {} and the status has {shown:?}", c.name, newest.exit_code);
            missing = Some(text);
        }
    }
    missing
}

/// `containerd://id` as its id.
fn text_id(text: Option<&str>) -> &str {
    text.map_or("", |t| t.split_once("://").map_or(t, |(_, id)| id))
}
