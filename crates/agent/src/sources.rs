//! Sources of static pods: manifests in files, and at a URL. Each source is a task that sends its pods to core.
//!
//! | task | input | output |
//! |---|---|---|
//! | [`mod@file`] | inotify, a relist every `fileCheckFrequency` | a SET at the start and after each change |
//! | [`url`] | GET every `httpCheckFrequency` | a SET whenever the body changed |
//!
//! A manifest that can't be read or parsed is reported in the SET or the log, and never removes a pod.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use podwright_core::model::{Manifest, Source, SourceChange};
use podwright_core::static_pod;
use podwright_core::validate::FieldError;
use tokio::sync::mpsc;

mod field_lines;
pub mod file;
mod manifest;
mod parse;
pub mod url;

pub use manifest::{Finding, ParsedManifests, read_manifests};
pub use parse::{ParseError, documents};

/// Converts one document (a Pod or a list of them) from an origin (a path or URL) into pods.
pub type Decode = Arc<dyn Fn(serde_json::Value, &str) -> Result<Vec<Manifest>, Vec<FieldError>> + Send + Sync>;

/// The treatment of unknown and unsupported fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// They are warnings, and the pod runs.
    #[default]
    Lenient,
    /// They are errors.
    Strict,
}

/// Decodes documents of this source into static pods of this node, first seen now.
pub fn static_pods(source: Source, node_name: &str, strictness: Strictness) -> Decode {
    let node_name = node_name.to_owned();
    Arc::new(move |value, origin| {
        let mut errors: Vec<FieldError> = match strictness {
            Strictness::Strict => static_pod::warnings_in(&value).into_iter().map(|(_, warning)| warning).collect(),
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

/// Decodes pods that will be sent to an API server or the local API: checked by its rules, without fields of the node.
pub fn submitted_pods() -> Decode {
    Arc::new(static_pod::read_submitted)
}

/// The channel of a source to core. Bounded: a source waits while core is busy, and then sends its newest state.
pub type Changes = mpsc::Sender<(Source, SourceChange)>;

/// The maximum size of a manifest file or body, in bytes.
pub const MANIFEST_MAX: u64 = 10 << 20;

/// A manifest with errors: none of its pods is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvalidManifest {
    errors: Vec<Finding>,
}

impl fmt::Display for InvalidManifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<_> = self.errors.iter().take(ERRORS_SHOWN).map(ToString::to_string).collect();
        f.write_str(&shown.join("; "))?;
        match self.errors.len().saturating_sub(ERRORS_SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl std::error::Error for InvalidManifest {}

/// All pods of one text. Warnings are logged.
fn pods(bytes: &[u8], origin: &str, decode: &Decode) -> Result<Vec<Manifest>, InvalidManifest> {
    let ParsedManifests { pods, errors, warnings } = read_manifests(bytes, origin, decode);
    if !errors.is_empty() {
        return Err(InvalidManifest { errors });
    }
    for warning in warnings {
        tracing::warn!(path = origin, reason = %warning, "manifest has a field without effect");
    }
    Ok(pods)
}

/// The errors in one message; `podwright check` shows all of them.
const ERRORS_SHOWN: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_become_static_pods_or_are_reported_as_invalid() {
        let decode = static_pods(Source::File, "node", Strictness::Lenient);
        let good = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n";
        let found = pods(good.as_bytes(), "/m/web.yaml", &decode).unwrap();
        assert_eq!(found[0].pod.metadata.name.as_deref(), Some("web-node"));
        assert_eq!(found[0].origin, "/m/web.yaml");
        let again = pods(format!("# a comment\n{good}").as_bytes(), "/m/web.yaml", &decode).unwrap();
        assert_eq!(found[0].pod.metadata.uid, again[0].pod.metadata.uid);
        let error = pods(b"apiVersion: v1\nkind: Service\n", "/m/web.yaml", &decode).unwrap_err();
        assert!(error.to_string().contains("Service"), "{error}");
    }
}
