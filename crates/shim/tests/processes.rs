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

use std::process::ExitCode;

use podwright_testbed::run_on_main_thread;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if podwright_shim::is_zygote(&arguments) {
        return podwright_shim::zygote::main_with(&plain::PlainLauncher);
    }
    // Containers of a shim that is killed become our children.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).expect("set_child_subreaper");
    run_on_main_thread(cases::CASES, |case| case())
}
