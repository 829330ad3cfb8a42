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
use tokio::sync::mpsc;

pub mod file;
mod parse;
pub mod url;

pub use parse::documents;

/// Turns one decoded document (a Pod or a list of them) and the place it came from into pods, or says what is wrong with it.
pub type Decode = Arc<dyn Fn(serde_json::Value, &str) -> Result<Vec<Manifest>, String> + Send + Sync>;

/// The usual way: documents of this source become static pods of this node, first seen now.
pub fn static_pods(source: Source, node_name: &str) -> Decode {
    let node_name = node_name.to_owned();
    Arc::new(move |value, origin| {
        static_pod::from_value(value, source, origin, &node_name, Timestamp::now()).map_err(|error| error.to_string())
    })
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_become_static_pods_or_say_what_is_wrong() {
        let decode = static_pods(Source::File, "node");
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
