//! Zygote and shim with real processes, but plain children instead of containers. This program is its own zygote, so it has its own `main` and one thread.
//!
//! `cargo test -p podwright-shim --test processes [parts of names]`. Needs root.

#[path = "processes/cases.rs"]
mod cases;
#[path = "processes/hanging.rs"]
mod hanging;
#[path = "processes/plain.rs"]
mod plain;
#[path = "processes/pod.rs"]
mod pod;
#[path = "processes/trace.rs"]
mod trace;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if podwright_shim::is_zygote(&arguments) {
        return podwright_shim::zygote::main_with(&plain::PlainLauncher);
    }
    let filters: Vec<&String> = arguments.iter().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let is_chosen = |name: &str| filters.is_empty() || filters.iter().any(|part| name.contains(*part));
    if arguments.iter().any(|argument| argument == "--list") {
        cases::CASES.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    // Containers of a shim that is killed become our children.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).expect("set_child_subreaper");
    let mut failed = vec![];
    for (name, case) in cases::CASES.iter().filter(|(name, _)| is_chosen(name)) {
        let start = std::time::Instant::now();
        let ok = catch_unwind(AssertUnwindSafe(case)).is_ok();
        println!("test {name} ... {} ({:?})", if ok { "ok" } else { "FAILED" }, start.elapsed());
        if !ok {
            failed.push(name);
        }
    }
    println!("test result: {}", if failed.is_empty() { "ok".to_owned() } else { format!("FAILED: {failed:?}") });
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
