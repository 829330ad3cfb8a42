//! Checks of what core is sent and of its output for each event.

use std::time::Duration;

use podwright_core::model::{
    Answer, Call, CallError, CallId, Effect, Event, HookKind, Out, PodSeen, ProbeVerdict, Record, RunState, RuntimeCall,
};

use super::call::{check_call, check_cancel};
use super::cgroup::note_cgroup;
use super::objects::{check_request, note_objects};
use super::record::{check_forget, check_put};
use super::{Checks, Truth};
use crate::sources::ManifestSource;

/// Records the content of an event before core handles it.
pub(crate) fn check_event(checks: &mut Checks, truth: &Truth<'_>, event: &Event) {
    note_objects(checks, event);
    note_cgroup(checks, truth, event);
    note_runtime(checks, truth, event);
    match event {
        Event::Listed { seq, result: Ok(listing) } => {
            let requested = checks.requested.remove(seq).unwrap_or(0);
            // A list without a pod is an observation of that pod, also after a newer list that has it.
            for uid in checks.latest.keys().filter(|uid| !listing.pods.contains_key(*uid)) {
                let observed = checks.observed.entry(uid.clone()).or_default();
                *observed = (*observed).max(requested);
            }
            checks.listed = Some((requested, listing.pods.keys().cloned().collect()));
        }
        Event::Observed { uid, seq, result: Ok(seen), .. } => {
            checks.in_doubt.retain(|(of, call, _)| of != uid || !shows_effect(call, seen));
            let requested = checks.requested.remove(seq).unwrap_or(0);
            let observed = checks.observed.entry(uid.clone()).or_default();
            *observed = (*observed).max(requested);
        }
        Event::Done { id, result } => note_done(checks, truth, id, result),
        Event::Kill { uid, .. } => {
            checks.kills.insert(uid.clone());
        }
        Event::Restart { uid, .. } => {
            checks.restarts.insert(uid.clone());
        }
        Event::Wake => check_wake(checks, truth),
        _ => {}
    }
}

/// Whether anything but the pod that can't be observed shows that the runtime is down.
fn note_runtime(checks: &mut Checks, truth: &Truth<'_>, event: &Event) {
    let down = match event {
        Event::Runtime { result } => {
            checks.runtime_answers = result.is_ok();
            return;
        }
        Event::EventStream { up } => !up,
        Event::Observed { uid, result: Err(e), .. } => {
            e.is_unavailable() && truth.runtime.unobservable.as_ref() != Some(uid)
        }
        Event::Listed { result: Err(e), .. } => e.is_unavailable(),
        Event::Done { result: Err(e), .. } => e.is_unavailable(),
        _ => false,
    };
    checks.runtime_answers &= !down;
}

/// A pod that can't be observed does not stop the work for all others.
fn check_runtime_up(checks: &mut Checks, truth: &Truth<'_>) {
    let counts_as_down = truth.agent.node().is_some_and(|node| !node.runtime_up());
    if counts_as_down && checks.runtime_answers {
        checks
            .violate("15 one pod does not make the runtime count as down", format!("{:?}", truth.runtime.unobservable));
    }
}

fn note_done(checks: &mut Checks, truth: &Truth<'_>, id: &CallId, result: &Result<Answer, CallError>) {
    let Some((uid, call)) = checks.calls.remove(id) else { return };
    let give_up_at = checks.give_up_at.remove(id).unwrap_or_default();
    if is_start(&call) && result.as_ref().is_err_and(|e| e.in_doubt() && !e.is_unavailable()) {
        checks.in_doubt.push((uid.clone(), call.clone(), give_up_at));
    }
    if call.changes_runtime() {
        checks.returned.insert(uid, truth.agent.events);
    }
    let failed = match (&call, result) {
        (Call::Runtime(RuntimeCall::Hook { kind: HookKind::PostStart, id, .. }), Err(e)) if !e.is_unavailable() => {
            Some(id)
        }
        (Call::Runtime(RuntimeCall::Probe { id, .. }), Ok(Answer::Probe(ProbeVerdict::Failure(_)))) => Some(id),
        _ => None,
    };
    checks.unhealthy.extend(failed.cloned());
}

fn check_wake(checks: &mut Checks, truth: &Truth<'_>) {
    let now = truth.clock.now;
    let rate = &mut checks.rate;
    rate.wakes += 1;
    rate.same_moment = if rate.last_wake == now { rate.same_moment + 1 } else { 0 };
    rate.last_wake = now;
    if rate.same_moment > 10 {
        checks.violate("15 no spin", "more than 10 wakes at one moment".into());
    }
}

/// Checks the output of one event.
pub(crate) fn check_output(checks: &mut Checks, truth: &Truth<'_>, out: &Out) {
    for record in &out.records {
        match record {
            Record::Put(put) => check_put(checks, truth, put),
            Record::Forget(uid) => check_forget(checks, truth, uid),
        }
    }
    check_states(checks, truth);
    check_removed(checks, truth);
    for effect in &out.effects {
        match effect {
            Effect::Call { id, uid, call, limit, .. } => {
                check_call(checks, truth, uid, call);
                checks.give_up_at.insert(*id, truth.clock.now + *limit * 2);
                checks.calls.insert(*id, (uid.clone(), call.clone()));
            }
            Effect::Cancel { id } => check_cancel(checks, id),
            Effect::RequestObject { request, .. } => check_request(checks, truth, request),
            Effect::Observe { seq, .. } | Effect::List { seq } => {
                checks.requested.insert(*seq, truth.agent.events);
            }
            _ => {}
        }
    }
    check_runtime_up(checks, truth);
    check_rate(checks, truth, out);
    check_saved(checks, truth);
}

/// A pod that its source has reported without terminates, whatever the other sources do.
fn check_removed(checks: &mut Checks, truth: &Truth<'_>) {
    let stays = checks.latest.values().find(|r| {
        let source = truth.sources.get(r.source);
        // A dead agent may have left an older record, whose file is broken now.
        let kept = |s: &ManifestSource| r.origin.as_ref().is_some_and(|origin| s.unparsed.contains(origin));
        let lost = checks.record_lost.contains(&r.uid);
        let removed = |s: &&ManifestSource| s.reported && !s.delivered.contains_key(&r.uid) && !kept(s);
        r.termination().is_none() && !lost && source.filter(removed).is_some()
    });
    if let Some(uid) = stays.map(|r| r.uid.clone()) {
        let text = format!("{uid} is not in its source and does not terminate");
        checks.violate("11 a source counts whatever the others do", text);
    }
}

fn check_states(checks: &mut Checks, truth: &Truth<'_>) {
    let Some(node) = truth.agent.node() else { return };
    let mut back = None;
    for (uid, machine) in node.workers().iter() {
        let state = machine.state();
        match checks.states.get_mut(uid) {
            Some(before) if *before > state => back = Some(format!("{uid} went from {before:?} back to {state:?}")),
            Some(before) => *before = state,
            None => {
                checks.states.insert(uid.clone(), state);
            }
        }
    }
    if let Some(text) = back {
        checks.violate("2 states move forward", text);
    }
}

/// Work is bounded. The bounds are far above what any run needs.
fn check_rate(checks: &mut Checks, truth: &Truth<'_>, out: &Out) {
    let now = truth.clock.now;
    let pods = checks.latest.len() + 2;
    let rate = &mut checks.rate;
    if now - rate.began >= Duration::from_secs(60) {
        (rate.began, rate.wakes, rate.effects) = (now, 0, 0);
    }
    // Every written record is also published: that is not work by itself.
    let published = out.effects.iter().filter(|effect| matches!(effect, Effect::StatusChanged(_))).count();
    let done = out.effects.len() + usize::from(out.wake_at.is_some()) - published.min(out.records.len());
    rate.effects += u32::try_from(done).unwrap_or(u32::MAX);
    let (wakes, effects) = (rate.wakes as usize, rate.effects as usize);
    if wakes > 150 + 100 * pods || effects > 400 + 500 * pods {
        checks.violate("15 no spin", format!("{wakes} wakes and {effects} effects in a minute for {pods} pods"));
    }
}

/// Every 16 events: what core knows of a pod is what it recorded.
fn check_saved(checks: &mut Checks, truth: &Truth<'_>) {
    // A quarantined pod stays as the panic left it.
    if !truth.agent.events.is_multiple_of(16) || truth.agent.catch_panics {
        return;
    }
    let Some(node) = truth.agent.node() else { return };
    let differs = node.workers().iter().find(|(uid, m)| checks.record(uid) != Some(m.record()));
    if let Some((uid, machine)) = differs {
        let text = format!("{uid}: {:?} is not what was written: {:?}", machine.record(), checks.latest.get(uid));
        checks.violate("the journal holds what core knows", text);
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

/// The observation shows whether this start took effect.
fn shows_effect(call: &Call, seen: &PodSeen) -> bool {
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
