//! What core asks for in a turn, judged by what the world knows.

use std::time::Duration;

use podwright_core::model::{
    Answer, Call, Effect, Event, HookKind, Out, PodSeen, ProbeVerdict, Record, RunState, RuntimeCall, SourceChange,
};

use crate::files::Files;
use crate::keeper::is_mirror;
use crate::world::World;

impl World {
    /// An event is about to be handled.
    pub(crate) fn check_event(&mut self, event: &Event) {
        let turn = self.turns;
        self.note_objects(event);
        self.note_cgroup(event);
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
                files.unread = broken.iter().map(|(path, _)| path.clone()).collect();
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
                if is_start(&call) && result.as_ref().is_err_and(|e| e.in_doubt() && !e.is_unavailable()) {
                    self.checks.doubts.push((uid.clone(), call.clone(), patience));
                }
                if call.changes_runtime() {
                    self.checks.returned.insert(uid, turn);
                }
                let failed = match (&call, result) {
                    (Call::Runtime(RuntimeCall::Hook { kind: HookKind::PostStart, id, .. }), Err(e))
                        if !e.is_unavailable() =>
                    {
                        Some(id)
                    }
                    (Call::Runtime(RuntimeCall::Probe { id, .. }), Ok(Answer::Probe(ProbeVerdict::Failure(_)))) => {
                        Some(id)
                    }
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
                Effect::RequestObject { request, .. } => self.check_ask(request),
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
            // A record that is older than it should be, as its agent died, may be kept by a file that is broken now.
            let kept = |f: &Files| r.origin.as_ref().is_some_and(|origin| f.unread.contains(origin));
            let lost = self.checks.tainted.contains(&r.uid);
            let gone = |f: &&Files| f.reported && !f.told.contains_key(&r.uid) && !kept(f);
            r.ending.is_none() && !lost && files.filter(gone).is_some()
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
}

fn is_start(call: &Call) -> bool {
    matches!(
        call,
        Call::Runtime(
            RuntimeCall::RunSandbox { .. } | RuntimeCall::CreateContainer { .. } | RuntimeCall::StartContainer { .. }
        )
    )
}

/// A look tells what became of a start.
fn is_answered(call: &Call, seen: &PodSeen) -> bool {
    match call {
        Call::Runtime(RuntimeCall::RunSandbox { attempt }) => seen.sandboxes.iter().any(|s| s.attempt >= *attempt),
        Call::Runtime(RuntimeCall::CreateContainer { name, attempt, .. }) => {
            seen.containers.iter().any(|c| c.name == *name && c.attempt >= *attempt)
        }
        Call::Runtime(RuntimeCall::StartContainer { id, .. }) => {
            seen.container(id).is_none_or(|c| c.state != RunState::Created)
        }
        _ => true,
    }
}
