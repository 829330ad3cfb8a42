//! Every field of a pod, and whether it does anything here: one list, for the warnings that `check` and the log give and for
//! `docs/FIELDS.md`.
//!
//! A row stands for its field and for everything below it that has no row of its own, except where it says that the parts are
//! listed: then each has its own. A test walks the type itself and finds what has no row.

mod list;
#[cfg(test)]
mod walk;

use serde_json::Value;

use list::FIELDS;

/// What comes of a field. The word says more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It does what Kubernetes says.
    Yes(&'static str),
    /// Its parts have rows of their own.
    Parts,
    /// Some of it, or sometimes.
    Partly(&'static str),
    /// It has no meaning on a node, or not in a manifest: it does no harm to have it.
    Meaningless(&'static str),
    /// It does nothing, and whoever wrote it should know.
    Not(&'static str),
}

/// One row.
#[derive(Clone, Copy, Debug)]
struct Field {
    path: &'static str,
    support: Support,
}

const fn field(path: &'static str, support: Support) -> Field {
    Field { path, support }
}

/// What comes of the field at a path like `spec.containers[0].image`; the nearest row above it decides. `None`: no pod has it.
pub fn support(path: &str) -> Option<Support> {
    let mut path = general(path);
    loop {
        if let Some(support) = row(&path) {
            return Some(support);
        }
        let cut = path.rfind(['.', '['])?;
        path.truncate(cut);
    }
}

/// The fields of a pod's document that do nothing here: path and why. Only the outermost is named.
pub fn unsupported(document: &Value) -> Vec<(String, &'static str)> {
    let mut found = Vec::new();
    search(document, "", &mut found);
    found
}

/// The names that fields beside this one have, for whoever misspelt it.
pub fn siblings(path: &str) -> impl Iterator<Item = &'static str> {
    let path = general(path);
    let parent = path.rfind('.').map_or(String::new(), |dot| path[..=dot].to_owned());
    let shared = shared(&parent);
    FIELDS.iter().filter_map(move |field| {
        let own = field.path.strip_prefix(parent.as_str());
        let name = own.or_else(|| field.path.strip_prefix(shared.as_deref()?))?;
        (!name.contains('.')).then(|| name.trim_end_matches("[]"))
    })
}

/// The whole list as Markdown.
pub fn markdown() -> String {
    let mut text = String::from(HEAD);
    for Field { path, support } in FIELDS {
        let (word, note) = match support {
            Support::Yes(note) => ("yes", *note),
            Support::Parts => ("see its parts", ""),
            Support::Partly(note) => ("partly", *note),
            Support::Meaningless(note) => ("no need", *note),
            Support::Not(note) => ("no", *note),
        };
        text.push_str(&format!("| `{path}` | {word} | {note} |\n"));
    }
    text
}

fn search(value: &Value, path: &str, found: &mut Vec<(String, &'static str)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(_, value)| !is_nothing(value)) {
                let here = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match row(&general(&here)) {
                    Some(Support::Not(why)) => found.push((here, why)),
                    // Below labels, annotations and the like are no fields but people's own words.
                    Some(Support::Meaningless(_)) => {}
                    // A map's entry has no row.
                    _ if here.ends_with("resources.limits.ephemeral-storage") => found.push((here, STORAGE)),
                    _ => search(value, &here, found),
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                search(item, &format!("{path}[{index}]"), found);
            }
        }
        _ => {}
    }
}

/// Nothing is said with it.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

fn row(path: &str) -> Option<Support> {
    let find = |path: &str| FIELDS.iter().find(|field| field.path == path).map(|field| field.support);
    find(path).or_else(|| find(&shared(path)?))
}

/// Init containers are containers.
fn shared(path: &str) -> Option<String> {
    path.strip_prefix("spec.initContainers[]").map(|rest| format!("spec.containers[]{rest}"))
}

/// The path without the numbers of list items.
fn general(path: &str) -> String {
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

/// Of a limit that the node does not hold containers to.
const STORAGE: &str = "only emptyDirs are held to their size here";

const HEAD: &str = "\
# Pod fields

What each field of a pod comes to on a node that runs podwright. The list is made from `crates/core/src/fields/list.rs`, and
a test keeps both equal (`PODWRIGHT_BLESS=1 cargo test -p podwright-core fields` writes it anew). A row stands for everything
below its field that has no row of its own.

- **yes**: it does what Kubernetes says. **partly**: some of it, or sometimes.
- **no need**: it has no meaning on a node, or not in a manifest, and does no harm.
- **no**: it does nothing. `podwright check` and the agent's log name it with its line; `--strict` makes it an error.

Fields nobody knows are named in the same way. `spec.initContainers[]` is as `spec.containers[]`, but for the rows it has of its own.

| field | supported | |
|---|---|---|
";

#[cfg(test)]
mod tests;
