//! `podwright check`: validates manifests with the code of the agent's file source, without an agent.
//!
//! Exit codes: 0 all manifests are valid, there may be warnings; 1 one is invalid, or has warnings and `--strict` is given; 2 wrong
//! usage, or a file cannot be read.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use podwright_agent::sources::{
    Decode, Finding, MANIFEST_MAX, Strictness, file, read_manifests, static_pods, submitted_pods,
};
use podwright_core::model::{Manifest, Source};
use podwright_core::static_pod::FindingKind;
use serde_json::{Value, json};

use crate::cli::{CheckFlags, CheckOutput, CheckRules};
use crate::print::{Colour, Paint};

/// The node name is appended to the name of a static pod; its value does not matter for the check.
const NODE: &str = "node";

/// Runs the command.
pub(crate) fn run(flags: &CheckFlags) -> ExitCode {
    let checked = match check(flags) {
        Ok(checked) => checked,
        Err(Unreadable { path, source }) => {
            eprintln!("podwright: read {}: {source}", path.display());
            return ExitCode::from(crate::cli::EXIT_USAGE);
        }
    };
    let text = match flags.output {
        Some(CheckOutput::Json) => as_json(&checked),
        None => as_text(&checked, io::stdout().is_terminal().then(Paint::for_stdout)),
    };
    // A closed pipe is no error; the exit code is the result of the check.
    let _ = io::stdout().lock().write_all(text.as_bytes());
    if checked.iter().all(|file| file.errors.is_empty()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The result for one file.
struct CheckedFile {
    path: String,
    pods: Vec<String>,
    errors: Vec<Finding>,
    warnings: Vec<Finding>,
    /// The text of the file, to show the lines of findings.
    text: String,
}

#[derive(Debug)]
struct Unreadable {
    path: PathBuf,
    source: io::Error,
}

fn check(flags: &CheckFlags) -> Result<Vec<CheckedFile>, Unreadable> {
    let mut checked = Vec::new();
    let mut defined = BTreeMap::new();
    for path in files(flags)? {
        let bytes = bytes(&path).map_err(|source| Unreadable { path: path.clone(), source })?;
        checked.push(check_file(&path, &bytes, flags, &mut defined));
    }
    Ok(checked)
}

/// The files to check; of a directory, those the agent would read.
fn files(flags: &CheckFlags) -> Result<Vec<PathBuf>, Unreadable> {
    let mut files = Vec::new();
    for path in &flags.files {
        let unreadable = |source| Unreadable { path: path.clone(), source };
        if path.as_os_str() == "-" || !fs::metadata(path).map_err(unreadable)?.is_dir() {
            files.push(path.clone());
            continue;
        }
        let mut inside = Vec::new();
        for entry in fs::read_dir(path).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            if file::is_manifest(&entry.file_name(), flags.all_names) && entry.path().is_file() {
                inside.push(entry.path());
            }
        }
        inside.sort();
        files.append(&mut inside);
    }
    Ok(files)
}

fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = MANIFEST_MAX + 1;
    match path.to_str() {
        Some("-") => io::stdin().lock().take(limit).read_to_end(&mut bytes)?,
        _ => File::open(path)?.take(limit).read_to_end(&mut bytes)?,
    };
    Ok(bytes)
}

fn check_file(path: &Path, bytes: &[u8], flags: &CheckFlags, defined: &mut BTreeMap<String, String>) -> CheckedFile {
    let shown = if path.as_os_str() == "-" { "stdin".to_owned() } else { path.display().to_string() };
    if bytes.len() as u64 > MANIFEST_MAX {
        let errors = vec![Finding::of_text(format!("the manifest is larger than {MANIFEST_MAX} bytes"))];
        return CheckedFile { path: shown, pods: vec![], errors, warnings: vec![], text: String::new() };
    }
    let found = read_manifests(bytes, &shown, &decoder(flags.rules));
    let (mut errors, warnings) = (found.errors, found.warnings);
    let is_fatal = |warning: &Finding| {
        flags.strict || (flags.rules == CheckRules::Node && warning.kind == FindingKind::NeverWorks)
    };
    let (mut fatal, warnings): (Vec<Finding>, Vec<Finding>) = warnings.into_iter().partition(is_fatal);
    errors.append(&mut fatal);
    errors.sort_by_key(|error| error.line);
    let pods: Vec<String> = found.pods.iter().map(|pod| name(pod, flags.rules)).collect();
    // Generated names are unique.
    for pod in found.pods.iter().filter(|pod| pod.pod.metadata.name.is_some()).map(|pod| name(pod, flags.rules)) {
        if let Some(first) = defined.insert(pod.clone(), shown.clone()) {
            errors.push(Finding::of_text(format!("pod {pod} is already defined in {first}: rename one of them")));
        }
    }
    CheckedFile { path: shown, pods, errors, warnings, text: String::from_utf8_lossy(bytes).into_owned() }
}

fn decoder(rules: CheckRules) -> Decode {
    match rules {
        CheckRules::Node => static_pods(Source::File, NODE, Strictness::Lenient),
        CheckRules::Api => submitted_pods(),
    }
}

/// The name in the manifest, without the appended node name.
fn name(manifest: &Manifest, rules: CheckRules) -> String {
    let meta = &manifest.pod.metadata;
    let name = meta.name.as_deref().or(meta.generate_name.as_deref()).unwrap_or_default();
    let written = name.strip_suffix(NODE).and_then(|name| name.strip_suffix('-')).filter(|_| rules == CheckRules::Node);
    let name = written.unwrap_or(name);
    format!("{}/{name}", meta.namespace.as_deref().unwrap_or("default"))
}

/// One line of output: file, line, `error` or `warning`, field and message.
pub(crate) fn format_finding(file: &str, severity: &str, finding: &Finding) -> String {
    let Finding { line, path, message, .. } = finding;
    let line = line.map_or(String::new(), |line| format!("{line}:"));
    let field = if path.is_empty() { String::new() } else { format!("{path}: ") };
    format!("{file}:{line} {severity}: {field}{message}\n")
}

/// The findings by line. On a terminal, each is followed by its line of the file.
fn as_text(checked: &[CheckedFile], terminal: Option<Paint>) -> String {
    let mut text = String::new();
    for CheckedFile { path, errors, warnings, text: source, .. } in checked {
        let kinds = [("error", errors, Colour::Bad), ("warning", warnings, Colour::Busy)];
        for (severity, findings, colour) in kinds {
            for finding in findings {
                let severity = terminal.map_or(severity.to_owned(), |paint| paint.colour(severity, Some(colour)));
                text.push_str(&format_finding(path, &severity, finding));
                text.push_str(&terminal.and_then(|paint| excerpt(source, finding, paint, colour)).unwrap_or_default());
            }
        }
    }
    let count = |of: fn(&CheckedFile) -> usize, noun: &str| {
        let n = checked.iter().map(of).sum::<usize>();
        format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
    };
    let counts = [
        count(|_| 1, "file"),
        count(|file| file.pods.len(), "valid pod"),
        count(|file| file.errors.len(), "error"),
        count(|file| file.warnings.len(), "warning"),
    ];
    text.push_str(&counts.join(", "));
    text.push('\n');
    text
}

/// The line of a finding, with a mark below the field.
fn excerpt(source: &str, finding: &Finding, paint: Paint, colour: Colour) -> Option<String> {
    let number = finding.line?;
    let line = source.lines().nth(usize::try_from(number.checked_sub(1)?).ok()?)?;
    let line: String = plain_line(line).chars().take(EXCERPT_MAX).collect();
    let field = field_in(&finding.path, &line);
    let found = line.find(field).filter(|_| !field.is_empty());
    let start = found.unwrap_or_else(|| line.len() - line.trim_start().len());
    let width = found.map_or(1, |_| field.chars().count());
    let margin = " ".repeat(number.to_string().len());
    let mark = paint.colour(&"^".repeat(width), Some(colour));
    let before = " ".repeat(line[..start].chars().count());
    Some(format!("  {number} | {line}\n  {margin} | {before}{mark}\n"))
}

/// The part of a path that a line has: the key in brackets at its end, else its longest end. Names of resources have dots.
fn field_in<'a>(path: &'a str, line: &str) -> &'a str {
    let (whole, key) = path.strip_suffix(']').and_then(|path| path.rsplit_once('[')).unwrap_or((path, ""));
    if key.parse::<usize>().is_err() && !key.is_empty() && line.contains(key) {
        return key;
    }
    let mut ends = std::iter::once(whole).chain(whole.match_indices('.').map(|(at, _)| &whole[at + 1..]));
    ends.find(|end| line.contains(end)).unwrap_or_default()
}

/// Without characters that control a terminal; the columns stay.
fn plain_line(line: &str) -> String {
    let replace = |c: char| match c {
        '\t' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    line.chars().map(replace).collect()
}

/// Characters of a line that are shown.
const EXCERPT_MAX: usize = 120;

fn as_json(checked: &[CheckedFile]) -> String {
    let findings = |findings: &[Finding]| -> Vec<Value> {
        let one = |f: &Finding| json!({"line": f.line, "field": f.path, "message": f.message});
        findings.iter().map(one).collect()
    };
    let files: Vec<Value> = checked
        .iter()
        .map(|file| {
            let (errors, warnings) = (findings(&file.errors), findings(&file.warnings));
            json!({"file": file.path, "pods": file.pods, "errors": errors, "warnings": warnings})
        })
        .collect();
    format!("{:#}\n", json!({"files": files}))
}

#[cfg(test)]
mod tests;
