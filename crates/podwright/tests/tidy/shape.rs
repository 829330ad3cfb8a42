//! The shape of our Rust code: length of functions, layout of modules, where tasks are spawned.

use std::collections::{BTreeMap, BTreeSet};

use super::code;

/// A function that is longer does not fit on a screen.
pub(crate) const FUNCTION_LINES_MAX: usize = 70;

/// A source file: its path below the workspace, with `/`, and its code without comments, literals and test modules.
pub(crate) struct SourceFile {
    pub(crate) path: String,
    pub(crate) code: String,
    /// The paths in attributes such as `serde(with = "crate::…")`, which are code in a literal.
    pub(crate) attribute_paths: Vec<String>,
}

impl SourceFile {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let code = without_test_modules(code::of(text));
        let attribute_paths = attribute_paths(text, &code);
        Self { path: path.to_owned(), code, attribute_paths }
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
    pub(crate) fn module(&self) -> Option<(&str, &str)> {
        let (krate, inside) = self.inside()?;
        let top = inside.split('/').next()?.trim_end_matches(".rs");
        (!matches!(top, "lib" | "main" | "bin")).then_some((krate, top))
    }

    /// The crate's directory, and the path of the file below `src`.
    pub(crate) fn inside(&self) -> Option<(&str, &str)> {
        self.path.strip_prefix("crates/")?.split_once("/src/")
    }
}

/// Literals that begin with `crate::` and are the value of something: of an attribute. Those in comments and tests are none.
fn attribute_paths(text: &str, code: &str) -> Vec<String> {
    let lines = text.lines().zip(code.lines()).filter(|(_, code)| !code.trim().is_empty());
    let values = lines.flat_map(|(line, _)| line.split("= \"crate::").skip(1));
    values.filter_map(|rest| rest.split('"').next()).map(|path| format!("crate::{path}")).collect()
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

/// A type with more is several nouns.
pub(crate) const METHODS_MAX: usize = 25;

/// Types with one method per RPC of the CRI, as the protocol has it: splitting them would only hide the number.
const RPC_TYPES: [(&str, &str); 4] =
    [("cri", "RemoteRuntime"), ("cri", "Adapter"), ("cri", "Arc"), ("engine", "EngineRuntime")];

/// Types over the limit: crate, name and number of methods, those of traits included.
pub(crate) fn types_with_many_methods(files: &[SourceFile]) -> Vec<(String, String, usize)> {
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_product()) {
        let krate = file.path.split('/').nth(1).unwrap_or_default();
        let mut of = None;
        for line in file.code.lines() {
            if line.starts_with("impl") {
                of = implementing_type(line);
            } else if line.starts_with('}') {
                of = None;
            } else if let Some(of) =
                of.filter(|_| line.starts_with("    ") && function_name(line.trim_start()).is_some())
                && !line.starts_with("     ")
            {
                *counts.entry((krate.to_owned(), of.to_owned())).or_default() += 1;
            }
        }
    }
    let is_rpc = |krate: &str, name: &str| RPC_TYPES.contains(&(krate, name));
    let many = counts.into_iter().filter(|((krate, name), count)| *count > METHODS_MAX && !is_rpc(krate, name));
    many.map(|((krate, name), count)| (krate, name, count)).collect()
}

/// The type of a line such as `impl<T> Trait for path::Type<T> {`.
fn implementing_type(line: &str) -> Option<&str> {
    let mut rest = line.strip_prefix("impl")?;
    if rest.starts_with('<') {
        let mut depth = 0;
        let end = rest.char_indices().find(|(at, c)| {
            // The arrow of `Fn() -> T` closes nothing.
            let closes = *c == '>' && !rest[..*at].ends_with('-');
            depth += i32::from(*c == '<') - i32::from(closes);
            depth == 0
        });
        rest = &rest[end?.0 + 1..];
    }
    let of = rest.rsplit(" for ").next()?.trim().trim_start_matches('&');
    of.split(['<', ' ', '{']).next()?.rsplit("::").next()
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

/// Files that start threads without `podwright_tasks::spawn_thread`, and why the end of such a thread does not go unnoticed.
const OWN_THREADS: [(&str, &str); 10] = [
    ("crates/agent/src/recorder.rs", "its end ends the recording, and nothing else needs it"),
    ("crates/engine/src/verbs/stream_target.rs", "joined by the request"),
    (
        "crates/image/src/registry/transfer.rs",
        "removes a file; what it leaves is removed by the next garbage collection",
    ),
    ("crates/net/src/cni/invoke.rs", "copies the streams of one plugin, whose end is awaited with a deadline"),
    ("crates/net/src/netns.rs", "scoped: joined at once"),
    ("crates/podwright/src/client/", "of a command that ends with it"),
    ("crates/podwright/src/config/facts.rs", "a lookup that is abandoned after its limit"),
    ("crates/podwright/src/image_command/", "of a command that ends with it"),
    ("crates/podwright/src/logging/limit.rs", "reports dropped lines, and nothing else needs it"),
    ("crates/server/src/local/body.rs", "the request sees its end"),
];

/// Where product code starts a thread that is not supervised, outside of [`OWN_THREADS`]; and entries there that are not needed.
pub(crate) fn bare_threads(files: &[SourceFile]) -> Vec<String> {
    let starts = |line: &str| ["thread::spawn(", "thread::Builder", "spawn_blocking("].iter().any(|c| line.contains(c));
    let (mut found, mut needed) = (vec![], BTreeSet::new());
    for file in files.iter().filter(|f| f.is_product() && !f.path.starts_with("crates/tasks/")) {
        let allowed = OWN_THREADS.iter().find(|(path, _)| file.path.starts_with(path));
        for (number, _) in file.code.lines().enumerate().filter(|(_, line)| starts(line)) {
            match allowed {
                Some((path, _)) => drop(needed.insert(*path)),
                None => found.push(format!("{}:{}", file.path, number + 1)),
            }
        }
    }
    let not_needed = OWN_THREADS.iter().filter(|(path, _)| !needed.contains(path));
    found.extend(not_needed.map(|(path, _)| format!("{path} starts no thread and is listed")));
    found
}

/// Where product code spawns a task that is neither supervised nor named.
pub(crate) fn bare_spawns(file: &SourceFile) -> Vec<usize> {
    const CALLS: [&str; 5] = ["tokio::spawn(", "task::spawn(", "spawn_local(", "JoinSet", "Handle::current()"];
    let bare = |line: &str| {
        let imported = line.contains("use tokio::") && code::has_word(line, "spawn");
        (imported || CALLS.iter().any(|call| line.contains(call))) && !line.contains("podwright_tasks")
    };
    let lines = file.code.lines().enumerate().filter(|(_, line)| bare(line));
    lines.map(|(number, _)| number + 1).collect()
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
    fn methods_are_counted_over_all_impls_of_a_type() {
        let methods = |n: usize| "    pub(crate) async fn f(&self) {\n        fn inner() {}\n    }\n".repeat(n);
        let own = file("crates/x/src/a.rs", &format!("impl<'a, T: Fn() -> U> a::Many<'a, T> {{\n{}}}\n", methods(20)));
        let foreign =
            file("crates/x/src/b.rs", &format!("impl Trait for Many<'_, u8> {{\n{}}}\nfn f() {{}}\n", methods(6)));
        let rpc = file("crates/cri/src/c.rs", &format!("impl RemoteRuntime {{\n{}}}\n", methods(40)));
        let few = file("crates/y/src/d.rs", &format!("impl Many {{\n{}}}\n", methods(25)));
        let found = types_with_many_methods(&[own, foreign, rpc, few]);
        assert_eq!(found, [("x".to_owned(), "Many".to_owned(), 26)]);
    }

    #[test]
    fn mod_files_and_bare_spawns_are_found() {
        let files =
            [file("crates/x/src/a/mod.rs", ""), file("crates/x/tests/b/mod.rs", ""), file("crates/x/src/c.rs", "")];
        assert_eq!(mod_files(&files), ["crates/x/src/a/mod.rs"]);
        for bare in [
            "tokio::spawn(a);",
            "tokio::task::spawn(a);",
            "tokio::runtime::Handle::current().spawn(a);",
            "use tokio::spawn;",
            "use tokio::task::{JoinHandle, spawn};",
            "let mut tasks = JoinSet::new();",
            "tokio::task::spawn_local(a);",
        ] {
            assert_eq!(bare_spawns(&file("crates/x/src/a.rs", bare)), [1], "{bare}");
        }
        let fine = "podwright_tasks::spawn(\"n\", b);\ntasks.service(\"m\", c);\nuse tokio::task::spawn_blocking;\n";
        assert_eq!(bare_spawns(&file("crates/x/src/a.rs", fine)), Vec::<usize>::new());
    }

    #[test]
    fn threads_are_found_outside_of_the_list_and_the_list_has_no_more_than_needed() {
        let thread = "fn f() {\n    std::thread::spawn(g);\n}\n";
        let mut files: Vec<_> =
            OWN_THREADS.iter().map(|(path, _)| file(&format!("{}/x.rs", path.trim_end_matches('/')), thread)).collect();
        assert_eq!(bare_threads(&files), Vec::<String>::new());
        files.push(file("crates/x/src/a.rs", "thread::Builder::new()\n    .spawn(f);\nhandle.spawn_blocking(g);"));
        files.push(file("crates/x/src/tests.rs", thread));
        files.push(file("crates/x/src/b.rs", "podwright_tasks::spawn_thread(\"journal\", f);"));
        files.remove(0);
        let unused = format!("{} starts no thread and is listed", OWN_THREADS[0].0);
        assert_eq!(bare_threads(&files), ["crates/x/src/a.rs:1".to_owned(), "crates/x/src/a.rs:3".to_owned(), unused]);
    }
}
