//! What a Markdown text points at: other files, and places in our code.
//!
//! A place is a code span such as `core/src/pod.rs` or `core/src/pod/termination.rs::plan_termination`: a path below `crates/`, and
//! names that must stand in that file.

use std::path::Path;

use crate::code;

/// A place in our code.
#[derive(Debug, PartialEq)]
pub(crate) struct Reference<'a> {
    file: &'a str,
    names: Vec<&'a str>,
}

impl Reference<'_> {
    /// The file is there, and has the names.
    pub(crate) fn check(&self, crates: &Path) -> Result<(), String> {
        let path = crates.join(self.file);
        let text = std::fs::read_to_string(&path).map_err(|e| format!("crates/{}: {e}", self.file))?;
        let text = code::of(&text);
        match self.names.iter().find(|name| !code::has_word(&text, name)) {
            Some(name) => Err(format!("crates/{} has no {name}", self.file)),
            None => Ok(()),
        }
    }
}

/// The relative links of a text, without their anchors.
pub(crate) fn links(text: &str) -> Vec<&str> {
    let targets = prose(text).flat_map(|line| line.split("](").skip(1)).filter_map(|rest| rest.split(')').next());
    let local = targets.filter(|t| !t.contains("://") && !t.starts_with("mailto:"));
    local.filter_map(|t| t.split('#').next()).filter(|t| !t.is_empty()).collect()
}

/// The places in our code that a text names.
pub(crate) fn code_references(text: &str) -> Vec<Reference<'_>> {
    let spans = prose(text).flat_map(|line| line.split('`').skip(1).step_by(2));
    spans.filter_map(reference).collect()
}

fn reference(span: &str) -> Option<Reference<'_>> {
    let span = span.strip_prefix("crates/").unwrap_or(span);
    let (file, names) = span.split_once("::").map_or((span, None), |(file, names)| (file, Some(names)));
    let plain = file.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '.' | '-'));
    let ours = file.contains('/') && file.ends_with(".rs") && plain;
    ours.then(|| Reference { file, names: names.map_or(vec![], |names| names.split("::").collect()) })
}

/// The lines outside of fenced blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_and_foreign_ones_left_alone() {
        let text = "[a](docs/a.md) and [b](https://b.example/c) [c](d.md#e) [f](#g)\n```\n[h](i.md)\n```\n[j](k)";
        assert_eq!(links(text), ["docs/a.md", "d.md", "k"]);
    }

    #[test]
    fn places_are_code_spans_that_look_like_files() {
        let found = code_references("`core/src/a.rs::B::c` `make test` `x.rs` x/y.rs `cri/src/z.rs`");
        assert_eq!(
            found,
            [
                Reference { file: "core/src/a.rs", names: vec!["B", "c"] },
                Reference { file: "cri/src/z.rs", names: vec![] }
            ]
        );
    }
}
