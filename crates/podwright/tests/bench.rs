//! `make bench`: what this agent adds, and what it costs, beside the Go kubelet and the bare calls on the same containerd.
//!
//! Prints tables and keeps them in `docs/BENCHMARKS.md`. Words after `--` choose parts: `latency`, `forty`, `idle`,
//! `cluster`.

#[path = "bench/bare.rs"]
mod bare;
#[path = "bench/cluster.rs"]
mod cluster;
#[path = "bench/forty.rs"]
mod forty;
#[path = "bench/idle.rs"]
mod idle;
#[path = "bench/latency.rs"]
mod latency;
#[path = "bench/pods.rs"]
mod pods;
#[path = "bench/process.rs"]
mod process;
#[path = "bench/report.rs"]
mod report;
#[path = "bench/trace.rs"]
mod trace;

use std::time::Instant;

use podwright_testbed::Agent;
use report::Table;

/// One part: its name, and what it measures.
type Part = (&'static str, fn() -> anyhow::Result<Table>);

const PARTS: [Part; 4] =
    [("latency", latency::measure), ("forty", forty::measure), ("idle", idle::measure), ("cluster", cluster::measure)];

fn main() -> anyhow::Result<()> {
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
    Ok(())
}
