//! The shape of our Rust code: length of functions, layout of modules, cycles between modules, where tasks are spawned.

use std::collections::{BTreeMap, BTreeSet};

use super::code;

/// A function that is longer does not fit on a screen.
pub(crate) const FUNCTION_LINES_MAX: usize = 70;

/// A source file: its path below the workspace, with `/`, and its code without comments, literals and test modules.
pub(crate) struct SourceFile {
    pub(crate) path: String,
    pub(crate) code: String,
}

impl SourceFile {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), code: without_test_modules(code::of(text)) }
    }

    fn is_test(&self) -> bool {
        let parts: Vec<&str> = self.path.split('/').collect();
        let last = parts.last().copied().unwrap_or_default();
        parts.iter().any(|part| matches!(*part, "tests" | "benches"))
            || matches!(last, "tests.rs" | "fakes.rs" | "fake.rs")
            || last.ends_with("_tests.rs")
    }

    /// It is part of what is shipped.
    pub(crate) fn is_product(&self) -> bool {
        self.path.contains("/src/")
            && !self.is_test()
            && !self.path.starts_with("crates/sim/")
            && !self.path.starts_with("crates/testbed/")
    }

    /// The crate's directory and the top-level module the file belongs to. `lib.rs` and `main.rs` belong to none.
    fn module(&self) -> Option<(&str, &str)> {
        let (krate, inside) = self.path.strip_prefix("crates/")?.split_once("/src/")?;
        let top = inside.split('/').next()?.trim_end_matches(".rs");
        (!matches!(top, "lib" | "main" | "bin")).then_some((krate, top))
    }
}

/// Blanks the inline test modules; lines stay lines.
fn without_test_modules(mut code: String) -> String {
    const ATTRIBUTE: &str = "#[cfg(test)]\nmod ";
    let mut from = 0;
    while let Some(at) = code[from..].find(ATTRIBUTE).map(|at| from + at) {
        from = at + ATTRIBUTE.len();
        let header = code[from..].lines().next().unwrap_or_default();
        if header.ends_with('{') {
            let lines: Vec<&str> = code[at..].lines().skip(1).collect();
            let length: usize = lines[..function_length(&lines)].iter().map(|line| line.len() + 1).sum();
            let end = (at + "#[cfg(test)]\n".len() + length).min(code.len());
            let blank: String = code[at..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
            code.replace_range(at..end, &blank);
            from = at + blank.len();
        }
    }
    code
}

/// Functions over the limit: name and length.
pub(crate) fn long_functions(file: &SourceFile) -> Vec<(String, usize)> {
    let lines: Vec<&str> = file.code.lines().collect();
    let mut found = vec![];
    let mut at = 0;
    while at < lines.len() {
        let Some(name) = function_name(lines[at]) else {
            at += 1;
            continue;
        };
        let length = function_length(&lines[at..]);
        if length > FUNCTION_LINES_MAX {
            found.push((name.to_owned(), length));
        }
        at += length.max(1);
    }
    found
}

fn function_name(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| {
        matches!(*word, "pub" | "const" | "async" | "unsafe" | "extern" | "default") || word.starts_with("pub(")
    });
    (words.next()? == "fn").then(|| words.next()).flatten().map(|word| word.split(['(', '<']).next().unwrap_or(word))
}

/// Lines from the signature to the closing brace; a declaration without a body ends at its semicolon.
fn function_length(lines: &[&str]) -> usize {
    let (mut depth, mut opened) = (0_usize, false);
    for (number, line) in lines.iter().enumerate() {
        for c in line.chars() {
            match c {
                '{' => (depth, opened) = (depth + 1, true),
                '}' => depth = depth.saturating_sub(1),
                ';' if !opened && depth == 0 => return number + 1,
                _ => {}
            }
        }
        if opened && depth == 0 {
            return number + 1;
        }
    }
    lines.len()
}

/// Modules written as `mod.rs` below a `src` directory: the layout is `name.rs` beside `name/`.
pub(crate) fn mod_files(files: &[SourceFile]) -> Vec<&str> {
    let wrong = files.iter().filter(|f| f.path.contains("/src/") && f.path.ends_with("/mod.rs"));
    wrong.map(|f| f.path.as_str()).collect()
}

/// Where product code spawns a task that is neither supervised nor named.
pub(crate) fn bare_spawns(file: &SourceFile) -> Vec<usize> {
    let bare = |line: &str| {
        ["tokio::spawn(", "task::spawn(", "spawn_local(", "JoinSet"].iter().any(|call| line.contains(call))
            && !line.contains("podwright_tasks")
    };
    let lines = file.code.lines().enumerate().filter(|(_, line)| bare(line));
    lines.map(|(number, _)| number + 1).collect()
}

/// Cycles between the top-level modules of a crate, each as `crate: a -> b -> a`.
pub(crate) fn module_cycles(files: &[SourceFile]) -> Vec<String> {
    let mut uses: BTreeMap<&str, BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_product()) {
        let Some((krate, module)) = file.module() else { continue };
        let used = uses.entry(krate).or_default().entry(module).or_default();
        used.extend(uses_of(&file.code).into_iter().filter(|name| *name != module));
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

/// The top-level modules that a text names by `crate::`.
fn uses_of(code: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        if code[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        let names = match rest.strip_prefix('{') {
            Some(list) => top_level_names(list),
            None => vec![first_name(rest)],
        };
        found.extend(names);
    }
    found
}

fn first_name(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// The names at the first level of `{a::b, c::{d, e}}`, after its opening brace.
fn top_level_names(list: &str) -> Vec<&str> {
    let (mut names, mut depth, mut start) = (vec![], 0_usize, 0);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                names.push(first_name(list[start..at].trim_start()));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                names.push(first_name(list[start..at].trim_start()));
                start = at + 1;
            }
            _ => {}
        }
    }
    names
}

/// Sets of modules that reach each other, in order of their names.
fn components<'a>(graph: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<Vec<&'a str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = graph.keys().map(|from| (*from, reachable(graph, from))).collect();
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

fn reachable<'a>(graph: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &str) -> BTreeSet<&'a str> {
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
    fn a_long_function_is_found_and_a_declaration_is_not() {
        let body = "    work();\n".repeat(FUNCTION_LINES_MAX);
        let text = format!(
            "trait T {{\n    fn declared(&self);\n}}\npub(crate) async fn long<T>(a: T) {{\n{body}}}\nfn short() {{}}\n"
        );
        assert_eq!(long_functions(&file("crates/a/src/b.rs", &text)), [("long".to_owned(), FUNCTION_LINES_MAX + 2)]);
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
    fn mod_files_and_bare_spawns_are_found() {
        let files =
            [file("crates/x/src/a/mod.rs", ""), file("crates/x/tests/b/mod.rs", ""), file("crates/x/src/c.rs", "")];
        assert_eq!(mod_files(&files), ["crates/x/src/a/mod.rs"]);
        let text = "tokio::spawn(a);\npodwright_tasks::spawn(\"n\", b);\ntasks.service(\"m\", c);\n";
        assert_eq!(bare_spawns(&file("crates/x/src/a.rs", text)), [1]);
    }
}
