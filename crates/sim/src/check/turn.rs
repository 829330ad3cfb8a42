//! What core asks for in a turn, judged by what the world knows.

use std::time::Duration;

use podwright_core::model::{
    Answer, Call, CallId, ContainerId, Effect, Event, HookKind, Out, PodRecord, PodSeen, PodUid, ProbeVerdict, Record,
    RunState, SandboxId, SourceChange,
};
use podwright_core::pod::full_name;
use podwright_core::restart;

use crate::keeper::is_mirror;
use crate::manifest::find;
use crate::world::World;

impl World {
    /// An event is about to be handled.
    pub(crate) fn check_event(&mut self, event: &Event) {
        let turn = self.turns;
        self.note_objects(event);
        match event {
            Event::Source { source, change: SourceChange::Set { pods, broken } } => {
                let files = self.sources.entry(*source).or_default();
                let stays = |origin: &str| broken.iter().any(|(path, _)| path == origin);
                files.told.retain(|_, m| stays(&m.origin));
                for manifest in pods.iter().filter(|m| !is_mirror(&m.pod)) {
                    if let Some(uid) = podwright_core::sources::uid_of(manifest) {
                        files.told.insert(uid, manifest.clone());
                    }
                }
                files.reported = true;
            }
            Event::Listed { seq, result: Ok(listing) } => {
                let drawn = self.checks.drawn.remove(seq).unwrap_or(0);
                // A list that lacks a pod is a look at it, also after a newer list that has it.
                for uid in self.checks.latest.keys().filter(|uid| !listing.pods.contains_key(*uid)) {
                    let sight = self.checks.sight.entry(uid.clone()).or_default();
                    *sight = (*sight).max(drawn);
                }
                self.checks.listed = Some((drawn, listing.pods.keys().cloned().collect()));
            }
            Event::Observed { uid, seq, result: Ok(seen), .. } => {
                self.checks.doubts.retain(|(of, call, _)| of != uid || !is_answered(call, seen));
                let drawn = self.checks.drawn.remove(seq).unwrap_or(0);
                let sight = self.checks.sight.entry(uid.clone()).or_default();
                *sight = (*sight).max(drawn);
            }
            Event::Done { id, result } => {
                let Some((uid, call)) = self.checks.calls.remove(id) else { return };
                let patience = self.checks.patience.remove(id).unwrap_or_default();
                if is_start(&call) && result.as_ref().is_err_and(|e| e.in_doubt && !e.unavailable) {
                    self.checks.doubts.push((uid.clone(), call.clone(), patience));
                }
                if call.is_runtime() {
                    self.checks.returned.insert(uid, turn);
                }
                let failed = match (&call, result) {
                    (Call::Hook { kind: HookKind::PostStart, id, .. }, Err(_)) => Some(id),
                    (Call::Probe { id, .. }, Ok(Answer::Probe(ProbeVerdict::Failure(_)))) => Some(id),
                    _ => None,
                };
                self.checks.unwell.extend(failed.cloned());
            }
            Event::Kill { uid, waiter, .. } => {
                self.checks.kills.insert(uid.clone());
                self.checks.waiters.extend(*waiter);
            }
            Event::Restart { uid, .. } => {
                self.checks.restarts.insert(uid.clone());
            }
            _ => {}
        }
        if matches!(event, Event::Wake) {
            self.check_wake();
        }
    }

    fn check_wake(&mut self) {
        let now = self.clock.now;
        let minute = &mut self.checks.minute;
        minute.wakes += 1;
        minute.still = if minute.last == now { minute.still + 1 } else { 0 };
        minute.last = now;
        if minute.still > 10 {
            self.broken("15 no spin", "woken again and again at one moment".into());
        }
    }

    /// What a turn brought.
    pub(crate) fn check_turn(&mut self, out: &Out) {
        for record in &out.records {
            match record {
                Record::Put(put) => self.check_put(put),
                Record::Forget(uid) => self.check_forget(uid),
            }
        }
        self.check_states();
        self.check_gone();
        for effect in &out.effects {
            match effect {
                Effect::Call { id, uid, call, limit, .. } => {
                    self.check_call(uid, call);
                    self.checks.patience.insert(*id, self.clock.now + *limit * 2);
                    self.checks.calls.insert(*id, (uid.clone(), call.clone()));
                }
                Effect::Cancel { id } => self.check_cancel(id),
                Effect::Ask { ask, .. } => self.check_ask(ask),
                Effect::Observe { seq, .. } | Effect::List { seq } => {
                    self.checks.drawn.insert(*seq, self.turns);
                }
                _ => {}
            }
        }
        self.check_pace(out);
        self.check_saved();
    }

    /// A pod that its source, having reported, does not have is ending, whatever the other sources do.
    fn check_gone(&mut self) {
        let stays = self.checks.latest.values().find(|r| {
            let files = self.sources.get(&r.source);
            // A record that is older than it should be may be kept by a file that is broken now.
            let lost = self.checks.tainted.contains(&r.uid);
            r.ending.is_none() && !lost && files.is_some_and(|f| f.reported && !f.told.contains_key(&r.uid))
        });
        if let Some(uid) = stays.map(|r| r.uid.clone()) {
            self.broken("11 a source is heard whatever the others do", format!("{uid} left its source and goes on"));
        }
    }

    /// States move forward only.
    fn check_states(&mut self) {
        let Some(node) = &self.node else { return };
        let mut back = None;
        for (uid, machine) in node.workers().iter() {
            let state = machine.state();
            match self.checks.states.get_mut(uid) {
                Some(before) if *before > state => back = Some(format!("{uid} went from {before:?} back to {state:?}")),
                Some(before) => *before = state,
                None => {
                    self.checks.states.insert(uid.clone(), state);
                }
            }
        }
        if let Some(text) = back {
            self.broken("2 states move forward", text);
        }
    }

    /// Work is bounded: no rule says how much is too much, but this is.
    fn check_pace(&mut self, out: &Out) {
        let now = self.clock.now;
        let pods = self.checks.latest.len() + 2;
        let minute = &mut self.checks.minute;
        if now - minute.began >= Duration::from_secs(60) {
            (minute.began, minute.wakes, minute.effects) = (now, 0, 0);
        }
        minute.effects += u32::try_from(out.effects.len()).unwrap_or(u32::MAX);
        let (wakes, effects) = (minute.wakes as usize, minute.effects as usize);
        if wakes > 150 + 100 * pods || effects > 400 + 500 * pods {
            self.broken("15 no spin", format!("{wakes} wakes and {effects} effects in a minute for {pods} pods"));
        }
    }

    /// Every so often: what core knows of a pod is what it wrote down.
    fn check_saved(&mut self) {
        // A pod that was set aside is left as it is, half-handled.
        if !self.turns.is_multiple_of(16) || self.catch_panics {
            return;
        }
        let Some(node) = &self.node else { return };
        let differs = node.workers().iter().find(|(uid, m)| self.checks.record(uid) != Some(m.record()));
        if let Some((uid, machine)) = differs {
            let text =
                format!("{uid}: {:?} is not what was written: {:?}", machine.record(), self.checks.latest.get(uid));
            self.broken("journal holds what core knows", text);
        }
    }

    fn check_call(&mut self, uid: &PodUid, call: &Call) {
        let Some(record) = self.checks.latest.get(uid).cloned() else {
            return self.broken("no call without a record", format!("{uid} {call:?}"));
        };
        let doubled = self.checks.calls.values().any(|(u, c)| u == uid && c.key() == call.key());
        if doubled && !matches!(call, Call::StopContainer { .. }) {
            self.broken("5 one call of a kind at a time", format!("{uid} {call:?}"));
        }
        if call.is_runtime() && !call.is_stop() {
            self.check_sight(uid, call);
        }
        if is_setting_up(call) {
            self.check_begun_for_object(uid, &format!("{call:?}"));
        }
        if is_setting_up(call) && record.ending.is_some() {
            self.broken("1 nothing is started after the end was asked for", format!("{uid} {call:?}"));
        }
        match call {
            Call::RunSandbox { .. } | Call::StartContainer { .. } => self.check_begin(uid, call, &record),
            Call::CreateContainer { name, sandbox, .. } => {
                self.check_begin(uid, call, &record);
                self.check_rerun(uid, name.as_str(), sandbox, &record);
            }
            Call::StopContainer { id, .. } => self.check_stop(uid, id, &record),
            Call::StopSandbox { id } => self.check_sandbox_stop(uid, id, &record),
            Call::RemoveContainer { id, .. } => self.check_removal(uid, id),
            Call::RemoveSandbox { id } => {
                let inside: Vec<_> = self.runtime.inside(id).map(|(c, _)| c.clone()).collect();
                inside.iter().for_each(|c| self.check_removal(uid, c));
            }
            Call::Hook { kind, id, name, .. } => self.check_hook(uid, *kind, id, name.as_str(), &record),
            Call::RemoveCgroup | Call::RemoveVolumes
                if !record.terminated || self.runtime.alive(uid).next().is_some() =>
            {
                self.broken("7 nothing is taken from under a container", format!("{uid} {call:?}"));
            }
            Call::RemoveDirs | Call::RemoveLogs if !record.finished => {
                self.broken("7 nothing is taken from under a container", format!("{uid} {call:?}"));
            }
            _ => {}
        }
    }

    /// What is to be removed is removed.
    fn check_cancel(&mut self, id: &CallId) {
        let call = self.checks.calls.get(id).map(|(_, call)| call);
        let removal =
            |c: &&Call| matches!(c, Call::RemoveVolumes | Call::RemoveCgroup | Call::RemoveDirs | Call::RemoveLogs);
        if let Some(call) = call.filter(removal) {
            let text = format!("{call:?} is cancelled");
            self.broken("7 clean-up is not interrupted", text);
        }
    }

    /// No call on sight older than the pod's last call, and none beside a start in doubt.
    fn check_sight(&mut self, uid: &PodUid, call: &Call) {
        let now = self.clock.now;
        let doubt = self.checks.doubts.iter().find(|(of, _, until)| of == uid && now < *until);
        if let Some((_, doubted, _)) = doubt {
            let text = format!("{uid} {call:?} while {:?} is in doubt", doubted.key());
            self.broken("16 a start in doubt is waited for", text);
        }
        let returned = self.checks.returned.get(uid).copied();
        let absent = self.checks.listed.as_ref().filter(|(_, pods)| !pods.contains(uid)).map(|(turn, _)| *turn);
        let sight = self.checks.sight.get(uid).copied().max(absent);
        if sight.is_none() || sight < returned {
            let text = format!("{uid} {call:?}: seen in turn {sight:?}, last call came back in {returned:?}");
            self.broken("16 no call on old sight", text);
        }
    }

    fn check_begin(&mut self, uid: &PodUid, call: &Call, record: &PodRecord) {
        if !record.admitted {
            self.broken("10 admitted is journaled before anything begins", format!("{uid} {call:?}"));
        }
        let name = full_name(&record.pod);
        let mut others = self.runtime.containers.values().filter(|c| c.uid != *uid && c.state.may_run());
        let same = |sandbox: &SandboxId| {
            self.runtime.sandboxes.get(sandbox).is_some_and(|s| s.full_name == name && s.labelled)
        };
        if let Some(other) = others.find(|c| same(&c.sandbox)) {
            let text = format!("{uid} {call:?} while {} of {} runs", other.name, other.uid);
            self.broken("4 one static pod per full name", text);
        }
    }

    /// What ended for good is not started again, in whichever agent's life.
    fn check_rerun(&mut self, uid: &PodUid, name: &str, sandbox: &SandboxId, record: &PodRecord) {
        let Some((container, init)) = find(&record.pod, name) else {
            return self.broken("only the pod's containers are made", format!("{uid} {name}"));
        };
        let life = self.checks.life(uid);
        let ran =
            self.runtime.ever(uid).filter(|(_, c)| c.name.as_str() == name && c.life == life && c.began.is_some());
        let Some((id, newest)) = ran.max_by_key(|(_, c)| (c.began, c.made)) else { return };
        if newest.state.may_run() {
            let text = format!("{uid} {name}: {id} runs");
            return self.broken("one container per name", text);
        }
        let Some(spec) = &record.pod.spec else { return };
        let again =
            restart::is_sidecar(container) && init || restart::should_restart(container, spec, newest.exit_code);
        let elsewhere = init && newest.sandbox != *sandbox && spec.restart_policy.as_deref() != Some("Never");
        let voided = record.containers.get(name).is_some_and(|m| m.voided.as_ref() == Some(id));
        if !again && !elsewhere && !voided && !self.checks.tainted.contains(uid) {
            let text = format!("{uid} {name}: {id} ended for good with {}", newest.exit_code);
            self.broken("10 what ended for good never runs again", text);
        }
    }

    /// A running container is stopped only for a reason.
    fn check_stop(&mut self, uid: &PodUid, id: &ContainerId, record: &PodRecord) {
        let Some(c) = self.runtime.containers.get(id).filter(|c| c.state.may_run()) else { return };
        if c.uid != *uid {
            return self.broken("11 hands off other pods", format!("{uid} stops {id} of {}", c.uid));
        }
        if let Some(deadline) = self.deadline(record) {
            let stops = |call: &Call| matches!(call, Call::StopContainer { id: stopped, .. } if stopped == id);
            let under_way = self.checks.calls.values().any(|(_, call)| stops(call));
            let before = self.checks.stopped_by.insert(id.clone(), deadline);
            if under_way && before.is_some_and(|before| deadline >= before) {
                self.broken("14 a stop is sent again only for an earlier deadline", format!("{uid} {id}"));
            }
            return self.check_hook_first(uid, id, record);
        }
        let spec = find(&record.pod, c.name.as_str()).map(|(spec, _)| podwright_core::hash::container_hash(spec));
        let memory = record.containers.get(&c.name);
        let sandbox = self.runtime.sandboxes.get(&c.sandbox);
        let other_sandbox = self.runtime.sandboxes_of(uid).any(|(other, s)| *other != c.sandbox && s.ready);
        let reason = memory.is_some_and(|m| m.voided.as_ref() == Some(id))
            || self.checks.unwell.contains(id)
            || spec.is_none()
            || spec != c.hash
            || !sandbox.is_some_and(|s| s.ready)
            || other_sandbox
            || c.state == RunState::Unknown
            || self.checks.restarts.contains(uid)
            || self.runtime.alive(uid).any(|(other, o)| other != id && o.name == c.name);
        if !reason {
            self.broken("10 nothing that runs is stopped without a reason", format!("{uid} {id} = {}", c.name));
        }
    }

    /// TERM waits for the hook until the deadline.
    fn check_hook_first(&mut self, uid: &PodUid, id: &ContainerId, record: &PodRecord) {
        let hooks =
            |call: &Call| matches!(call, Call::Hook { kind: HookKind::PreStop, id: hooked, .. } if hooked == id);
        // A container that was being ended before its pod was has a deadline of its own.
        let accepted = self.checks.marks.accepted.get(uid);
        let of_pod = self.checks.hooked.get(id).zip(accepted).is_some_and(|(hooked, accepted)| hooked >= accepted);
        let early = self.deadline(record).is_some_and(|d| self.clock.now < d);
        if early && of_pod && self.checks.calls.values().any(|(_, call)| hooks(call)) {
            self.broken("8 the stop waits for its hook", format!("{uid} {id}"));
        }
    }

    /// A sandbox is stopped when nothing lives in it, or when its time is over.
    fn check_sandbox_stop(&mut self, uid: &PodUid, id: &SandboxId, record: &PodRecord) {
        let alive = self.runtime.inside(id).any(|(_, c)| c.state.may_run());
        let other_ready = self.runtime.sandboxes_of(uid).any(|(other, s)| other != id && s.ready);
        let ready = self.runtime.sandboxes.get(id).is_some_and(|s| s.ready);
        let overdue = self.deadline(record).is_some_and(|d| self.clock.now >= d);
        if alive && !overdue && !self.checks.disturbed.contains(uid) {
            self.broken("8 StopPodSandbox waits for the containers", format!("{uid} {id}"));
        }
        let ours = alive || record.cursor.as_ref().is_some_and(|c| c.sandbox == *id);
        if ready && ours && record.ending.is_none() && !other_ready {
            self.broken("10 nothing that runs is stopped without a reason", format!("{uid} sandbox {id}"));
        }
    }

    /// An end is written down before its container goes.
    fn check_removal(&mut self, uid: &PodUid, id: &ContainerId) {
        let Some(c) = self.runtime.containers.get(id) else { return };
        if c.state.may_run() {
            return self.broken("10 nothing that runs is removed", format!("{uid} {id} = {}", c.name));
        }
        if c.state == RunState::Exited
            && c.began.is_some()
            && !self.checks.exits.contains(id)
            && !self.checks.tainted.contains(uid)
        {
            self.broken("10 an exit is journaled before its container goes", format!("{uid} {id} = {}", c.name));
        }
    }

    fn check_hook(&mut self, uid: &PodUid, kind: HookKind, id: &ContainerId, name: &str, record: &PodRecord) {
        if kind == HookKind::PreStop {
            self.checks.hooked.insert(id.clone(), self.clock.now);
        }
        let memory = record.containers.get(name);
        let written =
            memory.and_then(|m| if kind == HookKind::PreStop { m.pre_stop.as_ref() } else { m.post_start.as_ref() });
        if written.is_none_or(|(hooked, _)| hooked != id) {
            self.broken("14 a hook is journaled before it runs", format!("{uid} {kind:?} of {id} = {name}"));
        }
    }

    /// A hook is run, now and for the first time.
    pub(crate) fn check_hook_run(&mut self, uid: &PodUid, kind: HookKind, id: &ContainerId) {
        let times = self.checks.hooks.entry((id.clone(), kind == HookKind::PreStop)).or_default();
        *times += 1;
        if *times > 1 && !self.checks.tainted.contains(uid) {
            self.broken("14 a hook runs once", format!("{uid} {kind:?} of {id}"));
        }
    }

    /// When the last KILL of an ending pod is due, in the world's time.
    pub(crate) fn deadline(&self, record: &PodRecord) -> Option<Duration> {
        let ending = record.ending.as_ref()?;
        Some(self.clock.at_boot_time(ending.deadline.resume(&self.clock.boot_id())))
    }
}

fn is_start(call: &Call) -> bool {
    matches!(call, Call::RunSandbox { .. } | Call::CreateContainer { .. } | Call::StartContainer { .. })
}

/// A look tells what became of a start.
fn is_answered(call: &Call, seen: &PodSeen) -> bool {
    match call {
        Call::RunSandbox { attempt } => seen.sandboxes.iter().any(|s| s.attempt >= *attempt),
        Call::CreateContainer { name, attempt, .. } => {
            seen.containers.iter().any(|c| c.name == *name && c.attempt >= *attempt)
        }
        Call::StartContainer { id, .. } => seen.container(id).is_none_or(|c| c.state != RunState::Created),
        _ => true,
    }
}

/// It makes something for the pod.
fn is_setting_up(call: &Call) -> bool {
    matches!(
        call,
        Call::RunSandbox { .. }
            | Call::CreateContainer { .. }
            | Call::StartContainer { .. }
            | Call::PrepareContainer { .. }
            | Call::ImageStatus { .. }
            | Call::PullImage { .. }
            | Call::MakeCgroup
            | Call::MakeDirs
            | Call::MountVolume { .. }
    )
}
