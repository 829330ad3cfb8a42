//! Runs core over a recording, line by line.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use thiserror::Error;

use super::{CORE, FORMAT, Input, Line, checksum, short};
use crate::Node;
use crate::model::{CallId, Effect, Event, FullName, Now, Out, PodUid, Record};

/// A replay in progress.
#[derive(Debug, Default)]
pub struct Replay {
    node: Option<Node>,
    steps: u64,
    /// Calls in flight by id, because a result carries only the id.
    calls: BTreeMap<CallId, (PodUid, String)>,
    any_version: bool,
}

/// Result of one line.
#[derive(Debug)]
pub enum Replayed {
    /// An agent starts with this state.
    Began {
        /// Time of the start.
        at: Now,
        /// Number of known pods.
        pods: usize,
    },
    /// Core handled an event.
    Step(Box<Step>),
    /// The end of the recording, with its reason.
    Ended(String),
}

/// One event, and the decision of this core.
#[derive(Debug)]
pub struct Step {
    /// Counted from 1.
    pub number: u64,
    /// When it happened.
    pub at: Now,
    /// Summary of the event.
    pub event: String,
    /// The decision.
    pub out: Out,
    /// Checksum of the decision when it was recorded.
    pub recorded: String,
    /// Checksum of the decision now.
    pub decided: String,
    /// The pods concerned.
    pub pods: BTreeMap<PodUid, Option<FullName>>,
}

/// Why a line cannot be replayed.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// Not a recording.
    #[error("this is not a recording: {0}")]
    NotARecording(String),
    /// Made by another core.
    #[error(
        "the recording was made by core {recorded}, and this is core {CORE}: only the same core makes the same decisions. \
         Replay it with the podwright that recorded it"
    )]
    OtherVersion {
        /// Version of the recording core.
        recorded: String,
    },
    /// Unknown line format.
    #[error("the recording has format {0}, this podwright reads format {FORMAT}")]
    OtherFormat(u32),
    /// An invalid line within the recording.
    #[error("invalid line: {0}")]
    Unreadable(#[source] serde_json::Error),
}

/// The part of the first line that determines whether the rest can be parsed.
#[derive(Deserialize)]
struct Mark {
    begin: Versions,
}

#[derive(Deserialize)]
struct Versions {
    format: u32,
    core: String,
}

impl Replay {
    /// Accepts recordings of other versions, as far as they can be parsed: decisions may differ.
    pub fn of_any_version() -> Self {
        Self { any_version: true, ..Self::default() }
    }

    /// Replays the next line.
    pub fn feed(&mut self, line: &str) -> Result<Replayed, ReplayError> {
        if let Ok(mark) = serde_json::from_slice::<Mark>(line.as_bytes()) {
            self.check(mark.begin)?;
        } else if self.node.is_none() {
            let why = match serde_json::from_slice::<IgnoredAny>(line.as_bytes()) {
                Ok(_) => "it does not begin with the state of a node".to_owned(),
                Err(error) => error.to_string(),
            };
            return Err(ReplayError::NotARecording(why));
        }
        match serde_json::from_slice::<Line<Node, Event>>(line.as_bytes()).map_err(ReplayError::Unreadable)? {
            Line::Begin(begin) => {
                let pods = begin.node.workers().len();
                self.node = Some(begin.node);
                self.calls.clear();
                Ok(Replayed::Began { at: begin.at, pods })
            }
            Line::Step(input) => Ok(Replayed::Step(Box::new(self.step(input)))),
            Line::End(why) => Ok(Replayed::Ended(why)),
        }
    }

    /// The current state.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    fn check(&self, versions: Versions) -> Result<(), ReplayError> {
        if versions.format != FORMAT {
            return Err(ReplayError::OtherFormat(versions.format));
        }
        if versions.core != CORE && !self.any_version {
            return Err(ReplayError::OtherVersion { recorded: versions.core });
        }
        Ok(())
    }

    fn step(&mut self, Input { at, event, out: recorded }: Input<Event>) -> Step {
        let node = self.node.as_mut().expect("checked by the caller");
        let answers = if let Event::Done { id, .. } = &event { self.calls.remove(id) } else { None };
        let text = short::event_in_short(&event, answers.as_ref().map(|(_, call)| call.as_str()));
        let mut uids: Vec<PodUid> = short::uids_of(&event);
        uids.extend(answers.map(|(uid, _)| uid));
        // Names are read before and after, because a pod may appear or disappear with this event.
        let name = |node: &Node, uid: &PodUid| node.workers().get(uid).map(|m| m.full_name().clone());
        let mut pods: BTreeMap<PodUid, Option<FullName>> =
            uids.into_iter().map(|uid| (uid.clone(), name(node, &uid))).collect();
        let before: BTreeMap<PodUid, FullName> =
            node.workers().iter().map(|(uid, m)| (uid.clone(), m.full_name().clone())).collect();
        let mut out = Out::default();
        node.handle_guarded(event, at, &mut out);
        for uid in decided_about(&out) {
            let known = name(node, uid).or_else(|| before.get(uid).cloned());
            pods.insert(uid.clone(), known);
        }
        for effect in &out.effects {
            if let Effect::Call { id, uid, call, .. } = effect {
                self.calls.insert(*id, (uid.clone(), short::call_in_short(call)));
            }
        }
        self.steps += 1;
        let decided = checksum(&out);
        Step { number: self.steps, at, event: text, out, recorded, decided, pods }
    }
}

impl Step {
    /// The decision is the recorded one.
    pub fn is_same(&self) -> bool {
        self.recorded == self.decided
    }
}

/// The pods that a decision concerns.
fn decided_about(out: &Out) -> impl Iterator<Item = &PodUid> {
    let recorded = out.records.iter().map(|record| match record {
        Record::Put(put) => &put.uid,
        Record::Forget(uid) => uid,
    });
    recorded.chain(out.effects.iter().filter_map(short::uid_of))
}
