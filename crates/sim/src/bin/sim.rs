//! Runs seeds and prints those that break a rule, or runs one seed with a trace.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Parser;
use podwright_sim::schedule;

/// Deterministic simulation of the decision core: runs seeds and checks every rule.
#[derive(Debug, Parser)]
struct Args {
    /// How many seeds to run.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// First seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run only this seed.
    #[arg(long)]
    seed: Option<u64>,
    /// With --seed: print one line per event.
    #[arg(long)]
    trace: bool,
    /// Record the events of core for `podwright replay`: with --seed that run to FILE, else each failed run to FILE.SEED.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Stop after this many failures.
    #[arg(long, default_value_t = 20)]
    failures: usize,
    /// Number of threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

fn main() -> ExitCode {
    let args = Args::parse();
    // A panic is reported with its seed; the message of the hook would only repeat it.
    if args.seed.is_none() {
        std::panic::set_hook(Box::new(|_| {}));
    }
    if let Some(seed) = args.seed {
        let outcome = match &args.record {
            Some(path) => record(seed, args.trace, path),
            None => schedule::run(seed, args.trace),
        };
        return report(seed, &outcome);
    }
    let (next, events) = (AtomicU64::new(args.from), AtomicU64::new(0));
    let failed = Mutex::new(Vec::new());
    let end = args.from + args.seeds;
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..args.threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end
                        || failed.lock().is_ok_and(|f: std::sync::MutexGuard<'_, Vec<u64>>| f.len() >= args.failures)
                    {
                        break;
                    }
                    let outcome = schedule::run(seed, false);
                    events.fetch_add(outcome.events, Ordering::Relaxed);
                    if outcome.violation.is_some() {
                        report(seed, &outcome);
                        if let Some(path) = &args.record {
                            record(seed, false, &path.with_added_extension(seed.to_string()));
                        }
                        if let Ok(mut failed) = failed.lock() {
                            failed.push(seed);
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_default();
    let ran = next.load(Ordering::Relaxed).min(end) - args.from;
    let events = events.load(Ordering::Relaxed);
    println!("{ran} seeds, {events} events, {} failed, {:.1} s", failed.len(), began.elapsed().as_secs_f64());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a seed and writes its recording.
fn record(seed: u64, trace: bool, path: &Path) -> schedule::Outcome {
    let (outcome, lines) = schedule::run_recorded(seed, trace);
    match std::fs::write(path, lines.concat()) {
        Ok(()) => println!("seed {seed} recorded to {}", path.display()),
        Err(error) => println!("seed {seed} not recorded to {}: {error}", path.display()),
    }
    outcome
}

fn report(seed: u64, outcome: &schedule::Outcome) -> ExitCode {
    match &outcome.violation {
        Some(v) => {
            println!("seed {seed} after {} events: {}: {}", outcome.events, v.rule, v.detail);
            ExitCode::FAILURE
        }
        None => {
            println!("seed {seed}: {} events, no rule broken", outcome.events);
            ExitCode::SUCCESS
        }
    }
}
