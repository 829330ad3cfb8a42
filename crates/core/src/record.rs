//! Recordings: every input of core in order, each with a checksum of what core decided, and how they are replayed.
//!
//! ```text
//! {"begin":{"format":1,"core":"0.1.0+9a…","at":{…},"node":{…}}}   the whole state of core
//! {"step":{"at":{…},"event":{…},"out":"6c1f…"}}                   one input, and the checksum of the resulting records and effects
//! {"end":"why"}                                                   end of the recording
//! ```
//! Core reads no clock and no random numbers, so the same core makes the same decisions for the same inputs. A recording starts
//! with the whole state, not only with the records: it can start at any event, and a long one can be cut.

mod replay;
mod short;

use std::fmt::{self, Write};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Node;
use crate::model::{Event, Now, Out};

pub use replay::{Replay, ReplayError, Replayed, Step};
pub use short::{effect_in_short, event_in_short, record_in_short};

/// Version of core and a fingerprint of its sources.
pub const CORE: &str = concat!(env!("CARGO_PKG_VERSION"), "+", env!("PODWRIGHT_CORE_SOURCES"));
/// Version of the line format.
const FORMAT: u32 = 1;

/// The first line of a recording, and of every part that a restarted agent writes.
pub fn begin(node: &Node, at: Now) -> serde_json::Result<String> {
    line(&Line::Begin(Begin { format: FORMAT, core: CORE.to_owned(), at, node }))
}

/// The line of one input.
pub fn step(at: Now, event: &Event, out: &Out) -> serde_json::Result<String> {
    line(&Line::<&Node, &Event>::Step(Input { at, event, out: checksum(out) }))
}

/// The last line, with the reason why recording ends.
pub fn end(why: &str) -> serde_json::Result<String> {
    line(&Line::<&Node, &Event>::End(why.to_owned()))
}

/// Checksum of a decision.
pub fn checksum(out: &Out) -> String {
    let mut hash = Hash(Sha256::new());
    // Writing into a hash cannot fail.
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
