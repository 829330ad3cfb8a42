//! Where pods come from: manifests in files, and at a URL. Each source is a task that tells core what it has.
//!
//! | task | takes | gives |
//! |---|---|---|
//! | [`file`] | inotify, a relist every `fileCheckFrequency` | a SET at start, and whenever something changed |
//! | [`url`] | GET every `httpCheckFrequency` | a SET whenever other bytes came |
//!
//! What a source can't read or understand is said in the SET or the log and never takes a pod away.

use std::sync::Arc;

use podwright_core::model::{Manifest, Source, SourceChange};
use tokio::sync::mpsc;

pub mod file;
mod parse;
pub mod url;

pub use parse::documents;

/// Turns one decoded document (a Pod or a list of them) and the place it came from into pods, or says what is wrong with it.
pub type Decode = Arc<dyn Fn(serde_json::Value, &str) -> Result<Vec<Manifest>, String> + Send + Sync>;

/// Where a source tells what it has. Bounded: a source waits while core is busy, and then tells the newest.
pub type Changes = mpsc::Sender<(Source, SourceChange)>;

/// The most one manifest may have, in a file or a body.
pub const MANIFEST_MAX: u64 = 10 << 20;

/// All pods of one text, or the reason why none of them counts.
fn pods(bytes: &[u8], origin: &str, decode: &Decode) -> Result<Vec<Manifest>, String> {
    let documents = documents(bytes)?;
    let many = documents.len() > 1;
    let mut pods = Vec::new();
    for (i, document) in documents.into_iter().enumerate() {
        let decoded = decode(document, origin);
        pods.extend(decoded.map_err(|e| if many { format!("document {}: {e}", i + 1) } else { e })?);
    }
    Ok(pods)
}
