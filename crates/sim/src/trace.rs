//! One line per event.
//!
//! ```text
//!  ++  the workload acts       ==  an accident         -->  core handles an event
//!      (indented) the runtime  !!  a rule is broken    <--  core asks for something, or writes something down
//! ```

use podwright_core::model::{Effect, Event, Out, Record, SourceChange};

use crate::world::{World, trace};

impl World {
    pub(crate) fn trace_event(&self, event: &Event) {
        match event {
            Event::Source { source, change: SourceChange::Set { pods, broken } } => {
                let uids: Vec<_> = pods.iter().filter_map(|m| m.pod.metadata.uid.as_deref()).collect();
                trace!(self, "--> SET {source:?} {uids:?} broken {broken:?}");
            }
            Event::Listed { seq, result: Ok(listing) } => {
                trace!(self, "--> Listed {} {:?}", seq.0, listing.pods.keys().collect::<Vec<_>>());
            }
            Event::Observed { uid, seq, result: Ok(seen), .. } => {
                let sandboxes: Vec<_> =
                    seen.sandboxes.iter().map(|s| format!("{}{}", s.id, if s.ready { "" } else { "×" })).collect();
                let containers: Vec<_> = seen
                    .containers
                    .iter()
                    .map(|c| format!("{}={}#{} {:?}", c.id, c.name, c.attempt, c.state))
                    .collect();
                trace!(self, "--> Observed {uid} {} {sandboxes:?} {containers:?}", seq.0);
            }
            other => trace!(self, "--> {other:?}"),
        }
    }

    pub(crate) fn trace_out(&self, out: &Out) {
        for record in &out.records {
            match record {
                Record::Put(r) => {
                    let phase = r.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("-");
                    let ending =
                        r.ending.as_ref().map(|e| format!("{:?} by {:.1}", e.cause, e.deadline.boot.as_secs_f64()));
                    trace!(
                        self,
                        "<-- put {} {phase}{}{}{}{} cursor {:?} attempts {}",
                        r.uid,
                        ending.map_or(String::new(), |e| format!(" {e}")),
                        if r.terminated { " terminated" } else { "" },
                        if r.finished { " finished" } else { "" },
                        if r.restart_requested { " again" } else { "" },
                        r.cursor.as_ref().map(|c| (&c.sandbox, c.done)),
                        r.sandbox_attempts,
                    );
                }
                Record::Forget(uid) => trace!(self, "<-- forget {uid}"),
            }
        }
        for effect in &out.effects {
            match effect {
                Effect::Call { id, uid, call, .. } => trace!(self, "<-- call {} {uid} {call:?}", id.0),
                Effect::Event(event) => trace!(self, "<-- event {} {} {}", event.uid, event.reason, event.message),
                Effect::StatusChanged { .. } => {}
                other => trace!(self, "<-- {other:?}"),
            }
        }
    }
}
