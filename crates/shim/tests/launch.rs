//! Launches real processes: the launcher needs a process with one thread, so these tests have a runner of their own.
//!
//! Names of tests as arguments select them; `--ignored` runs the measurements instead.

#[path = "launch/bed.rs"]
mod bed;
#[path = "launch/confinement.rs"]
mod confinement;
#[path = "launch/files.rs"]
mod files;
#[path = "launch/measure.rs"]
mod measure;
#[path = "launch/pods.rs"]
mod pods;
#[path = "launch/processes.rs"]
mod processes;

use std::panic::catch_unwind;
use std::process::ExitCode;

type Test = (&'static str, fn());

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let measuring = arguments.iter().any(|argument| argument == "--ignored");
    let filters: Vec<&String> =
        arguments.iter().filter(|argument| argument.contains('_') && !argument.starts_with('-')).collect();
    let tests: Vec<Test> = if measuring {
        measure::TESTS.to_vec()
    } else {
        [processes::TESTS, files::TESTS, confinement::TESTS, pods::TESTS].concat()
    };
    if arguments.iter().any(|argument| argument == "--list") {
        tests.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let mut failed = vec![];
    let chosen = tests.iter().filter(|(name, _)| filters.is_empty() || filters.iter().any(|part| name.contains(*part)));
    for (name, test) in chosen {
        let passed = catch_unwind(test).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        if !passed {
            failed.push(name);
        }
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
