//! The trace of a run: one line per event.
//!
//! ```text
//!  ++  a user acts              ==  an accident         -->  core handles an event
//!      (indented) the runtime   !!  a rule is broken    <--  core's output: records and effects
//! ```

use podwright_core::model::{Effect, Event, Out, PodRecord, Record, SourceChange};

use crate::env::{Env, trace};

pub(crate) fn trace_event(env: &Env, event: &Event) {
    if !env.tracing {
        return;
    }
    match event {
        Event::Source { source, change: SourceChange::Set { pods, broken } } => {
            let uids: Vec<_> = pods.iter().filter_map(|m| m.pod.metadata.uid.as_deref()).collect();
            trace!(env, "--> SET {source:?} {uids:?} broken {broken:?}");
        }
        Event::Listed { seq, result: Ok(listing) } => {
            trace!(env, "--> Listed {} {:?}", seq.0, listing.pods.keys().collect::<Vec<_>>());
        }
        Event::Observed { uid, seq, result: Ok(seen), .. } => {
            let sandboxes: Vec<_> =
                seen.sandboxes.iter().map(|s| format!("{}{}", s.id, if s.ready { "" } else { "×" })).collect();
            let containers: Vec<_> =
                seen.containers.iter().map(|c| format!("{}={}#{} {:?}", c.id, c.name, c.attempt, c.state)).collect();
            trace!(env, "--> Observed {uid} {} {sandboxes:?} {containers:?}", seq.0);
        }
        other => trace!(env, "--> {other:?}"),
    }
}

pub(crate) fn trace_output(env: &Env, out: &Out) {
    if !env.tracing {
        return;
    }
    for record in &out.records {
        match record {
            Record::Put(r) => trace_put(env, r),
            Record::Forget(uid) => trace!(env, "<-- forget {uid}"),
        }
    }
    for effect in &out.effects {
        match effect {
            Effect::Call { id, uid, call, .. } => trace!(env, "<-- call {} {uid} {call:?}", id.0),
            Effect::Event(event) => trace!(env, "<-- event {} {} {}", event.pod, event.reason, event.message),
            Effect::StatusChanged(_) | Effect::PodRemoved { .. } => {}
            other => trace!(env, "<-- {other:?}"),
        }
    }
    if let Some(at) = out.wake_at {
        trace!(env, "<-- wake at {at:?}");
    }
}

fn trace_put(env: &Env, r: &PodRecord) {
    let phase = r.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("-");
    let ending = r.termination().map(|e| format!("{:?} by {:.1}", e.cause, e.deadline.boot.as_secs_f64()));
    trace!(
        env,
        "<-- put {} {phase}{}{}{}{} cursor {:?} attempts {}",
        r.uid,
        ending.map_or(String::new(), |e| format!(" {e}")),
        if r.is_terminated() { " terminated" } else { "" },
        if r.is_finished() { " finished" } else { "" },
        if r.restart_requested() { " restart requested" } else { "" },
        r.cursor.as_ref().map(|c| (&c.sandbox, c.done)),
        r.sandbox_attempts,
    );
}
