//! The result tables in `docs/BENCHMARKS.md`.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use podwright_testbed::Cache;

/// The text before this marker is written by hand and stays.
const BEGIN: &str = "<!-- written by make bench: each table below is replaced when it is measured again -->\n";

/// One table.
pub(crate) struct Table {
    title: String,
    rows: Vec<Vec<String>>,
    note: String,
}

impl Table {
    pub(crate) fn new(title: &str, head: &[&str]) -> Self {
        let head = head.iter().map(|&cell| cell.to_owned()).collect();
        Self { title: title.to_owned(), rows: vec![head], note: String::new() }
    }

    pub(crate) fn row(&mut self, cells: &[String]) {
        self.rows.push(cells.to_vec());
    }

    pub(crate) fn note(&mut self, note: &str) {
        note.clone_into(&mut self.note);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "### {}\n", self.title)?;
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or_default().max(3)
        };
        for (n, row) in self.rows.iter().enumerate() {
            for column in 0..columns {
                write!(f, "| {:1$} ", row.get(column).map_or("", String::as_str), width(column))?;
            }
            writeln!(f, "|")?;
            if n == 0 {
                (0..columns).try_for_each(|column| write!(f, "|{}", "-".repeat(width(column) + 2)))?;
                writeln!(f, "|")?;
            }
        }
        writeln!(f, "\n{}", self.note)
    }
}

/// A missed goal does not fail the run, but must be visible.
pub(crate) fn verdict(met: bool) -> String {
    if met { "met".to_owned() } else { "**missed**".to_owned() }
}

/// The load of the host, which makes every number worse.
pub(crate) fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// The host and versions of a measurement, in a line below the table.
pub(crate) fn facts(program: &Path, load_before: &str) -> Result<String> {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC");
    let size = fs::metadata(program)?.len();
    let profile = ["release", "quick"].into_iter().find(|p| program.components().any(|c| c.as_os_str() == *p));
    let facts = [
        now.to_string(),
        format!("commit {}", commit()?),
        format!(
            "podwright of {}, {}.{} MB",
            profile.map_or("PODWRIGHT_BIN".to_owned(), |profile| format!("profile {profile}")),
            size / 1_000_000,
            size / 100_000 % 10
        ),
        first_line("containerd", "--version")?,
        first_line("kubelet", "--version")?,
        machine()?,
        format!("load before {load_before}, niceness {}", niceness()?),
    ];
    Ok(format!("*{}*\n", facts.join(" · ")))
}

/// Replaces the table with the same title in `docs/BENCHMARKS.md`.
pub(crate) fn keep(table: &Table, facts: &str) -> Result<()> {
    let path = root()?.join("docs/BENCHMARKS.md");
    let old = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let (introduction, kept) = old.split_once(BEGIN).context("BENCHMARKS.md has lost its mark")?;
    let mut sections: Vec<(String, String)> = kept
        .split("\n### ")
        .skip(1)
        .filter_map(|section| Some((section.lines().next()?.to_owned(), format!("### {}\n", section.trim_end()))))
        .collect();
    let text = format!("{table}\n{facts}");
    match sections.iter_mut().find(|(title, _)| *title == table.title) {
        Some((_, section)) => *section = text,
        None => sections.push((table.title.clone(), text)),
    }
    let texts: Vec<String> = sections.into_iter().map(|(_, text)| text).collect();
    Ok(fs::write(&path, format!("{introduction}{BEGIN}\n{}", texts.join("\n")))?)
}

fn root() -> Result<PathBuf> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").context("cargo test says it")?;
    Ok(Path::new(&manifest).ancestors().nth(2).context("two levels up")?.to_owned())
}

/// The commit, and whether there are uncommitted changes.
fn commit() -> Result<String> {
    let git = |arguments: &[&str]| -> Result<String> {
        let output = Command::new("git").args(arguments).current_dir(root()?).output()?;
        ensure!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let changed = git(&["status", "--porcelain", "--untracked-files=no", "--", "crates", "Cargo.lock"])?;
    let changes = if changed.is_empty() { "" } else { ", with changes that are not committed" };
    Ok(format!("{}{changes}", git(&["rev-parse", "--short=12", "HEAD"])?))
}

fn first_line(peer: &str, argument: &str) -> Result<String> {
    let output = Command::new(Cache::find().peer(peer)?).arg(argument).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // `containerd github.com/… v2.1.9 <commit>`: name and version are enough.
    let words: Vec<&str> = text.lines().next().unwrap_or_default().split_whitespace().collect();
    let version = words.iter().find(|w| w.trim_start_matches('v').starts_with(|c: char| c.is_ascii_digit()));
    Ok(format!("{peer} {}", version.copied().unwrap_or("of unknown version")))
}

/// The nice value: a bench with a higher priority is disturbed less.
fn niceness() -> Result<i64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let after_name = stat.rsplit_once(')').context("a stat line")?.1;
    Ok(after_name.split_whitespace().nth(16).context("a niceness")?.parse()?)
}

fn machine() -> Result<String> {
    let info = fs::read_to_string("/proc/cpuinfo")?;
    let value = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let model = value(&info, "model name").unwrap_or_else(|| "unknown CPU".into());
    let cores = info.lines().filter(|line| line.starts_with("processor")).count();
    let memory = value(&fs::read_to_string("/proc/meminfo")?, "MemTotal").unwrap_or_default();
    let gib = memory.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or_default() >> 20;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let cgroups = if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() { "v2" } else { "v1" };
    Ok(format!("{cores} × {model}, {gib} GiB, Linux {}, cgroup {cgroups}", kernel.trim()))
}
