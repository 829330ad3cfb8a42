//! Every field of a pod and whether it is supported: one list for the warnings of `check` and the log, and for `docs/FIELDS.md`.
//!
//! A row covers its field and all fields below it without their own row, except for [`Support::Parts`], where each part has a row.
//! A test walks the type itself and finds fields without a row.

mod list;
#[cfg(test)]
mod walk;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::Value;

use crate::qos::is_extended;
use list::FIELDS;

/// Support of a field, with a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Support {
    /// It does what Kubernetes says.
    Yes(&'static str),
    /// Its parts have rows of their own.
    Parts,
    /// Some of it, or sometimes.
    Partly(&'static str),
    /// It has no meaning on a node or in a manifest, and does no harm.
    Meaningless(&'static str),
    /// It has no effect; the author of the manifest is warned.
    Not(&'static str),
}

#[derive(Clone, Copy, Debug)]
struct Field {
    path: &'static str,
    support: Support,
}

const fn field(path: &'static str, support: Support) -> Field {
    Field { path, support }
}

/// Support of the field at a path like `spec.containers[0].image`; the nearest row above it decides. `None`: unknown field.
#[cfg(test)]
pub(crate) fn support(path: &str) -> Option<Support> {
    let mut path = without_indices(path);
    loop {
        if let Some(support) = row(&path) {
            return Some(support);
        }
        let cut = path.rfind(['.', '['])?;
        path.truncate(cut);
    }
}

/// Unsupported fields of a manifest, at most `max`: path and reason. Only the outermost one is named.
pub(crate) fn unsupported(document: &Value, max: usize) -> Vec<(String, &'static str)> {
    let mut found = Vec::new();
    search(document, "", max, &mut found);
    found.truncate(max);
    found
}

/// Names of the sibling fields, to suggest a correction of a misspelt one.
pub(crate) fn siblings(path: &str) -> impl Iterator<Item = &'static str> {
    let path = without_indices(path);
    let parent = path.rfind('.').map_or(String::new(), |dot| path[..=dot].to_owned());
    let shared = shared(&parent);
    FIELDS.iter().filter_map(move |field| {
        let own = field.path.strip_prefix(parent.as_str());
        let name = own.or_else(|| field.path.strip_prefix(shared.as_deref()?))?;
        (!name.contains('.')).then(|| name.trim_end_matches("[]"))
    })
}

/// The whole list as Markdown.
#[cfg(test)]
pub(crate) fn markdown() -> String {
    let mut text = String::from(HEAD);
    for Field { path, support } in FIELDS {
        let (label, note) = match support {
            Support::Yes(note) => ("yes", *note),
            Support::Parts => ("see its parts", ""),
            Support::Partly(note) => ("partly", *note),
            Support::Meaningless(note) => ("no need", *note),
            Support::Not(note) => ("no", *note),
        };
        text.push_str(&format!("| `{path}` | {label} | {note} |\n"));
    }
    text
}

fn search(value: &Value, path: &str, max: usize, found: &mut Vec<(String, &'static str)>) {
    if found.len() >= max || path.len() > MAX_PATH {
        return;
    }
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(_, value)| !is_unset(value)) {
                let here = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match row(&without_indices(&here)) {
                    Some(Support::Not(why)) => found.push((here, why)),
                    // Labels, annotations and the like have user-defined keys below them.
                    Some(Support::Meaningless(_)) => {}
                    // Entries of maps have no row.
                    _ if is_extended(name) && is_resource_list(path) => found.push((here, DEVICE)),
                    _ => search(value, &here, max, found),
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                search(item, &format!("{path}[{index}]"), max, found);
            }
        }
        _ => {}
    }
}

fn is_resource_list(path: &str) -> bool {
    path.ends_with(".resources.limits") || path.ends_with(".resources.requests")
}

/// Null or empty, which counts as unset.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

fn row(path: &str) -> Option<Support> {
    static ROWS: LazyLock<BTreeMap<&str, Support>> =
        LazyLock::new(|| FIELDS.iter().map(|field| (field.path, field.support)).collect());
    ROWS.get(path).or_else(|| ROWS.get(shared(path)?.as_str())).copied()
}

/// Init containers and ephemeral containers share the rows of containers.
fn shared(path: &str) -> Option<String> {
    let other = ["spec.initContainers[]", "spec.ephemeralContainers[]"].iter().find_map(|list| path.strip_prefix(list));
    other.map(|rest| format!("spec.containers[]{rest}"))
}

/// The path without list indices.
fn without_indices(path: &str) -> String {
    let mut general = String::with_capacity(path.len());
    let mut inside = false;
    for c in path.chars() {
        inside = inside && c != ']';
        if !inside {
            general.push(c);
        }
        inside |= c == '[';
    }
    general
}

/// Paths of fields are shorter; entries below a longer one are below a key that a user chose. Repeating such a key for each entry
/// would take quadratic time.
pub(crate) const MAX_PATH: usize = 1024;

/// Note on an extended resource.
const DEVICE: &str =
    "nothing on this node provides it, and the pod is rejected; only pods of an API server may request it";

#[cfg(test)]
const HEAD: &str = "\
# Pod fields

Support of each field of a pod on a node that runs podwright. The list is generated from `crates/core/src/fields/list.rs`, and
a test keeps both equal (`PODWRIGHT_BLESS=1 cargo test -p podwright-core fields` writes it again). A row covers all fields
below its field that have no row of their own.

- **yes**: it does what Kubernetes says. **partly**: some of it, or sometimes.
- **no need**: it has no meaning on a node or in a manifest, and does no harm.
- **no**: it has no effect. `podwright check` and the agent's log name it with its line; `--strict` makes it an error.

Unknown fields are named in the same way. `spec.initContainers[]` and `spec.ephemeralContainers[]` are like
`spec.containers[]`, except for their own rows.

| field | supported | |
|---|---|---|
";

#[cfg(test)]
mod tests;
