//! Cycles between the top-level modules of a crate.
//!
//! A module uses another one if its text names it: by `crate::`, by as many `super::` as lead to the root, by a name that the root
//! re-exports, or in an attribute such as `serde(with = "crate::…")`. A name that a module re-exports leads to that module, whose own
//! text names where it comes from.

use std::collections::{BTreeMap, BTreeSet};

use super::shape::SourceFile;

/// The modules that each module of a crate uses.
type Uses<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Cycles, each as `crate: a -> b -> a`.
pub(crate) fn module_cycles(files: &[SourceFile]) -> Vec<String> {
    let mut exports: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_product()) {
        if let Some((krate, "lib.rs" | "main.rs")) = file.inside() {
            exports.entry(krate).or_default().extend(imports(&file.code));
        }
    }
    let mut uses: BTreeMap<&str, Uses<'_>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_product()) {
        let Some((krate, module)) = file.module() else { continue };
        let exported = |name| exports.get(krate).and_then(|names| names.get(name)).copied().unwrap_or(name);
        let used = uses.entry(krate).or_default().entry(module).or_default();
        used.extend(uses_of(file).into_iter().map(exported).filter(|name| *name != module));
    }
    let mut cycles = vec![];
    for (krate, graph) in &uses {
        for component in components(graph) {
            let path = component.iter().chain(component.first()).copied().collect::<Vec<_>>();
            cycles.push(format!("{krate}: {}", path.join(" -> ")));
        }
    }
    cycles
}

/// The names of the crate's root that a file uses.
fn uses_of(file: &SourceFile) -> BTreeSet<&str> {
    let depth = file.inside().map_or(0, |(_, inside)| inside.split('/').count());
    let to_root = "super::".repeat(depth);
    let texts = file.attribute_paths.iter().map(String::as_str).chain([file.code.as_str()]);
    texts.flat_map(|text| [names_after(text, "crate::"), names_after(text, &to_root)]).flatten().collect()
}

/// The names that follow a prefix of paths, alone or in a list.
fn names_after<'a>(code: &'a str, prefix: &str) -> Vec<&'a str> {
    let mut found = vec![];
    for (at, _) in code.match_indices(prefix) {
        // The tail of another name or of a longer path.
        if code[..at].chars().next_back().is_some_and(|c| is_word(c) || c == ':') {
            continue;
        }
        let rest = &code[at + prefix.len()..];
        match rest.strip_prefix('{') {
            Some(list) => found.extend(items(list).into_iter().map(first_name)),
            None => found.push(first_name(rest)),
        }
    }
    found
}

/// What the root of a crate imports from its modules: the name there, and the module.
fn imports(code: &str) -> Vec<(&str, &str)> {
    let statements = code.split(';').filter_map(|statement| {
        let (before, tree) = statement.split_once("use ")?;
        let at_start = before.lines().last().is_none_or(|line| line.is_empty() || line.starts_with("pub"));
        at_start.then_some(tree)
    });
    statements.flat_map(leaves).collect()
}

/// The last name and the first name of each path of a `use`.
fn leaves(tree: &str) -> Vec<(&str, &str)> {
    let tree = tree.trim();
    let tree = tree.strip_prefix("crate::").or_else(|| tree.strip_prefix("self::")).unwrap_or(tree);
    let Some((path, list)) = tree.split_once('{') else {
        let last = tree.rsplit("::").next().unwrap_or(tree);
        return vec![(last.rsplit(" as ").next().unwrap_or(last).trim(), first_name(tree))];
    };
    let of_list = items(list).into_iter().flat_map(leaves);
    of_list.map(|(last, first)| (last, if path.is_empty() { first } else { first_name(path) })).collect()
}

fn first_name(text: &str) -> &str {
    text.split(|c| !is_word(c)).next().unwrap_or_default()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The items of `{a::b, c::{d, e}}`, after its opening brace.
fn items(list: &str) -> Vec<&str> {
    let (mut items, mut depth, mut start) = (vec![], 0_usize, 0);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                items.push(list[start..at].trim());
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    items
}

/// Sets of modules that reach each other, in order of their names.
fn components<'a>(graph: &Uses<'a>) -> Vec<Vec<&'a str>> {
    let reached: Uses<'_> = graph.keys().map(|from| (*from, reachable(graph, from))).collect();
    let mut found: Vec<Vec<&str>> = vec![];
    for module in graph.keys() {
        let together =
            graph.keys().filter(|other| reached[module].contains(*other) && reached[*other].contains(module));
        let together: Vec<&str> = together.copied().collect();
        if together.len() > 1 && !found.contains(&together) {
            found.push(together);
        }
    }
    found
}

fn reachable<'a>(graph: &Uses<'a>, from: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&str> = graph.get(from).into_iter().flatten().copied().collect();
    while let Some(module) = next.pop() {
        if graph.contains_key(module) && found.insert(module) {
            next.extend(graph[module].iter().copied());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile::new(path, text)
    }

    #[test]
    fn cycles_of_any_length_are_found_outside_of_tests() {
        let files = [
            file("crates/x/src/a.rs", "use crate::b::B;"),
            file("crates/x/src/b/deep.rs", "use crate::{c::{C, D}, d};"),
            file("crates/x/src/c.rs", "// crate::d\nfn f() { crate::a::g() }"),
            file("crates/x/src/d.rs", "#[cfg(test)]\nmod tests {\n    use crate::a;\n}\nuse crate::e;"),
            file("crates/x/src/e.rs", "#[cfg(test)]\nmod tests;\nuse crate::d;"),
            file("crates/x/src/d/tests.rs", "use crate::a;"),
            file("crates/x/src/lib.rs", "mod a; use crate::a; use crate::d;"),
        ];
        assert_eq!(module_cycles(&files), ["x: a -> b -> c -> a", "x: d -> e -> d"]);
    }

    #[test]
    fn a_use_by_another_way_is_a_use_too() {
        let root = "mod a;\nmod b;\n\npub use b::{deep::C, B as Renamed};\nuse std::fmt;\n";
        for (by, a, b) in [
            ("a re-export of the root", "use crate::C;", "use crate::a;"),
            ("a re-export by another name", "use crate::{Renamed};", "use crate::a;"),
            ("a re-export of a module", "use crate::c::B;", "use crate::a::A;"),
            ("an attribute", "#[serde(with = \"crate::b::pairs\")]\nx: X,", "use crate::a;"),
            ("the parent, which is the root", "use super::b::B;", "use crate::a;"),
        ] {
            let files = [
                file("crates/x/src/lib.rs", root),
                file("crates/x/src/a.rs", a),
                file("crates/x/src/b/deep.rs", b),
                file("crates/x/src/c.rs", "pub use crate::b::B;"),
            ];
            let found = module_cycles(&files);
            assert!(found.len() == 1 && found[0].starts_with("x: a -> b"), "{by}: {found:?}");
        }
        let none = [
            file("crates/x/src/lib.rs", root),
            file("crates/x/src/a.rs", "// #[serde(with = \"crate::b::pairs\")]\nuse crate::fmt;"),
            file("crates/x/src/b/deep.rs", "use super::b::B; use crate::a;"),
        ];
        assert_eq!(module_cycles(&none), Vec::<String>::new());
    }
}
