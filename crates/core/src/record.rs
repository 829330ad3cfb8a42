//! Flight recordings: every input of core in order, each with a checksum of what core decided, and how they are replayed.
//!
//! ```text
//! {"begin":{"format":1,"core":"0.1.0+9a…","at":{…},"node":{…}}}   everything core knows at that moment
//! {"step":{"at":{…},"event":{…},"out":"6c1f…"}}                   what happened then, and the checksum of records and effects
//! {"end":"why"}                                                   nothing more is recorded
//! ```
//! Core has neither a clock nor chance of its own, so the same core makes the same decisions of the same inputs. A recording
//! begins with the whole state and not only with the records: it can begin at any turn, and a long one can be cut.

pub(crate) mod pairs;
mod replay;
mod short;

use std::fmt::{self, Write};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Node;
use crate::model::{Event, Now, Out};

pub use replay::{Replay, ReplayError, Replayed, Step};
pub use short::{effect_in_short, event_in_short, record_in_short};

/// The core that records and replays: its version, and a fingerprint of its sources.
pub const CORE: &str = concat!(env!("CARGO_PKG_VERSION"), "+", env!("PODWRIGHT_CORE_SOURCES"));
/// The form of the lines.
const FORMAT: u32 = 1;

/// The line a recording begins with, and every part of it that a new agent begins.
pub fn begin(node: &Node, at: Now) -> serde_json::Result<String> {
    line(&Line::Begin(Begin { format: FORMAT, core: CORE.to_owned(), at, node }))
}

/// The line of one input.
pub fn step(at: Now, event: &Event, out: &Out) -> serde_json::Result<String> {
    line(&Line::<&Node, &Event>::Step(Input { at, event, out: checksum(out) }))
}

/// The line that says why nothing more follows.
pub fn end(why: &str) -> serde_json::Result<String> {
    line(&Line::<&Node, &Event>::End(why.to_owned()))
}

/// What core decided, as a number.
pub fn checksum(out: &Out) -> String {
    let mut hash = Hash(Sha256::new());
    // Into a hash nothing can fail.
    let _ = write!(hash, "{out:?}");
    hash.0.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn line(line: &Line<&Node, &Event>) -> serde_json::Result<String> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    Ok(text)
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Line<N, E> {
    Begin(Begin<N>),
    Step(Input<E>),
    End(String),
}

#[derive(Serialize, Deserialize)]
struct Begin<N> {
    format: u32,
    core: String,
    at: Now,
    node: N,
}

#[derive(Serialize, Deserialize)]
struct Input<E> {
    at: Now,
    event: E,
    out: String,
}

struct Hash(Sha256);

impl Write for Hash {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
