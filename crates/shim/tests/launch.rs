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

use std::process::ExitCode;

use podwright_testbed::run_on_main_thread;

type Test = (&'static str, fn());

fn main() -> ExitCode {
    let measuring = std::env::args().any(|argument| argument == "--ignored");
    let tests: Vec<Test> = if measuring {
        measure::TESTS.to_vec()
    } else {
        [processes::TESTS, files::TESTS, confinement::TESTS, pods::TESTS].concat()
    };
    run_on_main_thread(&tests, |test| test())
}
