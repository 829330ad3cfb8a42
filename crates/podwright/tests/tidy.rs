//! Rules that no compiler checks: dependencies between crates and modules, length of files and functions, supervised tasks, text
//! that must not appear, and references from documents to code.

#[path = "tidy/code.rs"]
mod code;
#[path = "tidy/cycles.rs"]
mod cycles;
#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/log_fields.rs"]
mod log_fields;
#[path = "tidy/shape.rs"]
mod shape;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Who may depend on whom, tests apart. A new crate gets a line here.
const ARROWS: [(&str, &[&str]); 15] = [
    ("podwright", &["agent", "api", "core", "cri", "engine", "image", "linux", "server", "shim", "tasks"]),
    ("server", &["agent", "api", "core", "cri", "linux", "tasks"]),
    ("agent", &["api", "core", "cri", "linux", "tasks"]),
    ("api", &["core", "tasks"]),
    ("core", &[]),
    ("cri", &[]),
    ("image", &["linux", "tasks"]),
    ("engine", &["cri", "engine-machine", "image", "linux", "net", "shim", "tasks"]),
    ("engine-machine", &[]),
    ("shim", &["linux"]),
    ("net", &["linux", "tasks"]),
    ("linux", &[]),
    ("tasks", &[]),
    ("testbed", &[]),
    ("sim", &["agent", "core", "cri"]),
];

/// What core and the machines of the engine must not even be able to name: anything that waits, opens, asks the kernel or throws dice.
const NOT_IN_CORE: [&str; 11] =
    ["tokio", "mio", "async-std", "futures", "hyper", "tonic", "rustix", "nix", "libc", "rand", "getrandom"];

/// Crates that may hold unsafe code.
const UNSAFE_ALLOWED: [&str; 2] = ["linux", "shim"];

/// One machine may reach this; nothing may pass it.
const LINES_MAX: usize = 700;
/// From here on a second noun is probably hiding in the file.
const LINES_NOTED: usize = 400;

/// Texts are small; what is larger is data.
const TEXT_BYTES_MAX: u64 = 1 << 20;

#[test]
fn crates_depend_only_downwards() {
    let allowed = BTreeMap::from(ARROWS);
    let mut wrong = vec![];
    for package in packages() {
        let Some(may) = allowed.get(package.name.as_str()) else {
            wrong.push(format!("{} has no line in ARROWS", package.name));
            continue;
        };
        for (to, dev) in &package.depends {
            let fine = match (package.name.as_str(), *dev) {
                ("core" | "cri" | "linux", true) => false,
                // Tests may start real peers or the simulation; the agent itself is tested without them.
                ("agent", true) => to != "testbed" && to != "sim",
                (_, true) => true,
                (_, false) => may.contains(&to.as_str()),
            };
            if !fine {
                let how = if *dev { "in its tests" } else { "" };
                wrong.push(format!("{} must not depend on {to} {how}", package.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn core_and_the_machines_cannot_reach_the_world() {
    for (package, known) in [("podwright-core", "k8s-openapi"), ("podwright-engine-machine", "thiserror")] {
        let of = format!("--package={package}");
        let tree = cargo(&["tree", &of, "--edges=normal", "--prefix=none", "--format={p}"]);
        let reached: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
        assert!(reached.contains(known), "the tree was not read: {reached:?}");
        let bad: Vec<_> = NOT_IN_CORE.iter().filter(|name| reached.contains(**name)).collect();
        assert!(bad.is_empty(), "{package} reaches {bad:?}");
    }
}

#[test]
fn every_crate_says_what_it_is_and_keeps_the_lints() {
    let mut wrong = vec![];
    for package in packages() {
        let about = package.description.trim();
        if about.len() < 10 || about.contains("TODO") {
            wrong.push(format!("{}: description {about:?}", package.name));
        }
        for root in &package.roots {
            let first = read(root).lines().next().unwrap_or_default().to_owned();
            if first.strip_prefix("//! ").is_none_or(|words| words.len() < 10) {
                wrong.push(format!("{}: begins with {first:?}, not with what it is", root.display()));
            }
        }
        let manifest = read(&root().join("crates").join(&package.name).join("Cargo.toml"));
        if !UNSAFE_ALLOWED.contains(&package.name.as_str()) && !manifest.contains("[lints]\nworkspace = true") {
            wrong.push(format!("{}: does not take the workspace's lints", package.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn unsafe_code_lives_in_its_own_crates() {
    let forbidden = |path: &Path| {
        let of = path.strip_prefix(root().join("crates")).ok()?.components().next()?.as_os_str().to_str()?.to_owned();
        (!UNSAFE_ALLOWED.contains(&of.as_str())).then_some(())
    };
    let mut wrong = vec![];
    for path in sources().into_iter().filter(|p| forbidden(p).is_some()) {
        for (number, line) in code::of(&read(&path)).lines().enumerate() {
            if code::has_word(line, "unsafe") {
                wrong.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn files_stay_short() {
    let mut lengths: Vec<(usize, PathBuf)> = sources().into_iter().map(|p| (read(&p).lines().count(), p)).collect();
    lengths.sort();
    for (lines, path) in lengths.iter().filter(|(lines, _)| *lines > LINES_NOTED) {
        println!("{lines} lines: {}", path.display());
    }
    let long: Vec<_> = lengths.iter().filter(|(lines, _)| *lines > LINES_MAX).collect();
    assert!(long.is_empty(), "over {LINES_MAX} lines, look for the second noun inside: {long:#?}");
}

#[test]
fn functions_fit_on_a_screen() {
    let mut wrong = vec![];
    for file in shaped().iter().filter(|file| file.is_product()) {
        let long = shape::long_functions(file).into_iter();
        wrong.extend(long.map(|(name, lines)| format!("{}: {name} has {lines} lines", file.path)));
    }
    assert!(wrong.is_empty(), "over {} lines: {wrong:#?}", shape::FUNCTION_LINES_MAX);
}

#[test]
fn types_have_few_methods() {
    let many = shape::types_with_many_methods(&shaped());
    assert!(many.is_empty(), "over {} methods: {many:#?}", shape::METHODS_MAX);
}

#[test]
fn modules_have_one_layout_and_no_cycles() {
    let files = shaped();
    let mod_files = shape::mod_files(&files);
    assert!(mod_files.is_empty(), "write name.rs beside name/ instead of {mod_files:#?}");
    let cycles = cycles::module_cycles(&files);
    assert!(cycles.is_empty(), "modules of a crate use each other: {cycles:#?}");
}

#[test]
fn tasks_are_supervised() {
    let mut wrong = vec![];
    for file in shaped().iter().filter(|f| f.is_product() && !f.path.starts_with("crates/tasks/")) {
        let lines = shape::bare_spawns(file).into_iter();
        wrong.extend(lines.map(|line| format!("{}:{line}", file.path)));
    }
    assert!(wrong.is_empty(), "spawn through Tasks, or podwright_tasks::spawn: {wrong:#?}");
    let threads = shape::bare_threads(&shaped());
    assert!(
        threads.is_empty(),
        "start threads by podwright_tasks::spawn_thread, or list them with a reason: {threads:#?}"
    );
}

#[test]
fn log_lines_have_constant_messages_and_known_fields() {
    let document = read(&root().join("CONTRIBUTING.md"));
    let table = log_fields::table(&document);
    assert!(table.contains("pod") && table.contains("error"), "the table was not read: {table:?}");
    let mut wrong = vec![];
    for file in shaped().iter().filter(|file| file.is_product()) {
        let found = log_fields::unknown_fields(file, &read(&root().join(&file.path)), &table).into_iter();
        wrong.extend(found.map(|what| format!("{}:{what}", file.path)));
    }
    assert!(wrong.is_empty(), "use a field of the table in CONTRIBUTING.md, or extend it: {wrong:#?}");
}

#[test]
fn no_text_has_unfinished_code_or_a_developers_paths() {
    // Put together here, so that this file is not its own first finding.
    let words = [concat!("to", "do!"), concat!("unimpl", "emented!"), concat!("FIX", "ME")];
    let places = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];
    let mut wrong = vec![];
    for path in files() {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        for (number, line) in text.lines().enumerate() {
            let word = words.iter().find(|word| line.contains(**word));
            let place = places.iter().find(|place| code::has_absolute_path(line, place));
            if let Some(what) = word.or(place) {
                wrong.push(format!("{}:{}: {what}", path.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn documents_speak_of_what_exists() {
    let documents: Vec<PathBuf> = files().into_iter().filter(|p| p.extension().is_some_and(|e| e == "md")).collect();
    for needed in ["README.md", "CONTRIBUTING.md", "docs/ARCHITECTURE.md", "docs/kubelet-map.md", "docs/invariants.md"]
    {
        assert!(documents.contains(&root().join(needed)), "{needed} is missing");
    }
    let mut wrong = vec![];
    for path in &documents {
        let text = read(path);
        let dir = path.parent().expect("a file is in a directory");
        for link in documents::links(&text) {
            if !dir.join(link).exists() {
                wrong.push(format!("{}: the link to {link} leads nowhere", path.display()));
            }
        }
        for reference in documents::code_references(&text) {
            if let Err(why) = reference.check(&root().join("crates")) {
                wrong.push(format!("{}: {why}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// One crate of the workspace, named by its directory.
struct Package {
    name: String,
    description: String,
    /// `lib.rs` and `main.rs`.
    roots: Vec<PathBuf>,
    /// Crates of the workspace, and whether only tests depend on them.
    depends: Vec<(String, bool)>,
}

fn packages() -> Vec<Package> {
    let metadata = cargo(&["metadata", "--format-version=1", "--no-deps"]);
    let metadata: Value = serde_json::from_str(&metadata).expect("cargo metadata is JSON");
    let short = |name: &str| name.strip_prefix("podwright-").unwrap_or(name).to_owned();
    let ours: BTreeSet<&str> = array(&metadata["packages"]).map(|p| text(&p["name"])).collect();
    let package = |p: &Value| {
        let own = array(&p["dependencies"]).filter(|d| ours.contains(text(&d["name"])));
        let roots = array(&p["targets"]).filter(|t| array(&t["kind"]).any(|k| k == "lib" || k == "bin"));
        Package {
            name: short(text(&p["name"])),
            description: p["description"].as_str().unwrap_or_default().to_owned(),
            roots: roots.map(|t| PathBuf::from(text(&t["src_path"]))).collect(),
            depends: own.map(|d| (short(text(&d["name"])), d["kind"] == "dev")).collect(),
        }
    };
    array(&metadata["packages"]).map(package).collect()
}

/// What cargo says, without the network and without touching the lock file.
fn cargo(arguments: &[&str]) -> String {
    let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut command = Command::new(program);
    let output =
        command.args(arguments).args(["--offline", "--locked"]).current_dir(root()).output().expect("cargo runs");
    assert!(output.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("cargo speaks UTF-8")
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a string")
}

fn root() -> PathBuf {
    // Asked when it runs: the program may have been compiled for another checkout.
    let manifest = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo test says it"));
    manifest.ancestors().nth(2).expect("the crate is two levels below the root").to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Our Rust files, for the rules about their shape.
fn shaped() -> Vec<shape::SourceFile> {
    let root = root();
    let below = |path: &Path| path.strip_prefix(&root).expect("below the root").to_string_lossy().into_owned();
    sources().iter().map(|path| shape::SourceFile::new(&below(path), &read(path))).collect()
}

/// Our Rust files.
fn sources() -> Vec<PathBuf> {
    let found: Vec<PathBuf> = files().into_iter().filter(|p| p.extension().is_some_and(|e| e == "rs")).collect();
    assert!(found.len() > 50, "only {} files were found", found.len());
    found
}

/// Every file of the project that may be a text.
fn files() -> Vec<PathBuf> {
    let (mut found, mut next) = (vec![], vec![root()]);
    while let Some(dir) = next.pop() {
        for entry in fs::read_dir(&dir).expect("a directory of the project").flatten() {
            let (path, kind) = (entry.path(), entry.file_type().expect("a kind"));
            // Git's own; in a worktree it is a file.
            if entry.file_name() == ".git" {
                continue;
            }
            // Build directories are marked by cargo, wherever they are.
            if kind.is_dir() && !path.join("CACHEDIR.TAG").exists() {
                next.push(path);
            } else if kind.is_file() && entry.metadata().is_ok_and(|m| m.len() <= TEXT_BYTES_MAX) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
