//! `podwright check`: manifests through the very path of the file source, without an agent.
//!
//! Exit codes: 0 every manifest can be used, there may be warnings; 1 one can't, or with `--strict` one has warnings; 2 wrong
//! usage, or something can't be read.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use podwright_agent::sources::{Decode, Finding, MANIFEST_MAX, Strictness, file, read, static_pods, submitted_pods};
use podwright_core::model::{Manifest, Source};
use serde_json::{Value, json};

use crate::cli::{CheckFlags, CheckOutput, Judge};

/// A node's name is part of a static pod's; which one it is does not matter here.
const NODE: &str = "node";

/// Check, and say what was found.
pub(crate) fn run(flags: &CheckFlags) -> ExitCode {
    let checked = match check(flags) {
        Ok(checked) => checked,
        Err(Unreadable { path, source }) => {
            eprintln!("podwright: read {}: {source}", path.display());
            return ExitCode::from(crate::USAGE);
        }
    };
    let text = match flags.output {
        Some(CheckOutput::Json) => as_json(&checked),
        None => as_text(&checked),
    };
    // A reader that went away has seen enough; the exit code stays true.
    let _ = io::stdout().lock().write_all(text.as_bytes());
    if checked.iter().all(|file| file.errors.is_empty()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What was found in one file.
struct Checked {
    path: String,
    pods: Vec<String>,
    errors: Vec<Finding>,
    warnings: Vec<Finding>,
}

#[derive(Debug)]
struct Unreadable {
    path: PathBuf,
    source: io::Error,
}

fn check(flags: &CheckFlags) -> Result<Vec<Checked>, Unreadable> {
    let mut checked = Vec::new();
    let mut defined = BTreeMap::new();
    for path in files(flags)? {
        let bytes = bytes(&path).map_err(|source| Unreadable { path: path.clone(), source })?;
        checked.push(one(&path, &bytes, flags, &mut defined));
    }
    Ok(checked)
}

/// The files that are meant: in directories, those the agent would take.
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

fn one(path: &Path, bytes: &[u8], flags: &CheckFlags, defined: &mut BTreeMap<String, String>) -> Checked {
    let shown = if path.as_os_str() == "-" { "stdin".to_owned() } else { path.display().to_string() };
    let whole = |message: String| Finding { line: None, path: String::new(), message };
    if bytes.len() as u64 > MANIFEST_MAX {
        let errors = vec![whole(format!("a manifest may have {MANIFEST_MAX} bytes, and this one has more"))];
        return Checked { path: shown, pods: vec![], errors, warnings: vec![] };
    }
    let found = read(bytes, &shown, &rules(flags.judge));
    let (mut errors, mut warnings) = (found.errors, found.warnings);
    if flags.strict {
        errors.append(&mut warnings);
        errors.sort_by_key(|error| error.line);
    }
    let pods: Vec<String> = found.pods.iter().map(|pod| name(pod, flags.judge)).collect();
    // Generated names are never the same.
    for pod in found.pods.iter().filter(|pod| pod.pod.metadata.name.is_some()).map(|pod| name(pod, flags.judge)) {
        if let Some(first) = defined.insert(pod.clone(), shown.clone()) {
            errors.push(whole(format!("pod {pod} is already defined in {first}: give one of them another name")));
        }
    }
    Checked { path: shown, pods, errors, warnings }
}

fn rules(judge: Judge) -> Decode {
    match judge {
        Judge::Node => static_pods(Source::File, NODE, Strictness::Lenient),
        Judge::Api => submitted_pods(),
    }
}

/// As it is written, without the node's name.
fn name(manifest: &Manifest, judge: Judge) -> String {
    let meta = &manifest.pod.metadata;
    let name = meta.name.as_deref().or(meta.generate_name.as_deref()).unwrap_or_default();
    let written = name.strip_suffix(NODE).and_then(|name| name.strip_suffix('-')).filter(|_| judge == Judge::Node);
    let name = written.unwrap_or(name);
    format!("{}/{name}", meta.namespace.as_deref().unwrap_or("default"))
}

/// One line about a file.
pub(crate) fn in_words(file: &str, word: &str, finding: &Finding) -> String {
    let Finding { line, path, message } = finding;
    let line = line.map_or(String::new(), |line| format!("{line}:"));
    let field = if path.is_empty() { String::new() } else { format!("{path}: ") };
    format!("{file}:{line} {word}: {field}{message}\n")
}

fn as_text(checked: &[Checked]) -> String {
    let mut text = String::new();
    for Checked { path, errors, warnings, .. } in checked {
        for (word, findings) in [("error", errors), ("warning", warnings)] {
            findings.iter().for_each(|finding| text.push_str(&in_words(path, word, finding)));
        }
    }
    let count = |of: fn(&Checked) -> usize, word: &str| {
        let n = checked.iter().map(of).sum::<usize>();
        format!("{n} {word}{}", if n == 1 { "" } else { "s" })
    };
    let counts = [
        count(|_| 1, "file"),
        count(|file| file.pods.len(), "good pod"),
        count(|file| file.errors.len(), "error"),
        count(|file| file.warnings.len(), "warning"),
    ];
    text.push_str(&counts.join(", "));
    text.push('\n');
    text
}

fn as_json(checked: &[Checked]) -> String {
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
