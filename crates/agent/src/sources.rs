//! Where pods come from: manifests in files, and at a URL. Each source is a task that tells core what it has.
//!
//! | task | takes | gives |
//! |---|---|---|
//! | [`mod@file`] | inotify, a relist every `fileCheckFrequency` | a SET at start, and whenever something changed |
//! | [`url`] | GET every `httpCheckFrequency` | a SET whenever other bytes came |
//!
//! What a source can't read or understand is said in the SET or the log and never takes a pod away.

use std::sync::Arc;

use jiff::Timestamp;
use podwright_core::model::{Manifest, Source, SourceChange};
use podwright_core::static_pod;
use podwright_core::validate::FieldError;
use tokio::sync::mpsc;

pub mod file;
mod lines;
mod manifest;
mod parse;
pub mod url;

pub use manifest::{Finding, Read, read};
pub use parse::documents;

/// Turns one decoded document (a Pod or a list of them) and the place it came from into pods, or says what is wrong with it.
pub type Decode = Arc<dyn Fn(serde_json::Value, &str) -> Result<Vec<Manifest>, Vec<FieldError>> + Send + Sync>;

/// What comes of fields that do nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// They are named, and the pod runs.
    #[default]
    Lenient,
    /// They are errors.
    Strict,
}

/// The usual way: documents of this source become static pods of this node, first seen now.
pub fn static_pods(source: Source, node_name: &str, strictness: Strictness) -> Decode {
    let node_name = node_name.to_owned();
    Arc::new(move |value, origin| {
        let mut errors = match strictness {
            Strictness::Strict => static_pod::warnings_in(&value),
            Strictness::Lenient => vec![],
        };
        match static_pod::read_value(value, source, origin, &node_name, Timestamp::now()) {
            Ok(pods) if errors.is_empty() => Ok(pods),
            Ok(_) => Err(errors),
            Err(wrong) => {
                errors.extend(wrong);
                Err(errors)
            }
        }
    })
}

/// For pods that are sent to an API server, or to who plays one: its rules, and nothing of a node.
pub fn submitted_pods() -> Decode {
    Arc::new(static_pod::read_submitted)
}

/// Where a source tells what it has. Bounded: a source waits while core is busy, and then tells the newest.
pub type Changes = mpsc::Sender<(Source, SourceChange)>;

/// The most one manifest may have, in a file or a body.
pub const MANIFEST_MAX: u64 = 10 << 20;

/// All pods of one text, or the reason why none of them counts. What does nothing is named, never ignored in silence.
fn pods(bytes: &[u8], origin: &str, decode: &Decode) -> Result<Vec<Manifest>, String> {
    let Read { pods, errors, warnings } = read(bytes, origin, decode);
    if errors.is_empty() {
        for warning in warnings {
            tracing::warn!(origin, "{warning}");
        }
        return Ok(pods);
    }
    let mut text = errors.iter().take(ERRORS_TOLD).map(ToString::to_string).collect::<Vec<_>>().join("; ");
    if errors.len() > ERRORS_TOLD {
        text.push_str(&format!("; and {} more", errors.len() - ERRORS_TOLD));
    }
    Err(text)
}

/// `podwright check` tells all of them.
const ERRORS_TOLD: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_become_static_pods_or_say_what_is_wrong() {
        let decode = static_pods(Source::File, "node", Strictness::Lenient);
        let good = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n";
        let found = pods(good.as_bytes(), "/m/web.yaml", &decode).unwrap();
        assert_eq!(found[0].pod.metadata.name.as_deref(), Some("web-node"));
        assert_eq!(found[0].origin, "/m/web.yaml");
        let again = pods(format!("# a comment\n{good}").as_bytes(), "/m/web.yaml", &decode).unwrap();
        assert_eq!(found[0].pod.metadata.uid, again[0].pod.metadata.uid);
        let error = pods(b"apiVersion: v1\nkind: Service\n", "/m/web.yaml", &decode).unwrap_err();
        assert!(error.contains("Service"), "{error}");
    }
}
