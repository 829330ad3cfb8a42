//! `make bench`: latency and cost of this agent, compared with the Go kubelet and with plain CRI calls on the same containerd.
//!
//! Prints tables and stores them in `docs/BENCHMARKS.md`. Arguments after `--` select parts: `latency`, `forty`, `idle`,
//! `cluster`, `engine`.

#[path = "bench/cluster.rs"]
mod cluster;
#[path = "bench/engine.rs"]
mod engine;
#[path = "bench/forty_pods.rs"]
mod forty_pods;
#[path = "bench/idle.rs"]
mod idle;
#[path = "bench/latency.rs"]
mod latency;
#[path = "bench/launch.rs"]
mod launch;
#[path = "bench/pods.rs"]
mod pods;
#[path = "bench/process.rs"]
mod process;
#[path = "bench/report.rs"]
mod report;
#[path = "bench/runtime_calls.rs"]
mod runtime_calls;
#[path = "bench/trace.rs"]
mod trace;

use std::process::ExitCode;
use std::time::Instant;

use podwright_testbed::Agent;
use report::Table;

/// A part: its name, and its measurement.
type Part = (&'static str, fn() -> anyhow::Result<Table>);

const PARTS: [Part; 5] = [
    ("latency", latency::measure),
    ("forty", forty_pods::measure),
    ("idle", idle::measure),
    ("cluster", cluster::measure),
    ("engine", engine::measure),
];

fn main() -> anyhow::Result<ExitCode> {
    if podwright_shim::is_zygote(std::env::args_os()) {
        return Ok(podwright_shim::zygote::main());
    }
    let chosen: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let program = Agent::program()?;
    let optimised = ["quick", "release"].iter().any(|profile| program.components().any(|c| c.as_os_str() == *profile))
        || std::env::var_os("PODWRIGHT_BIN").is_some();
    anyhow::ensure!(optimised, "{} is not optimised: run `make bench`", program.display());
    for (name, measure) in PARTS {
        if chosen.is_empty() || chosen.iter().any(|word| word == name) {
            let (before, began) = (report::load(), Instant::now());
            let table = measure()?;
            println!("\n{table}\n{name}: {:.0?}", began.elapsed());
            report::keep(&table, &report::facts(&program, &before)?)?;
        }
    }
    println!("\nkept in docs/BENCHMARKS.md");
    Ok(ExitCode::SUCCESS)
}
