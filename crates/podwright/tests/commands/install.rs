//! `make install` and `make uninstall`, into a directory of the test.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs `make` with these variables.
fn make(target: &str, variables: &[(&str, &Path)]) {
    let mut make = Command::new("make");
    make.arg("--silent").arg("-C").arg(repository()).arg(target).env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    make.args(variables.iter().map(|(name, value)| format!("{name}={}", value.display())));
    let output = make.output().expect("make is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Every file below a directory, relative to it.
fn files(dir: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(next) = dirs.pop() {
        for entry in fs::read_dir(next).into_iter().flatten().flatten() {
            match entry.path() {
                path if path.is_dir() => dirs.push(path),
                path => drop(found.insert(path.strip_prefix(dir).expect("below it").display().to_string())),
            }
        }
    }
    found
}

#[test]
fn what_is_installed_is_complete_and_can_be_uninstalled() {
    let dir = tempfile::tempdir().expect("a directory");
    // Instead of a copy of the debug build, which is large.
    let program = dir.path().join("podwright");
    fs::write(&program, format!("#!/bin/sh\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_podwright"))).expect("written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("set");
    let (destdir, prefix) = (dir.path().join("dest"), Path::new("/opt/pw"));
    make("install", &[("DESTDIR", &destdir), ("PREFIX", prefix), ("PODWRIGHT", &program)]);

    let installed = files(&destdir);
    let mut expected: BTreeSet<String> = [
        "bin/podwright",
        "lib/systemd/system/podwright.service",
        "share/podwright/external-runtime.conf",
        "share/bash-completion/completions/podwright",
        "share/zsh/site-functions/_podwright",
        "share/fish/vendor_completions.d/podwright.fish",
    ]
    .map(|file| format!("opt/pw/{file}"))
    .into();
    let pages = files(&repository().join("docs/man"));
    assert!(pages.contains("podwright-run.1"));
    expected.extend(pages.iter().map(|page| format!("opt/pw/share/man/man1/{page}")));
    assert_eq!(installed, expected);

    let read = |file: &str| fs::read_to_string(destdir.join("opt/pw").join(file)).expect("installed");
    assert!(
        read("lib/systemd/system/podwright.service")
            .contains("\nExecStart=/opt/pw/bin/podwright run $PODWRIGHT_FLAGS\n")
    );
    assert!(
        read("share/podwright/external-runtime.conf").contains("\nExecStart=/opt/pw/bin/podwright run --container")
    );
    assert!(read("share/bash-completion/completions/podwright").contains("complete -F"));
    assert!(read("share/zsh/site-functions/_podwright").starts_with("#compdef podwright"));
    assert!(read("share/fish/vendor_completions.d/podwright.fish").contains("complete -c podwright"));
    let mode = fs::metadata(destdir.join("opt/pw/bin/podwright")).expect("installed").permissions().mode();
    assert_eq!(mode & 0o777, 0o755);

    // Files of others stay.
    let other = destdir.join("opt/pw/share/man/man1/other.1");
    fs::write(&other, "").expect("written");
    make("uninstall", &[("DESTDIR", &destdir), ("PREFIX", prefix)]);
    assert_eq!(files(&destdir), BTreeSet::from(["opt/pw/share/man/man1/other.1".to_owned()]));
}

#[test]
fn the_unit_bounds_the_memory_of_the_agent() {
    let unit = fs::read_to_string(repository().join("packaging/podwright.service")).expect("there");
    let value = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default();
    assert!(value("MemoryMax").ends_with('G') || value("MemoryMax").ends_with('M'), "{unit}");
    // Guaranteed pods have -997, and are killed after the agent, which stops no container when it restarts.
    let score: i32 = value("OOMScoreAdjust").parse().expect("a number");
    assert!((-996..0).contains(&score), "{score}");
    assert_eq!(value("KillMode"), "process", "containers outlive the agent");
}
